"""Text becomes machine code, once; without llvmlite the remedy is named."""

from __future__ import annotations

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from jzero.compat.llvm import compile_text, load_llvm
from jzero.errors import ConfigError

ADDS = "define i64 @jzero_test_adds{n}(i64 %x) {{ %y = add i64 %x, {n} ret i64 %y }}"


def compiled(n: int) -> int:
    return compile_text(ADDS.format(n=n), f"jzero_test_adds{n}")


def test_the_same_text_is_compiled_once() -> None:
    assert compiled(1) == compiled(1)
    assert compiled(1) != compiled(2)


def test_code_of_threads_that_compile_at_once() -> None:
    numbers = [3, 4, 5, 3, 4, 5, 3, 4]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(compiled, numbers))
    for number, address in zip(numbers, found, strict=True):
        assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(10) == (
            10 + number
        )
    assert len(set(found)) == 3


def test_a_missing_llvmlite_is_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    with pytest.raises(ConfigError, match=r'pip install "jzero\[host-kernels\]"'):
        load_llvm()
