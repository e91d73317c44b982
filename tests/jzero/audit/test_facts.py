from __future__ import annotations

from typing import Any

import pytest

from jzero.audit.facts import CollectiveFacts, find_collectives, total_collectives
from jzero.audit.shapes import read_shapes


def fact(kind: Any, parts: str, **changes: Any) -> CollectiveFacts:
    shapes = read_shapes(parts)
    num_bytes = sum(shape.num_bytes for shape in shapes)
    settings: dict[str, Any] = {
        "kind": kind,
        "dtype": shapes[0].dtype,
        "operands": shapes,
        "parts": shapes,
        "operand_bytes": num_bytes,
        "moved_bytes": num_bytes,
        "runs": 1,
        "is_runs_known": True,
        "is_conditional": False,
        "group_size": 8,
        "num_groups": 1,
        "is_async": False,
        "op_name": "",
        "source": None,
        "name": "x",
    }
    return CollectiveFacts(**settings | changes)


FACTS = (
    fact("all-reduce", "(bf16[100], bf16[50])", runs=3),
    fact("all-reduce", "bf16[10]", runs=2),
    fact("all-gather", "f32[20]"),
    fact("all-reduce", "f32[]"),
)


def test_totals_are_by_kind_and_dtype_the_most_first() -> None:
    totals = total_collectives(FACTS)
    assert [(t.kind, t.dtype) for t in totals] == [
        ("all-reduce", "bf16"),
        ("all-gather", "f32"),
        ("all-reduce", "f32"),
    ]
    assert totals[0].num_sites == 2
    assert totals[0].num_runs == 5
    assert totals[0].operand_bytes == totals[0].moved_bytes == 3 * 300 + 2 * 20


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"kind": "all-reduce"}, [0, 1, 3]),
        ({"kind": "all-reduce", "dtype": "f32"}, [3]),
        ({"kind": "all-reduce", "min_elems": 100}, [0]),
        # Two arrays of 100 and 50 are not one of 150.
        ({"min_elems": 101}, [2]),
        # 20 elements on each of 8 devices are gathered to 160.
        ({"kind": "all-gather", "min_elems": 160}, [2]),
        ({"kind": "all-gather", "min_elems": 161}, []),
    ],
)
def test_questions(question: dict[str, Any], expected: list[int]) -> None:
    found = find_collectives(FACTS, **question)
    assert found == tuple(FACTS[index] for index in expected)
