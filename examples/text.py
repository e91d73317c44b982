"""Real text that every machine has: the source of Python's own standard library.

Lives here: reading it, and cutting it into batches with `grain`. Read next:
`gpt.py`.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import grain
import numpy as np

MAX_TEXT_BYTES = 2_000_000
HELD_OUT_BYTES = 100_000


def standard_library() -> np.ndarray:
    """Returns the bytes of the first modules by name, about 2 MB, as uint8."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts: list[bytes] = []
    missing_bytes = MAX_TEXT_BYTES
    for path in sorted(folder.glob("*.py")):
        if missing_bytes > 0:
            parts.append(path.read_bytes())
            missing_bytes -= len(parts[-1])
    return np.frombuffer(b"".join(parts), dtype=np.uint8)


class Windows:
    """A grain source: overlapping windows of a text, each with its next bytes."""

    def __init__(self, text: np.ndarray, length: int) -> None:
        self._text = text
        self._length = length

    def __len__(self) -> int:
        return (len(self._text) - 1) // self._length

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        start = index * self._length
        window = self._text[start : start + self._length + 1].astype(np.int32)
        return {"inputs": window[:-1], "targets": window[1:]}


def batches(
    text: np.ndarray,
    *,
    rows: int,
    length: int,
    seed: int = 0,
    part: int = 0,
    num_parts: int = 1,
) -> grain.MapDataset:
    """Returns an endless shuffled dataset of `{"inputs", "targets"}` batches.

    Args:
      text: bytes, uint8 of shape (N,).
      rows: of one batch (of this part, if there are several).
      length: bytes in one row.
      seed: of the shuffle.
      part: which of `num_parts` disjoint parts to read, one per process.
      num_parts: how many there are.
    """
    dataset = grain.MapDataset.source(Windows(text, length))
    return (
        dataset[part::num_parts]
        .seed(seed)
        .shuffle()
        .repeat()
        .batch(rows, drop_remainder=True)
    )
