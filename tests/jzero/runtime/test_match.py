"""Which arguments are state, and every way in which that can fail."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jzero.errors import StateError
from jzero.runtime.match import is_key_or_scalar, match_state


def struct(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


PARAMS = {"w": struct(4, 2), "b": struct(2)}


def match(args: dict[str, Any], out: Any, **kw: Any) -> Any:
    return match_state(tuple(args), tuple(args.values()), out, **kw)


def test_state_first_and_last() -> None:
    args = {"state": PARAMS, "x": struct(8, 4)}
    for out, path in (
        ((PARAMS, struct()), "output[0]"),
        ({"n": PARAMS}, "output['n']"),
    ):
        found = match(args, out)
        assert found.args == (0,)
        assert found.nodes[0].path == path


def test_an_optimizer_state_holds_its_own_copies_of_parameters() -> None:
    opt = {"mu": PARAMS, "nu": PARAMS}
    args = {"params": PARAMS, "opt": opt, "ema": PARAMS}
    found = match(args, (PARAMS, opt, PARAMS))
    assert [n.path for n in found.nodes] == ["output[0]", "output[1]", "output[2]"]
    found = match(args, (opt, PARAMS, PARAMS))
    assert [n.path for n in found.nodes] == ["output[1]", "output[0]", "output[2]"]


def test_nothing_comes_back() -> None:
    with pytest.raises(StateError, match=r"no state(.|\n)*params(.|\n)*Remedy"):
        match({"params": PARAMS, "x": struct(8, 4)}, struct())


def test_a_leaf_that_changes_dtype_or_shape_is_named_with_both() -> None:
    new = {"w": struct(4, 2, dtype=jnp.bfloat16), "b": struct(3)}
    with pytest.raises(StateError) as error:
        match({"state": PARAMS, "x": struct(8, 4)}, (new, struct()))
    assert "state['w']" in str(error.value)
    assert "float32[4, 2] becomes bfloat16[4, 2]" in str(error.value)
    one = {"w": struct(4, 2, dtype=jnp.bfloat16), "b": struct(2)}
    with pytest.raises(StateError, match=r"state\['w'\]"):
        match({"state": PARAMS, "opt": {"m": PARAMS}}, (one, {"m": PARAMS}))


def test_a_structure_that_changes_names_what_came_and_went() -> None:
    new = {"w": struct(4, 2), "c": struct(2)}
    with pytest.raises(StateError) as error:
        match({"state": PARAMS}, (new, struct()))
    assert "state['b']" in str(error.value) and "missing" in str(error.value)
    assert "state['c']" in str(error.value) and "new" in str(error.value)


def test_two_candidates_for_one_output_are_ambiguous() -> None:
    with pytest.raises(StateError, match=r"params(.|\n)*target(.|\n)*state_argnums"):
        match({"params": PARAMS, "target": PARAMS}, (PARAMS, struct()))
    found = match({"params": PARAMS, "target": PARAMS}, (PARAMS, struct()), chosen=(0,))
    assert found.args == (0,)


def test_a_chosen_argument_that_does_not_come_back() -> None:
    with pytest.raises(StateError, match="state_argnums names argument 'x'"):
        match({"params": PARAMS, "x": struct(8, 4)}, (PARAMS,), chosen=(1,))


def test_predictions_that_look_like_labels_are_not_guessed_at() -> None:
    args = {"params": PARAMS, "y": struct(8, 2)}
    with pytest.raises(StateError, match="state from data"):
        match(args, (PARAMS, struct(8, 2)))


def test_labels_shaped_like_a_bias_are_data() -> None:
    found = match({"params": PARAMS, "y": struct(2)}, (PARAMS, {"loss": struct()}))
    assert found.args == (0,)


def test_keys_and_scalars() -> None:
    key = jax.eval_shape(lambda: jax.random.key(0))
    assert is_key_or_scalar(key)
    assert is_key_or_scalar(struct())
    assert is_key_or_scalar(struct(2, dtype=jnp.uint32))
    assert not is_key_or_scalar(struct(2))
    rate = match({"params": PARAMS, "rate": struct()}, (PARAMS, struct()))
    assert rate.args == (0,)
    found = match({"params": PARAMS, "key": key}, (PARAMS, key))
    assert found.args == (0, 1)


def test_states_deep_inside_of_a_result() -> None:
    args = {"params": PARAMS, "opt": {"m": PARAMS}, "x": struct(8, 4)}
    out = {"metrics": struct(), "new": {"state": [{"m": PARAMS}, (PARAMS,)]}}
    found = match(args, out)
    assert [n.path for n in found.nodes] == [
        "output['new']['state'][1][0]",
        "output['new']['state'][0]",
    ]
    assert [n.start for n in found.nodes] == [3, 1]


def test_the_new_state_is_the_one_that_follows_from_the_old() -> None:
    """Gradients come first; only the second output derives from the parameters."""
    args = {"params": PARAMS, "x": struct(8, 4)}
    out = (PARAMS, PARAMS)
    assert match(args, out).nodes[0].path == "output[0]"
    derived = [None, None, 0, 1]
    found = match(args, out, derived=derived)
    assert found.nodes[0].path == "output[1]"
    assert "output[1]" in found.notes[0]


def test_empty_arguments_are_nothing() -> None:
    found = match({"params": PARAMS, "none": None, "empty": {}}, (PARAMS, None, {}))
    assert found.args == (0,)


def test_a_bare_array_is_state_if_nothing_else_is() -> None:
    assert match({"w": struct(4, 2), "x": struct(8, 4)}, (struct(4, 2),)).args == (0,)


def test_structure_is_more_than_shapes() -> None:
    with pytest.raises(StateError, match="no state"):
        match({"params": PARAMS}, [struct(2), struct(4, 2)])


def test_every_leaf_that_changes_is_listed() -> None:
    old = {f"w{i}": struct(4, i + 1) for i in range(6)}
    new = {k: struct(*v.shape, dtype=jnp.bfloat16) for k, v in old.items()}
    new["w0"] = old["w0"]
    for chosen in (None, (0,)):
        with pytest.raises(StateError) as error:
            match({"state": old}, (new,), chosen=chosen)
        for i in range(1, 6):
            assert f"state['w{i}']" in str(error.value)
        assert "w0" not in str(error.value)
