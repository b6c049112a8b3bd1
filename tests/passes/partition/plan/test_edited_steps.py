"""Steps and loops that a person wrote into a plan lead to what the plan says, or are reported."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spmdc

MOVED = (
    ("4@x, 4@y, 4@z", "4@z, 4@x, 4@y"),
    ("8@(x, y), 4, 4@z", "8, 4@(z, x), 4@y"),
    ("8@(x, y, z), 4, 2", "8, 4@(y, x), 2@z"),
    ("6@(x, z), 5@y", "6@y, 5@(z, x)"),
)
SUMMED = """
    mesh (x=4, y=2)
    def main(t: s32[400@(x, y), 8], ids: s32[16]{replicated}) -> (o: s32[16@x, 8@y]) { return take(t, ids, dim=0) }"""
EINSUM = """plan
mesh (x=4, y=2)

def main(a: f32[64@x, 32], b: f32[32, 48]{replicated}) -> (o: f32[64@x, 48]) {
  o: f32[64@x, 48] = dot_general(a, b, lhs_contract=[1], rhs_contract=[0], strategy="i=x")
  return o
}
"""


TOKEN = re.compile(r"\b[xyz]\b|\b[0-3]\b|\b(?:sum|max)\b")


def _programs() -> list[str]:
    moved = [
        f"mesh (x=2, y=2, z=2)\ndef main(a: s32[{before}]) -> (r: s32[{after}]) {{ return a }}"
        for before, after in MOVED
    ]
    return [SUMMED, *moved]


@cache
def _planned(k: int) -> tuple[str, list[Any], Any]:
    """A program's plan, inputs, and what it computes from them."""
    program = spmdc.parse(_programs()[k])
    inputs = list(spmdc.random_inputs(program, integers=True))
    return spmdc.plan(program).text(locations=False), inputs, spmdc.evaluate(program, *inputs)[0]


@given(k=st.integers(0, len(MOVED)), data=st.data())
def test_an_edited_step_is_reported_or_changes_no_number(k: int, data: st.DataObject) -> None:
    text, inputs, want = _planned(k)
    first, last = text.index('steps="'), text.rindex("->", 0, text.rindex('", cause'))
    for _ in range(data.draw(st.integers(1, 2))):
        token = data.draw(st.sampled_from(list(TOKEN.finditer(text, first, last))))
        new = data.draw(st.sampled_from(["x", "y", "z"] if token[0] in "xyz" else ["0", "1", "2", "3", "sum", "max"]))
        text = text[: token.start()] + new + text[token.end() :]
    try:
        program = spmdc.partition(spmdc.parse(text))
    except spmdc.SpmdcError:
        return
    np.testing.assert_array_equal(program.simulate(*inputs)[0], want)


def test_the_kind_of_a_reduction_is_that_of_what_is_pending() -> None:
    text = _planned(0)[0]
    assert "strided reduce_scatter" in text
    _refused(re.sub(r"\bsum\b", "max", text), "strided reduce_scatter")


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ("windowed j over x, operand 0 rotates", "operand 0 has no dim j"),
        ("windowed k over y, operand 7 rotates", "has no operand 7"),
        ("windowed k over y, sums rotate", "its result has no dim k"),
        ("windowed j over y, sums rotate", "no sum is pending"),
        ("windowed k over y, operand 1 rotates", "results are not split over all axes"),
        ("windowed k over x, operand 0 rotates", "splits another dim of theirs"),
        ("windowed k over (x, x), operand 1 rotates", "parts of axes"),
    ],
)
def test_a_loop_that_cannot_run_is_reported(loop: str, message: str) -> None:
    _refused(EINSUM.replace("i=x", f"i=x; {loop}"), message)


def test_an_axis_that_is_reduced_twice_is_reported() -> None:
    text = """plan
mesh (x=4)
def main(a: f32[16@x]) -> (o: f32[]{replicated}) {
  p: f32[]{partial: x} = reduce(a, dims=[0], kind=sum, strategy="i=x")
  o: f32[]{replicated} = reshard(p, steps="all_reduce (x, x) sum -> []")
  return o
}"""
    _refused(text, "named twice")


def _refused(text: str, message: str) -> None:
    with pytest.raises(spmdc.SpmdcError) as refused:
        spmdc.partition(spmdc.parse(text, "edited.plan"))
    assert [d.code for d in refused.value.diagnostics] == ["E413"]
    assert message in str(refused.value)
    assert refused.value.diagnostics[0].span is not None
