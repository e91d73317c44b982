"""A record of a compiled step, written by hand with round numbers.

It has the keys of `StepReport.to_dict`; tests of how reports are drawn share it.
"""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

__all__ = ["Element", "make_collective", "make_event", "make_record", "parse_page"]

_VOID = {"meta", "br", "wbr", "link", "img", "input"}
_SPEEDS = {
    "flops_per_second": 1e15,
    "memory_bytes_per_second": 3e12,
    "local_bytes_per_second": 4e11,
    "remote_bytes_per_second": 5e10,
    "num_local": 8,
}


def make_event(
    lane: str, start_ms: float, end_ms: float, label: str, name: str = ""
) -> dict[str, Any]:
    return {
        "lane": lane,
        "start_seconds": start_ms / 1e3,
        "end_seconds": end_ms / 1e3,
        "label": label,
        "name": name,
    }


def make_collective(
    kind: str, moved_bytes: int, name: str, **changes: Any
) -> dict[str, Any]:
    return {
        "kind": kind,
        "dtype": "bf16",
        "operands": ["bf16[4,8]"],
        "operand_bytes": 64,
        "moved_bytes": moved_bytes,
        "runs": 1,
        "is_runs_known": True,
        "is_conditional": False,
        "group_size": 8,
        "num_groups": 2,
        "is_async": True,
        "op_name": "jit(step)/dot",
        "source": "deep/inside/model.py:7",
        "name": name,
        "leaves": ["state.params['w']"],
        "step_moved_bytes": moved_bytes,
        "hidden_flops": 0,
        "hidden_accessed_bytes": 0,
        "exposed_bytes": moved_bytes // 4,
        **changes,
    }


def make_record(**changes: Any) -> dict[str, Any]:
    """Stage 3 on 16 devices: 160 MB at rest, 400 MB at its peak, 10 ms."""
    collectives = [
        make_collective("all-gather", 300_000_000, "all-gather-start.1"),
        make_collective("reduce-scatter", 100_000_000, "reduce-scatter.2"),
    ]
    return {
        "name": "jit_step",
        "stage": 3,
        "axis_sizes": {"replica": 2, "data": 8},
        "num_devices": 16,
        "platform": "gpu",
        "ran_on": "compiled for 16 devices that are not here; nothing ran",
        "memory": {
            "argument_bytes": 160_000_000,
            "output_bytes": 155_000_000,
            "alias_bytes": 150_000_000,
            "temp_bytes": 235_000_000,
            "host_argument_bytes": 0,
            "host_output_bytes": 0,
            "host_alias_bytes": 0,
            "host_temp_bytes": 0,
            "device_peak_bytes": 400_000_000,
            "host_peak_bytes": 0,
        },
        "host_traffic": {"to_device_bytes": 0, "to_host_bytes": 0},
        "resident": [
            make_role("parameter", 50_000_000),
            make_role("optimizer", 100_000_000),
            make_role("other", 2_000_000),
            make_role("data", 8_000_000),
        ],
        "waiting_gradient_bytes": 47_000_000,
        "lost_donation_bytes": 0,
        "collectives": collectives,
        "moved_bytes": 400_000_000,
        "exposed_bytes": 100_000_000,
        "formula": {
            "all_gather_bytes": 200_000_000,
            "reduce_scatter_bytes": 100_000_000,
            "all_reduce_bytes": 0,
            "moved_bytes": 300_000_000,
            "elem_bytes": 2,
            "num_micro_batches": 1,
        },
        "flops": 2_500_000_000_000,
        "estimate": {
            "speeds_of": "some chip",
            "speeds": _SPEEDS,
            "seconds": 10e-3,
            "compute_seconds": 8e-3,
            "network_seconds": 4e-3,
            "exposed_seconds": 2e-3,
            "events": [
                make_event("compute", 0, 3, "forward"),
                make_event("network", 2, 5, "all-gather", "all-gather-start.1"),
                make_event("compute", 5, 8, "backward"),
                make_event("network", 7, 8, "reduce-scatter", "reduce-scatter.2"),
                make_event("compute", 8, 10, "update"),
            ],
        },
        "findings": [],
        **changes,
    }


def make_role(role: str, num_bytes: int) -> dict[str, Any]:
    return {
        "role": role,
        "num_leaves": 3,
        "planned_bytes": num_bytes,
        "compiled_bytes": num_bytes,
        "memory_kind": "device",
    }


class Element:
    """A parsed tag and what is inside."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag = tag
        self.attributes = attributes
        self.children: list[Element | str] = []

    @property
    def text(self) -> str:
        parts = [c if isinstance(c, str) else c.text for c in self.children]
        return "".join(parts)

    def all(self, tag: str = "", css_class: str = "") -> list[Element]:
        """Elements inside with this tag and this class, in order."""
        found: list[Element] = []
        for child in self.children:
            if isinstance(child, Element):
                classes = child.attributes.get("class", "").split()
                if tag in ("", child.tag) and (not css_class or css_class in classes):
                    found.append(child)
                found += child.all(tag, css_class)
        return found

    def one(self, tag: str = "", css_class: str = "") -> Element:
        """The only such element."""
        (found,) = self.all(tag, css_class)
        return found

    def number(self, name: str) -> float:
        return float(self.attributes[name])


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)
        if tag not in _VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].children.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].children.append(data)


def parse_page(text: str) -> Element:
    """Parses a page, or a part of one; every tag must be closed in order."""
    parser = _Parser()
    parser.feed(text)
    parser.close()
    assert len(parser.open) == 1, f"<{parser.open[-1].tag}> is never closed"
    return parser.root
