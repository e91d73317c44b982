"""The oracle: the user's own step under `jax.jit` on one device."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import jzero

# Everything is to be sharded, however small.
SHARD_ALL = jzero.ZeroConfig(persistence_threshold=0)


def assert_trees_close(got: Any, wanted: Any, *, rtol: float) -> None:
    """Same structure, shapes and dtypes; floats agree relative to their scale."""
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    rows = jax.tree_util.tree_flatten_with_path(wanted)[0]
    for (path, want), leaf in zip(rows, jax.tree.leaves(got), strict=True):
        name = jax.tree_util.keystr(path)
        assert leaf.dtype == want.dtype, name
        assert leaf.shape == want.shape, name
        if jax.dtypes.issubdtype(want.dtype, jax.dtypes.prng_key):
            leaf, want = jax.random.key_data(leaf), jax.random.key_data(want)
        one, other = np.asarray(leaf), np.asarray(want)
        if np.issubdtype(other.dtype, np.floating):
            scale = max(float(np.abs(other).max(initial=0.0)), 1e-30)
            np.testing.assert_allclose(
                one / scale, other / scale, rtol=0, atol=rtol, err_msg=name
            )
        else:
            np.testing.assert_array_equal(one, other, err_msg=name)


def mesh_of(num_devices: int) -> Mesh:
    """The first devices, one Auto axis."""
    return Mesh(np.array(jax.devices()[:num_devices]), ("data",))


def check_parity(
    step: Callable[..., Any],
    state: Sequence[Any],
    data: Callable[[int], Sequence[Any]],
    new_state: Callable[[Any], Sequence[Any]],
    *,
    rtol: float = 1e-9,
    num_steps: int = 5,
    config: jzero.ZeroConfig = SHARD_ALL,
    **settings: Any,
) -> jzero.TrainStep:
    """Runs a step under jzero and on one device, and compares every output.

    Also demands that the whole run compiled once.

    Args:
      step: the user's step.
      state: its state arguments, first in the signature.
      data: step number -> its other arguments.
      new_state: picks the new state arguments out of the result.
      rtol: tolerance relative to each leaf's largest element.
      num_steps: how many steps.
      config: of jzero.
      **settings: stage, mesh and so on.

    Returns:
      The sharded step.
    """
    sharded = jzero.shard_train_step(step, config=config, **settings)
    alone = jax.jit(step)
    ours = jax.tree.map(jax.numpy.asarray, tuple(state))
    theirs = jax.tree.map(jax.numpy.asarray, tuple(state))
    counter = CompileCounter(step.__name__)
    for i in range(num_steps):
        with counter:
            got = sharded(*ours, *data(i))
        wanted = alone(*theirs, *data(i))
        ours, theirs = tuple(new_state(got)), tuple(new_state(wanted))
    assert_trees_close(got, wanted, rtol=rtol)
    assert counter.count == 1
    return sharded


class CompileCounter(logging.Handler):
    """Counts the programs of one name that JAX compiles while it is entered."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name_wanted = name
        self.count = 0
        self._stack = contextlib.ExitStack()

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith("Compiling") and f"({self.name_wanted})" in text:
            self.count += 1

    def __enter__(self) -> CompileCounter:
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(jax.log_compiles(True))
        logger = logging.getLogger("jax")
        logger.addHandler(self)
        self._stack.callback(logger.removeHandler, self)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
