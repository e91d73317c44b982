"""Laying the shards that one equation combines alike.

Lives here: constraints on operands whose shards lie differently from those of the
first. May import: compat, ir. Read next: `jzero/passes/gather.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from jzero.compat.jaxpr import Atom, JaxprEqn
from jzero.ir.edit import Editor
from jzero.ir.marks import Mark, placed_names
from jzero.ir.partitioned import Shardwise, dims_of

__all__ = ["align", "align_named"]


def align(
    editor: Editor, eqn: JaxprEqn, operands: Sequence[Mark | None], *, scope: str
) -> list[Atom]:
    """Lays all shards of an element-wise equation like the first.

    Args:
      editor: of the body that holds the equation.
      eqn: the equation; at least one operand is marked.
      operands: the mark of each operand.
      scope: name of the pass.

    Returns:
      The operands for the new body.
    """
    first = next(m for m in operands if m is not None)
    new = [editor.read(v) for v in eqn.invars]
    for i, mark in enumerate(operands):
        if mark is not None and mark.dims != first.dims:
            new[i] = editor.constrain(new[i], first.dims, like=eqn, scope=scope)
    return new


def align_named(
    editor: Editor,
    eqn: JaxprEqn,
    shardwise: Shardwise,
    operands: Sequence[Mark | None],
    *,
    scope: str,
) -> list[Atom]:
    """Lays shards whose dims have the same names alike.

    Args:
      editor: of the body that holds the equation.
      eqn: the equation.
      shardwise: the names of its dims.
      operands: the mark of each operand.
      scope: name of the pass.

    Returns:
      The operands for the new body.
    """
    axes, _ = placed_names(shardwise, operands)
    new = [editor.read(v) for v in eqn.invars]
    for i, (mark, names) in enumerate(zip(operands, shardwise.operands, strict=True)):
        dims = dims_of(names, axes)
        if mark is not None and dims is not None and mark.dims != dims:
            new[i] = editor.constrain(new[i], dims, like=eqn, scope=scope)
    return new
