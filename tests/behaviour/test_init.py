"""A state is born sharded: no device holds the whole of a leaf, even for a moment."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import jzero
from tests.behaviour.training import num_parts
from tests.end_to_end.oracle import SHARD_ALL

ROOT = Path(__file__).resolve().parents[2]
TX = optax.adam(1e-2)
SHAPES = ((1032, 20), (20, 1048))


def create(key: jax.Array) -> Any:
    keys = jax.random.split(key, len(SHAPES))
    params = [jax.random.normal(k, s) for k, s in zip(keys, SHAPES, strict=True)]
    return params, TX.init(params)


def step_fn(params: Any, opt: Any, x: jax.Array) -> Any:
    grads = jax.tree.map(lambda p: p * x.mean(), params)
    updates, opt = TX.update(grads, opt)
    return optax.apply_updates(params, updates), opt, x.sum()


@pytest.mark.parametrize("stage", (1, 2, 3))
def test_every_device_holds_its_part_only(stage: int) -> None:
    step = jzero.shard_train_step(step_fn, stage=stage, config=SHARD_ALL)
    params, opt = step.init(create, jax.random.key(0))
    leaves = [*params, *opt[0].mu, *opt[0].nu]
    assert [num_parts(x) for x in leaves] == [8] * len(leaves)
    by_device: dict[Any, int] = {}
    for leaf in leaves:
        for shard in leaf.addressable_shards:
            held = by_device.get(shard.device, 0)
            by_device[shard.device] = held + shard.data.nbytes
    whole_bytes = sum(x.nbytes for x in leaves)
    assert set(by_device.values()) == {whole_bytes // 8}


def test_what_init_compiles_never_makes_a_whole_leaf(tmp_path: Path) -> None:
    """Reads the program that XLA made; another process, to have it written."""
    flags = (
        "--xla_force_host_platform_device_count=8 "
        f"--xla_dump_to={tmp_path} --xla_dump_hlo_as_text "
        "--xla_dump_hlo_module_re=jit_create"
    )
    code = (
        "import jax, jzero\n"
        "from tests.behaviour.test_init import SHARD_ALL, create, step_fn\n"
        "step = jzero.shard_train_step(step_fn, config=SHARD_ALL)\n"
        "jax.block_until_ready(step.init(create, jax.random.key(0)))\n"
    )
    env = dict(os.environ, XLA_FLAGS=flags, PYTHONPATH=str(ROOT))
    subprocess.run([sys.executable, "-c", code], env=env, check=True, cwd=ROOT)
    (path,) = tmp_path.glob("*jit_create*after_optimizations.txt")
    program = path.read_text()
    made = set(re.findall(r"\w\d+\[[\d,]+\]", program))
    assert {"f32[129,20]", "f32[20,131]"} <= made
    assert (
        not {f"{t}[{a},{b}]" for t in ("f32", "u32", "s32") for a, b in SHAPES} & made
    )
    most_elems = max(_elems(text) for text in made)
    assert most_elems <= 20 * 131


def _elems(text: str) -> int:
    dims = text[text.index("[") + 1 : -1].split(",")
    total = 1
    for dim in dims:
        total *= int(dim)
    return total


def test_jax_alone_would_not(tmp_path: Path) -> None:
    """The trap: without output shardings, moments land whole on one device."""
    step = jzero.shard_train_step(step_fn, config=SHARD_ALL)
    params, opt = step.init(create, jax.random.key(0))
    bare = jax.jit(TX.init)(params)
    assert num_parts(bare[0].mu[0]) == 1
    assert num_parts(opt[0].mu[0]) == 8
    again = step.shard((params, bare))
    assert num_parts(again[1][0].mu[0]) == 8
    new = step(*again, jnp.ones((8, 2)))
    assert num_parts(new[1][0].mu[0]) == 8
