"""What a program keeps: donation, order of results, audited placements."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jzero
from jzero.runtime.program import by_argument

SHARD_ALL = jzero.ZeroConfig(persistence_threshold=0)
TX = optax.adam(1e-2)


def state():
    params = {"w": jnp.ones((24, 16)), "v": jnp.ones((24, 16))}
    return params, TX.init(params)


def loss(params, x):
    return ((x @ (params["w"] * params["v"])) ** 2).mean()


def in_order(params, opt_state, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    updates, opt_state = TX.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def gradients_first(params, opt_state, x):
    value, grads = jax.value_and_grad(loss)(params, x)
    updates, opt_state = TX.update(grads, opt_state, params)
    return value, grads, opt_state, optax.apply_updates(params, updates)


X = jax.ShapeDtypeStruct((16, 24), jnp.float32)


def test_results_in_order_need_no_rearranging() -> None:
    for function, is_direct in ((in_order, True), (gradients_first, False)):
        step = jzero.shard_train_step(function, config=SHARD_ALL)
        program = step._program_for((*jax.eval_shape(state), X), {})[0]
        assert program.is_direct is is_direct


def test_new_parameters_are_told_from_gradients() -> None:
    step = jzero.shard_train_step(gradients_first, config=SHARD_ALL)
    x = np.ones((16, 24), np.float32)
    _, grads, opt_state, params = step(*state(), x)
    assert params["w"].sharding.spec == step.plan(*state(), X).state[0].spec
    _, wanted, _, updated = jax.jit(gradients_first)(*state(), x)
    np.testing.assert_allclose(params["w"], updated["w"], rtol=1e-5)
    np.testing.assert_allclose(grads["w"], wanted["w"], rtol=1e-5)
    step(params, opt_state, x)


def test_every_byte_of_state_is_reused() -> None:
    for stage in range(4):
        step = jzero.shard_train_step(in_order, stage=stage, config=SHARD_ALL)
        compiled = step.lower(*jax.eval_shape(state), X).compile()
        memory = compiled.memory_analysis()
        plan = step.plan(*jax.eval_shape(state), X)
        assert memory.alias_size_in_bytes >= plan.local_bytes


def test_state_rest_and_aux_lie_as_promised() -> None:
    step = jzero.shard_train_step(in_order, config=SHARD_ALL)
    params, opt_state, value = step(*state(), np.ones((16, 24), np.float32))
    assert value.is_fully_replicated
    plan = step.plan(*jax.eval_shape(state), X)
    for leaf, placed in zip(
        jax.tree.leaves((params, opt_state)), plan.state, strict=True
    ):
        assert leaf.sharding.spec == placed.spec


def test_compiler_options_reach_the_compiler() -> None:
    config = jzero.ZeroConfig(compiler_options={"xla_no_such_option": True})
    step = jzero.shard_train_step(in_order, config=config)
    lowered = step.lower(*jax.eval_shape(state), X)
    try:
        lowered.compile()
    except Exception as error:
        assert "xla_no_such_option" in str(error)
    else:
        raise AssertionError("the option was ignored")


def test_leaves_of_each_argument() -> None:
    treedefs = [jax.tree.structure(x) for x in ({"a": 0, "b": 0}, None, [0], (0, 0))]
    leaves = ["a", "b", "c", "d", "e"]
    assert by_argument(leaves, treedefs) == [["a", "b"], [], ["c"], ["d", "e"]]


def test_lowered_steps_take_and_return_trees() -> None:
    """Though the program underneath takes lists of leaves, and compiles once."""
    structs = (*jax.eval_shape(state), X)
    step = jzero.shard_train_step(in_order, config=SHARD_ALL)
    lowered = step.lower(*structs)
    assert jax.tree.structure(lowered.args_info) == jax.tree.structure((structs, {}))
    wanted = jax.eval_shape(in_order, *structs)
    assert lowered.out_tree == jax.tree.structure(wanted)
    # Where the order of results had to change for donation: new state, then the rest.
    other = jzero.shard_train_step(gradients_first, config=SHARD_ALL)
    new_state, rest = jax.tree.unflatten(
        other.lower(*structs).out_tree, range(7 + 1 + 2)
    )
    assert (len(new_state), len(rest)) == (7, 3)


@pytest.mark.parametrize("function", [in_order, gradients_first])
def test_positions_of_the_state(function) -> None:
    """(argument, leaf of it), in the order of the plan."""
    step = jzero.shard_train_step(function, config=SHARD_ALL)
    program = step._program_for((*jax.eval_shape(state), X), {})[0]
    params, opt = ([(i, k) for k in range(n)] for i, n in enumerate((2, 5)))
    assert list(program.state_positions) == [*params, *opt]
    assert len(program.plan.state) == 7
    assert program.mesh.shape == {"data": 8}
