from __future__ import annotations

import pytest

from jzero.audit.attributes import read_groups, split_attributes


@pytest.mark.parametrize(
    ("text", "num_groups", "group_size"),
    [
        ("{{0,1},{2,3}}", 2, 2),
        ("{{0,4},{1,5},{2,6},{3,7}}", 4, 2),
        ("{{0,1,2},{3}}", 2, 3),
        ("{}", 1, 8),
        (None, 1, 8),
        ("[8,8]<=[64]", 8, 8),
        ("[4,2]<=[2,4]T(1,0)", 4, 2),
        ("[1,64]<=[64]", 1, 64),
        ("mesh['data'=8,'model'=4] {'data'}", 4, 8),
        ("mesh['data'=8,'model'=4] {'model','data'}", 1, 32),
        ("mesh['axis_0'=64,'axis_1'=1,'axis_2'=1] {'axis_0'}", 1, 64),
        ("mesh['a'=8] {'a':(1)2}", 4, 2),
        ("mesh['a'=8,'b'=2] {'a':(2)4,'b'}", 2, 8),
        ("mesh[a=2,b=4] {b}", 2, 4),
        ("mesh['a'=2,'b'=4], device_ids=([2,4]<=[4,2]T(1,0)) {'a'}", 4, 2),
        ("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}", 2, 2),
    ],
)
def test_groups_in_every_spelling(
    text: str | None, num_groups: int, group_size: int
) -> None:
    groups = read_groups(text, 8)
    assert (groups.num_groups, groups.group_size) == (num_groups, group_size)


@pytest.mark.parametrize("text", ["ring(8)", "mesh['a'=2] {'b'}"])
def test_other_spellings_are_errors(text: str) -> None:
    with pytest.raises(ValueError, match="eplica groups"):
        read_groups(text, 8)


def test_commas_inside_of_values_do_not_split() -> None:
    text = (
        ", channel_id=1, replica_groups=mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}"
        ', to_apply=%add, metadata={op_name="a, \\"b=c\\" }" stack_frame_id=4}'
        ', backend_config={"known_trip_count":{"n":"5"},"x":[1,2]}'
    )
    attributes = split_attributes(text)
    assert list(attributes) == [
        "channel_id",
        "replica_groups",
        "to_apply",
        "metadata",
        "backend_config",
    ]
    assert read_groups(attributes["replica_groups"], 4).group_size == 2
    assert attributes["metadata"].endswith("stack_frame_id=4}")
    assert attributes["backend_config"].endswith("[1,2]}")
