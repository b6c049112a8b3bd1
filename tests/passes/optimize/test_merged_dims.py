"""Dims that are merged for a solve and split again behind it are merged so that devices have their parts already."""

from __future__ import annotations

import pytest
from simplified import ops, simplified

import spmdc

SOLVED_AT_ONCE = """mesh (x=4)
def main(a: f32[3, 3], b: f32[8@x, 5, 3]) -> (r: f32[8@x, 5, 3]) {
  columns = reshape(transpose(b, perm=[2, 1, 0]), shape=[3, 40])
  once = triangular_solve(a, columns)
  return transpose(reshape(triangular_solve(a, once, lower=false), shape=[3, 5, 8]), perm=[2, 1, 0])
}"""


def test_dims_that_are_merged_for_a_solve_and_split_again_are_merged_in_order() -> None:
    """The columns that a device has of the split dim are then next to one another."""
    after = simplified(SOLVED_AT_ONCE)
    assert ops(after) == ["transpose", "reshape", "triangular_solve", "triangular_solve", "reshape", "transpose"]
    assert not spmdc.partition(after).collectives()


@pytest.mark.parametrize(
    ("part", "by"),
    [
        ("[3, 5, 8]), perm=[2, 1, 0]", "[3, 8, 5]), perm=[1, 2, 0]"),
        ("triangular_solve(a, once, lower=false)", "cumsum(once, dim=1)"),
    ],
)
def test_dims_stay_merged_as_they_are_if_others_are_split_or_places_along_them_count(part: str, by: str) -> None:
    text = SOLVED_AT_ONCE.replace(part, by)
    assert text != SOLVED_AT_ONCE
    assert ops(simplified(text)) == ops(spmdc.parse(text))


def test_what_something_else_uses_of_merged_dims_is_not_computed_twice() -> None:
    text = SOLVED_AT_ONCE.replace("-> (r: f32[8@x, 5, 3])", "-> (r: f32[8@x, 5, 3], s: f32[3])")
    text = text.replace("perm=[2, 1, 0])\n}", "perm=[2, 1, 0]), reduce(once, dims=[1], kind=sum)\n}")
    assert ops(simplified(text)) == ops(spmdc.parse(text))


@pytest.mark.parametrize("b", ["b", "tanh(b)"])
def test_dims_stay_merged_as_they_are_if_the_first_of_them_is_split(b: str) -> None:
    text = f"""mesh (x=4)
    def main(a: f32[3, 3], b: f32[5, 3, 8@x]) -> (r: f32[5, 3, 8@x]) {{
      columns = reshape(transpose({b}, perm=[1, 2, 0]), shape=[3, 40])
      return transpose(reshape(triangular_solve(a, columns), shape=[3, 8, 5]), perm=[2, 0, 1])
    }}"""
    assert not spmdc.partition(simplified(text)).collectives()
