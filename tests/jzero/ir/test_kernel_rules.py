"""Each primitive gives what JAX gives, for numbers at the edges too."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jzero.compat.jaxpr import inner
from jzero.ir.kernel_rules import why_not_covered
from tests.jzero.ir.loops import run

EDGES = [0.0, -0.0, 1.0, -1.5, 3.25, 1e-30, -2e30, 3e38, np.inf, -np.inf, np.nan]
PAIRS = np.array(list(product(EDGES, EDGES)), np.float32).T
A, B = (jnp.asarray(x) for x in PAIRS)

REAL: dict[str, Callable[[Any, Any], Any]] = {
    "abs": lambda a, b: abs(a),
    "add": lambda a, b: a + b,
    "clamp": lambda a, b: lax.clamp(a.dtype.type(-1), a, a.dtype.type(3)),
    "div": lambda a, b: a / b,
    "eq": lambda a, b: a == b,
    "ge": lambda a, b: a >= b,
    "gt": lambda a, b: a > b,
    "integer_pow": lambda a, b: lax.integer_pow(a, 3),
    "inverse_pow": lambda a, b: lax.integer_pow(a, -2),
    "is_finite": lambda a, b: jnp.isfinite(a),
    "le": lambda a, b: a <= b,
    "lt": lambda a, b: a < b,
    "max": lambda a, b: lax.max(a, b),
    "min": lambda a, b: lax.min(a, b),
    "mul": lambda a, b: a * b,
    "ne": lambda a, b: a != b,
    "neg": lambda a, b: -a,
    "rsqrt": lambda a, b: lax.rsqrt(a),
    "select_n": lambda a, b: lax.select(a > b, a, b),
    "sign": lambda a, b: lax.sign(a),
    "sqrt": lambda a, b: lax.sqrt(a),
    "square": lambda a, b: lax.square(a),
    "sub": lambda a, b: a - b,
    "to_bool": lambda a, b: a.astype(bool),
    "truth": lambda a, b: ((a > b) & ~(a == b)) | ((a < 0) ^ (b < 0)),
}


def all_of(rules: dict[str, Any]) -> Callable[[Any, Any], list[Any]]:
    return lambda a, b: [rule(a, b) for rule in rules.values()]


def check(rules: dict[str, Any], a: jax.Array, b: jax.Array) -> None:
    outs = run(all_of(rules), a, b)
    for name, got, wanted in zip(
        rules, outs, jax.jit(all_of(rules))(a, b), strict=True
    ):
        assert got.dtype == wanted.dtype, name
        one, other = (
            np.asarray(x, np.float64 if jnp.issubdtype(x.dtype, jnp.floating) else None)
            for x in (got, wanted)
        )
        # XLA may refine an estimate of the inverse root, to the last bit but one.
        rtol = 2 * jnp.finfo(got.dtype).eps if name == "rsqrt" else 0
        np.testing.assert_allclose(one, other, rtol=rtol, atol=0, err_msg=name)
        if other.dtype == np.float64:
            signs = [np.signbit(x)[~np.isnan(other)] for x in (one, other)]
            np.testing.assert_array_equal(*signs, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_real_numbers(dtype: str) -> None:
    with jax.enable_x64(dtype == "float64"):
        check(REAL, *(jnp.asarray(x, dtype) for x in PAIRS))


WHOLE: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "and": lambda a, b: a & b,
    "ge": lambda a, b: a >= b,
    "gt": lambda a, b: a > b,
    "max": lambda a, b: lax.max(a, b),
    "min": lambda a, b: lax.min(a, b),
    "mul": lambda a, b: a * b,
    "neg": lambda a, b: -a,
    "not": lambda a, b: ~a,
    "or": lambda a, b: a | b,
    "select_n": lambda a, b: lax.select(a < b, a, b),
    "sub": lambda a, b: a - b,
    "to_int8": lambda a, b: a.astype(jnp.int8),
    "to_uint32": lambda a, b: a.astype(jnp.uint32),
    "xor": lambda a, b: a ^ b,
}


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_whole_numbers(dtype: str) -> None:
    numbers = np.array([0, 1, 2, 100, 127, 200, 255, 2**31 - 1, -1, -128, -(2**31)])
    pairs = np.array(list(product(numbers, numbers))).astype(dtype).T
    check(WHOLE, jnp.asarray(pairs[0]), jnp.asarray(pairs[1]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_each_operation_on_16_bits_is_rounded(dtype: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.normal(size=1000), dtype) for _ in range(2))
    names = ("add", "div", "mul", "sub", "square", "max", "neg", "abs")
    check({name: REAL[name] for name in names}, a, b)


def test_dividing_by_one_number_is_multiplying_by_its_inverse() -> None:
    rng = np.random.default_rng(0)
    x, s = jnp.asarray(rng.normal(size=1000), jnp.float32), jnp.float32(0.271)
    (got,) = run(lambda x, s: [x / s], x, s)
    np.testing.assert_array_equal(got, jax.jit(jnp.multiply)(x, 1 / s))
    np.testing.assert_allclose(got, x / s, rtol=2e-7)


MISSING: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "exp": (jnp.exp, (A,)),
    "sign of int32": (jnp.sign, (jnp.arange(3),)),
    "add of complex64": (lambda x: x + x, (jnp.ones(3, jnp.complex64),)),
    "convert_element_type of float32 to int32": (lambda x: x.astype(int), (A,)),
    "select_n by int32": (
        lambda x: lax.select_n(x, *[x.astype(jnp.float32)] * 3),
        (jnp.arange(3),),
    ),
}


@pytest.mark.parametrize("why", MISSING)
def test_what_is_not_covered_is_named(why: str) -> None:
    function, args = MISSING[why]
    eqns = inner(jax.make_jaxpr(function)(*args)).eqns
    assert why in [why_not_covered(e) for e in eqns]


def test_nothing_is_said_against_the_others() -> None:
    eqns = inner(jax.make_jaxpr(all_of(REAL))(A, B)).eqns
    assert {why_not_covered(e) for e in eqns} == {None}
