"""Streams that run on the host: as XLA compiles them, or as kernels of our own.

Lives here: `HostCompute`, and which updates kernels cannot run. May import: compat,
plan, ir. Read next: `host_kernel.py`, the kernel itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
from jax.sharding import Mesh, PartitionSpec

from jzero.compat.jaxpr import Var, inner, is_var
from jzero.compat.llvm import load_llvm
from jzero.compat.memory import is_on_host, to_device, to_host
from jzero.errors import ConfigError, format_problem
from jzero.ir.host_kernel import HostKernel
from jzero.ir.inline import inline_calls
from jzero.ir.kernel_rules import why_not_covered
from jzero.ir.specs import Dims, to_spec
from jzero.ir.stream_loop import StreamRun
from jzero.ir.streams import find_streams
from jzero.ir.trace import TracedStep
from jzero.offload import Offload
from jzero.plan.plan import Plan

__all__ = ["HostCompute"]

Run = Callable[..., list[jax.Array]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCompute:
    """How streams run where their leaves lie.

    Attributes:
      mesh: the devices.
      has_kernels: whether updates run as kernels.
    """

    mesh: Mesh
    has_kernels: bool

    @classmethod
    def of(cls, step: TracedStep, plan: Plan, offload: Offload) -> HostCompute | None:
        """Returns how streams of a step run on the host; None if they do not.

        Raises:
          ConfigError: kernels are asked for and cannot run: not on these devices, not
            without llvmlite, or not the update of some leaf.
        """
        if offload.compute != "host":
            return None
        has_kernels = offload.compiler == "llvm"
        if has_kernels:
            _check_platform(step.mesh)
            load_llvm()
            _check_updates(step, plan)
        return cls(mesh=step.mesh, has_kernels=has_kernels)

    def runs(self, run: StreamRun, dims: Mapping[Var, Dims]) -> Run:
        """Returns a function of `run.inputs` that runs a stream.

        Args:
          run: the stream. One that updates nothing (the cast of a weight) is left to
            XLA, which fuses it with what reads it.
          dims: how the leaves lie.
        """
        if not self.has_kernels or not run.host_outs:
            return run.on_host
        known = [dims[v] for v in run.stream.leaves if v in dims]
        whole = (None,) * len(run.stream.leaves[0].aval.shape)
        return _on_shards(run, known[0] if known else whole, self.mesh)


def _on_shards(run: StreamRun, dims: Dims, mesh: Mesh) -> Run:
    """A stream as a kernel that each device runs on its shards, in place."""
    inputs, outs = run.inputs, run.stream.outs
    kernel = HostKernel(
        eqns=run.eqns,
        inputs=inputs,
        outs=outs,
        reuses={v: old for v, old in run.reuses.items() if old in inputs},
        spread=run.spread,
    )
    spec = to_spec(dims)
    shards = jax.shard_map(
        kernel.run,
        mesh=mesh,
        in_specs=tuple(spec if v.aval.shape else PartitionSpec() for v in inputs),
        out_specs=[spec] * len(outs),
        check_vma=False,
    )

    def compute(*arrays: jax.Array) -> list[jax.Array]:
        # On CPUs host and device memory are one; this only changes the type.
        here = [to_device(x) if is_on_host(jax.typeof(x)) else x for x in arrays]
        new = shards(*here)
        return [
            to_host(x) if v in run.host_outs else x
            for v, x in zip(outs, new, strict=True)
        ]

    return compute


def _check_platform(mesh: Mesh) -> None:
    platform = mesh.devices.flat[0].platform
    if platform != "cpu":
        raise ConfigError(
            f'Offload(compiler="llvm") runs on the CPU backend; the mesh is of '
            f"{platform!r} devices. Its code was never tried there.\n"
            "Remedy: leave compiler out, and XLA compiles the update."
        )


def _check_updates(step: TracedStep, plan: Plan) -> None:
    """Refuses updates that no kernel can run, leaf by leaf."""
    is_in = [False] * len(inner(step.jaxpr).invars)
    paths: dict[int, str] = {}
    for flat_in, flat_out, leaf in zip(
        step.state_ins, step.state_outs, plan.state, strict=True
    ):
        is_in[flat_in] = leaf.is_on_host
        if leaf.is_on_host and flat_out >= 0:
            paths[flat_out] = leaf.path
    jaxpr = inline_calls(step.jaxpr, is_in)
    body = inner(jaxpr)
    inputs = [v for v, f in zip(body.invars, is_in, strict=True) if f]
    streams = find_streams(jaxpr, inputs)
    rows: list[tuple[str, str]] = []
    for flat_out, path in paths.items():
        var = body.outvars[flat_out]
        if not is_var(var) or streams.aliases.get(var, var) in inputs:
            continue  # it keeps its value, or gets that of another leaf
        stream = streams.members.get(streams.made_at.get(var, -1))
        if stream is None:
            maker = body.eqns[streams.made_at[var]]
            rows.append((path, f"is made by {maker.primitive.name}, as a whole"))
            continue
        reasons = [why_not_covered(body.eqns[i]) for i in stream.eqns]
        if missing := sorted({reason for reason in reasons if reason}):
            rows.append((path, f"its update has {', '.join(missing)}"))
    if rows:
        raise ConfigError(
            format_problem(
                'Offload(compiler="llvm") runs updates that are element-wise '
                "arithmetic. It cannot run those of:",
                rows,
                "leave compiler out, and XLA compiles the update.",
            )
        )
