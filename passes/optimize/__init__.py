"""Clean-ups after partitioning: equal ops are computed once, unused ops not at all."""

from __future__ import annotations

from ir.program import Program
from passes.optimize.cse import eliminate_common_subexpressions
from passes.optimize.dce import eliminate_dead_code


def clean_up(program: Program) -> Program:
    """Both clean-ups."""
    return eliminate_dead_code(eliminate_common_subexpressions(program))
