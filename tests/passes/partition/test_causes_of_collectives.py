"""Every collective of a partitioned program says why it is there, in words of the program that was partitioned."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import spmdc
from ir.causes import Cause
from ir.ops.collective import COLLECTIVES
from ir.ops.resharding import is_reshard
from ir.program import Op, Program, all_ops, values_within

PROGRAMS = sorted((Path(__file__).parents[2] / "programs").glob("*.spmd"))
WINDOWED = """
mesh (d=4)
def main(a: f32[16@d, 64], b: f32[64, 16@d]) -> (out: f32[16@d, 16]) { return matmul(a, b) }
"""
CALLBACK = """
mesh (d=4)
def main(x: f32[7@d]) -> (out: f32[7@d]) { return x + callback(sum(x), function=scale, types=[f32[7]]) }
"""
PRODUCT = """
mesh (d=4)
def main(x: f32[16@d]) -> (out: f32[]) { return prod(x) }
"""
EVEN = """
mesh (d=4)
def main(x: f32[6@d]) -> (out: f32[6@d]) { return x + 1 }
"""


def leaves(cause: Cause) -> Iterator[Cause]:
    """The cause, or those of what is sent as one."""
    for part in cause.parts:
        yield from leaves(part)
    if not cause.parts:
        yield cause


def names_in(program: Program) -> set[str]:
    """What a program calls its values and results."""
    functions = program.functions.values()
    named = {v.name for f in functions for v in values_within(f.body)}
    return named | {r.name for f in functions for r in f.results}


def is_called(op: Op, name: str) -> bool:
    """Whether the op makes a value of that name; an op that is computed again has a number behind it."""
    base, _, number = op.label.rpartition(".")
    return op.label == name or (base == name and number.isdecimal())


def check(program: Program, memory_limit: int | None = None) -> list[Cause]:
    plan = spmdc.plan(program, memory_limit=memory_limit)
    ops = [*all_ops(program), *all_ops(plan.program)]
    resharded = {op.result.name for op in all_ops(plan.program) if is_reshard(op)} - names_in(program)
    names = (names_in(program) | names_in(plan.program)) - resharded
    functions = program.functions.keys() | plan.program.functions.keys()
    known = {op.name for op in ops}
    written = {op.name for op in all_ops(program) if op.name in COLLECTIVES}
    found = [leaf for c in spmdc.partition(plan).collectives() for leaf in leaves(c.cause)]
    for cause in found:
        assert cause.kind not in ("remark", "joined"), cause
        assert cause.values, cause
        assert names.issuperset(cause.values), cause
        assert cause.op in known if cause.op else cause.function in functions, cause
        assert not cause.name or cause.name in names, cause
        assert cause.kind != "written" or cause.op in written, cause
        assert cause.operand is None or any(
            op.name == cause.op and len(op.operands) > cause.operand and is_called(op, cause.name) for op in ops
        ), cause
    return found


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_values_and_ops_of_causes_are_those_of_the_program(path: Path) -> None:
    check(spmdc.load(path))


@pytest.mark.parametrize(
    ("text", "limit", "kind"),
    [
        (WINDOWED, 4500, "windowed_einsum"),
        (CALLBACK, None, "caller"),
        (PRODUCT, None, "result"),
    ],
)
def test_what_no_program_of_the_folder_has_says_why_too(text: str, limit: int | None, kind: str) -> None:
    found = check(spmdc.parse(text), limit)
    assert kind in {cause.kind for cause in found}


def test_a_reduction_says_over_what() -> None:
    (cause,) = check(spmdc.parse(PRODUCT.replace("prod", "sum")))
    assert (cause.source, cause.target, cause.reduced, cause.values) == ("[] partial(d)", "[]", ("d",), ("out",))
