"""Faults planted in training steps, one for each kind of finding, and what is found.

Lives here: `PLANTED`, their programs, and the table of `docs/findings.md`, which
`python -m benchmarks.findings` writes anew. Nothing runs: programs are compiled for
GPUs that are not there, and for the CPUs of this machine. The tests use these
programs too. Read next: `jzero/audit/findings/finding.py`.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from rich.console import Console

import jzero
from jzero.audit.findings.finding import Finding, FindingKind
from jzero.audit.pods import pod_mesh
from jzero.audit.step_report import StepReport

__all__ = [
    "NUM_DEVICES",
    "PLANTED",
    "PLATFORMS",
    "Planted",
    "compile_planted",
    "find_planted",
    "render_table",
]

Platform = Literal["gpu", "cpu"]
PLATFORMS: tuple[Platform, ...] = ("gpu", "cpu")
NUM_DEVICES = 8
WIDTH = 512
NUM_ROWS = 512
DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "findings.md"
_TX = optax.adamw(1e-3)
# What one device sends of a whole array, in a gather or a reduce-scatter.
_SENT = (NUM_DEVICES - 1) / NUM_DEVICES

Edit = Callable[[jax.Array, Mesh], jax.Array]


def _keep(x: jax.Array, mesh: Mesh) -> jax.Array:
    return x


def _place(x: jax.Array, mesh: Mesh, *spec: Any) -> jax.Array:
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.lax.with_sharding_constraint(x, sharding)


def _whole(x: jax.Array, mesh: Mesh) -> jax.Array:
    return _place(x, mesh)


def _read_first(w: jax.Array, mesh: Mesh) -> jax.Array:
    return jax.lax.optimization_barrier(_whole(w, mesh))


def _fight(h: jax.Array, mesh: Mesh) -> jax.Array:
    h = _place(h, mesh, ("a", "b"))
    h = jnp.sin(h).reshape(-1, 3, WIDTH)  # rematerialized
    h = _place(h, mesh, None, None, "b")
    return _place(jnp.sin(h).reshape(NUM_ROWS, -1), mesh, ("a", "b"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A training step with one fault: `NUM_ROWS` rows through products and tanh.

    Attributes:
        kind: The finding that it must give.
        what: What is wrong with it, in words.
        where: Path of the leaf, text of the source line, or setting, as in a finding.
        num_bytes: What it costs, counted by hand.
        on_cpu: Whether XLA for CPUs builds it so that it shows.
        stage: The ZeRO stage.
        sizes: Of the values between layers.
        axes: Name and size of the mesh axes.
        settings: Of `ZeroConfig`.
        edit_weight: Changes the middle layer's weight before it is cast to 16 bits.
        edit_output: Changes the middle layer's output.
        edit_grad: Changes the gradient of the middle layer's weight.
        resets: The step makes its accumulator new instead of multiplying it.
    """

    kind: FindingKind
    what: str
    where: str
    num_bytes: float
    on_cpu: bool
    stage: int = 3
    sizes: tuple[int, ...] = (WIDTH,) * 4
    axes: Mapping[str, int] = field(default_factory=lambda: {"data": NUM_DEVICES})
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    edit_weight: Edit = _keep
    edit_output: Edit = _keep
    edit_grad: Edit = _keep
    resets: bool = False

    def step(self, mesh: Mesh) -> Callable[..., Any]:
        """Returns the step function, `(state, x) -> (state, loss)`."""
        middle = (len(self.sizes) - 1) // 2

        def loss_fn(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
            for i, w in enumerate(params.values()):
                if i == middle:
                    w = self.edit_weight(w, mesh)
                x = jnp.tanh(x @ w.astype(jnp.bfloat16))
                if i == middle:
                    x = self.edit_output(x, mesh)
            return (x.astype(jnp.float32) ** 2).mean()

        def step(state: dict[str, Any], x: jax.Array) -> Any:
            params = state["params"]
            loss, grads = jax.value_and_grad(loss_fn)(params, x)
            name = f"w{middle}"
            grads = grads | {name: self.edit_grad(grads[name], mesh)}
            updates, opt = _TX.update(grads, state["opt"], params)
            total = state["total"]
            total = jnp.zeros_like(total) if self.resets else total * 0.9
            params = optax.apply_updates(params, updates)
            return {"params": params, "opt": opt, "total": total}, loss

        return step

    def state(self) -> dict[str, Any]:
        """Returns the shapes and dtypes of the state."""
        pairs = zip(self.sizes, self.sizes[1:], strict=False)
        params = {
            f"w{i}": jax.ShapeDtypeStruct(pair, jnp.float32)
            for i, pair in enumerate(pairs)
        }
        total = jax.ShapeDtypeStruct((_TOTAL,), jnp.float32)
        opt = jax.eval_shape(_TX.init, params)
        return {"params": params, "opt": opt, "total": total}


_WEIGHT = WIDTH * WIDTH
_WIDER = 3 * WIDTH // 2
_TOTAL = 2**13
_WINDOW = 2**20

PLANTED: tuple[Planted, ...] = (
    Planted(
        kind="large-all-reduce",
        what="a constraint wants a gradient whole",
        where="state['params']['w1']",
        num_bytes=2 * _WEIGHT * 2 * _SENT,
        on_cpu=False,
        edit_grad=_whole,
    ),
    Planted(
        kind="wide-gather",
        what="a constraint wants a weight whole before its cast to bfloat16",
        where="state['params']['w1']",
        num_bytes=_WEIGHT * (4 - 2) * _SENT,
        on_cpu=False,
        edit_weight=_read_first,
    ),
    Planted(
        kind="activation-moved",
        what="a constraint wants an activation whole",
        where="jnp.tanh(",
        num_bytes=NUM_ROWS * WIDTH * 2 * _SENT,
        on_cpu=True,
        edit_output=_whole,
    ),
    Planted(
        kind="full-rematerialization",
        what="a reshape between two shardings that share no dim",
        where="# rematerialized",
        num_bytes=NUM_ROWS * _WIDER * 2 * _SENT,
        on_cpu=True,
        sizes=(WIDTH, WIDTH, _WIDER, WIDTH),
        axes={"a": NUM_DEVICES // 2, "b": 2},
        settings={"axis": ("a", "b")},
        edit_output=_fight,
    ),
    Planted(
        kind="gradient-alive",
        what="the pass that limits waiting gradients is disabled",
        where=f"ZeroConfig(reduce_window_bytes={_WINDOW})",
        num_bytes=12 * _WEIGHT * 2 - (2 * _WINDOW + _WEIGHT * 2),
        on_cpu=True,
        sizes=(WIDTH,) * 13,
        settings={"disable_passes": ("window",), "reduce_window_bytes": _WINDOW},
    ),
    Planted(
        kind="left-whole",
        what="no dim of a weight divides by the devices",
        where="state['params']['w1']",
        num_bytes=509 * 511 * 4,
        on_cpu=True,
        sizes=(WIDTH, 509, 511, WIDTH),
    ),
    Planted(
        kind="donation-lost",
        what="an accumulator is made anew, and the old one never read",
        where="state['total']",
        num_bytes=_TOTAL * 4,
        on_cpu=True,
        resets=True,
    ),
    Planted(
        kind="no-effect",
        what="a window for gradients at stage 1, which has none",
        where=f"ZeroConfig(reduce_window_bytes={_WINDOW})",
        num_bytes=0,
        on_cpu=True,
        stage=1,
        settings={"reduce_window_bytes": _WINDOW},
    ),
)
"""One program for each kind of finding."""


def make_mesh(platform: Platform, axes: Mapping[str, int]) -> Mesh:
    """Returns a mesh of 8 devices: CPUs of this process, or GPUs not there."""
    names, shape = tuple(axes), tuple(axes.values())
    if platform == "gpu":
        return pod_mesh(f"h100:1x{NUM_DEVICES}", axis=names, shape=shape)
    devices = np.array(jax.devices("cpu")[:NUM_DEVICES]).reshape(shape)
    return Mesh(devices, names, axis_types=(AxisType.Auto,) * len(names))


def compile_planted(planted: Planted, platform: Platform) -> StepReport:
    """Compiles a planted program and returns its report. Nothing runs."""
    mesh = make_mesh(platform, planted.axes)
    config = jzero.ZeroConfig(on_finding="ignore", **planted.settings)
    step = jzero.shard_train_step(
        planted.step(mesh), stage=planted.stage, mesh=mesh, config=config
    )
    x = jax.ShapeDtypeStruct((NUM_ROWS, planted.sizes[0]), jnp.bfloat16)
    return step.compile(planted.state(), x).report()


def find_planted(planted: Planted, findings: Sequence[Finding]) -> Finding | None:
    """Returns the finding that names a planted fault: its kind and its place."""
    for finding in findings:
        is_same = planted.where in (finding.where, _source_line(finding.where))
        if finding.kind == planted.kind and is_same:
            return finding
    return None


def _source_line(where: str) -> str | None:
    """The text of "file:line" that planted programs name, None if it is none."""
    name, _, number = where.rpartition(":")
    if Path(name).name != Path(__file__).name or not number.isdigit():
        return None
    line = linecache.getline(name, int(number))
    places = (p.where for p in PLANTED if p.where in line and "'" not in p.where)
    return next(places, None)


def render_table(found: Mapping[tuple[FindingKind, Platform], Finding | None]) -> str:
    """Writes the table of `docs/findings.md`.

    Args:
        found: For each planted program and platform, the finding that names it.
    """
    lines = [
        "| kind | planted | named | bytes by hand | found for 8 H100s | for 8 CPUs |",
        "|---|---|---|---:|---|---|",
    ]
    for planted in PLANTED:
        named = planted.where
        if not re.match(r"state|ZeroConfig", named):
            named = "its source line"
        else:
            named = f"`{named}`"
        gpu, cpu = (
            "yes" if found[planted.kind, platform] else "no" for platform in PLATFORMS
        )
        if not planted.on_cpu and cpu == "no":
            cpu = "not visible"
        lines.append(
            f"| `{planted.kind}` | {planted.what} | {named} | "
            f"{round(planted.num_bytes):,} | {gpu} | {cpu} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Compiles every planted program twice and writes the table anew."""
    jax.config.update("jax_num_cpu_devices", NUM_DEVICES)
    console = Console()
    found: dict[tuple[FindingKind, Platform], Finding | None] = {}
    for planted in PLANTED:
        for platform in PLATFORMS:
            report = compile_planted(planted, platform)
            found[planted.kind, platform] = find_planted(planted, report.findings)
            console.print(f"{planted.kind} on {platform}:", style="bold")
            for finding in report.findings:
                console.print(f"  {finding}", highlight=False)
    table = render_table(found)
    console.print(table, highlight=False, soft_wrap=True)
    text = DOCUMENT.read_text()
    start, end = "<!-- planted -->\n", "\n<!-- /planted -->"
    head, _, rest = text.partition(start)
    _, _, tail = rest.partition(end)
    DOCUMENT.write_text(f"{head}{start}{table}{end}{tail}")


if __name__ == "__main__":
    main()
