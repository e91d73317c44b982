"""A small job, and trials of it with numbers of the tests' own."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, cast

from jzero.audit.memory import MemoryFacts
from jzero.config import ZeroConfig
from jzero.fit.job import Job, Trial, load_job, load_variants, plan_job
from jzero.plan.plan import Plan
from jzero.runtime.mesh import default_mesh

SETTINGS = {
    "width": 128,
    "inner": 256,
    "heads": 2,
    "layers": 2,
    "vocab": 512,
    "length": 64,
    "rows": 2,
}


@functools.cache
def small() -> Job:
    return load_job("benchmarks.llama:build", SETTINGS)


@functools.cache
def small_variants() -> tuple[Job, ...]:
    return load_variants("benchmarks.llama:build", SETTINGS)


def plan_of(stage: int, **settings: Any) -> Plan:
    config = ZeroConfig(**settings)
    return plan_job(small(), default_mesh("data"), stage=stage, config=config)


@dataclass(frozen=True)
class Report:
    memory: MemoryFacts


@dataclass(frozen=True)
class Compiled:
    """What a trial asks of a compiled step, for tests of what follows from it."""

    plan: Plan
    memory: MemoryFacts

    def report(self) -> Report:
        return Report(self.memory)


def trial_of(
    stage: int,
    peak_bytes: int,
    *,
    argument_bytes: int = 0,
    num_rows: int = 2,
    remat: bool | None = None,
    **settings: Any,
) -> Trial:
    memory = MemoryFacts(
        argument_bytes=argument_bytes,
        output_bytes=0,
        alias_bytes=0,
        temp_bytes=peak_bytes - argument_bytes,
    )
    return Trial(
        stage=stage,
        config=ZeroConfig(**settings),
        num_rows=num_rows,
        remat=remat,
        compiled=cast(Any, Compiled(plan_of(stage, **settings), memory)),
        seconds=0.0,
    )
