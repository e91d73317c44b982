"""Findings that the plan and the arguments of the program show.

Lives here: leaves left whole, donations lost, settings without effect. May import:
`finding`, `aliases`, plan, config. Read next: `moved.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jzero.audit.aliases import Argument
from jzero.audit.findings.finding import Finding
from jzero.config import ZeroConfig
from jzero.plan.plan import LeafPlan, Plan

__all__ = ["find_left_whole", "find_lost_donations", "find_no_effect"]

# Smaller than this is not worth a person's time, even if the threshold is 0.
_MIN_WHOLE_ELEMS = 2**14
_MIN_LOST_BYTES = 2**14
_PAD = "pad a dim to a multiple of the devices, or "


def find_left_whole(plan: Plan) -> Iterator[Finding]:
    """Yields a finding per large leaf that is whole on every device."""
    for leaf in plan.replicated_large:
        if leaf.size_elems < _MIN_WHOLE_ELEMS:
            continue
        yield Finding(
            kind="left-whole",
            where=leaf.path,
            num_bytes=leaf.local_bytes,
            detail=f"{leaf.dtype}{list(leaf.shape)} holds {leaf.local_bytes:,} bytes "
            f"on each device ({leaf.reason})",
            # Only what is trained, and what mirrors it, is ever split.
            remedy=("" if leaf.role == "other" else _PAD)
            + f"raise persistence_threshold above {leaf.size_elems} if that is meant",
        )


def find_lost_donations(
    arguments: Sequence[Argument], leaves: Mapping[tuple[int, int], LeafPlan]
) -> Iterator[Finding]:
    """Yields a finding per state leaf whose buffer no result takes over.

    Args:
        arguments: Of the program.
        leaves: State leaves by (argument, leaf of that argument).
    """
    reused = {a.position for a in arguments if a.is_reused}
    read = {a.position for a in arguments}
    for position, leaf in leaves.items():
        if position in reused or leaf.local_bytes < _MIN_LOST_BYTES:
            continue
        why = "no result fits its buffer" if position in read else "it is never read"
        yield Finding(
            kind="donation-lost",
            where=leaf.path,
            num_bytes=leaf.local_bytes,
            detail=f"{leaf.local_bytes:,} bytes are held twice during the step: {why}",
            remedy="make the new leaf of the old one (x * 0 for zeros), in its dtype "
            "and memory",
        )


def find_no_effect(plan: Plan) -> Iterator[Finding]:
    """Yields a finding per setting that was changed and does nothing here."""
    placement, config, usual = plan.placement, plan.config, ZeroConfig()
    gathers_at_use = placement.gather == "at_use"
    used = {
        "reduce_window_bytes": placement.window,
        "reuse_window_bytes": gathers_at_use,
        "prefetch_bytes": gathers_at_use,
        "gather_dtype": placement.gather != "none",
        "replicate_params": placement.is_sharded,
    }
    names = [
        (name, f"{name}={getattr(config, name)!r}")
        for name, is_used in used.items()
        if not is_used and getattr(config, name) != getattr(usual, name)
    ]
    working = {
        "window": placement.window,
        "reduce_at_birth": placement.reduce == "at_birth",
        "gather_at_use": placement.gather != "none",
    }
    names += [
        ("disable_passes", f"disable_passes={name!r}")
        for name in config.disable_passes
        if not working.get(name, True)
    ]
    for name, text in names:
        yield Finding(
            kind="no-effect",
            where=f"ZeroConfig({text})",
            num_bytes=0,
            detail=f"stage {plan.stage} does not use {name}",
            remedy="drop it, or choose the stage that it is for",
        )
