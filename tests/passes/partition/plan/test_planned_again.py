"""Programs that are planned more than once, for few bytes and with all loops split: what that takes."""

from __future__ import annotations

import pytest

import spmdc
from ir.program import Program
from passes import partition
from passes.partition.plan.functions import plan_program
from passes.partition.plan.plan import are_alike
from passes.partition.plan.planner import Planner
from passes.partition.write.writer import Writer


def test_a_plan_that_is_the_same_as_the_one_before_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[partition.Plan] = []
    written: list[Writer] = []
    make, write = plan_program, Writer.written

    def making(p: Planner) -> partition.Plan:
        plans.append(make(p))
        return plans[-1]

    def writing(writer: Writer) -> Program:
        written.append(writer)
        return write(writer)

    monkeypatch.setattr(partition, "plan_program", making)
    monkeypatch.setattr(Writer, "written", writing)
    program = spmdc.parse("""
    mesh (x=4)
    def main(a: f32[8@x, 64], b: f32[8, 8@x]) -> (r: f32[8@x, 64]) {
      n, r = while(i = 0, v = a, trip_count=9) cond { return i < 9 } do { return i + 1, v + matmul(b, v) }
      return r
    }""")
    spmdc.partition(program)
    first, second, third = plans
    assert not are_alike(first, second)
    assert are_alike(second, third)
    assert len(written) == 2
