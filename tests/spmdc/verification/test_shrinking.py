"""Programs are made smaller as long as they show what they are to show: each thing that can be left out is."""

from __future__ import annotations

import pytest

import spmdc
from ir.program import Program, all_ops
from ir.verify.program import verify as find_problems
from spmdc.frontends.spmd import print_program
from spmdc.verification.shrink import shrink

PROGRAM = """
mesh (x=4, y=3) devices=[1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]

def tail(v: f32[7@x, 6]) -> (r: f32[7, 6]) {
  return reverse(v, dims=[0])
}

def main(a: f32[7@(x,y), 6], b: f32[7, 6@y], k: s32[]) -> (r: f32[7, 6], s: f32[7], t: f32[7, 6]) {
  c = a * b
  d: f32[7@x, 6] = split(c, 0, 4)
  e = case(k) { return exp(d) } or { return cumsum(d, dim=0) }
  n, trips = while(v: f32[7, 6] = d, trips: s32[] = 0) cond { return trips < 3 } do { return tanh(v), trips + 1 }
  return tail(e + c), sum(e, dim=1), n
}
"""


def names(program: Program) -> list[str]:
    return [op.name for op in all_ops(program)]


def smallest_with(*wanted: str) -> Program:
    tried: list[Program] = []

    def fails(candidate: Program) -> bool:
        tried.append(candidate)
        return all(name in names(candidate) for name in wanted)

    smallest = shrink(spmdc.parse(PROGRAM), fails)
    assert all(find_problems(candidate) == [] for candidate in tried)
    return smallest


@pytest.mark.parametrize("op", ["multiply", "exponential", "cumsum", "reverse", "reduce", "tanh"])
def test_one_op_is_left_with_one_element_and_no_mesh(op: str) -> None:
    smallest = smallest_with(op)
    assert names(smallest) == [op]
    assert list(smallest.functions) == ["main"]
    assert smallest.mesh.size == 1
    assert all(p.sharding is None and p.type.size == 1 for p in smallest.main.params)


def test_a_loop_keeps_what_counts_its_trips() -> None:
    program = spmdc.parse(PROGRAM)
    counting = next(op for op in all_ops(program) if op.name == "while").regions[1].ops[-1]
    smallest = smallest_with("while")
    (loop,) = (op for op in all_ops(smallest) if op.name == "while")
    assert counting.name in [op.name for op in loop.regions[1].ops]
    assert all(p.dtype.is_float for p in smallest.main.params)
    spmdc.evaluate(smallest, *spmdc.random_inputs(smallest))


def test_an_annotation_that_is_needed_stays() -> None:
    def fails(candidate: Program) -> bool:
        return any(p.sharding is not None and any(d.axes for d in p.sharding.dims) for p in candidate.main.params)

    smallest = shrink(spmdc.parse(PROGRAM), fails)
    (split,) = (p.sharding for p in smallest.main.params if p.sharding is not None)
    assert [len(d.axes) for d in split.dims].count(1) == 1
    assert smallest.mesh.size == 2
    assert smallest.mesh.devices is None


def test_no_more_is_tried_than_allowed() -> None:
    tried: list[Program] = []

    def fails(candidate: Program) -> bool:
        tried.append(candidate)
        return False

    program = spmdc.parse(PROGRAM)
    assert shrink(program, fails, 7) is program
    assert len(tried) == 7


def test_the_smallest_program_is_one_in_the_language() -> None:
    smallest = smallest_with("cumsum", "multiply")
    text = print_program(smallest, locations=False)
    assert print_program(spmdc.parse(text), locations=False) == text
