"""Rows that a loop moves out of weights: the gradient takes them again, and keeps no copy of the weights."""

from __future__ import annotations

import numpy as np
import pytest

import spmdc
from ir.program import Program, all_ops
from passes.optimize.dce import eliminate_dead_code
from passes.optimize.rows_again import take_rows_again
from spmdc.frontends.jax import gradients

LAYERS = """mesh (d=4)
def main(x: f32[16@d, 8], w: f32[{weights}] = normal(1.0)) -> (loss: f32[]) {{
  y = loop p < 3 (y = x) {{ return tanh(matmul(y, {row})) }}
  return sum(y)
}}"""

EXPERTS = """mesh (d=4)
def main(x: f32[4@d, 16, 8], w: f32[3, 4@d, 8, 8] = normal(1.0)) -> (loss: f32[]) {
  y = loop p < 3 (y = x) { return tanh(einsum("ebi,eij->ebj", y, split(w[p], 0, 4))) }
  return sum(y)
}"""


def kept(program: Program) -> int:
    """How many stacks the loops of a program carry, apart from counters and the layers' results and gradients."""
    stacks = [v for op in all_ops(program) if op.name == "while" for v in op.results if v.shape[:1] == (3,)]
    return len(stacks) - len(program.main.results)


def before_and_now(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Program, Program]:
    """The gradient with what loops move kept, and as it is."""
    now = spmdc.gradient(spmdc.parse(text))
    monkeypatch.setattr(gradients, "take_rows_again", lambda program: program)
    return spmdc.gradient(spmdc.parse(text)), now


@pytest.mark.parametrize(
    "text",
    [
        LAYERS.format(weights="3, 2, 8, 8", row="w[p][0]"),
        LAYERS.format(weights="3, 8, 8", row="replicate(w[2 - p])"),
        LAYERS.format(weights="3, 8@d, 8", row="reverse(w[p], [1])"),
        LAYERS.format(weights="3, 8, 8", row="transpose(w[p], [1, 0])").replace("mesh (d=4)", "mesh (d=1)"),
        LAYERS.format(weights="3, 8, 8", row="f32(bf16(w[p]))"),
        EXPERTS,
    ],
)
def test_rows_that_are_only_moved_are_taken_again(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, now = before_and_now(text, monkeypatch)
    # What else is kept, such as the inputs and results of layers, differs with versions of JAX.
    assert kept(now) == kept(before) - 1
    arrays = spmdc.random_inputs(now, 0)
    (d_w,), (expected,) = spmdc.evaluate(now, *arrays), spmdc.evaluate(before, *arrays)
    np.testing.assert_array_equal(d_w, expected)
    costs = [spmdc.partition(program).cost() for program in (before, now)]
    assert costs[1].total.received <= costs[0].total.received
    assert costs[1].peak < costs[0].peak


@pytest.mark.parametrize("row", ["w[p][q][1]", "w[p, q, 1]", "w[p][2 - q, 0]"])
def test_rows_of_loops_inside_of_one_another_are_taken_again(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"""
def main(x: f32[4, 8], w: f32[3, 3, 2, 8, 8] = normal(1.0)) -> (loss: f32[]) {{
  y = loop p < 3 (y = x) {{
    z = loop q < 3 (z = y) {{ return tanh(matmul(z, {row})) }}
    return z
  }}
  return sum(y)
}}"""
    before, now = before_and_now(text, monkeypatch)
    assert [(3, 3, 8, 8) in {v.shape for op in all_ops(p) for v in op.results} for p in (before, now)] == [True, False]
    arrays = spmdc.random_inputs(now, 0)
    for got, expected in zip(spmdc.evaluate(now, *arrays), spmdc.evaluate(before, *arrays), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("weights", "row"),
    [
        ("3, 8@d, 8", "replicate(w[p])"),
        ("3, 4@d, 8, 8", "w[p][1]"),
        ("3, 8, 16", "w[p][:, 4:12]"),
        ("3, 8, 8", "transpose(w[p], [1, 0])"),
        ("3, 8, 8", "sin(w[p])"),
    ],
)
def test_rows_that_are_sent_or_computed_are_kept(weights: str, row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, now = before_and_now(LAYERS.format(weights=weights, row=row), monkeypatch)
    assert kept(now) == kept(before)


TWO_LOOPS = """
def main(w: f32[4, 3, 2]) -> ({results}) {{
  i, stack = while(i = 0, stack = zeros(f32[4, 2]), trip_count=4) cond {{ return i < 4 }} do {{
    row = reshape(dynamic_slice(w, i, 1, 0, sizes=[1, 1, 2]), [1, 2])
    return i + 1, dynamic_update_slice(stack, row, {place}, 0)
  }}
  k, total = while(k = 0, total = zeros(f32[1, 2]), trip_count=4) cond {{ return k < 4 }} do {{
    return k + 1, total * 2 + dynamic_slice(stack, {index}, 0, sizes=[1, 2])
  }}
  return {returned}
}}"""


@pytest.mark.parametrize(
    ("place", "index", "returned", "is_taken"),
    [
        ("i", "3 - k", "total", True),
        ("i", "k", "total", True),
        ("i", "4 - k", "total", False),
        ("i", "k", "total, stack", False),
        ("3 - i", "k", "total", False),
        ("2 * i", "k", "total", False),
    ],
    ids=["backwards", "forwards", "clamped", "returned", "written backwards", "written in part"],
)
def test_a_stack_goes_if_only_loops_read_its_rows(place: str, index: str, returned: str, *, is_taken: bool) -> None:
    results = "total: f32[1, 2], stack: f32[4, 2]" if "stack" in returned else "total: f32[1, 2]"
    program = spmdc.parse(TWO_LOOPS.format(place=place, index=index, returned=returned, results=results))
    taken = eliminate_dead_code(take_rows_again(program))
    assert ("dynamic_update_slice" not in {op.name for op in all_ops(taken)}) == is_taken
    arrays = spmdc.random_inputs(program, 0, integers=True)
    for got, expected in zip(spmdc.evaluate(taken, *arrays), spmdc.evaluate(program, *arrays), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_a_loop_that_writes_numbers_keeps_no_rows() -> None:
    program = spmdc.parse("""
def main(x: f32[]) -> (y: f32[]) {
  i, y = while(i = 0, y = x, trip_count=4) cond { return i < 4 } do { return i + 1, dynamic_update_slice(y, y * 2) }
  return y
}""")
    assert take_rows_again(program) is program
