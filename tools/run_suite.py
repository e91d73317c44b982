"""The targets of the Makefile: `python -m tools.run_suite test|lint|demo|figures`.

The suite runs on the default Python and, where there is a newer one, also on
that: JAX 0.10 and 0.12 differ inside. May import: `environments`. Read next: the
Makefile, which is all that users type.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from tools.environments import (
    ROOT,
    Environment,
    default_environment,
    install,
    is_ready,
    newest_environment,
)

# Two workers: each holds 8 virtual devices and a compiler, and two cores and
# 24 GB are what the suite is made for.
PYTEST = ("-m", "pytest", "--numprocesses", "2", "--dist", "worksteal")


class Phases:
    """Runs commands one after the other and remembers how each went."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, float, int]] = []

    def run(self, name: str, command: Sequence[str]) -> bool:
        """Runs a command, its output going where ours goes; says if it succeeded."""
        # The GPU compiler's plugin would complain at length that there is no GPU.
        # As many threads for XLA's CPU programs as virtual devices need: on two, eight
        # that wait for each other in a collective can wait for ever.
        threads = {"PJRT_NPROC": os.environ.get("PJRT_NPROC", "16")}
        env = os.environ | threads | {"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}

        def call() -> int:
            return subprocess.run(command, cwd=ROOT, env=env).returncode

        return self.call(name, call)

    def call(self, name: str, function: Callable[[], int]) -> bool:
        """Runs a function that returns an exit status; says if that was 0."""
        print(f"== {name}", flush=True)
        start = time.monotonic()
        status = function()
        self._rows.append((name, time.monotonic() - start, status))
        return status == 0

    def report(self) -> int:
        """Prints a line per phase; returns 1 if any failed."""
        width = max(len(name) for name, _, _ in self._rows)
        print("== time taken")
        for name, seconds, status in self._rows:
            outcome = "ok" if status == 0 else f"FAILED (exit status {status})"
            print(f"  {name:<{width}}  {seconds:7.1f} s  {outcome}")
        total = sum(seconds for _, seconds, _ in self._rows)
        print(f"  {'in all':<{width}}  {total:7.1f} s", flush=True)
        return int(any(status for _, _, status in self._rows))


def prepare(phases: Phases, envs: Sequence[Environment], extras: str) -> bool:
    """Installs the project into each environment, all at the same time."""

    def install_all() -> int:
        with ThreadPoolExecutor(len(envs)) as pool:
            jobs = [pool.submit(install, env, extras) for env in envs]
        errors = [error for job in jobs if (error := job.exception()) is not None]
        for error in errors:
            print(f"installation failed: {error}", file=sys.stderr)
        return int(bool(errors))

    todo = [env for env in envs if not is_ready(env, extras)]
    if not todo:
        return True
    return phases.call(f"install {', '.join(e.label for e in todo)}", install_all)


def add_gpu_compiler(phases: Phases, env: Environment) -> bool:
    """Adds the wheels that compile for GPUs that are not there."""
    command = [env.python, "-m", "jzero.audit.setup_aot"]
    return phases.run(f"GPU compiler in {env.label}", command)


def lint(phases: Phases, env: Environment) -> None:
    """Runs every linter, also after one has failed."""
    phases.run("ruff check", [env.command("ruff"), "check"])
    phases.run("ruff format", [env.command("ruff"), "format", "--check"])
    phases.run("import-linter", [env.command("lint-imports")])
    pyright = [env.command("pyright"), "--pythonpath", env.python]
    phases.run("pyright", pyright)


def run_test(phases: Phases) -> None:
    """Linters on the newest Python, then the tests on both."""
    default = default_environment()
    newest = newest_environment(default)
    envs = [default] if newest is None else [default, newest]
    if not prepare(phases, envs, "dev,examples"):
        return
    if not all([add_gpu_compiler(phases, env) for env in envs]):
        return
    lint(phases, envs[-1])
    for env in envs:
        phases.run(f"tests in {env.label}", [env.python, *PYTEST])


def run_lint(phases: Phases) -> None:
    """Linters alone, on the newest Python."""
    default = default_environment()
    env = newest_environment(default) or default
    if prepare(phases, [env], "dev,examples"):
        lint(phases, env)


def run_demo(phases: Phases) -> None:
    """The demonstration."""
    env = default_environment()
    if is_ready(env, "dev,examples") or prepare(phases, [env], "examples"):
        phases.run("demo", [env.python, "-m", "examples.demo"])


def run_figures(phases: Phases) -> None:
    """The table of figures, from programs compiled for GPUs that are not there."""
    default = default_environment()
    env = newest_environment(default) or default
    if prepare(phases, [env], "dev,examples") and add_gpu_compiler(phases, env):
        phases.run("figures", [env.python, "-m", "benchmarks.figures"])


TARGETS: dict[str, Callable[[Phases], None]] = {
    "test": run_test,
    "lint": run_lint,
    "demo": run_demo,
    "figures": run_figures,
}


def main(arguments: Sequence[str]) -> int:
    """Runs one target; returns the exit status."""
    if len(arguments) != 1 or arguments[0] not in TARGETS:
        print(f"usage: python -m tools.run_suite {'|'.join(TARGETS)}", file=sys.stderr)
        return 2
    phases = Phases()
    TARGETS[arguments[0]](phases)
    return phases.report()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
