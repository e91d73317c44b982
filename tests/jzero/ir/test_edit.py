"""Surgery on bodies: what is left alone stays the very same object."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jzero.compat.jaxpr import AnyJaxpr, inner, jaxpr_callable
from jzero.ir.edit import Editor, is_inserted
from tests.jzero.ir.jaxprs import DATA, all_of, eqn_of, trace
from tests.jzero.passes.steps import check_types, line_mesh


def program(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    with jax.named_scope("mine"):
        z = x @ y
    jax.debug.callback(lambda v: None, z)
    return jnp.tanh(z), y


@pytest.fixture
def jaxpr() -> AnyJaxpr:
    return trace(program, (8, 4), (4, 8))


def _edited(jaxpr: AnyJaxpr) -> tuple[Editor, AnyJaxpr]:
    """Constrains and ties the product, as a pass would."""
    editor = Editor(line_mesh())
    for eqn in inner(jaxpr).eqns:
        editor.copy(eqn)
        if eqn.primitive.name == "dot_general":
            z = eqn.outvars[0]
            placed = editor.constrain(z, (DATA, None), like=eqn, scope="jzero.test")
            (tied, _) = editor.tie(
                placed, inner(jaxpr).invars[1], like=eqn, scope="jzero.test"
            )
            editor.rename(z, tied)
    return editor, editor.finish(jaxpr)


def test_copying_everything_returns_the_body_itself(jaxpr: AnyJaxpr) -> None:
    editor = Editor(line_mesh())
    for eqn in inner(jaxpr).eqns:
        editor.copy(eqn)
    assert editor.finish(jaxpr) is jaxpr
    assert editor.num_inserted == 0


def test_untouched_equations_stay_the_same_objects(jaxpr: AnyJaxpr) -> None:
    before = str(jaxpr)
    editor, new = _edited(jaxpr)
    old_ids = {id(e) for e in inner(jaxpr).eqns}
    kept = [e for e in inner(new).eqns if id(e) in old_ids]
    assert [e.primitive.name for e in kept] == ["dot_general"]
    assert editor.num_inserted == 2
    assert str(jaxpr) == before


def test_readers_read_the_new_value_and_keep_everything_else(jaxpr: AnyJaxpr) -> None:
    _, new = _edited(jaxpr)
    tied = eqn_of(new, "optimization_barrier").outvars[0]
    for name in ("tanh", "debug_callback"):
        old_eqn, new_eqn = eqn_of(jaxpr, name), eqn_of(new, name)
        assert new_eqn.invars == [tied]
        assert new_eqn.params == old_eqn.params
        assert new_eqn.effects == old_eqn.effects
        assert new_eqn.source_info is old_eqn.source_info
        assert new_eqn.outvars == old_eqn.outvars
    assert inner(new).effects == inner(jaxpr).effects
    assert inner(new).effects
    check_types(new)


def test_an_insertion_takes_line_and_scope_of_what_it_serves(jaxpr: AnyJaxpr) -> None:
    _, new = _edited(jaxpr)
    dot = eqn_of(new, "dot_general")
    for name in ("sharding_constraint", "optimization_barrier"):
        eqn = eqn_of(new, name)
        assert eqn.source_info.traceback is dot.source_info.traceback
        assert str(eqn.source_info.name_stack) == "mine/jzero.test"
        assert is_inserted(eqn, "jzero.test")
        assert not is_inserted(eqn, "jzero")
    assert not is_inserted(dot, "jzero.test")


def test_a_constraint_says_where_the_value_lies(jaxpr: AnyJaxpr) -> None:
    _, new = _edited(jaxpr)
    sharding = eqn_of(new, "sharding_constraint").params["sharding"]
    assert sharding.spec == P(DATA, None)
    assert sharding.mesh == line_mesh()


def test_the_numbers_stay(jaxpr: AnyJaxpr) -> None:
    _, new = _edited(jaxpr)
    x = jnp.arange(32.0).reshape(8, 4)
    args = (x, x.T)
    for old, got in zip(
        jaxpr_callable(jaxpr)(*args), jax.jit(jaxpr_callable(new))(*args), strict=True
    ):
        np.testing.assert_allclose(got, old, rtol=1e-6)


def test_without_a_served_equation_the_scope_is_still_told() -> None:
    jaxpr = trace(lambda x: x, (8,))
    editor = Editor(line_mesh())
    (var,) = inner(jaxpr).invars
    editor.rename(var, editor.constrain(var, (DATA,), like=None, scope="jzero.test"))
    new = editor.finish(jaxpr)
    assert is_inserted(inner(new).eqns[0], "jzero.test")
    assert inner(new).outvars == [inner(new).eqns[0].outvars[0]]


def test_literals_are_read_as_themselves() -> None:
    jaxpr = trace(lambda x: (x + 1.0, 2.0), (8,))
    editor = Editor(line_mesh())
    literal = inner(jaxpr).outvars[1]
    assert editor.read(literal) is literal


def test_inputs_can_be_replaced() -> None:
    jaxpr = trace(lambda x: x.astype(jnp.bfloat16) * 2, (8,))
    body = inner(jaxpr)
    editor = Editor(line_mesh())
    cast, double = body.eqns
    new_input = type(body.invars[0])(cast.outvars[0].aval)
    editor.rename(cast.outvars[0], new_input)
    editor.copy(double)
    new = editor.finish(jaxpr, invars=[new_input])
    check_types(new)
    (result,) = jaxpr_callable(new)(jnp.ones(8, jnp.bfloat16))
    assert result.dtype == jnp.bfloat16
    assert float(result[0]) == 2.0


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.bool_])
def test_insertions_keep_dtypes(dtype: Any) -> None:
    jaxpr = trace(lambda x: x, jax.ShapeDtypeStruct((8,), dtype))
    editor = Editor(line_mesh())
    (var,) = inner(jaxpr).invars
    (tied,) = editor.tie(var, like=None, scope="s")
    placed = editor.constrain(tied, (DATA,), like=None, scope="s")
    assert placed.aval.dtype == dtype
    editor.rename(var, placed)
    new = editor.finish(jaxpr)
    check_types(new)
    assert [e.primitive.name for e in inner(new).eqns] == [
        "optimization_barrier",
        "sharding_constraint",
    ]
    assert not all_of(new, "convert_element_type")


def test_weak_types_survive() -> None:
    jaxpr = jax.make_jaxpr(lambda x: x)(1.0)
    editor = Editor(line_mesh())
    (var,) = inner(jaxpr).invars
    assert var.aval.weak_type
    (tied,) = editor.tie(var, like=None, scope="s")
    assert tied.aval == var.aval


def test_an_insertion_into_a_backward_pass_is_recognised() -> None:
    jaxpr = trace(jax.grad(lambda x: jnp.tanh(x @ x).sum()), (8, 8))
    editor = Editor(line_mesh())
    for eqn in inner(jaxpr).eqns:
        editor.copy(eqn)
        editor.tie(*eqn.outvars, like=eqn, scope="jzero.test")
    found = [is_inserted(e, "jzero.test") for e in editor.eqns]
    assert found == [False, True] * len(inner(jaxpr).eqns)


def test_an_equation_can_be_repeated_on_other_operands() -> None:
    jaxpr = trace(lambda x, y: (x.T, y), (8, 4), (8, 4))
    editor = Editor(line_mesh())
    (turn,) = inner(jaxpr).eqns
    editor.copy(turn)
    _, y = inner(jaxpr).invars
    (turned,) = editor.repeat(turn, [y], scope="jzero.test")
    editor.rename(y, turned)
    new = editor.finish(jaxpr)
    check_types(new)
    assert is_inserted(inner(new).eqns[1], "jzero.test")
    one, other = jaxpr_callable(new)(jnp.zeros((8, 4)), jnp.ones((8, 4)))
    assert (float(one.sum()), float(other.sum())) == (0.0, 32.0)
    assert other.shape == (4, 8)
