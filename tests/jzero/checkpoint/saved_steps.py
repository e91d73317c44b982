"""Steps as `jzero.Checkpointer` lays them out, written by Orbax alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from etils import epath
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jzero.checkpoint.checksums import files_below, write_checksums
from jzero.checkpoint.manifest import (
    MANIFEST_FILE,
    MANIFEST_ITEM,
    STATE_ITEM,
    Manifest,
    SavedLeaf,
)

ALIASES = {"params/tied": "params/odd"}
VERSIONS = {"jzero": "0.1.0", "jax": jax.__version__}


def sharded(values: Any, *spec: str | None) -> jax.Array:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    return jax.device_put(values, NamedSharding(mesh, PartitionSpec(*spec)))


def many_kinds() -> dict[str, Any]:
    """Every kind of leaf, by path."""
    rng = np.random.default_rng(0)
    normal = rng.standard_normal
    return {
        "params/rows": sharded(jnp.asarray(normal((16, 24)), "float32"), "data"),
        "params/cols": sharded(jnp.asarray(normal((5, 16)), "float32"), None, "data"),
        "params/odd": jnp.asarray(normal((17, 3)), "float32"),
        "params/half": sharded(jnp.asarray(normal((24, 2)), "bfloat16"), "data"),
        "params/scalar": jnp.float32(1.0009765625),
        "params/empty": jnp.zeros((0, 3)),
        "params/a.b/c~1d": jnp.arange(7.0),
        "opt/mu/rows": sharded(jnp.asarray(normal((16, 24)), "float32"), "data"),
        "opt/count": jnp.int32(16777217),
        "table": jnp.arange(-8, 8, dtype="int8"),
        "nibbles": jnp.asarray(np.arange(-8, 8), "int4"),
        "eighths": jnp.asarray(normal((3, 2)), "float8_e4m3fn"),
        "rare": jnp.asarray(normal((3, 2)), "float8_e4m3b11fnuz"),
        "flags": jnp.asarray([True, False, True]),
        "wide": np.asarray([1e300, 2.0]),
        "complex": np.asarray([1 + 2j, 3j]),
        "rng": jax.random.key(3),
        "rngs": jax.random.split(jax.random.key(4, impl="rbg"), 3),
        "no_rngs": jax.random.split(jax.random.key(5), 3)[:0],
    }


def role_of(path: str) -> str:
    return {"params": "parameter", "opt": "optimizer"}.get(path.split("/")[0], "other")


def data_of(leaf: Any) -> Any:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def describe(path: str, leaf: Any) -> SavedLeaf:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return SavedLeaf(
        path=path,
        keys=tuple(k.replace("~1", "/").replace("~0", "~") for k in path.split("/")),
        shape=tuple(leaf.shape),
        dtype=str(leaf.dtype),
        role=role_of(path),
        key_impl=str(jax.random.key_impl(leaf)) if is_key else None,
    )


def write_step(
    directory: Path,
    step: int,
    leaves: dict[str, Any],
    aliases: dict[str, str] | None = None,
    *,
    compress: bool = True,
) -> Path:
    """Writes one step and returns its folder."""
    aliases = aliases or {}
    arrays = {path: data_of(leaf) for path, leaf in leaves.items() if leaf.size}
    write_foreign(directory, step, arrays, compress=compress)
    described = [describe(path, leaf) for path, leaf in leaves.items()]
    described += [describe(path, leaves[same]) for path, same in aliases.items()]
    manifest = Manifest(
        step=step,
        versions=VERSIONS,
        stage=3,
        mesh_axes={"data": 8},
        num_devices=8,
        num_processes=1,
        time_utc="2026-01-01T00:00:00+00:00",
        leaves=tuple(described),
        aliases=aliases,
    )
    folder = epath.Path(directory) / str(step)
    (folder / MANIFEST_ITEM).mkdir()
    (folder / MANIFEST_ITEM / MANIFEST_FILE).write_text(manifest.to_json())
    files = dict(files_below(folder / MANIFEST_ITEM, f"{MANIFEST_ITEM}/"))
    files |= files_below(folder / STATE_ITEM, f"{STATE_ITEM}/")
    write_checksums(folder / MANIFEST_ITEM, files)
    return Path(folder)


def write_foreign(
    directory: Path,
    step: int,
    tree: Any,
    item: str = STATE_ITEM,
    *,
    compress: bool = True,
) -> Path:
    """Writes a step that Orbax alone knows."""
    options = ocp.CheckpointManagerOptions(save_root_metadata=False)
    registry = ocp.DefaultCheckpointHandlerRegistry()
    handler = ocp.PyTreeCheckpointHandler(use_compression=compress)
    registry.add(item, ocp.args.PyTreeSave, handler)
    with ocp.CheckpointManager(
        directory.absolute(), options=options, handler_registry=registry
    ) as manager:
        items = ocp.args.Composite(**{item: ocp.args.PyTreeSave(tree)})
        manager.save(step, args=items, force=True)
    return directory / str(step)


def stored_bytes(leaf: Any) -> bytes:
    """The bits of a leaf, however it is kept."""
    values = np.asarray(data_of(leaf))
    if values.dtype == ml_dtypes.int4:
        values = values.astype("int8")
    return np.ascontiguousarray(values).tobytes()


def grow(folder: Path, name: str, num_elems: int) -> None:
    """Makes a one-dimensional array longer, of which no chunk is ever written."""
    base = {"driver": "file", "path": f"{folder}/"}
    kvstore = {"driver": "ocdbt", "base": base, "path": f"{name}/"}
    array = ts.open({"driver": "zarr", "kvstore": kvstore}, open=True).result()
    array.resize(exclusive_max=[num_elems]).result()
