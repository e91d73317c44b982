"""One run of one step with every kind of leaf, for all tests that only read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jzero.checkpoint.saved_steps import ALIASES, many_kinds, write_step


@pytest.fixture(scope="session")
def leaves() -> dict[str, Any]:
    return many_kinds()


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, leaves: dict[str, Any]) -> Path:
    """A folder with step 100 of these leaves. Tests that change it copy it first."""
    directory = tmp_path_factory.mktemp("runs") / "a"
    write_step(directory, 100, leaves, ALIASES)
    return directory
