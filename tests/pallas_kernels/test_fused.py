"""Many leaves at once: every backend gives the reference's numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pallas_kernels import LeafFormat, LeafState, Momentum, Updated, fused_update
from pallas_kernels.compat import has_mosaic_gpu
from pallas_kernels.rows import ROW_ELEMS
from tests.end_to_end.oracle import mesh_of
from tests.pallas_kernels.leaves import RULE, SCALARS, adamw_float64, random_leaf

BACKENDS = ["pallas_tpu_interpret"]
if has_mosaic_gpu():  # the interpreter of GPU kernels came with JAX 0.12
    BACKENDS.append("mosaic_gpu_interpret")


def hard_leaf(seed: int) -> tuple[LeafFormat, LeafState]:
    """A leaf of codes; each row, a block of its own, has another hard gradient."""
    form, state = random_leaf(seed, (8, 256), is_coded=True)
    rows = [0.0, 1e-30, 1e30, 3.4e38, -1e-20]
    grad = state.grad.at[:5].set(jnp.float32(rows)[:, None])
    return form, state._replace(grad=grad.at[5, 7].set(1e30))


CASES: dict[str, list[tuple[LeafFormat, LeafState]]] = {
    "small leaves of two kinds": [
        random_leaf(0, (7,)),
        random_leaf(1, (0,)),
        random_leaf(2, (1,), grad_dtype=jnp.bfloat16),
        random_leaf(3, (40, 50)),
        random_leaf(4, ()),
    ],
    "codes": [
        hard_leaf(5),
        random_leaf(6, (4, 512), is_coded=True, grad_dtype=jnp.float16),
    ],
    "one large leaf": [random_leaf(7, (64, 1024))],
    "by chance": [
        random_leaf(8, (4, 51), dtype=jnp.bfloat16, is_stochastic=True, leaf=0),
        random_leaf(9, (8, 256), dtype=jnp.bfloat16, is_stochastic=True, leaf=1),
    ],
    "one by chance, in codes": [
        random_leaf(10, (8, 256), is_coded=True, dtype=jnp.bfloat16, is_stochastic=True)
    ],
    "a copy": [random_leaf(11, (8, 128), copy_dtype=jnp.bfloat16)],
}


def run(
    pairs: list[tuple[LeafFormat, LeafState]], backend: str, skip: float = 0.0
) -> list[Updated]:
    forms = [form for form, _ in pairs]

    def update(states: list[LeafState], skip: jax.Array) -> list[Updated]:
        return fused_update(
            [RULE] * len(forms),
            forms,
            states,
            SCALARS._replace(skip=skip),
            seed=3,
            step=5,
            backend=backend,
        )

    return jax.jit(update)([state for _, state in pairs], jnp.float32(skip))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_what_the_reference_does(name: str, backend: str) -> None:
    want = run(CASES[name], "xla")
    got = run(CASES[name], backend)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert not bool(jnp.isnan(one).any())
        if one.dtype in (jnp.int8, jnp.uint8):
            assert int(jnp.sum(one != other)) <= one.size // 1000
        else:
            a, b = np.asarray(one, np.float32), np.asarray(other, np.float32)
            # 16 bits may round a difference in the last bit of float32 apart.
            is_wide = one.dtype == jnp.float32
            np.testing.assert_allclose(a, b, rtol=1e-6 if is_wide else 1e-2, atol=1e-6)


@pytest.mark.parametrize("backend", ["xla", *BACKENDS])
def test_a_skip_writes_nothing_but_the_copy(backend: str) -> None:
    pairs = CASES["codes"] + CASES["a copy"]
    for (form, before), after in zip(pairs, run(pairs, backend, 1.0), strict=True):
        olds = (before.param, *before.moments, *before.scales)
        news = (after.param, *after.moments, *after.scales)
        for old, new in zip(olds, news, strict=True):
            np.testing.assert_array_equal(old, new)
        if form.copy_dtype is not None:
            np.testing.assert_array_equal(
                np.asarray(after.copy, np.float32),
                np.asarray(before.param.astype(form.copy_dtype), np.float32),
            )


@pytest.mark.parametrize("backend", ["xla", *BACKENDS])
def test_against_float64(backend: str) -> None:
    pair = random_leaf(20, (8, 256), grad_dtype=jnp.bfloat16)
    (new,) = run([pair], backend)
    got = [new.param, *new.moments]
    for one, other in zip(got, adamw_float64(pair[1]), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spec", (("data",), (None, "data")))
def test_kernels_run_on_shards(spec: tuple[str | None, ...]) -> None:
    """Dim 1 holds two blocks for eight devices: those are made whole first."""
    pairs = [
        random_leaf(21, (16, 512), is_coded=True),
        random_leaf(22, (16, 16), dtype=jnp.bfloat16, is_stochastic=True),
    ]
    want = run(pairs, "xla")
    mesh = mesh_of(8)

    def place(array: jax.Array) -> jax.Array:
        is_short = any(
            axis and n % 8 for axis, n in zip(spec, array.shape, strict=False)
        )
        return jax.device_put(
            array, NamedSharding(mesh, PartitionSpec(*(() if is_short else spec)))
        )

    placed = [(form, jax.tree.map(place, state)) for form, state in pairs]
    for backend in ("xla", "pallas_tpu_interpret") if spec[0] else ("xla",):
        got = run(placed, backend)
        for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            a, b = np.asarray(one, np.float32), np.asarray(other, np.float32)
            atol = 1.0 if one.dtype in (jnp.int8, jnp.uint8) else 1e-6
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol)
        np.testing.assert_array_equal(
            np.asarray(got[1].param, np.float32), np.asarray(want[1].param, np.float32)
        )


def test_many_small_leaves_are_one_launch() -> None:
    pairs = [random_leaf(i, (i + 1,)) for i in range(40)]
    pairs.append(random_leaf(0, (256, 256)))
    forms = [form for form, _ in pairs]
    jaxpr = jax.make_jaxpr(
        lambda states: fused_update(
            [RULE] * len(forms), forms, states, SCALARS, backend="pallas_tpu"
        )
    )([state for _, state in pairs])
    (call,) = jaxpr.eqns
    names = [e.primitive.name for e in call.params["jaxpr"].eqns]
    assert names.count("custom_partitioning") == 2


def test_backends_that_are_not_there_and_blocks_that_do_not_fit() -> None:
    pair = random_leaf(0, (3,))
    with pytest.raises(ValueError, match="no backend 'cuda'"):
        run([pair], "cuda")
    odd = random_leaf(0, (64, 29), is_coded=True)
    assert odd[0].tile == (8, 29)
    assert run([odd], "auto")[0].param.shape == (64, 29)
    with pytest.raises(ValueError, match=r"(?s)\(64, 29\).*float32"):
        run([odd], "pallas_tpu_interpret")
    assert ROW_ELEMS == 256


def test_deltas_come_from_the_reference() -> None:
    form, state = random_leaf(0, (64,), returns_delta=True)
    (new,) = run([(form, state)], "pallas_tpu")
    assert new.param is None
    assert new.delta.shape == (64,)
    zero = LeafState(jnp.ones(3), jnp.zeros(3), (jnp.zeros(3),))
    (still,) = fused_update([Momentum()], [form], [zero], SCALARS)
    assert not still.delta.any()


def test_seed_and_step_change_the_rounding() -> None:
    form, state = random_leaf(0, (4096,), dtype=jnp.bfloat16, is_stochastic=True)

    @jax.jit
    def update(seed: Any, step: Any) -> Any:
        return fused_update([RULE], [form], [state], SCALARS, seed=seed, step=step)

    def params(seed: int, step: int) -> np.ndarray:
        return np.asarray(update(seed, step)[0].param, np.float32)

    first = params(seed=0, step=0)
    np.testing.assert_array_equal(first, params(seed=0, step=0))
    assert (first != params(seed=1, step=0)).any()
    assert (first != params(seed=0, step=1)).any()
