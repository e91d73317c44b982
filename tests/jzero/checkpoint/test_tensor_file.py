"""Headers that the `safetensors` package accepts, and files read without copies."""

from __future__ import annotations

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from jzero.checkpoint.tensor_file import (
    Tensor,
    file_header,
    format_name,
    lay_out,
    map_tensors,
    read_header,
)
from jzero.errors import CheckpointError


def write(path: Path, tensors: dict[str, np.ndarray]) -> Path:
    known = [Tensor(name=n, dtype=t.dtype, shape=t.shape) for n, t in tensors.items()]
    data = b"".join(tensors[name].tobytes() for name in lay_out(known))
    path.write_bytes(file_header(known, {"made": "here"}) + data)
    return path


@pytest.mark.parametrize(
    "dtype",
    ["bool", "uint8", "int16", "float16", "bfloat16", "float32", "int64", "float64"],
)
def test_the_package_reads_what_is_laid_out_here(tmp_path: Path, dtype: str) -> None:
    tensors = {
        "flag": np.asarray([True]),
        "w": np.arange(6).reshape(2, 3).astype(jnp.dtype(dtype)),
        "scalar": np.asarray(2.0, "float32"),
        "empty": np.zeros((0, 4), "float32"),
    }
    path = write(tmp_path / "a.safetensors", tensors)
    with safe_open(path, "np") as file:
        assert file.metadata() == {"made": "here"}
        for name, tensor in tensors.items():
            np.testing.assert_array_equal(file.get_tensor(name), tensor)


def test_each_tensor_begins_where_its_dtype_may(tmp_path: Path) -> None:
    tensors = {
        name: np.ones(3, dtype)
        for name, dtype in {"a": "int8", "b": "float64", "c": "float16"}.items()
    }
    path = write(tmp_path / "a.safetensors", tensors)
    for name, tensor in map_tensors(path).items():
        assert tensor.flags.aligned and not tensor.flags.writeable
        np.testing.assert_array_equal(tensor, tensors[name])
    _, start = read_header(path)
    assert start % 8 == 0


def test_files_of_the_package_are_mapped(tmp_path: Path) -> None:
    tensors = {"w": np.arange(6.0), "e": np.zeros((0, 2), "float32")}
    save_file(tensors, tmp_path / "b.safetensors")
    mapped = map_tensors(tmp_path / "b.safetensors")
    np.testing.assert_array_equal(mapped["w"], tensors["w"])
    assert mapped["e"].shape == (0, 2)


def test_dtypes_without_a_name() -> None:
    assert format_name(np.dtype(jnp.int4)) is None
    assert format_name(np.dtype(jnp.float8_e4m3fn)) == "F8_E4M3"


def test_broken_files_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", {"w": np.arange(6.0)})
    whole = path.read_bytes()
    for content, text in (
        (b"", "has no header"),
        (b"text, and more of it", "has no header"),
        (whole[:8] + b"x" + whole[9:], "header cannot be read"),
        (whole[:-1], f"cut short: it has {len(whole) - 1} bytes of {len(whole)}"),
        (_with_dtype(whole, "F64", "F4"), "has dtype F4"),
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=text):
            map_tensors(path)


def _with_dtype(content: bytes, old: str, new: str) -> bytes:
    old_text, new_text = json.dumps(old).encode(), json.dumps(new).encode()
    return content.replace(old_text, new_text + b" " * (len(old_text) - len(new_text)))
