"""In which form bodies use their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jzero.compat.jaxpr import inner
from jzero.ir.bodies import bodies_of
from jzero.ir.edit import Editor
from jzero.ir.uses import WHOLE, Uses
from tests.jzero.ir.jaxprs import eqn_of, trace
from tests.jzero.passes.steps import line_mesh

SCOPE = "jzero.test"


def half(w: jax.Array) -> jax.Array:
    return w.astype(jnp.bfloat16)


def form(function: Callable[..., Any], *, is_at_use: bool = False) -> Any:
    """The form in which a remat of `function(w)` uses its operand."""
    jaxpr = trace(jax.checkpoint(function), (8, 8))
    uses = Uses(scope=SCOPE, is_at_use=is_at_use)
    return uses.sole_form(bodies_of(inner(jaxpr).eqns[0]), 0)


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda w: w @ w, WHOLE),
        (lambda w: half(w) @ half(w), "bfloat16"),
        (lambda w: half(w) @ half(w).T, "bfloat16"),
        (lambda w: (half(w) @ half(w), w @ w), WHOLE),
        (lambda w: half(w) @ w.astype(jnp.float16).astype(jnp.bfloat16), None),
        (lambda w: (w @ w, jnp.tanh(w)), None),
        (lambda w: (w @ w, w.sum()), None),
        (lambda w: (w @ w, w), None),
        (lambda w: (half(w) @ half(w), half(w)), None),
        (lambda w: (w @ w, jax.lax.optimization_barrier(w) @ w), None),
        (lambda w: jnp.zeros(3), None),
        (lambda w: jnp.sort(w), WHOLE),
        (lambda w: w.T @ w[:, None, :].squeeze(1), WHOLE),
        (lambda w: half(w).T @ half(w), "bfloat16"),
        (lambda w: (w @ w, w.T + 1), None),
        (lambda w: w.T.astype(jnp.bfloat16) @ half(w), None),
        (lambda w: w.reshape(-1) + 1, WHOLE),
        (lambda w: w[:, :4] @ w[:4], WHOLE),
    ],
)
def test_the_sole_form(function: Callable[..., Any], wanted: str | None) -> None:
    assert form(function) == wanted


def test_widening_is_better_done_after_the_gather() -> None:
    def wide(w: jax.Array) -> jax.Array:
        return w.astype(jnp.float32) @ w.astype(jnp.float32)

    struct = jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)
    jaxpr = trace(jax.checkpoint(wide), struct)
    uses = Uses(scope=SCOPE, is_at_use=False)
    assert uses.sole_form(bodies_of(inner(jaxpr).eqns[0]), 0) == WHOLE


def test_forms_are_found_in_nested_bodies() -> None:
    inside = jax.jit(lambda w: half(w) @ half(w))
    assert form(lambda w: inside(w) + inside(w)) == "bfloat16"
    assert form(lambda w: inside(w) + w @ w) == WHOLE
    assert form(lambda w: inside(w) + jax.jit(jnp.tanh)(w)) is None


def test_branches_count_together() -> None:
    def run(one: Any, other: Any) -> Any:
        jaxpr = trace(lambda w: jax.lax.cond(w[0, 0] > 0, one, other, w), (8, 8))
        uses = Uses(scope=SCOPE, is_at_use=False)
        return uses.sole_form(bodies_of(eqn_of(jaxpr, "cond")), 1)

    cast = lambda w: (half(w) @ half(w)).astype(jnp.float32)  # noqa: E731
    assert run(cast, cast) == "bfloat16"
    assert run(cast, jnp.zeros_like) == "bfloat16"
    assert run(cast, lambda w: w @ w) == WHOLE
    assert run(cast, lambda w: w) is None


def test_a_constraint_of_the_user() -> None:
    sharding = NamedSharding(line_mesh(), P())

    def run(w: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(w, sharding) @ w

    assert form(run) == WHOLE
    assert form(run, is_at_use=True) is None


def test_a_gather_that_is_there_already_is_made_of_a_shard() -> None:
    jaxpr = trace(jax.checkpoint(lambda w: w @ w), (8, 8))
    (eqn,) = inner(jaxpr).eqns
    (body,) = bodies_of(eqn)
    (w,) = inner(body.jaxpr).invars
    editor = Editor(line_mesh())
    whole = editor.constrain(w, (None, None), like=None, scope=SCOPE)
    editor.rename(w, whole)
    editor.copy(inner(body.jaxpr).eqns[0])
    new = eqn.replace(params=eqn.params | {body.param: editor.finish(body.jaxpr)})
    uses = Uses(scope=SCOPE, is_at_use=False)
    assert uses.sole_form(bodies_of(eqn), 0) == WHOLE
    assert uses.sole_form(bodies_of(new), 0) is None
