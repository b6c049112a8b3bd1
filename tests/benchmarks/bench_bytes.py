"""What devices receive in every program of tests/programs and spmdc/programs beside XLA's partitioner, with the ends
that a program leaves free, and with these pinned. Run with `make bench`; prints every program."""

from __future__ import annotations

from pathlib import Path

import pytest

import spmdc
from ir.diagnostics import SpmdcError
from spmdc.comparison.compare import Comparison, compare, pinned

TESTS = Path(__file__).parents[1]
FILES = sorted([*TESTS.glob("programs/*.spmd"), *TESTS.parent.glob("spmdc/programs/**/*.spmd")])

# Programs in which we receive more, and why.
ABOVE = {
    "reduce_all_kinds_uneven": "jax.lax has no all_reduce by product: the four factors, 4 bytes each, are gathered",
}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_no_program_receives_more_than_under_xla(file: Path) -> None:
    program = spmdc.load(file)
    try:
        found = [compare(program), compare(pinned(program))]
    except SpmdcError as problem:
        pytest.skip(f"XLA has no part in it: {problem.diagnostics[0].message}")
    print(f"\n{file.stem}: {', pinned '.join(map(beside, found))}")
    above = [c for c in found if c.bytes > c.xla_bytes]
    assert bool(above) == (file.stem in ABOVE)


def beside(comparison: Comparison) -> str:
    return f"{comparison.bytes:,} bytes, XLA {comparison.xla_bytes:,}"
