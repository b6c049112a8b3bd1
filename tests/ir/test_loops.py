"""How often a loop runs, as its text has it, is how often it runs."""

from __future__ import annotations

import numpy as np
import pytest

import spmdc
from ir.loops import Loop
from ir.program import Program, Value, all_ops


def loop_of(program: Program) -> Loop:
    makers = {v: op for op in all_ops(program) for v in op.results}

    def number(value: Value) -> object:
        maker = makers.get(value)
        return maker.attrs["value"] if maker is not None and maker.name == "constant" else None

    op = next(op for op in all_ops(program) if op.name == "while")
    condition, body = op.regions
    return Loop(op.operands, condition, body, number)


def program_of(carried: str, condition: str, following: str) -> Program:
    return spmdc.parse(
        f"def main(n: s32[]) -> (turns: s32[]) {{ t, i, j, k = while(t = 0, {carried}, k = 7) cond "
        f"{{ return {condition} }} do {{ return t + 1, {following}, k }} return t }}"
    )


@pytest.mark.parametrize(
    ("carried", "condition", "following"),
    [
        ("i = 0, j = 0", "i < 5", "i + 1, j"),
        ("i = 0, j = 0", "i <= 5", "i + 2, j"),
        ("i = 1, j = 0", "9 > i", "3 + i, j"),
        ("i = 10, j = 0", "i > 0", "i - 3, j"),
        ("i = 10, j = 0", "0 <= i", "i - 1, j"),
        ("i = 1, j = 0", "i != 9", "i + 4, j"),
        ("i = 1, j = 0", "i == 1", "i + 4, j"),
        ("i = 2, j = 0", "i == 1", "i + 4, j"),
        ("i = 9, j = 0", "i < 5", "i + 1, j"),
        ("i = 0, j = 2", "i < k", "i + j, j"),
        ("i = u8(250), j = 0", "i < 255", "i + 1, j"),
    ],
)
def test_turns_that_follow_from_numbers(carried: str, condition: str, following: str) -> None:
    program = program_of(carried, condition, following)
    (turns,) = spmdc.evaluate(program, np.int32(0))
    assert loop_of(program).trip_count() == turns


@pytest.mark.parametrize(
    ("carried", "condition", "following"),
    [
        ("i = 0, j = 0", "i < n", "i + 1, j"),
        ("i = n, j = 0", "i < 5", "i + 1, j"),
        ("i = 0, j = 0", "i < 5", "i + n, j"),
        ("i = 0, j = 1", "i < 5", "i + j, j + 1"),
        ("i = 0, j = 0", "i < 5", "i * 2, j"),
        ("i = 0, j = 0", "i < 5", "1 - i, j"),
        ("i = 0, j = 0", "i < 5", "i - 1, j"),
        ("i = 0, j = 0", "i != 5", "i + 2, j"),
        ("i = u8(250), j = 0", "i < 255", "i + 10, j"),
        ("i = 0, j = 0", "(i < 5) & (j < 5)", "i + 1, j + 1"),
    ],
)
def test_turns_that_do_not_follow(carried: str, condition: str, following: str) -> None:
    assert loop_of(program_of(carried, condition, following)).trip_count() is None
