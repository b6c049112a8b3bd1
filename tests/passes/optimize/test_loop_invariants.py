"""Collectives that send the same in every turn of a loop."""

from __future__ import annotations

import numpy as np
import pytest

import spmdc
from ir.program import all_ops, walk
from passes.optimize.loop_invariants import hoist_moves

SUMS = """mesh (x=8)
def main(a: f32[640@x, 6], b: f32[6, 4]) -> (total: f32[6, 4]) {
  n, total = while(i = 0, total = b%s) cond { return i < 4 } do {
    same = einsum("ij,jk->ik", a, b)
    return i + 1, total %s einsum("ij,ik->jk", a, same) * 2.0
  }
  return total
}"""


def _in_loops(text: str) -> tuple[spmdc.api.PartitionedProgram, list[str]]:
    q = spmdc.partition(spmdc.parse(text))
    loops = [op for op in all_ops(q.program) if op.name == "while"]
    return q, [op.name for loop in loops for region in loop.regions for op in walk(region)]


@pytest.mark.parametrize("operation", ["-", "max"])
@pytest.mark.parametrize("trips", [", trip_count=4", ""])
def test_what_a_loop_sums_in_the_same_way_in_every_turn_is_summed_in_front_of_it(trips: str, operation: str) -> None:
    text = SUMS % (trips, "-")
    if operation == "max":
        text = text.replace("total - einsum", "maximum(total, einsum").replace("* 2.0", "* 2.0)")
    q, inside = _in_loops(text)
    assert [(c.kind, c.bytes, c.count) for c in q.collectives()] == [("all_reduce", 2 * 7 * 6 * 4 * 4 // 8, 1)]
    assert "all_reduce" not in inside
    arrays = spmdc.random_inputs(q.source, 0, integers=True)
    for results in (q.simulate(*arrays), q.to_jax()(*arrays)):
        np.testing.assert_array_equal(results[0], spmdc.evaluate(q.source, *arrays)[0])


def test_what_changes_or_runs_in_some_turns_alone_stays_in_the_loop() -> None:
    changing = SUMS % (", trip_count=4", "-")
    q, inside = _in_loops(changing.replace("a, b)", "a, total)"))
    assert ("all_reduce" in inside, [c.count for c in q.collectives()]) == (True, [4])
    seldom = """mesh (x=8)
def main(a: f32[64@x]) -> (total: f32[]) {
  n, total = while(i = 0, total = 0.0, trip_count=4) cond { return i < 4 } do {
    more = if(i > 2) { return sum(a * a) } else { return 0.0 }
    return i + 1, maximum(total, more)
  }
  return total
}"""
    _, inside = _in_loops(seldom)
    assert "all_reduce" in inside


@pytest.mark.parametrize(("sums", "stays"), [("d", True), ("d + turned", False)])
def test_the_transpose_of_a_factor_stays_where_it_is_read(sums: str, *, stays: bool) -> None:
    text = """mesh (x=8)
def main(h: f32[4, 16], e: f32[64@x, 16]) -> (last: f32[4, 16], sums: f32[16, 64]) {
  start = zeros(f32[16, 64])
  n, last, sums = while(i = 0, now = h, d = start, trip_count=4) cond { return i < 4 } do {
    turned = transpose(e)
    logits = dot_general(now, turned, lhs_contract=[1], rhs_contract=[0])
    return i + 1, now * 0.5 + max(logits, dim=1, keepdims=true), %s
  }
  return last, sums
}"""
    moved = hoist_moves(spmdc.parse(text % sums).main)
    assert ("transpose" not in [op.name for op in moved.body.ops]) == stays


def test_a_loop_that_never_turns_sends_nothing() -> None:
    never = (SUMS % (", trip_count=0", "-")).replace("i < 4", "i < 0")
    q, inside = _in_loops(never)
    assert ("all_reduce" in inside, [c.count for c in q.collectives()]) == (True, [0])


@pytest.mark.parametrize(
    "same",
    [
        'twice = einsum("ij,jk->ik", a, b)\n    same = twice + twice',
        "n, same = while(j = 0, same = a, trip_count=2) cond { return j < 2 } do { return j + 1, same + sum(same) }",
        "same = if(sum(a) > 0.0) { return a + sum(a) } else { return a }",
    ],
)
def test_what_has_regions_of_its_own_is_sent_once_as_well(same: str) -> None:
    text = f"""mesh (x=8)
def main(a: f32[64@x, 6], b: f32[6, 6]) -> (total: f32[6, 6]) {{
  m, total = while(i = 0, total = b, trip_count=4) cond {{ return i < 4 }} do {{
    {same}
    return i + 1, total - einsum("ij,ik->jk", a, same)
  }}
  return total
}}"""
    q = spmdc.partition(spmdc.parse(text))
    assert all(c.count in (1, 2) for c in q.collectives())
    arrays = spmdc.random_inputs(q.source, 0, integers=True)
    for results in (q.simulate(*arrays), q.to_jax()(*arrays)):
        np.testing.assert_array_equal(results[0], spmdc.evaluate(q.source, *arrays)[0])
