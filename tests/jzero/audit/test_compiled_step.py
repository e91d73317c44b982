"""`step.compile`, and what `ZeroConfig(on_finding=...)` makes of what it built."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jzero
from jzero.audit.compiled_step import CompiledStep, describe_devices, is_absent
from jzero.audit.pods import pod_mesh
from jzero.runtime.program import Executable
from tests.end_to_end.oracle import CompileCounter
from tests.needs import needs_compiler

State = dict[str, jax.Array]


def faulty_step(state: State, x: jax.Array) -> tuple[State, jax.Array]:
    """Never reads `total`, so its buffer of 32 KiB is lost."""
    loss, grad = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(state["w"])
    return {"total": jnp.zeros_like(state["total"]), "w": state["w"] - grad}, loss


def make_state() -> State:
    return {"total": jnp.ones((2**13,)), "w": jnp.ones((64, 512))}


def structs(rows: int = 16) -> tuple[Any, jax.ShapeDtypeStruct]:
    shape = jax.ShapeDtypeStruct((rows, 64), jnp.float32)
    return jax.eval_shape(make_state), shape


def batch(rows: int = 16) -> np.ndarray:
    return np.ones((rows, 64), np.float32)


def make_step(on_finding: Any = "warn", **settings: Any) -> jzero.TrainStep:
    config = jzero.ZeroConfig(on_finding=on_finding)
    return jzero.shard_train_step(faulty_step, config=config, **settings)


def quiet(call: Any) -> Any:
    """Calls something that must warn of nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return call()


def test_raise_names_the_finding_and_spares_the_state() -> None:
    state = make_state()
    with pytest.raises(jzero.FindingError, match=r"donation-lost: state\['total'\]"):
        make_step("raise")(state, batch())
    with pytest.raises(jzero.FindingError, match="donation-lost"):
        make_step("raise").compile(*structs())
    new, loss = make_step("ignore")(state, batch())
    assert np.isfinite(float(loss))
    assert float(new["total"].sum()) == 0


def test_raise_spares_a_state_that_was_placed() -> None:
    step = make_step("raise")
    state = step.shard(make_state())
    with pytest.raises(jzero.FindingError):
        step(state, batch())
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    make_step("ignore")(state, batch())


def test_warn_warns_once_for_each_compile() -> None:
    step = make_step()
    state = step.shard(make_state())
    with pytest.warns(jzero.FindingWarning, match="donation-lost") as caught:
        state, _ = step(state, batch())
    assert len(caught) == 1
    state, _ = quiet(lambda: step(state, batch()))
    quiet(lambda: step.compile(*structs()))
    with pytest.warns(jzero.FindingWarning, match="donation-lost"):
        step(state, batch(24))


def test_a_call_after_compile_does_not_warn_again() -> None:
    step = make_step()
    with pytest.warns(jzero.FindingWarning) as caught:
        step.compile(*structs())
    assert len(caught) == 1
    state = step.shard(make_state())
    quiet(lambda: step(state, batch()))


def test_ignore_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    as_text = jax.stages.Compiled.as_text

    def counted(self: jax.stages.Compiled) -> str | None:
        read.append("text")
        return as_text(self)

    monkeypatch.setattr(jax.stages.Compiled, "as_text", counted)
    step = make_step("ignore")
    state = step.shard(make_state())
    compiled = step.compile(*structs())
    quiet(lambda: step(state, batch()))
    assert not read
    assert [f.kind for f in compiled.report().findings] == ["donation-lost"]
    assert read
    read.clear()
    assert compiled.report() is compiled.report()
    assert not read


def test_compiling_and_calling_compile_once() -> None:
    step = make_step("ignore")
    with CompileCounter("faulty_step") as counter:
        compiled = step.compile(*structs())
        compiled.report()
        state = step.shard(make_state())
        for _ in range(3):
            state, _ = step(state, batch())
        step.compile(*structs()).report()
    assert counter.count == 1
    with CompileCounter("faulty_step") as counter:
        step(state, batch(24))
        step.compile(*structs(24))
    assert counter.count == 1


def test_what_a_compiled_step_has() -> None:
    step = make_step("ignore")
    compiled = step.compile(*structs())
    assert isinstance(compiled, CompiledStep)
    assert compiled.plan == step.plan(*structs())
    assert compiled.as_text().startswith("HloModule jit_faulty_step")
    assert isinstance(compiled.compiled, jax.stages.Compiled)
    report = compiled.report()
    assert (report.name, report.num_devices) == ("jit_faulty_step", 8)
    roles = {row.role: row.compiled_bytes for row in report.resident}
    assert roles["parameter"] == 64 * 512 * 4 // 8
    assert roles["data"] == 16 * 64 * 4 // 8


def test_devices_that_are_there() -> None:
    mesh = jax.make_mesh((8,), ("data",))
    assert not is_absent(mesh)
    assert "8 devices of the kind 'cpu'" in describe_devices(mesh)
    assert "not here" not in describe_devices(mesh)


@needs_compiler
def test_devices_that_are_not_there_warn_too() -> None:
    mesh = pod_mesh("h100:1x8")
    assert is_absent(mesh)
    assert "not here: nothing ran" in describe_devices(mesh)
    step = make_step(mesh=mesh)
    with pytest.warns(jzero.FindingWarning, match="donation-lost"):
        report = step.compile(*structs()).report()
    assert report.platform == "gpu"
    assert "H100" in report.speeds_of


def test_the_executable_compiles_when_it_is_first_asked() -> None:
    step = make_step("ignore")
    program = step._program_for(structs(), {})[0]
    executable: Executable = program.executable
    assert not executable.is_compiled
    executable.lower()
    assert not executable.is_compiled
    first = executable.compiled
    assert executable.is_compiled
    assert executable.compiled is first
