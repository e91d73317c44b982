"""Parts of documents that commands write, each between two markers of its own.

Lives here: `write_part` and `markdown_table`. Several commands write into one
document, so each replaces nothing but its part.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["markdown_table", "markers", "write_part"]


def markers(name: str) -> tuple[str, str]:
    """Returns the lines that a part begins and ends with."""
    return f"<!-- {name}:begin -->", f"<!-- {name}:end -->"


def write_part(path: Path, name: str, text: str) -> None:
    """Replaces what lies between the markers of one part of a document.

    Raises:
        ValueError: The document has no such markers, or has them more than once.
    """
    document = path.read_text()
    begin, end = markers(name)
    if document.count(begin) != 1 or document.count(end) != 1:
        raise ValueError(f"{path.name} needs {begin} and {end}, once each")
    before, rest = document.split(begin)
    after = rest.split(end)[1]
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Writes a table; the first column is text, the others numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
