"""The text that all train on: Python's standard library, as numbers of its words.

The driver makes the numbers once and the workers load them, for two environments
may have two versions of Python and so two standard libraries.
"""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from pathlib import Path

import numpy as np

MAX_CHARS = 4_000_000
_WORD = re.compile(r"[A-Za-z]+|\d|[ ]+|\n|.", re.S)


def source_text() -> str:
    """Returns the first modules by name, up to `MAX_CHARS` characters."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    parts: list[str] = []
    num_chars = 0
    for path in sorted(folder.glob("*.py")):
        if num_chars < MAX_CHARS:
            parts.append(path.read_text(encoding="utf-8", errors="replace"))
            num_chars += len(parts[-1])
    return "".join(parts)[:MAX_CHARS]


def tokenize(text: str, vocab: int) -> np.ndarray:
    """Numbers the words of a text, the most frequent first; 0 for all rare ones.

    Returns:
      int32 of shape (N,), each below `vocab`.

    Example:
      >>> tokenize("to be or not to be", vocab=4).tolist()
      [3, 1, 2, 1, 0, 1, 0, 1, 3, 1, 2]
    """
    words = _WORD.findall(text)
    # Ties go to the word that sorts first: the same numbers on every run.
    ranked = sorted(Counter(words).items(), key=lambda item: (-item[1], item[0]))
    ids = {word: i for i, (word, _) in enumerate(ranked[: vocab - 1], 1)}
    return np.array([ids.get(word, 0) for word in words], dtype=np.int32)


def batch(
    tokens: np.ndarray, step: int, *, rows: int, num_tokens: int, part: int, parts: int
) -> dict[str, np.ndarray]:
    """Returns the rows of one process in one step.

    Args:
      tokens: of the text, (N,).
      step: counted from 0; the windows of a step are drawn from it as a seed.
      rows: of this process.
      num_tokens: in one row.
      part: which process asks.
      parts: how many there are; their rows together are the batch.

    Returns:
      `{"x", "y"}`, int32 of shape (rows, num_tokens), `y` one token ahead.
    """
    rng = np.random.default_rng(step)
    starts = rng.integers(0, len(tokens) - num_tokens, size=parts * rows)
    mine = starts[part * rows : (part + 1) * rows]
    windows = np.stack([tokens[start : start + num_tokens + 1] for start in mine])
    return {"x": windows[:, :-1], "y": windows[:, 1:]}
