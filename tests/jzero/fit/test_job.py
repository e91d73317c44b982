"""Files of users become jobs, and mistakes in them are told."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import jax
import pytest

from jzero.config import ZeroConfig
from jzero.fit.job import JobError, load_job, load_variants, plan_job, try_job
from jzero.runtime.mesh import default_mesh

GOOD = """
import jax, jax.numpy as jnp

def build(width=64, lr=0.1):
    def step(params, opt, x, rate):
        def loss(p):
            return ((x @ p["w"]) ** 2).mean()
        grads = jax.grad(loss)(params)
        new = jax.tree.map(lambda p, g: p - rate * lr * g, params, grads)
        return new, {"n": opt["n"] + 1}, loss(params)
    def create(key):
        return {"w": jax.random.normal(key, (width, width))}, {"n": jnp.zeros((8,))}
    batch = (jnp.zeros((4, width)), 0.5)
    return step, create, (jax.random.key(0),), batch

def deep(width=64, remat=False):
    step, create, args, batch = build(width)
    def checked(params, opt, x, rate):
        return (jax.checkpoint(step) if remat else step)(params, opt, x, rate)
    return checked, create, args, batch

def named(remat="full"):
    return build()

def wrong():
    return 1, 2

def half():
    return 1, 2, 3, jnp.zeros(3)

def empty():
    return build()[:3] + ((),)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.py"
    path.write_text(dedent(GOOD))
    return str(path)


def test_a_file_becomes_shapes(file: str) -> None:
    job = load_job(f"{file}:build", {"width": 256})
    assert [leaf.shape for leaf in jax.tree.leaves(job.state)] == [(256, 256), (8,)]
    assert job.num_rows == 4 and job.num_state_bytes == 256 * 256 * 4 + 8 * 4
    args = job.arguments(8)
    assert [leaf.shape for leaf in jax.tree.leaves(args)[2:]] == [(32, 256), ()]
    assert job.arguments(8, num_rows=3)[2].shape == (24, 256)


def test_a_job_is_planned_and_compiled(file: str) -> None:
    job = load_job(f"{file}:build", {"width": 256})
    mesh = default_mesh("data")
    plan = plan_job(job, mesh, stage=3, config=ZeroConfig())
    assert plan.state[0].local_bytes == 256 * 256 * 4 // 8
    trial = try_job(job, mesh, stage=3, num_rows=2)
    report = trial.compiled.report()
    assert trial.peak_bytes == report.memory.device_peak_bytes > 0
    assert report.resident[-1].compiled_bytes == 2 * 256 * 4 + 4


def test_a_module_can_be_named() -> None:
    job = load_job("benchmarks.llama:build", {"width": 64, "heads": 2, "layers": 2})
    assert job.num_rows == 1


def test_a_job_with_and_without_remat(file: str) -> None:
    jobs = load_variants(f"{file}:deep", {"width": 128})
    assert [job.remat for job in jobs] == [False, True]
    args = jobs[0].arguments(1)
    # JAX 0.10 and 0.12 call the primitive by different names.
    programs = [str(jax.make_jaxpr(job.step_fn)(*args)) for job in jobs]
    found = [bool(re.search("checkpoint|remat", text)) for text in programs]
    assert found == [False, True]


@pytest.mark.parametrize(
    ("name", "settings"),
    [("build", {}), ("named", {}), ("deep", {"remat": True})],
)
def test_jobs_that_have_no_choice_of_remat(
    file: str, name: str, settings: dict[str, Any]
) -> None:
    (job,) = load_variants(f"{file}:{name}", settings)
    assert job.remat is None


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    (
        ("wrong", {}, "returned 2 values"),
        ("half", {}, "step_fn is not callable, create_state is not callable"),
        ("empty", {}, "the batch has no array"),
        (
            "other",
            {},
            "has no function 'other'; it has build, deep, empty, half",
        ),
        ("build", {"wide": 3}, "takes no setting 'wide'.*its settings are width, lr"),
    ),
)
def test_mistakes(file: str, name: str, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(JobError, match=f"(?s){text}"):
        load_job(f"{file}:{name}", settings)


@pytest.mark.parametrize(
    ("target", "text"),
    (
        ("nowhere.py:build", "no file nowhere.py"),
        ("no_such_module:build", "cannot be imported"),
        ("nowhere.py", "names no function"),
    ),
)
def test_targets_that_are_not_there(target: str, text: str) -> None:
    with pytest.raises(JobError, match=text):
        load_job(target, {})
