from __future__ import annotations

import inspect
from pathlib import Path

import jax
import jax.numpy as jnp

from jzero.audit.hlo import parse_module
from jzero.audit.sources import read_tables

TABLES = """
FileNames
1 "train.py"
2 "lib/python3.13/site-packages/layers.py"

FunctionNames
1 "<module>"

FileLocations
1 {file_name_id=1 function_name_id=1 line=10 end_line=10 column=2 end_column=2}
2 {file_name_id=1 function_name_id=1 line=20 end_line=20 column=2 end_column=2}
3 {file_name_id=2 function_name_id=1 line=30 end_line=30 column=2 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=3 parent_frame_id=3}
4 {file_location_id=3 parent_frame_id=1}
""".splitlines()


def test_innermost_line_outside_of_packages() -> None:
    tables = read_tables(TABLES)
    assert tables.source('{op_name="x" stack_frame_id=2}') == "train.py:20"
    assert tables.source("{stack_frame_id=3}") == "train.py:20"


def test_innermost_line_where_all_are_in_packages() -> None:
    source = read_tables(TABLES).source("{stack_frame_id=4}")
    assert source == "lib/python3.13/site-packages/layers.py:30"


def test_parents_that_count_from_zero() -> None:
    shifted = [
        line.replace("parent_frame_id=1}", "parent_frame_id=0}")
        .replace("parent_frame_id=2}", "parent_frame_id=1}")
        .replace("parent_frame_id=3}", "parent_frame_id=2}")
        for line in TABLES
    ]
    assert read_tables(shifted).source("{stack_frame_id=3}") == "train.py:20"


def test_older_text_names_the_file_itself() -> None:
    metadata = '{op_name="x" source_file="a b.py" source_line=7}'
    assert read_tables([]).source(metadata) == "a b.py:7"


def test_no_source_is_none() -> None:
    assert read_tables(TABLES).source('{op_name="x"}') is None
    assert read_tables([]).source("{stack_frame_id=3}") is None


def test_lines_of_a_compiled_program() -> None:
    def f(x: jax.Array) -> jax.Array:
        return jnp.linalg.norm(x) * 3.0

    line = inspect.getsourcelines(f)[1] + 1
    compiled = jax.jit(f).lower(jnp.ones((4, 4))).compile()
    module = parse_module(compiled.as_text())
    sources = {
        module.sources.source(instruction.metadata)
        for computation in module.computations.values()
        for instruction in computation.instructions.values()
    }
    assert f"{Path(__file__)}:{line}" in sources
