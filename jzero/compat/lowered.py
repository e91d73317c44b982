"""Lowered programs whose arguments rest in host memory, on devices that are not there.

GPUs that are not there know of one memory, so JAX drops `pinned_host` from the
arguments of a program for them without a word (0.10.2 to 0.12.0), while it keeps it on
results and on copies inside. Lives here: putting it back. May import: jax alone. Read
next: `jzero/runtime/program.py`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
from jaxlib.mlir import ir

__all__ = ["rest_on_host"]

_KIND = "mhlo.memory_kind"


def rest_on_host(lowered: jax.stages.Lowered, arguments: Collection[int]) -> None:
    """Says in a lowered program which of its flat arguments rest in host memory.

    Args:
        lowered: the program, none of whose arguments was dropped; it is changed.
        arguments: their numbers. One that says so already is left alone.
    """
    module: Any = lowered.compiler_ir("stablehlo")
    # The name is an attribute or a text, by version.
    (main,) = [op for op in module.body.operations if str(op.name).strip('"') == "main"]
    with module.context:
        kinds = ir.StringAttr.get("pinned_host")
        new: list[Any] = []
        for number, attributes in enumerate(main.attributes["arg_attrs"]):
            entries = [attributes[i] for i in range(len(attributes))]
            kept = {entry.name: entry.attr for entry in entries}
            if number in arguments:
                kept.setdefault(_KIND, kinds)
            new.append(ir.DictAttr.get(kept))
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(new)
