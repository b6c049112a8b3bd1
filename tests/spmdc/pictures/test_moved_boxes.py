"""Which boxes move from one sharding to another, as pictures."""

from __future__ import annotations

import re

import pytest

from ir.program import Value
from spmdc.frontends.spmd import parse
from spmdc.pictures.picture import Picture, picture_of


def pictures(before: str, after: str) -> tuple[Picture, Picture]:
    program = parse(f"mesh (x=4, y=2)\ndef main(a: {before}, b: {after}) -> (c: f32[]) {{ return zeros([]) }}")
    a, b = (picture_of(program, value) for value in program.main.params)
    return a, b


def words(drawing: str) -> list[str]:
    return re.findall(r"(stays|[\d,-]+ → [\d,-]+)</text>", drawing)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("f32[4@y, 6]", "f32[4, 6@y]", ["stays", "0,2,4,6 → 1,3,5,7", "1,3,5,7 → 0,2,4,6", "stays"]),
        ("f32[8@x]", "f32[8@y]", ["0,1 → 2,4,6", "2,3 → 0,4,6", "4,5 → 1,3,7", "6,7 → 1,3,5"]),
        ("f32[7@y]", "f32[7]{replicated}", ["0,2,4,6 → 1,3,5,7", "1,3,5,7 → 0,2,4,6"]),
        ("f32[7]{replicated}", "f32[7@y]", ["stays", "stays"]),
        ("f32[]{replicated}", "f32[]{replicated}", ["stays"]),
        ("f32[0@x, 3]", "f32[0, 3@x]", []),
        ("f32[2@y, 4@x, 3]", "f32[2, 4@x, 3@y]", None),
    ],
)
def test_each_box_says_who_had_it_and_who_gets_it(before: str, after: str, expected: list[str] | None) -> None:
    a, b = pictures(before, after)
    found = words(a.boxes(b))
    assert found == expected if expected is not None else len(found) == 8


def test_every_element_that_a_device_lacks_is_in_one_box_that_it_gets() -> None:
    """What moves, summed over the boxes, is what the devices lack: those of 12 columns have a quarter of theirs."""
    a, b = pictures("f32[8@x, 12]", "f32[8, 12@x]")
    moved = [word for word in words(a.boxes(b)) if word != "stays"]
    assert len(moved) == 12
    assert all(len(word.split(" → ")[1].split(",")) == 2 for word in moved)


def test_of_very_many_boxes_there_is_no_picture() -> None:
    program = parse("mesh (x=64)\ndef main(a: f32[64@x, 64], b: f32[64, 64@x]) -> (c: f32[]) { return zeros([]) }")
    values: tuple[Value, ...] = program.main.params
    assert picture_of(program, values[0]).boxes(picture_of(program, values[1])) == ""
