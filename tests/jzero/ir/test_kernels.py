"""The backend of fused updates, chosen in the traced program."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxpr_as_fun

import jzero
from jzero.compat.jaxpr import AnyJaxpr, inner
from jzero.errors import ConfigError
from jzero.ir.bodies import bodies_of
from jzero.ir.kernels import choose_kernels, describe_kernels
from pallas_kernels.marked import MARK
from tests.end_to_end.oracle import SHARD_ALL, mesh_of

KERNEL = "pallas_tpu_interpret"
PARAMS = {"w": jnp.ones((8, 256)), "b": jnp.linspace(0, 1, 7)}
GRADS = jax.tree.map(lambda p: jnp.sin(9 * p + 1), PARAMS)
CODED = jzero.optim.adamw(1e-2, state="int8", min_coded_elems=0)
LION = jzero.optim.lion(1e-2)


def names_in(jaxpr: AnyJaxpr) -> list[str]:
    names = []
    for eqn in inner(jaxpr).eqns:
        names.append(eqn.primitive.name)
        for body in bodies_of(eqn):
            names += names_in(body.jaxpr)
        for value in eqn.params.values():  # of `custom_partitioning`
            if eqn.primitive.name == "custom_partitioning" and hasattr(value, "eqns"):
                names += names_in(value)
    return names


def apply(tx: Any) -> Any:
    return lambda grads, state, params: tx.apply(grads, state, params)[:2]


def in_a_loop(tx: Any) -> Any:
    def steps(grads: Any, state: Any, params: Any) -> Any:
        def turn(carry: Any, _: Any) -> Any:
            params, state = carry
            return jax.jit(apply(tx))(grads, state, params), None

        return jax.lax.scan(turn, (params, state), None, length=2)[0]

    return steps


def in_a_branch(tx: Any) -> Any:
    def step(grads: Any, state: Any, params: Any) -> Any:
        return jax.lax.cond(
            params["b"][1] > 0,
            lambda: tuple(apply(tx)(grads, state, params)),
            lambda: (params, state),
        )

    return step


PROGRAMS: dict[str, Any] = {
    "codes": (apply, CODED),
    "in a loop": (in_a_loop, LION),
    "in a branch": (in_a_branch, LION),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_kernel_takes_the_place_of_the_reference(name: str) -> None:
    make, tx = PROGRAMS[name]
    args = GRADS, tx.init(PARAMS), PARAMS
    traced = jax.make_jaxpr(make(tx))(*args)
    assert MARK in names_in(traced)
    results = {}
    for backend in (None, "xla", KERNEL):
        chosen, found = choose_kernels(traced, backend, mesh_of(1))
        names = names_in(chosen)
        assert MARK not in names
        assert ("pallas_call" in names) == (backend == KERNEL)
        assert [(s.backend, len(s.forms)) for s in found] == [("auto", 2)]
        if backend != "xla":
            flat = jax.tree.leaves(args)
            results[backend] = jax.jit(jaxpr_as_fun(chosen))(*flat)
    for one, other in zip(results[KERNEL], results[None], strict=True):
        is_code = one.dtype in (jnp.int8, jnp.uint8)
        np.testing.assert_allclose(
            np.float32(one), np.float32(other), rtol=1e-5, atol=is_code or 1e-6
        )


def test_a_kernel_that_was_asked_for_can_be_taken_back() -> None:
    tx = jzero.optim.adamw(1e-2, backend=KERNEL)
    traced = jax.make_jaxpr(apply(tx))(GRADS, tx.init(PARAMS), PARAMS)
    assert "pallas_call" in names_in(choose_kernels(traced, None, mesh_of(1))[0])
    chosen, found = choose_kernels(traced, "xla", mesh_of(1))
    assert "pallas_call" not in names_in(chosen)
    assert describe_kernels(found * 2, "xla") == (
        f"kernels: 'xla' for 2 fused updates of 4 leaves, which asked for {KERNEL!r}"
    )


def test_a_program_without_updates_stays_the_same_object() -> None:
    traced = jax.make_jaxpr(jnp.sin)(1.0)
    assert choose_kernels(traced, None, mesh_of(1))[0] is traced


def vmapped(tx: Any) -> Any:
    def step(grads: Any, state: Any, params: Any) -> Any:
        many = jax.tree.map(lambda g: jnp.stack([g, g]), grads)
        return jax.vmap(lambda g: tx.apply(g, state, params).params)(many)

    return step


F32 = jzero.optim.adamw(1e-2)
REFUSED: dict[str, tuple[Any, Any, str, str]] = {
    "none": (optax.adamw(1e-2), None, "xla", "no effect: the step has no fused"),
    "deltas": (F32, lambda tx: tx.update, KERNEL, "(?s)asked for deltas.*apply"),
    "vmapped": (F32, vmapped, KERNEL, "vmapped"),
    "blocks": (CODED, apply, KERNEL, r"(?s)\['v'\] .*\['w'\] \(64, 29\).*float32"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_have_no_effect_is_refused(name: str) -> None:
    tx, make, backend, text = REFUSED[name]
    odd = {"v": jnp.ones((640, 290)), "w": jnp.ones((64, 29))}
    params = odd if name == "blocks" else PARAMS
    step = (make or (lambda tx: tx.update))(tx)
    traced = jax.make_jaxpr(step)(params, tx.init(params), params)
    with pytest.raises(ConfigError, match=text) as error:
        choose_kernels(traced, backend, mesh_of(1))
    assert "Remedy" in str(error.value)


def test_the_setting_reaches_the_program_and_the_plan() -> None:
    def loss(params: Any, x: Any) -> Any:
        return ((x @ params["w"]) ** 2).mean() + params["b"].sum()

    def train_step(state: Any, x: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state.params, x)
        return state.apply_gradients(grads=grads), value

    state = jzero.TrainState.create(apply_fn=None, params=PARAMS, tx=LION)
    x = jnp.ones((8, 8))
    step = jzero.shard_train_step(train_step, mesh=mesh_of(8), config=SHARD_ALL)
    other = step.with_config(jzero.ZeroConfig(persistence_threshold=0, kernels=KERNEL))
    assert not any("kernels" in note for note in step.plan(state, x).notes)
    plan = other.plan(state, x)
    assert f"kernels: {KERNEL!r} for 1 fused update of 2 leaves" in str(plan)
    assert plan.to_dict()["config"]["kernels"] == KERNEL
    one, two = (s(s.shard(state), x) for s in (step, other))
    for a, b in zip(*map(jax.tree.leaves, (one, two)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    plain = jzero.TrainState.create(apply_fn=None, params=PARAMS, tx=optax.sgd(1.0))
    with pytest.raises(ConfigError, match="no effect"):
        other.plan(plain, x)
