"""Reductions over devices that no backend has in one call."""

from __future__ import annotations

import numpy as np
import pytest

import spmdc
from ir.sharding import REDUCTION_KINDS


def kinds(text: str) -> list[tuple[str, int]]:
    return [(c.kind, c.bytes) for c in spmdc.partition(spmdc.parse(text)).collectives()]


def reduction(dtype: str, columns: int, kind: str, result: str) -> str:
    return f"""
        mesh (x=4)
        def main(a: {dtype}[8@x, {columns}]) -> (r: {dtype}{result}) {{
          return reduce(a, dims=[0], kind={kind})
        }}"""


def test_sums_and_extremes_are_one_all_reduce() -> None:
    for kind in ("sum", "max", "min"):
        assert kinds(reduction("s32", 6, kind, "[6]{replicated}")) == [("all_reduce", 36)]
    for kind in ("and", "or"):
        assert kinds(reduction("pred", 6, kind, "[6]{replicated}")) == [("all_reduce", 9)]


def test_a_small_product_is_gathered_and_a_large_one_exchanged_in_parts() -> None:
    """Of a large one each device receives 3/4 of n in parts of its own, and then 3/4 of n reduced."""
    assert kinds(reduction("s32", 6, "prod", "[6]{replicated}")) == [("all_gather", 3 * 6 * 4)]
    n = 1 << 22
    assert kinds(reduction("s32", n, "prod", f"[{n}]{{replicated}}")) == [("all_to_all", 3 * n), ("all_gather", 3 * n)]


def test_only_sums_are_scattered_by_a_collective_of_their_own() -> None:
    assert kinds(reduction("s32", 8, "sum", "[8@x]")) == [("reduce_scatter", 24)]
    assert kinds(reduction("s32", 8, "max", "[8@x]")) == [("all_to_all", 24)]


@pytest.mark.parametrize("columns", [1, 7, 8, (1 << 18) + 3])
def test_every_reduction_of_any_size_gives_what_it_gives_on_one_device(columns: int) -> None:
    for kind in REDUCTION_KINDS:
        program = spmdc.parse(reduction("u8", columns, kind, f"[{columns}]{{replicated}}"))
        (a,) = spmdc.random_inputs(program, integers=True)
        q = spmdc.partition(program)
        for results in (q.simulate(a), q.to_jax()(a)):
            np.testing.assert_array_equal(np.asarray(results[0]), spmdc.evaluate(program, a)[0])


def test_reductions_inside_of_loops_and_manual_regions_are_written_too() -> None:
    program = spmdc.parse("""
        mesh (x=4)
        def main(a: s32[8@x]) -> (r: s32[8@x]) {
          i, r = while(i = 0, v: s32[8@x] = a, trip_count=3) cond {
            return i < 3
          } do {
            next: s32[8@x] = manual(t of s32[8@x] = v) {
              return all_reduce(t, axes=(x), kind=prod)
            }
            return i + 1, next
          }
          return r
        }""")
    assert [(c.kind, c.count) for c in spmdc.partition(program).collectives()] == [("all_gather", 3)]
