"""Element-wise arithmetic on offloaded leaves, in connected pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jzero.compat.jaxpr import inner
from jzero.ir.inline import inline_calls
from jzero.ir.streams import Streams, done_reading, find_streams

W = np.ones((4, 4), np.float32)


def streams_of(
    function: Callable[..., Any], *args: Any, offloaded: tuple[int, ...] = (0,)
) -> tuple[Streams, list[str]]:
    flags = [i in offloaded for i in range(len(jax.tree.leaves(args)))]
    jaxpr = inline_calls(jax.make_jaxpr(function)(*args), flags)
    body = inner(jaxpr)
    found = find_streams(jaxpr, [body.invars[i] for i in offloaded])
    return found, [e.primitive.name for e in body.eqns]


def adam(m: Any, v: Any, g: Any, p: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.99 * v + 0.01 * g * g
    return m, v, p - m / (jnp.sqrt(v) + 1e-8)


def test_an_update_is_one_stream() -> None:
    found, _ = streams_of(adam, W, W, W, W, offloaded=(0, 1))
    (stream,) = found.all
    assert len(stream.leaves) == 2
    assert len(stream.outs) == 3
    assert len(stream.operands) == 2  # gradient and parameter


def test_updates_that_read_the_same_leaf_are_one_stream() -> None:
    def lion(m: Any, g: Any, p: Any) -> Any:
        return 0.99 * m + 0.01 * g, p - 0.1 * jnp.sign(0.9 * m + 0.1 * g)

    found, _ = streams_of(lion, W, W, W)
    (stream,) = found.all
    assert len(stream.leaves) == 1
    assert len(stream.outs) == 2


def test_a_second_use_within_the_body_is_a_stream_of_its_own() -> None:
    def step(p: Any, x: Any) -> Any:
        half = p.astype(jnp.bfloat16)
        return p * 0.9, (x @ half).sum()

    found, _ = streams_of(step, W, W.astype(jnp.bfloat16))
    assert [len(s.eqns) for s in found.all] == [1, 1]


def test_two_leaves_are_two_streams() -> None:
    def both(m: Any, n: Any, g: Any) -> Any:
        return m * 0.9 + g, n * 0.9 + g

    found, _ = streams_of(both, W, W, W, offloaded=(0, 1))
    assert [len(s.leaves) for s in found.all] == [1, 1]


def test_a_cast_for_the_model_and_the_update_are_two() -> None:
    def step(p: Any, x: Any) -> Any:
        grads = jax.grad(lambda q: (x @ q.astype(jnp.bfloat16)).sum())(p)
        return p - 0.1 * grads

    x = W.astype(jnp.bfloat16)
    found, names = streams_of(step, W, x)
    cast, update = found.all
    assert [names[i] for i in cast.eqns] == ["convert_element_type"]
    assert cast.ready < update.ready or cast.level < update.level
    # Scaling the gradient is of use to the update alone, so it goes along.
    assert {"mul", "sub"} <= {names[i] for i in update.eqns}


def test_what_goes_through_a_norm_comes_back_on_a_higher_level() -> None:
    def lamb(m: Any, g: Any, p: Any) -> Any:
        m = 0.9 * m + g
        ratio = jnp.linalg.norm(p) / jnp.linalg.norm(m)
        return m, p - ratio * m

    found, _ = streams_of(lamb, W, W, W)
    first, second = found.all
    assert (first.level, second.level) == (0, 1)
    assert set(second.operands) & set(first.outs)


def test_decay_that_only_a_later_level_reads_waits_for_it() -> None:
    def step(m: Any, p: Any) -> Any:
        loss_grad = jax.grad(lambda q: jnp.sin(p @ q).sum())(m)
        return 0.9 * m + loss_grad

    found, names = streams_of(step, W, W)
    assert sum("mul" in [names[i] for i in s.eqns] for s in found.all) == 1
    (update,) = [s for s in found.all if "add_any" in str(names) or s.leaves]
    assert len(update.eqns) == 2


def test_a_barrier_hands_a_leaf_on() -> None:
    def step(p: Any, x: Any) -> Any:
        p, x = jax.lax.optimization_barrier((p, x))
        return p * 2, x

    found, _ = streams_of(step, W, W)
    (stream,) = found.all
    assert set(stream.leaves) <= set(found.aliases)


def test_reductions_and_products_are_no_streams() -> None:
    found, _ = streams_of(lambda m, x: (m.mean(), x @ m), W, W)
    assert found.all == ()


def test_a_norm_of_a_leaf_is_waited_for_before_it_is_replaced() -> None:
    def step(m: Any, g: Any) -> Any:
        return m * 0.5 + g, jnp.sum(m), jnp.sum(m * 0.5 + g)

    jaxpr = jax.make_jaxpr(step)(W, W)
    body = inner(jaxpr)
    found = find_streams(jaxpr, body.invars[:1])
    done = done_reading(jaxpr, found, body.invars[:1], found.all[0].level)
    assert done == [body.outvars[1]]
