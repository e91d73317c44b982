"""Element-wise equations as one loop of machine code.

Lives here: `HostKernel`. XLA:CPU runs an update as several loops, one for each result
that is written, and reads what they share as often; here one loop reads every array
once and writes every result. May import: compat, ir. Read next: `kernel_rules.py`,
and `stream_kernel.py`, which calls it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jzero.compat.ffi import handler_text, register_handler
from jzero.compat.jaxpr import Atom, JaxprEqn, Var, is_var
from jzero.compat.llvm import compile_text
from jzero.ir.kernel_block import Block, Value
from jzero.ir.kernel_rules import write_equation

__all__ = ["HostKernel"]

# Elements that one turn of the loop works on: two of the widest registers of float32.
_LANES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKernel:
    """Element-wise equations that run in one pass over their arrays.

    Attributes:
      eqns: the equations, in order, all covered by `kernel_rules`.
      inputs: what they read: arrays of one shape, and scalars.
      outs: results that are written.
      reuses: result -> the input whose memory it takes over.
      spread: variable that the equations read -> the scalar that it repeats.
    """

    eqns: tuple[JaxprEqn, ...]
    inputs: tuple[Var, ...]
    outs: tuple[Var, ...]
    reuses: Mapping[Var, Var]
    spread: Mapping[Var, Atom]

    def text(self) -> str:
        """Writes the loop as LLVM text, a function named `kernel`."""
        pointers = [f"%slot{i}" for i in range(len(self.inputs) + len(self.outs))]
        entry = [
            f"  {p}.at = getelementptr ptr, ptr %slots, i64 {i}\n"
            f"  {p} = load ptr, ptr {p}.at"
            for i, p in enumerate(pointers)
        ]
        many, one = Block(_LANES, "many"), Block(1, "one")
        # Scalars are read once: within the loop, what is written could change them.
        for var, pointer in zip(self.inputs, pointers, strict=False):
            if not var.aval.shape:
                kind = one.stored_type(str(var.aval.dtype))
                entry.append(f"  {pointer}.value = load {kind}, ptr {pointer}")
        for block in (many, one):
            self._write(block, pointers)
        return "\n".join(
            [
                "define internal void @kernel(ptr %slots, i64 %begin, i64 %end) {",
                "entry:",
                *entry,
                f"  %last = sub i64 %end, {_LANES}",
                "  br label %next.many",
                "next.many:",
                "  %index.many = phi i64 [ %begin, %entry ], [ %then.many, %do.many ]",
                "  %is.many = icmp sle i64 %index.many, %last",
                "  br i1 %is.many, label %do.many, label %next.one",
                "do.many:",
                *many.lines,
                f"  %then.many = add i64 %index.many, {_LANES}",
                "  br label %next.many",
                "next.one:",
                "  %index.one = phi i64 [ %index.many, %next.many ], "
                "[ %then.one, %do.one ]",
                "  %is.one = icmp slt i64 %index.one, %end",
                "  br i1 %is.one, label %do.one, label %finished",
                "do.one:",
                *one.lines,
                "  %then.one = add i64 %index.one, 1",
                "  br label %next.one",
                "finished:",
                "  ret void",
                "}",
                *sorted(many.intrinsics | one.intrinsics),
                "",
            ]
        )

    def _write(self, block: Block, pointers: Sequence[str]) -> None:
        """Writes one turn: all reading comes before all writing.

        So results may lie where inputs do, and the compiler need not be told what
        overlaps: within a turn nothing is read after it was written.
        """
        index = f"%index.{block.prefix}"
        values: dict[Var, Value] = {}
        replaced = set(self.reuses.values())
        for var, pointer in zip(self.inputs, pointers, strict=False):
            if var.aval.shape and block.lanes > 1:
                is_written = var in replaced
                dtype = str(var.aval.dtype)
                block.prefetch(pointer, index, dtype, is_written=is_written)
        for var, pointer in zip(self.inputs, pointers, strict=False):
            dtype = str(var.aval.dtype)
            values[var] = (
                block.load(pointer, index, dtype)
                if var.aval.shape
                else block.spread(f"{pointer}.value", dtype)
            )

        def read(atom: Atom) -> Value:
            if not is_var(atom):
                return block.constant(atom.val, str(atom.aval.dtype))
            return read(self.spread[atom]) if atom in self.spread else values[atom]

        for eqn in self.eqns:
            operands = [read(atom) for atom in eqn.invars]
            values[eqn.outvars[0]] = write_equation(block, eqn, operands)
        outs = pointers[len(self.inputs) :]
        for var, pointer in zip(self.outs, outs, strict=True):
            block.store(read(var), pointer, index)

    def run(self, *arrays: Any) -> list[jax.Array]:
        """Runs on arrays as each device holds them, inside `jax.jit`, on XLA:CPU.

        Args:
          *arrays: the inputs.

        Returns:
          The results.
        """
        kernel = self.text()
        counted = next(i for i, v in enumerate(self.inputs) if v.aval.shape)
        settings = {
            "num_inputs": len(self.inputs),
            "num_results": len(self.outs),
            "counted": counted,
        }
        # The name follows from the text: what is known once is not compiled again, and
        # programs that are kept on disk find it in the next process.
        whole = kernel + handler_text("", "kernel", **settings)
        name = f"jzero_{hashlib.sha256(whole.encode()).hexdigest()[:24]}"
        handler = handler_text(name, "kernel", **settings)
        register_handler(name, compile_text(handler + kernel, name))
        shape = arrays[counted].shape
        results = [jax.ShapeDtypeStruct(shape, v.aval.dtype) for v in self.outs]
        aliases = {
            self.inputs.index(self.reuses[v]): i
            for i, v in enumerate(self.outs)
            if v in self.reuses
        }
        call = jax.ffi.ffi_call(name, results, input_output_aliases=aliases)
        return list(call(*arrays))
