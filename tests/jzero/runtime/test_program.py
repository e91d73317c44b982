"""What a program keeps: donation, order of results, audited placements."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jzero

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
