"""Running a stream: whole, tile by tile, or on the host.

Lives here: functions of arrays that `Editor.insert` traces. May import: compat, ir.
Read next: `jzero/passes/offload.py`, which chooses between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import jax
from jax import lax
from jax import numpy as jnp

from jzero.compat.jaxpr import AnyJaxpr, Atom, JaxprEqn, Var, inner, is_var
from jzero.compat.memory import compute_on_host, is_on_host, to_device, to_host
from jzero.ir.specs import Dims
from jzero.ir.streams import Stream
from jzero.ir.tiles import Tiling, plan_tiles

__all__ = ["StreamRun"]

# A tile of less than this part of what fits is no use; then the leaf stays whole.
_FINEST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRun:
    """A stream and where its results go.

    Attributes:
      stream: the stream.
      eqns: its equations, in order.
      host_outs: those of its results that rest in host memory.
      reuses: result -> what it replaces, a leaf or an operand of the stream, whose
        memory it takes over.
      spread: operand -> the scalar that it repeats, if it is one.
    """

    stream: Stream
    eqns: tuple[JaxprEqn, ...]
    host_outs: frozenset[Var]
    reuses: Mapping[Var, Var]
    spread: Mapping[Var, Atom]

    @classmethod
    def of(
        cls,
        stream: Stream,
        jaxpr: AnyJaxpr,
        made_at: Mapping[Var, int],
        *,
        host_outs: frozenset[Var],
        replaces: Mapping[Var, Var],
    ) -> StreamRun:
        """Collects what running a stream needs.

        Args:
          stream: the stream.
          jaxpr: its body.
          made_at: variable -> index of the equation that makes it.
          host_outs: all results of the body that rest in host memory.
          replaces: new state -> the old state of the same leaf.
        """
        eqns = inner(jaxpr).eqns
        given = {*stream.leaves, *stream.operands}
        spread: dict[Var, Atom] = {}
        for var in stream.operands:
            eqn = eqns[made_at[var]] if var in made_at else None
            if eqn is None or eqn.primitive.name != "broadcast_in_dim":
                continue
            if not eqn.invars[0].aval.shape:
                spread[var] = eqn.invars[0]
        return cls(
            stream=stream,
            eqns=tuple(eqns[i] for i in stream.eqns),
            host_outs=frozenset(v for v in stream.outs if v in host_outs),
            reuses={v: replaces[v] for v in stream.outs if replaces.get(v) in given},
            spread=spread,
        )

    @property
    def inputs(self) -> tuple[Var, ...]:
        """What it reads, leaves first; a repeated scalar as the scalar."""
        read = [*self.stream.leaves, *self.stream.operands]
        new = [self.spread.get(v, v) for v in read]
        return tuple(dict.fromkeys(v for v in new if is_var(v)))

    def tiling(
        self, dims: Mapping[Var, Dims], axis_sizes: Mapping[str, int], window_bytes: int
    ) -> Tiling | None:
        """How it is cut, so that two tiles fit into the window.

        Args:
          dims: how each leaf lies; a stream of leaves that lie in different ways, or
            of which that is not known, is not cut: None.
          axis_sizes: size of each mesh axis.
          window_bytes: the most bytes on one device.
        """
        lying = {dims.get(v) for v in self.stream.leaves}
        if len(lying) != 1 or (like := lying.pop()) is None:
            return None
        shape = self.stream.leaves[0].aval.shape
        bound = max(1, window_bytes // 2 // self._elem_bytes)
        tiling = plan_tiles(shape, like, axis_sizes, max_local_elems=bound)
        if tiling.local_elems * _FINEST >= bound:
            return tiling
        # Rows of a prime number, say: a loop over each of them would copy for ever.
        return plan_tiles(shape, like, axis_sizes, max_local_elems=prod(shape))

    def device_bytes(self, tiling: Tiling | None) -> int:
        """Bytes of copies on one device, of a tile and its results."""
        return 0 if tiling is None else tiling.local_elems * self._elem_bytes

    @property
    def _elem_bytes(self) -> int:
        copies = [*self.stream.leaves, *self.host_outs]
        return sum(v.aval.dtype.itemsize for v in copies)

    def tiled(self, tiling: Tiling) -> Callable[..., list[jax.Array]]:
        """Returns a function of `inputs` that runs tile by tile."""

        def run(*arrays: jax.Array) -> list[jax.Array]:
            given = dict(zip(self.inputs, arrays, strict=True))
            viewed = {
                v: x.reshape(tiling.view) if x.shape else x for v, x in given.items()
            }
            filled = [self._room(v, viewed, tiling) for v in self.stream.outs]

            def work(number: jax.Array, filled: list[jax.Array]) -> list[jax.Array]:
                now = dict(viewed)
                # What is replaced is read from the array that is being filled, or
                # the compiler would keep the old one beside it.
                for var, array in zip(self.stream.outs, filled, strict=True):
                    if var in self.reuses:
                        now[self.reuses[var]] = array
                tiles = {
                    v: tiling.cut(x, number) if x.shape else x for v, x in now.items()
                }
                new = self._evaluate(tiles, tiling.tile)
                return [
                    tiling.fill(array, new[v], number)
                    for v, array in zip(self.stream.outs, filled, strict=True)
                ]

            outs = lax.fori_loop(0, tiling.num_tiles, work, filled)
            return [x.reshape(tiling.shape) for x in outs]

        return run

    def _room(
        self, var: Var, viewed: Mapping[Var, jax.Array], tiling: Tiling
    ) -> jax.Array:
        """The array that a result is written into."""
        if var in self.reuses:
            return viewed[self.reuses[var]]
        room = jnp.zeros(tiling.view, var.aval.dtype)
        return to_host(room) if var in self.host_outs else room

    def _evaluate(
        self, given: Mapping[Var, jax.Array], shape: tuple[int, ...]
    ) -> dict[Var, jax.Array]:
        """Runs on the device, on arrays of any one shape; results where they go."""
        values = {
            v: to_device(x) if is_on_host(jax.typeof(x)) else x
            for v, x in given.items()
        }
        self._compute(values, shape, self.eqns)
        return {
            v: to_host(values[v]) if v in self.host_outs else values[v]
            for v in self.stream.outs
        }

    def _compute(
        self,
        values: dict[Var, jax.Array],
        shape: tuple[int, ...],
        eqns: Sequence[JaxprEqn],
    ) -> None:
        read = {v for e in eqns for v in e.invars if is_var(v)}
        for var in read & self.spread.keys():
            scalar = self.spread[var]
            value = values[scalar] if is_var(scalar) else scalar.val
            full = jnp.broadcast_to(value, shape).astype(var.aval.dtype)
            is_below = any(is_on_host(jax.typeof(x)) for x in values.values())
            values[var] = to_host(full) if is_below else full
        for eqn in eqns:
            operands = [values[v] if is_var(v) else v.val for v in eqn.invars]
            values[eqn.outvars[0]] = eqn.primitive.bind(*operands, **eqn.params)

    def on_host(self, *arrays: jax.Array) -> list[jax.Array]:
        """Runs where the leaves lie: what that takes goes down, the rest comes up.

        Adding an update to parameters that rest on the device is done there.
        """
        given = dict(zip(self.inputs, arrays, strict=True))
        below, above = self._split()
        wanted = {v for e in above for v in e.invars if is_var(v)}
        wanted |= set(self.stream.outs)
        results = [e.outvars[0] for e in below if e.outvars[0] in wanted]
        read = {v for e in below for v in e.invars if is_var(v)}
        read |= {v for k, v in self.spread.items() if k in read and is_var(v)}
        names = [v for v in given if v in read]
        shape = self.eqns[0].outvars[0].aval.shape

        def compute(*operands: jax.Array) -> list[jax.Array]:
            values = dict(zip(names, operands, strict=True))
            self._compute(values, shape, below)
            return [values[v] for v in results]

        down = [given[v] for v in names]
        down = [x if is_on_host(jax.typeof(x)) else to_host(x) for x in down]
        outs = compute_on_host(compute, *down, num_outs=len(results))
        here = dict(zip(results, outs, strict=True))
        values = {v: x for v, x in given.items() if not is_on_host(jax.typeof(x))}
        for eqn in above:
            for var in eqn.invars:
                if is_var(var) and var not in values:
                    source = here.get(var, given.get(var))
                    if source is not None:
                        values[var] = to_device(source)
        self._compute(values, shape, above)
        return [
            here[v]
            if v in self.host_outs
            else values[v]
            if v in values
            else to_device(here[v])
            for v in self.stream.outs
        ]

    def _split(self) -> tuple[list[JaxprEqn], list[JaxprEqn]]:
        """The equations that are computed on the host, and the others.

        On the device is done what reads state that rests there and what follows from
        it, so that such state does not move; unless offloaded state follows from it.
        """
        needed = set(self.host_outs)
        for eqn in reversed(self.eqns):
            if eqn.outvars[0] in needed:
                needed.update(v for v in eqn.invars if is_var(v))
        staying = set(self.reuses.values()) - set(self.stream.leaves)
        above: list[JaxprEqn] = []
        for eqn in self.eqns:
            out = eqn.outvars[0]
            if out not in needed and any(
                is_var(v) and v in staying for v in eqn.invars
            ):
                staying.add(out)
                above.append(eqn)
        return [e for e in self.eqns if e.outvars[0] not in staying], above
