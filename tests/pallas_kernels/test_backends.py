"""Backends by name."""

from __future__ import annotations

from typing import get_args

import pytest

from pallas_kernels.backends import (
    Backend,
    check_backend,
    find_kernel,
    is_reference,
    runs_on_shards,
)

KERNELS = [name for name in get_args(Backend) if not is_reference(name)]


@pytest.mark.parametrize("backend", KERNELS)
@pytest.mark.parametrize("name", ("update_rows", "quantize_rows", "dequantize_rows"))
def test_each_has_every_kernel(backend: str, name: str) -> None:
    kernel = find_kernel(backend, name)
    assert kernel.keywords == {"interpret": backend.endswith("interpret")}  # pyright: ignore
    assert kernel.func.__name__ == name  # pyright: ignore


def test_names() -> None:
    assert len(KERNELS) == 4
    assert [b for b in KERNELS if not runs_on_shards(b)] == ["mosaic_gpu_interpret"]
    for backend in get_args(Backend):
        check_backend(backend)
    with pytest.raises(ValueError, match=r"no backend 'cuda'(?s:.*)'mosaic_gpu'"):
        check_backend("cuda")
