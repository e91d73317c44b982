"""Marks of tests that need a compiler which is no dependency of jzero.

`make test` installs the one for GPUs, so these tests run there.
"""

from __future__ import annotations

import pytest

from jzero.audit.wheels import missing_wheels

needs_compiler = pytest.mark.skipif(
    bool(missing_wheels()),
    reason="the GPU compiler is not installed: jzero aot-setup",
)
needs_libtpu = pytest.mark.skipif(
    bool(missing_wheels(kind="tpu")),
    reason="libtpu is not installed: jzero aot-setup --tpu",
)
