"""A function takes its arguments in the layouts that it computes with, and callers bring them there."""

from __future__ import annotations

import pytest

import spmdc
from ir.program import all_ops
from spmdc.testing import check_equivalence

STEPS = "\n".join(f"  v{n + 1} = maximum(v{n} % 5, -v{n}) + 1" for n in range(4))


def partitioned(text: str) -> spmdc.PartitionedProgram:
    program = spmdc.parse(text)
    check_equivalence(program)
    return spmdc.partition(program)


def moved(q: spmdc.PartitionedProgram) -> list[tuple[str, int, int | None]]:
    return [(c.kind, c.bytes, c.count) for c in q.collectives()]


IN_LOOPS = f"""
mesh (x=4)
def main(a: f32[8@x, 16], w: f32[16@x, 16], k: s32[]) -> (out: f32[8@x, 16]) {{
  n, y, u = while(i = 0, h = a, u = w) cond {{ return i < k }} do {{
    m, z, t = while(j = 0, g = h, t = u) cond {{ return j < k }} do {{ return j + 1, layer(g, t), t }}
    return i + 1, layer(z, u), u
  }}
  return y
}}
def layer(v0: f32[8, 16], w: f32[16, 16]) -> f32[8, 16] {{
{STEPS}
  return matmul(matmul(matmul(v4, w) % 3, w) % 3, w) % 3
}}
"""


def test_what_a_function_needs_gathered_is_gathered_in_front_of_the_loops_around_its_calls() -> None:
    q = partitioned(IN_LOOPS)
    assert moved(q) == [("all_gather", 768, 1)]
    assert len(q.program.functions) == 2


@pytest.mark.usefixtures("devices")
def test_versions_of_functions_run_on_jax_devices() -> None:
    check_equivalence(spmdc.parse(IN_LOOPS), jax=True)


PARTS = """
mesh (x=4)
def main(a: f32[8, 16@x], b: f32[16@x, 8], c: f32[16@x, 8]) -> (out: f32[8@x, 8]) {
  p = matmul(a, b)
  q = matmul(a, c)
  return mix(p, q) + mix(q, p)
}
def mix(p: f32[8, 8], q: f32[8, 8]) -> f32[8, 8] {
  r = (p - q) + (p + q) + p
  s = (r - q) + (r + p) - q
  return (s + r) + (s - p) + (r - q) + s
}
"""


def test_arguments_that_are_owed_a_reduction_are_given_so_and_results_are_returned_so() -> None:
    q = partitioned(PARTS)
    assert [c.kind for c in q.collectives()] == ["reduce_scatter"]
    assert list(q.program.functions) == ["main", "mix"]


LOOKS = f"""
mesh (x=4)
def main(a: f32[8, 16@x], b: f32[16@x, 8]) -> (out: f32[8, 8], again: f32[8, 8]) {{
  p = matmul(a, b)
  return look(p), look(look(p))
}}
def look(v0: f32[8, 8]) -> f32[8, 8] {{
{STEPS}
  return v4
}}
"""


def test_a_function_that_needs_the_whole_has_its_callers_reduce() -> None:
    q = partitioned(LOOKS)
    assert len(q.collectives()) == 1
    assert q.collectives()[0].kind in ("all_reduce", "reduce_scatter")
    assert list(q.program.functions) == ["main", "look"]
    assert "all_reduce" not in [op.name for f in q.program.functions.values() if f.name != "main" for op in f.body.ops]


def test_an_argument_that_nothing_needs_does_not_come() -> None:
    text = f"""
mesh (x=4)
def main(a: f32[8@x], b: f32[8]) -> (out: f32[8@x]) {{ return f(f(a, b), b) }}
def f(v0: f32[8], b: f32[8]) -> f32[8] {{
{STEPS}
  return v4 + shape_of(b) * 0
}}
def shape_of(b: f32[8]) -> f32[8] {{ return iota(type=f32[8], dim=0) }}
"""
    q = partitioned(text)
    assert [len(op.operands) for op in all_ops(q.program) if op.name == "call"] == [1, 1]


def test_an_argument_can_come_in_two_layouts() -> None:
    text = f"""
mesh (x=4)
def main(a: f32[8@x, 8], b: f32[8@x, 8]) -> (out: f32[8@x, 8]) {{ return f(a) + f(b) }}
def f(v0: f32[8, 8]) -> f32[8, 8] {{
{STEPS}
  w: f32[8, 8]{{replicated}} = v0
  return v4 + sort(w, dim=0)
}}
"""
    q = partitioned(text)
    assert [len(op.operands) for op in all_ops(q.program) if op.name == "call"] == [2, 2]


def test_calls_in_a_loop_and_outside_keep_what_each_does_best() -> None:
    text = f"""
mesh (x=4)
def main(a: f32[8@x, 64], w: f32[64@x, 64]) -> (out: f32[8@x, 64], p: f32[8@x, 64]) {{
  n, y = while(i = 0, h = a, trip_count=50) cond {{ return i < 50 }} do {{ return i + 1, layer(h, w) }}
  return y, layer(a, w)
}}
def layer(v0: f32[8, 64], w: f32[64, 64]) -> f32[8, 64] {{
{STEPS}
  return matmul(v4, w) % 3
}}
"""
    q = spmdc.partition(spmdc.parse(text))
    assert {c.count for c in q.collectives() if c.bytes > 2000} == {1}


def test_warnings_of_functions_are_told_once() -> None:
    text = f"""
mesh (x=4)
def main(a: f32[8@x], b: f32[8@x]) -> (out: f32[8@x]) {{ return f(a) + f(b) }}
def f(v0: f32[8]) -> f32[8] {{
{STEPS}
  return v4 + sort(v0, dim=0)
}}
"""
    q = partitioned(text)
    assert [w.code for w in q.warnings] == ["W001"]
