"""What is said of a reshard of a plan: what it moves, why, its steps, and those from other shardings of the value."""

from __future__ import annotations

from pathlib import Path

import pytest

import spmdc
from ir.ops.resharding import is_reshard
from ir.program import Op, all_ops

PROGRAMS = Path(__file__).parents[3] / "programs"
PRODUCTS = """
mesh (x=4, y=2)
def main(a: f32[64@x, 32], w: f32[32, 48@y], v: f32[48@y, 32]) -> (o: f32[64@x, 32]) {
  return matmul(tanh(matmul(a, w)), v)
}
"""


def reshards(plan: spmdc.Plan) -> list[Op]:
    return [op for op in all_ops(plan.program) if is_reshard(op)]


def test_a_reshard_says_what_it_moves_and_why() -> None:
    plan = spmdc.plan(spmdc.parse(PRODUCTS))
    (op,) = reshards(plan)
    for found in (plan, spmdc.plan(spmdc.parse(plan.text()))):
        choices = found.explain(op.result.name)
        first, second, _ = str(choices).splitlines()
        assert first == f"{op.result.name} = reshard of o: [x, -] partial(y) -> [x, -], result o of main"
        assert second.startswith("* all_reduce (y) sum -> [x, -]: ")
        (choice,) = choices.choices
        assert choice.strategy == op.attrs["steps"]
        assert choice.total == pytest.approx(plan.cost().seconds)
        assert choice.seconds > 0
    with pytest.raises(spmdc.SpmdcError, match="has no strategy"):
        plan.replace(op.result.name, "")


@pytest.mark.parametrize("name", ["narrowed_where_it_is_made", "square_of_a_gram_matrix", "manual_regions_nested"])
def test_a_reshard_is_compared_with_those_from_other_shardings_of_the_value(name: str) -> None:
    plan = spmdc.plan(spmdc.load(PROGRAMS / f"{name}.spmd"))
    several = False
    for op in reshards(plan):
        choices = plan.explain(op.result.name)
        cause, (chosen, *others) = choices.cause, choices.choices
        assert chosen.is_chosen
        assert chosen.strategy == op.attrs["steps"]
        assert cause is not None
        assert cause.values == (op.operands[0].name,)
        assert (chosen.operands, chosen.results) == ((cause.source,), (cause.target,))
        assert all(other.seconds >= chosen.seconds and other.results == chosen.results for other in others)
        several = several or bool(others)
    assert several or name == "manual_regions_nested"


def test_a_reshard_in_a_manual_region_is_along_the_other_axes() -> None:
    plan = spmdc.plan(spmdc.load(PROGRAMS / "manual_regions_nested.spmd"))
    (cause,) = [plan.explain(op.result.name).cause for op in reshards(plan) if op.operands[0].name == "outer"]
    assert str(cause) == "[-, z] -> [y, z], operand inner of the manual region"


def test_steps_that_were_written_are_priced_as_they_are() -> None:
    plan = spmdc.plan(spmdc.parse(PRODUCTS))
    cheapest = "all_reduce (y) sum -> [x, -]"
    slower = "reduce_scatter (y) sum 0 -> [x y, -]; all_gather 0 (y) -> [x, -]"
    edited = spmdc.plan(spmdc.parse(plan.text().replace(cheapest, slower)))
    (op,) = reshards(edited)
    first, second = edited.explain(op.result.name).choices
    assert (first.strategy, second.strategy, second.is_chosen) == (cheapest, slower, True)
    assert 0 < first.seconds < second.seconds


def test_a_reshard_in_a_loop_is_priced_as_it_was_for_the_loop() -> None:
    """Messages cost more there, since devices wait for one another in each iteration."""
    body = "b: f32[512@x, 512] = sort({}, dim=1)\nc: f32[512, 512@x] = cumsum(b, dim=0)\n"
    start = "n, c = while(i = 0, h = a, trip_count=5) cond { return i < 5 } do {\n"
    seconds: list[float] = []
    for made in (body.format("a"), f"{start}{body.format('h')}return i + 1, c }}\n"):
        plan = spmdc.plan(
            spmdc.parse(f"mesh (x=4)\ndef main(a: f32[512, 512@x]) -> (c: f32[512, 512@x]) {{\n{made}return c }}")
        )
        (*_, last) = reshards(plan)
        seconds.append(plan.explain(last.result.name).choices[0].seconds)
    once, repeated = seconds
    assert repeated > once
