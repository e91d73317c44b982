"""What papers and pages announce, worked out again by compiling.

    python -m benchmarks.headlines            # prints and writes docs/headlines.md
    python -m benchmarks.headlines --only trillion

Nothing runs: memory and bytes moved are the compiler's, for the devices named. Each
row of the document has what was announced, by whom, what jzero's program needs, and
the command that shows it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

from jzero.audit.pods import pod_mesh
from jzero.fit.job import Job, Trial, load_job, try_job

__all__ = ["HEADLINES", "Headline", "Shown", "main", "render"]

_DOCUMENT = Path(__file__).parents[1] / "docs" / "headlines.md"
_TARGET = "benchmarks/llama.py:build"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What was compiled for one announcement.

    Attributes:
        ours: The numbers, in words.
        is_met: They are as good as announced.
    """

    ours: str
    is_met: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """One announcement.

    Attributes:
        title: In a few words.
        announced: What was said.
        source: By whom.
        command: What shows ours.
        work: Compiles and compares.
    """

    title: str
    announced: str
    source: str
    command: str
    work: Callable[[], Shown]


def _job(settings: Mapping[str, Any]) -> Job:
    return load_job("benchmarks.llama:build", settings)


def _command(pod: str, stage: int, settings: Mapping[str, Any]) -> str:
    sets = " ".join(f"--set {name}={value}" for name, value in settings.items())
    return f"jzero plan {_TARGET} --pod {pod} --stage {stage} {sets}".strip()


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.2f} GB"


def _try(pod: str, stage: int, settings: Mapping[str, Any], rows: int = 1) -> Trial:
    return try_job(_job(settings), pod_mesh(pod), stage=stage, num_rows=rows)


_TRILLION = {"layers": 128, "width": 25_600, "inner": 68_096, "heads": 200,
             "length": 1024}  # fmt: skip
_13B = {"layers": 40, "width": 5120, "inner": 13_824, "heads": 40, "length": 1024}
_560M = {"layers": 24, "width": 1024, "inner": 2720, "heads": 16, "vocab": 250_880,
         "length": 512}  # fmt: skip
_1B = {"layers": 16, "width": 2048, "inner": 5504, "heads": 16, "length": 1024}


def _params(settings: Mapping[str, Any]) -> float:
    state = _job(settings).state[0]
    return sum(leaf.size for leaf in jax.tree.leaves(state.params))


def _trillion() -> Shown:
    trial = _try("h100:128x8", 3, _TRILLION)
    return Shown(
        ours=f"{_params(_TRILLION) / 1e12:.2f} T parameters on 1024 x 80 GB: "
        f"{_gb(trial.peak_bytes)} at the peak, compiled in {trial.seconds:.0f} s",
        is_met=trial.peak_bytes < 80e9,
    )


def _thirteen() -> Shown:
    trial = _try("a100-40:1x8", 3, _13B)
    return Shown(
        ours=f"{_params(_13B) / 1e9:.1f} B parameters on 8 devices: "
        f"{_gb(trial.peak_bytes)} at the peak with float32 parameters and moments",
        is_met=trial.peak_bytes < 32e9,
    )


def _bloom() -> Shown:
    two, three = (_try("h100:1x8", stage, _560M) for stage in (2, 3))
    rest = [trial.compiled.report().memory.argument_bytes for trial in (two, three)]
    return Shown(
        ours=f"stage 2 {_gb(two.peak_bytes)} -> stage 3 {_gb(three.peak_bytes)} at the "
        f"peak; after a step both hold {_gb(rest[0])} -> {_gb(rest[1])}, since jzero "
        "shards parameters at rest at stage 2 too",
        is_met=three.peak_bytes < two.peak_bytes and max(rest) < 1.94e9,
    )


def _batch() -> Shown:
    limit = 24e9
    largest: list[int] = []
    for stage in (0, 2):
        one, two = (_try("h100:1x8", stage, _1B, rows) for rows in (1, 2))
        slope = two.peak_bytes - one.peak_bytes
        rows = int((limit - one.peak_bytes) / slope) + 1
        while rows > 0 and _try("h100:1x8", stage, _1B, rows).peak_bytes > limit:
            rows -= max(1, rows // 20)
        largest.append(rows)
    return Shown(
        ours=f"on a card of 24 GB, {_params(_1B) / 1e9:.2f} B parameters: "
        f"{largest[0]} -> {largest[1]} rows of 1024 tokens",
        is_met=largest[1] >= 2 * largest[0],
    )


HEADLINES = {
    "trillion": Headline(
        title="A trillion parameters",
        announced="1 T parameters on 1024 GPUs with stage 3",
        source="ZeRO, arXiv 1910.02054, abstract",
        command=_command("h100:128x8", 3, _TRILLION),
        work=_trillion,
    ),
    "thirteen": Headline(
        title="13 B without model parallelism",
        announced="13 B parameters by data parallelism alone, on 32 GB cards",
        source="ZeRO, arXiv 1910.02054, abstract, without the cards",
        command=_command("a100-40:1x8", 3, _13B),
        work=_thirteen,
    ),
    "bloom": Headline(
        title="Stage 2 against stage 3",
        announced="BLOOM 560 M: 3.48 GB at stage 2, 1.94 GB at stage 3 after a step",
        source="DeepSpeed's pages, as quoted to us; not looked up again",
        command=_command("h100:1x8", 3, _560M),
        work=_bloom,
    ),
    "batch": Headline(
        title="The largest batch",
        announced="100 with data parallelism, 200 with stage 2, on the same card",
        source="DeepSpeed's pages, as quoted to us; not looked up again",
        command="python -m benchmarks.headlines --only batch",
        work=_batch,
    ),
}


def render(shown: Mapping[str, Shown]) -> str:
    """Writes the document."""
    lines = [
        "# Headlines, worked out again",
        "",
        "Made by `python -m benchmarks.headlines`, never by hand. Nothing ran: the "
        "numbers are those of programs compiled for the devices named, with bfloat16 "
        "compute, float32 parameters and AdamW, remat, and the layers in one scan. "
        "The models are Llama-shaped ([benchmarks/llama.py](../benchmarks/llama.py)), "
        "so they are of the announced size and not the announced models.",
        "",
        "| what | announced | ours | as good | command |",
        "|---|---|---|---|---|",
    ]
    for name, found in shown.items():
        headline = HEADLINES[name]
        lines.append(
            f"| {headline.title} | {headline.announced} ({headline.source}) "
            f"| {found.ours} | {'yes' if found.is_met else 'NO'} "
            f"| `{headline.command}` |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=sorted(HEADLINES))
    only = parser.parse_args().only
    shown: dict[str, Shown] = {}
    for name in HEADLINES if only is None else (only,):
        shown[name] = HEADLINES[name].work()
        print(f"{name}: {shown[name].ours}; as good: {shown[name].is_met}", flush=True)
    if only is None:
        _DOCUMENT.write_text(render(shown))
        print(f"wrote {_DOCUMENT.name}")


if __name__ == "__main__":
    main()
