"""Every example, as a program, in a small setting."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.run import ROOT, run_example

GPT_SMALL = ("--steps", "21", "--layers", "2", "--width", "64", "--length", "32")


def losses_of(output: str) -> list[float]:
    return [float(x) for x in re.findall(r"loss (\d+\.\d+)", output)]


def test_every_example_has_a_test() -> None:
    text = "".join(p.read_text() for p in Path(__file__).parent.glob("test_*.py"))
    programs = [
        p.stem for p in (ROOT / "examples").glob("*.py") if "__main__" in p.read_text()
    ]
    assert len(programs) >= 7
    assert not [name for name in programs if f'run_example("{name}"' not in text]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--stage", "3", "--plan"),
        ("--stage", "2", "--scan", "--dtype", "bfloat16", "--devices", "4"),
    ],
    ids=["unrolled", "scanned"],
)
def test_gpt_learns_and_writes(arguments: tuple[str, ...]) -> None:
    result = run_example("gpt", *GPT_SMALL, *arguments)
    assert result.returncode == 0, result.stderr
    losses = losses_of(result.stdout)
    assert len(losses) == 3  # steps 0 and 20, held out
    assert losses[0] > 5.4 and max(losses[1:]) < 4.5
    assert "    def __init__(self" in result.stdout
    assert ("Totals" in result.stdout) == ("--plan" in arguments)


def test_nnx_step_changes_its_objects() -> None:
    small = ("--steps", "21", "--width", "64", "--length", "32", "--stage", "2")
    result = run_example("gpt_nnx", *small)
    assert result.returncode == 0, result.stderr
    losses = losses_of(result.stdout)
    assert losses[-1] < losses[0] - 1.0
    assert "a kernel of (64, 256) lies as P('data'" in result.stdout


def test_digits_are_classified() -> None:
    result = run_example("digits_batchnorm", "--steps", "60")
    assert result.returncode == 0, result.stderr
    accuracy = re.search(r"(\d+\.\d)% right", result.stdout)
    assert accuracy is not None and float(accuracy[1]) > 90.0


def test_demo_shows_four_stages(tmp_path: Path) -> None:
    picture = tmp_path / "curves.png"
    small = ("--steps", "8", "--layers", "1", "--width", "128")
    result = run_example("demo", *small, "--out", str(picture))
    assert result.returncode == 0, result.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = re.findall(r"^ *([0-3]) +(\d\.\d{5}) +(.*)$", result.stdout, re.M)
    assert [stage for stage, _, _ in rows] == ["0", "1", "2", "3"]
    losses = [float(loss) for _, loss, _ in rows]
    assert losses[1:] == pytest.approx([losses[0]] * 3, abs=2e-5)
    shares = [float(rest.split()[-2]) for _, _, rest in rows]
    assert shares[0] == 1.0
    assert max(shares[1:]) < 0.15
