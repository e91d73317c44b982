"""The comparison with other frameworks, as far as it needs none of them."""

from __future__ import annotations

import ast
import datetime
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

from benchmarks.peers import data, table, weights
from benchmarks.peers.__main__ import DOCUMENT, main, prepare
from benchmarks.peers.cases import DTYPES, STAGES, Case, Size, cases
from benchmarks.peers.environment import is_whole, stamp_text
from benchmarks.peers.flax_gpt import GPT
from benchmarks.peers.processes import JobError, run_job
from benchmarks.peers.results import Result, load, merge, parse, save
from benchmarks.peers.worker import PREFIX, Job

PACKAGE = Path(DOCUMENT).parents[1] / "benchmarks" / "peers"
TINY = Size(vocab=512, width=32, num_layers=2, num_heads=2, num_tokens=16, rows=2)


def job_of(folder: Path, stage: int = 3, dtype: str = "float32") -> Job:
    return Job(
        case=Case(dtype=dtype, framework="jzero", stage=stage),
        size=TINY,
        rank=0,
        num_processes=2,
        port=0,
        num_steps=4,
        num_warm=2,
        folder=folder,
    )


def result_of(stage: int, *seconds: float, framework: str = "jzero") -> Result:
    return Result(
        case=Case(dtype="float32", framework=framework, stage=stage),
        losses=(3.0, 2.5),
        rounds=(seconds,),
        cpu_rounds=(tuple(s / 2 for s in seconds),),
        state_bytes=200_000_000,
        peak_bytes=900_000_000,
        versions={"jax": "1.2.3"},
    )


def test_every_framework_runs_at_every_stage_it_has() -> None:
    every = cases(STAGES, DTYPES)
    assert len(every) == len(set(every)) == 22
    assert {c.baseline.stage for c in every} == {0}
    assert len({(c.dtype, c.label) for c in every}) == 22


def test_the_text_is_numbered_below_the_vocabulary() -> None:
    text = data.source_text()[:200_000]
    ids = data.tokenize(text, vocab=8192)
    assert ids.dtype == np.int32 and ids.max() < 8192
    assert (ids == data.tokenize(text, vocab=8192)).all()
    assert (data.tokenize(text, vocab=64) == 0).mean() > 0.1
    # Learnable: one word tells much about the next.
    pairs = len(set(zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True)))
    assert pairs < len(ids) / 4


def test_the_parts_of_a_batch_are_the_batch() -> None:
    tokens = np.arange(1000, dtype=np.int32)
    whole = data.batch(tokens, 5, rows=4, num_tokens=8, part=0, parts=1)
    parts = [
        data.batch(tokens, 5, rows=2, num_tokens=8, part=i, parts=2) for i in (0, 1)
    ]
    assert (whole["x"] == np.concatenate([p["x"] for p in parts])).all()
    assert (whole["y"] == whole["x"] + 1).all()
    other = data.batch(tokens, 6, rows=4, num_tokens=8, part=0, parts=1)
    assert (whole["x"] != other["x"]).any()


def test_the_common_weights_are_those_of_the_flax_model() -> None:
    model = GPT(TINY, "float32")
    ids = np.zeros((1, TINY.num_tokens), np.int32)
    made = jax.eval_shape(model.init, jax.random.key(0), ids)["params"]
    shapes = {k: v.shape for k, v in flatten_dict(made, sep="/").items()}
    assert shapes == weights.shapes(TINY)
    first, again = weights.initial(TINY), weights.initial(TINY)
    assert {k: v.shape for k, v in first.items()} == shapes
    assert all((first[k] == again[k]).all() for k in first)


def test_the_torch_worker_needs_no_jax() -> None:
    seen: set[str] = set()
    waiting = ["torch_worker"]
    while waiting:
        tree = ast.parse((PACKAGE / f"{waiting.pop()}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                module = node.module or ""
                names = [module, *(f"{module}.{a.name}" for a in node.names)]
            else:
                continue
            for name in set(names) - seen:
                seen.add(name)
                last = name.rpartition(".")[2]
                if name.startswith("benchmarks.") and (PACKAGE / f"{last}.py").exists():
                    waiting.append(last)
    assert "benchmarks.peers.torch_gpt" in seen
    assert not {name.split(".")[0] for name in seen} & {"jzero", "jax", "flax", "rich"}


def test_reports_are_found_among_other_output() -> None:
    def printed(rank: int, losses: list[float], seconds: list[float]) -> str:
        report = {
            "case": {"dtype": "float32", "framework": "jzero", "stage": 1},
            "rank": rank,
            "losses": losses,
            "seconds": seconds,
            "cpu_seconds": [0.1 + rank],
            "state_bytes": 10 + rank,
            "peak_bytes": 20 - rank,
            "versions": {"jax": "1"},
        }
        return f"[rank] a warning\n{PREFIX}{json.dumps(report)}\nbye\n"

    outputs = [printed(0, [2.0, 1.0], [0.5]), printed(1, [4.0, 2.0], [0.7])]
    result = parse(outputs)
    assert result.losses == (3.0, 1.5)
    assert result.rounds == ((0.7,),)
    assert result.cpu_rounds == ((1.1,),)
    assert (result.state_bytes, result.peak_bytes) == (11, 20)
    with pytest.raises(ValueError, match="0 reports"):
        parse([outputs[0], "nothing"])


def test_rounds_are_pooled_and_held_against_stage_0(tmp_path: Path) -> None:
    plain = [result_of(0, 1.0, 2.0, 6.0), result_of(0, 2.5)]
    sharded = [result_of(3, 7.0), result_of(3, 3.0, 9.0, 2.0)]
    results = merge([plain[0], sharded[0], plain[1], sharded[1]])
    assert [r.step_seconds for r in results] == [2.0, 3.0]
    assert table.row(results[1], results) == (
        "jzero stage 3",
        "3.00",
        "7.00",
        "1.50",
        "1.50",
        "1.50",
        "200",
        "900",
    )
    assert table.row(results[1], results[1:])[3] == "-"
    save(tmp_path / "results.json", results)
    assert load(tmp_path / "results.json") == results


def test_the_document_changes_between_its_markers_only(tmp_path: Path) -> None:
    results = [result_of(0, 1.0), result_of(3, 1.25, framework="fsdp2")]
    day = datetime.date(2030, 1, 2)
    text = table.markdown(results, TINY, day)
    assert "2030-01-02" in text and "jax 1.2.3" in text
    assert "| FSDP2 | 1.25 | 1.25 | - | 0.62 | - | 200 | 900 |" in text
    assert "| jzero stage 0 | 3.0000 | 2.5000 |" in text
    path = tmp_path / "benchmarks.md"
    path.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    for _ in range(2):
        table.write(path, text)
    written = path.read_text()
    assert written == f"before\n{table.BEGIN}\n\n{text}\n\n{table.END}\nafter\n"
    path.write_text("no markers")
    with pytest.raises(ValueError, match="once each"):
        table.write(path, text)


def test_the_committed_document_has_every_case() -> None:
    document = DOCUMENT.read_text()
    made = document.split(table.BEGIN)[1].split(table.END)[0]
    for case in cases(STAGES, DTYPES):
        assert made.count(f"\n| {case.label} |") == 4, case.label
    assert "python -m benchmarks.peers" in document


def test_an_interrupted_environment_is_made_again(tmp_path: Path) -> None:
    assert not is_whole(tmp_path, "python3")
    (tmp_path / "peers-stamp").write_text(stamp_text("python3"))
    assert is_whole(tmp_path, "python3")
    assert not is_whole(tmp_path, "python4")
    assert "deepspeed==0.19.8" in stamp_text("python3")


def test_a_run_needs_a_timed_step() -> None:
    with pytest.raises(SystemExit):
        main(["--steps", "2"])


def test_two_processes_train_alike_at_all_stages(tmp_path: Path) -> None:
    prepare(tmp_path, TINY)
    job = job_of(tmp_path)
    assert Job.parse(job.text()) == job
    plain = run_job(job_of(tmp_path, stage=0), sys.executable)
    sharded = run_job(job, sys.executable)
    assert sharded.losses == pytest.approx(plain.losses, abs=1e-5)
    assert plain.losses[0] == pytest.approx(np.log(TINY.vocab), abs=0.1)
    assert len(sharded.rounds[0]) == 2
    num_elems = sum(np.prod(shape) for shape in weights.shapes(TINY).values())
    # Parameters and two moments; the counters and the last loss are a few bytes.
    assert plain.state_bytes == pytest.approx(12 * num_elems, abs=256)
    large = 2 * TINY.vocab * TINY.width
    assert sharded.state_bytes == pytest.approx(12 * (num_elems - large / 2), abs=256)


def test_a_job_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"tokens\.npy|weights\.npz"):
        run_job(job_of(tmp_path), sys.executable)
