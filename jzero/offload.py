"""`Offload`: what lives in host memory, and how it visits the device.

Lives here: the settings and their validation. May import: `errors`, `checks`. Read
next: `plan/host.py`, which chooses the leaves.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

from jzero.checks import MIB, check_choice, check_texts, parse_bytes, wrong_value
from jzero.errors import ConfigError

__all__ = ["Offload"]


@dataclass(frozen=True, slots=True, init=False)
class Offload:
    """What lives in pinned host memory. Frozen, keyword-only and hashable.

    Attributes:
        optimizer: "host" keeps the optimizer state in host memory.
        params: "host" keeps the parameters there: float32 masters, which the step
            fetches in the dtype that the model computes in.
        ratio: The share of the bytes of both that goes to the host, over 0 to 1; the
            rest stays on the device. "auto" is the smallest share that fits
            `device_bytes`, found by compiling: see `TrainStep.fit_offload`.
        window: The most bytes of offloaded state on the device at once, where the
            arithmetic allows it. Given as an int, or a text such as "512MB".
        compute: Where the update of offloaded leaves is computed. "device" streams
            them through; "host" computes where they lie: gradients go down, and
            only what the device needs of the result comes up.
        compiler: Who compiles an update on the host. "xla", or "llvm": one loop that
            reads every array once, on the CPU backend, with `jzero[host-kernels]`.
        activations: Names (`jax.ad_checkpoint.checkpoint_name`) of activations that
            blocks under `jax.checkpoint` save, and that wait for the backward pass in
            host memory.
        device_bytes: The budget of one device for `ratio="auto"`, int or text.

    Raises:
        ConfigError: A value is of the wrong kind, out of range, or without effect.

    Source: ZeRO-Offload (arXiv 2101.06840), section 3; Twin-Flow of ZeRO-Offload++
    for `ratio`.

    Example:
        >>> Offload(optimizer="host", window="512MB").window_bytes
        512000000
    """

    optimizer: Literal["device", "host"]
    params: Literal["device", "host"]
    ratio: float | Literal["auto"]
    window: int
    compute: Literal["device", "host"]
    compiler: Literal["xla", "llvm"]
    activations: tuple[str, ...]
    device_bytes: int | None

    # Written out, not generated: the arguments are wider than the fields.
    def __init__(
        self,
        *,
        optimizer: Literal["device", "host"] = "device",
        params: Literal["device", "host"] = "device",
        ratio: float | Literal["auto"] = 1.0,
        window: int | str = 512 * MIB,
        compute: Literal["device", "host"] = "device",
        compiler: Literal["xla", "llvm"] = "xla",
        activations: str | Iterable[str] = (),
        device_bytes: int | str | None = None,
    ) -> None:
        places = ("device", "host")
        values = {
            "optimizer": check_choice(optimizer, places, "optimizer", of="Offload"),
            "params": check_choice(params, places, "params", of="Offload"),
            "ratio": _ratio(ratio),
            "window": parse_bytes(window, "window", of="Offload"),
            "compute": check_choice(compute, places, "compute", of="Offload"),
            "compiler": check_choice(
                compiler, ("xla", "llvm"), "compiler", of="Offload"
            ),
            "activations": check_texts(
                activations, "activations", "names of activations", of="Offload"
            ),
            "device_bytes": None
            if device_bytes is None
            else parse_bytes(device_bytes, "device_bytes", of="Offload"),
        }
        if not values["window"]:
            raise wrong_value("window", window, "at least 1 byte", of="Offload")
        if (ratio == "auto") != (device_bytes is not None):
            raise ConfigError(
                'Offload(ratio="auto") and Offload(device_bytes=...) need each other: '
                "the share that fits follows from the budget.\n"
                'Remedy: Offload(..., ratio="auto", device_bytes="80GB").'
            )
        if "host" not in (optimizer, params) and (ratio != 1.0 or compute != "device"):
            raise ConfigError(
                f"Offload(ratio={ratio!r}, compute={compute!r}) has no effect: no "
                "state is offloaded.\n"
                'Remedy: add optimizer="host" or params="host".'
            )
        if compiler != "xla" and compute != "host":
            raise ConfigError(
                f"Offload(compiler={compiler!r}) has no effect: updates are not "
                "computed on the host.\n"
                'Remedy: add compute="host".'
            )
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def window_bytes(self) -> int:
        """The window, in bytes."""
        return self.window

    @property
    def is_on(self) -> bool:
        """Whether anything is offloaded at all."""
        return "host" in (self.optimizer, self.params) or bool(self.activations)


def _ratio(value: object) -> float | str:
    if value == "auto":
        return "auto"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    number = float(cast(float, value)) if is_number else 0.0
    if 0 < number <= 1:
        return number
    wanted = 'a number over 0, at most 1, or "auto"'
    raise wrong_value("ratio", value, wanted, of="Offload")
