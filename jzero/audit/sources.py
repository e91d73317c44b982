"""Source lines of HLO instructions.

Lives here: both ways in which HLO text says where an instruction comes from: tables
of stack frames at its head (`stack_frame_id=7`), and `source_file=... source_line=`
in older text. May import: nothing of jzero. Read next: `hlo.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

__all__ = ["SourceTables", "read_tables"]

_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ROW = re.compile(r"^(\d+) (.*)$")
_FIELD = re.compile(r"(\w+)=(\d+)")
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_FILE = re.compile(r'source_file="((?:[^"\\]|\\.)*)"(?: source_line=(\d+))?')
_LIBRARIES = ("/site-packages/", "/dist-packages/", "\\site-packages\\")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTables:
    """The tables of stack frames at the head of a program's text."""

    files: dict[int, str] = field(default_factory=dict)
    locations: dict[int, tuple[int, int]] = field(default_factory=dict)
    frames: dict[int, tuple[int, int]] = field(default_factory=dict)

    def source(self, metadata: str) -> str | None:
        """Returns "file:line" of an instruction, or None if the text has none.

        Of its stack, the innermost line outside of installed packages; if all lie
        inside, the innermost.
        """
        if match := _FILE.search(metadata):
            return f"{match[1]}:{match[2] or 0}"
        match = _FRAME.search(metadata)
        stack = self._stack(int(match[1])) if match else []
        own = [line for line in stack if not any(lib in line for lib in _LIBRARIES)]
        return next(iter(own or stack), None)

    def _stack(self, frame_id: int) -> list[str]:
        stack: list[str] = []
        while frame_id in self.frames and len(stack) <= len(self.frames):
            location_id, frame_id = self.frames[frame_id]
            file_id, line = self.locations.get(location_id, (0, 0))
            stack.append(f"{self.files.get(file_id, '?')}:{line}")
        return stack


def read_tables(lines: list[str]) -> SourceTables:
    """Reads the tables out of the lines in front of the first computation."""
    rows: dict[str, dict[int, str]] = {name: {} for name in _TABLES}
    table: dict[int, str] | None = None
    for line in lines:
        if line in rows:
            table = rows[line]
        elif table is not None and (match := _ROW.match(line)):
            table[int(match[1])] = match[2]
    locations = {
        key: (fields.get("file_name_id", 0), fields.get("line", 0))
        for key, fields in _fields(rows["FileLocations"]).items()
    }
    frames = {
        key: (fields.get("file_location_id", 0), fields.get("parent_frame_id", 0))
        for key, fields in _fields(rows["StackFrames"]).items()
    }
    # Parents are printed one higher than the row they mean, so that a row without
    # parent says 1; text that means the row itself says 0 there.
    offset = 0 if any(parent == 0 for _, parent in frames.values()) else 1
    return SourceTables(
        files={key: name.strip('"') for key, name in rows["FileNames"].items()},
        locations=locations,
        frames={key: (loc, parent - offset) for key, (loc, parent) in frames.items()},
    )


def _fields(rows: dict[int, str]) -> dict[int, dict[str, int]]:
    return {
        key: {name: int(value) for name, value in _FIELD.findall(text)}
        for key, text in rows.items()
    }
