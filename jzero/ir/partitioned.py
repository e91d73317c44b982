"""Equations that say themselves how they run on shards.

Lives here: reading the sharding rule of a `custom_partitioning` equation. One whose
rule is element by element (blocks included) works on shards like an addition does:
fused optimizer updates are such. May import: compat, ir.specs, pallas_kernels. Read
next: `marks.py`.

```
param  (a, b)   codes (a, b)   scales (a, b)   ->   param (a, b)   codes ...
```

Here every operand hangs together with a result dim by dim. A matrix product
`(a, k), (k, b) -> (a, b)` does not, and stays what it was: its operands are gathered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jax.experimental.custom_partitioning import SdyShardingRule

from jzero.compat.jaxpr import JaxprEqn
from jzero.ir.specs import Dims
from pallas_kernels.shardwise import ShardRule

Names = tuple[str, ...]
NAME = "custom_partitioning"


@dataclass(frozen=True, slots=True)
class Shardwise:
    """The dims of an equation that runs on shards, by name.

    Attributes:
      operands: the names of each operand's dims. Dims of one name lie alike.
      results: the same for results.
    """

    operands: tuple[Names, ...]
    results: tuple[Names, ...]

    def place(self, placed: Sequence[tuple[Names, Dims]]) -> dict[str, Any]:
        """Returns the axes of each name; of several, the first that were given."""
        axes: dict[str, Any] = {}
        for names, dims in placed:
            for name, entry in zip(names, dims, strict=True):
                axes.setdefault(name, entry)
        return axes


def read_shardwise(eqn: JaxprEqn) -> Shardwise | None:
    """Returns the named dims of an equation that runs on shards, or None."""
    if eqn.primitive.name != NAME:
        return None
    rule = eqn.params["sharding_rule"]
    if isinstance(rule, ShardRule):
        return _of_dims(rule)
    if not isinstance(rule, SdyShardingRule):
        return None
    if rule.reduction_factors or rule.need_replication_factors:
        return None
    operands = tuple(map(_names, rule.operand_mappings))
    results = tuple(map(_names, rule.result_mappings))
    for position, names in enumerate(operands):
        if names in results:
            continue
        # What meets nothing else, such as packed scalars, is whole everywhere.
        others = (*operands[:position], *operands[position + 1 :], *results)
        if any(not set(names).isdisjoint(other) for other in others):
            return None
    return Shardwise(operands, results)


def _of_dims(rule: ShardRule) -> Shardwise:
    return Shardwise(
        tuple(tuple(dim.name for dim in dims) for dims in rule.operands),
        tuple(tuple(dim.name for dim in dims) for dims in rule.results),
    )


def _names(mapping: Sequence[str | tuple[str, ...]]) -> Names:
    return tuple(dim if isinstance(dim, str) else dim[0] for dim in mapping)


def dims_of(names: Names, axes: dict[str, Any]) -> Dims | None:
    """Returns how an array with these dims lies; None if nothing places it."""
    if not any(name in axes for name in names):
        return None
    return tuple(axes.get(name) for name in names)


__all__ = ["Names", "Shardwise", "dims_of", "read_shardwise"]
