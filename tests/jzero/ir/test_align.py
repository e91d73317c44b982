"""Shards that meet in one equation are laid alike first."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jzero.compat.jaxpr import inner
from jzero.ir.align import align, align_named
from jzero.ir.edit import Editor
from jzero.ir.partitioned import read_shardwise
from jzero.ir.rules import CONSTRAINT
from pallas_kernels.shardwise import Dim, shardwise
from tests.jzero.ir.jaxprs import DATA, eqn_of, shard, trace

FIRST, SECOND = shard(DATA, None), shard(None, DATA)


def editor() -> Editor:
    return Editor(Mesh(np.array(jax.devices()), (DATA,)))


def num_moved(operands: Any, eqn: Any) -> int:
    return sum(
        one is not other for one, other in zip(operands, eqn.invars, strict=True)
    )


def test_an_addition_lays_the_second_like_the_first() -> None:
    eqn = eqn_of(trace(lambda x, y: x + y, (8, 8), (8, 8)), "add")
    same = align(editor(), eqn, [FIRST, FIRST], scope="s")
    assert num_moved(same, eqn) == 0
    moved = align(editor(), eqn, [FIRST, SECOND], scope="s")
    assert moved[0] is eqn.invars[0]
    assert num_moved(moved, eqn) == 1


def test_named_dims_are_laid_like_the_first() -> None:
    dims = (Dim("a", 8), Dim("b", 8))

    def update(x: jax.Array, y: jax.Array) -> Any:
        return shardwise(
            lambda place, x, y: [x + y], [x, y], operands=[dims] * 2, results=[dims]
        )

    eqn = eqn_of(trace(update, (8, 8), (8, 8)), "custom_partitioning")
    shardwise_eqn = read_shardwise(eqn)
    assert shardwise_eqn is not None
    edit = editor()
    moved = align_named(edit, eqn, shardwise_eqn, [FIRST, SECOND], scope="s")
    assert num_moved(moved, eqn) == 1
    unmarked = align_named(edit, eqn, shardwise_eqn, [FIRST, None], scope="s")
    assert num_moved(unmarked, eqn) == 0
    assert inner(trace(update, (8, 8), (8, 8))).eqns[-1].primitive.name != CONSTRAINT
