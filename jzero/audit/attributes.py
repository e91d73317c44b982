"""The attributes behind an HLO instruction's operands, and its replica groups.

Lives here: splitting `to_apply=%f, replica_groups={{0,1}}, metadata={...}` at its
top level, and the three spellings of replica groups. May import: nothing of jzero.
Read next: `hlo.py`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

__all__ = ["ReplicaGroups", "read_groups", "split_attributes", "split_top_level"]

_OPEN, _CLOSE = "({[", ")}]"
_STOPS = re.compile(r'[(){}\[\]",]')
_STRING_END = re.compile(r'(?:[^"\\]|\\.)*"')
_KEY = re.compile(r"\s*([a-z_][\w.\-]*)=")
_MESH = re.compile(
    r"mesh\[(?P<axes>[^\]]*)\]"
    r"(?:\s*,\s*device_ids=\((?:[^()]|\([^()]*\))*\))?"
    r"\s*\{(?P<over>[^}]*)\}"
)
_IOTA = re.compile(r"\[(\d+),(\d+)\]\s*<=\s*\[")
_SUB_AXIS = re.compile(r"^(?P<name>.+?)(?::\(\d+\)(?P<size>\d+))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroups:
    """How many groups of how many devices exchange with one another.

    Attributes:
        num_groups: Groups that work side by side.
        group_size: Devices in the largest group.
    """

    num_groups: int
    group_size: int


def split_top_level(text: str) -> list[str]:
    """Splits at the commas that no bracket and no quoted text encloses."""
    parts: list[str] = []
    depth = start = at = 0
    while (stop := _STOPS.search(text, at)) is not None:
        at = stop.end()
        sign = stop[0]
        if sign == '"':
            end = _STRING_END.match(text, at)
            at = end.end() if end else len(text)
        elif sign in _OPEN:
            depth += 1
        elif sign in _CLOSE:
            depth -= 1
        elif depth == 0:
            parts.append(text[start : at - 1])
            start = at
    parts.append(text[start:])
    return [part.strip() for part in parts if part.strip()]


def split_attributes(text: str) -> dict[str, str]:
    """Returns the attributes of an instruction by name, as texts.

    Example:
        >>> split_attributes(', to_apply=%add, metadata={op_name="a, b" x=1}')
        {'to_apply': '%add', 'metadata': '{op_name="a, b" x=1}'}
    """
    attributes: dict[str, str] = {}
    key = ""
    for part in split_top_level(text):
        match = _KEY.match(part)
        # `mesh['a'=8], device_ids=(...) {'a'}` is one value with a comma in it.
        inside_mesh = key == "replica_groups" and part.startswith("device_ids=")
        if match is None or inside_mesh:
            attributes[key] = f"{attributes.get(key, '')}, {part}"
            continue
        key = match[1]
        attributes[key] = part[match.end() :].strip()
    return attributes


def read_groups(text: str | None, num_devices: int) -> ReplicaGroups:
    """Reads replica groups in any of their spellings.

    Args:
        text: `{{0,1},{2,3}}`, `[2,4]<=[8]`, `mesh['a'=2,'b'=4] {'b'}`, or `{}` and
            None for one group of all devices.
        num_devices: Devices of the program.

    Returns:
        The number of groups and their size.

    Raises:
        ValueError: Another spelling.

    Example:
        >>> read_groups("mesh['a'=2,'b'=4] {'b':(1)2}", 8)
        ReplicaGroups(num_groups=4, group_size=2)
    """
    text = (text or "{}").strip()
    if match := _MESH.match(text):
        return _read_mesh_groups(match["axes"], match["over"], text)
    if match := _IOTA.match(text):
        return ReplicaGroups(num_groups=int(match[1]), group_size=int(match[2]))
    if text.startswith("{"):
        groups = re.findall(r"\{([\d,\s]*)\}", text[1:-1])
        sizes = [len(group.split(",")) for group in groups if group.strip()]
        if sizes:
            return ReplicaGroups(num_groups=len(sizes), group_size=max(sizes))
        return ReplicaGroups(num_groups=1, group_size=num_devices)
    raise ValueError(f"Unknown spelling of replica groups: {text!r}")


def _read_mesh_groups(axes: str, over: str, text: str) -> ReplicaGroups:
    sizes: dict[str, int] = {}
    for axis in filter(None, (part.strip() for part in axes.split(","))):
        name, _, size = axis.rpartition("=")
        sizes[name.strip("'\"")] = int(size)
    group_size = 1
    for axis in filter(None, (part.strip() for part in over.split(","))):
        match = _SUB_AXIS.match(axis.replace("'", "").replace('"', ""))
        if match is None or match["name"] not in sizes:
            raise ValueError(f"Replica groups over an axis that is absent: {text!r}")
        group_size *= int(match["size"] or sizes[match["name"]])
    num_devices = math.prod(sizes.values())
    return ReplicaGroups(num_groups=num_devices // group_size, group_size=group_size)
