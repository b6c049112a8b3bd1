"""What ops that run others pass on, and how often they run it."""

from __future__ import annotations

import pytest

import spmdc
from ir.ops import OPS
from ir.ops.control import links, runs_of_region
from ir.ops.declaration import ControlKind
from ir.program import Op, Program, all_ops

PROGRAMS = {
    "while": "n, y = while(i = 0, v = x, trip_count=3) cond { return i < 3 } do { w = v + v  return i + 1, w }",
    "case": "y = case(k) { p = x + x return p } or { q = x * x return q }",
    "call": "y = double(x)",
    "map": "y = map(x, function=scaled)",
    "manual": "y: f32[8@d] = manual(v of f32[8@d] = x, axes=(d)) { u = v + v return u }",
    "optimization_barrier": "y, z = optimization_barrier(x, k)",
}
FUNCTIONS = """
def double(a: f32[8]) -> (b: f32[8]) { b = a + a return b }
def scaled(a: f32[]) -> (b: f32[]) { b = a + a return b }
"""
LINKS = {
    "while": "x>v x>v x>y w>v in the next turn, w>v in the next turn, w>y",
    "case": "p>y q>y",
    "call": "x>a b>y",
    "map": "x>a b>y",
    "manual": "x>v u>y",
    "optimization_barrier": "x,k>y,z",
}


def _parsed(name: str) -> tuple[Program, Op]:
    text = f"mesh (d=2)\ndef main(x: f32[8], k: s32[]) -> (y: f32[8]) {{\n {PROGRAMS[name]}\n return y }}\n{FUNCTIONS}"
    program = spmdc.parse(text)
    return program, next(op for op in all_ops(program) if op.name == name)


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_an_op_runs_has_its_values_and_gives_them(name: str) -> None:
    program, op = _parsed(name)
    found: list[str] = []
    for link in links(program, op):
        first = 1 if OPS[name].control is ControlKind.LOOP else 0
        ends = (",".join(v.name for v in values[first:]) for values in (link.sources, link.targets))
        found.append(">".join(ends) + (" in the next turn," if link.next_turn else ""))
    assert " ".join(found) == LINKS[name]


def test_ops_that_compute_pass_nothing_on() -> None:
    program = spmdc.parse("def main(x: f32[8]) -> (y: f32[8]) { return x + x }")
    assert [list(links(program, op)) for op in all_ops(program)] == [[]]


@pytest.mark.parametrize(("name", "often"), [("while", [4, 3]), ("case", [1, 1]), ("manual", [1])])
def test_a_condition_runs_once_more_than_the_body(name: str, often: list[int]) -> None:
    _, op = _parsed(name)
    assert [runs_of_region(op, i) for i in range(len(op.regions))] == often


def test_each_op_that_holds_regions_or_names_a_function_says_how_it_runs_them() -> None:
    running = {d.name for d in OPS.values() if d.regions != 0 or any(a.kind == "function" for a in d.attrs)}
    assert running == {d.name for d in OPS.values() if d.control is not None}
