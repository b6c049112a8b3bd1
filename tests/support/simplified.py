"""Programs made simple, and found to compute the same to the bit."""

from __future__ import annotations

import spmdc
from ir.program import Program, all_ops
from ir.verify.program import check
from lowering.reference.shards import same_bits
from passes.optimize.fold.simplify import simplify
from spmdc.frontends.spmd import print_program
from spmdc.testing import inputs_for


def simplified(text: str) -> Program:
    """The program made simple, and found to compute the same on any numbers."""
    program = spmdc.parse(text)
    after = simplify(program)
    check_same(program, after, 1)
    return after


def check_same(program: Program, after: Program, seed: int) -> None:
    check(after)
    arrays = inputs_for(program, seed, anything=True)
    for want, got in zip(spmdc.evaluate(program, *arrays), spmdc.evaluate(after, *arrays), strict=True):
        text = print_program(program, locations=False)
        assert want.dtype == got.dtype, text
        assert want.shape == got.shape, text
        assert same_bits(want, got), f"{want.tolist()} and then {got.tolist()}\n{text}"


def ops(program: Program) -> list[str]:
    return [op.name for op in all_ops(program)]
