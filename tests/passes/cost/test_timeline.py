"""When ops run, by the model that says how long the program takes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

import spmdc
from ir.ops.collective import COLLECTIVES
from ir.program import Program
from passes.cost.machine import Machine, machine
from passes.cost.roofline import roofline
from passes.cost.timeline import MOST, Execution, timeline

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted([*(ROOT / "spmdc" / "programs").glob("*.spmd"), *(ROOT / "tests" / "programs").glob("[m-w]*.spmd")])


def ends(executions: tuple[Execution, ...]) -> float:
    return max((e.begin + e.seconds for e in executions), default=0.0)


def partitioned(text: str) -> Program:
    return spmdc.partition(spmdc.parse(text), machine="tpu-v3").program


@pytest.mark.parametrize("name", ["tpu-v3", "tpu-v4"])
def test_a_run_ends_when_costs_say_and_ops_run_inside_what_is_around_them(name: str) -> None:
    on = machine(name)
    for file in FILES:
        program = spmdc.partition(spmdc.load(str(file)), machine=on).program
        executions = timeline(program, on)
        assert ends(executions) == pytest.approx(roofline(program, on).seconds, rel=1e-9), file
        around: list[Execution] = []
        for e in executions:
            del around[e.depth :]
            assert not around or around[-1].begin <= e.begin, file
            assert not around or e.begin + e.seconds <= around[-1].begin + around[-1].seconds * (1 + 1e-9), file
            around.append(e)


LOOP = """
mesh (x=4)
def main(a: f32[64@x, 64], w: f32[64, 64@x]) -> (r: f32[64@x, 64]) {
  n, r = while(i: s32[] = 0, h = a, trip_count=5) cond { return i < 5 } do { return i + 1, tanh(matmul(h, w)) }
  return r
}
"""


def test_of_a_loop_the_first_turn_is_there_and_the_loop_takes_all() -> None:
    """The condition runs once more than the body."""
    on = machine("tpu-v3")
    executions = timeline(partitioned(LOOP), on)
    (loop,) = (e for e in executions if e.turns == 5)
    inside = [e for e in executions if e.depth == 1]
    assert inside
    asked = sum(e.seconds for e in inside if e.op in loop.op.regions[0].ops)
    assert asked
    assert loop.seconds == pytest.approx(5 * (ends(tuple(inside)) - loop.begin) + asked, rel=1e-9)


def test_ops_of_one_level_run_one_after_another_but_for_what_travels() -> None:
    block = spmdc.load(str(ROOT / "spmdc" / "programs" / "transformer_block.spmd"))
    flat = [e for e in timeline(spmdc.partition(block).program, machine("tpu-v3")) if not e.depth]
    assert any(e.op.name in COLLECTIVES for e in flat)
    assert all(a.begin + a.seconds == b.begin for a, b in itertools.pairwise(flat))


def test_parts_travel_while_others_are_multiplied() -> None:
    text = """
        mesh (x=4)
        def main(a: f32[4096, 4096@x], w: f32[4096, 4096@x]) -> (r: f32[4096, 4096@x]) { return matmul(a, w) }
        """
    on: Machine = machine("tpu-v4")
    program = spmdc.partition(spmdc.parse(text), machine=on, windowed_einsum="always").program
    assert any(
        a.depth == b.depth and b.begin < a.begin + a.seconds and b.op.name not in COLLECTIVES
        for a, b in itertools.pairwise(timeline(program, on))
        if a.op.name in COLLECTIVES
    )


def test_calls_of_calls_are_followed_up_to_a_bound() -> None:
    functions = "\n".join(f"def f{k}(a: f32[64]) -> (r: f32[64]) {{ return f{k + 1}(f{k + 1}(a)) }}" for k in range(24))
    text = f"mesh (x=2)\ndef main(a: f32[64@x]) -> (r: f32[64]) {{ return f0(a) }}\n{functions}\n"
    program = partitioned(text + "def f24(a: f32[64]) -> (r: f32[64]) { return tanh(a) }")
    assert len(timeline(program, machine("tpu-v3"))) < 2 * MOST


def test_what_a_condition_sends_it_sends_once_more_than_the_body_runs() -> None:
    program = spmdc.parse("""
    mesh (x=4)
    def main(a: f32[16@x, 16]) -> (o: f32[16@x, 16]) {
      z = while(z: f32[16@x, 16] = a, trip_count=10) cond { return sum(z) < 100 } do { return z + 1 }
      return z
    }""")
    q = spmdc.partition(program)
    assert [(c.kind, c.bytes, c.count) for c in q.collectives()] == [("all_reduce", 6, 11)]
    assert q.received_bytes() == spmdc.plan(program).cost().received == 66
    assert sum(e.times for e in roofline(q.program, machine("tpu-v3")).executed if e.op.name == "all_reduce") == 11
