"""Concatenations of slices of split tensors, next to other operands that are computed from the same tensors."""

from __future__ import annotations

from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdc
from spmdc.testing import check_equivalence


@st.composite
def operands(draw: st.DrawFn, n: int) -> tuple[str, int]:
    """A value that is computed from `a`, which has `n` rows, or a run of its rows, and the number of rows."""
    start = draw(st.integers(0, n - 1))
    stop = draw(st.integers(start + 1, n))
    cut, rows = f"a[{start}:{stop}]", stop - start
    whole = ("a", "2 * a", "a * a", "cumsum(a, dim=0)", "reverse(a, dims=[0])")
    choices = [(cut, rows), (cut, rows), (f"{cut}[:1]", 1), (f"2 * {cut}", rows), ("s", n - 1), ("f(a)", n - 1)]
    return draw(st.sampled_from([*choices, *((text, n) for text in whole)]))


@st.composite
def programs(draw: st.DrawFn) -> str:
    n = draw(st.sampled_from([5, 7, 8, 16]))
    joined = draw(st.lists(operands(n), min_size=2, max_size=4))
    rows, axes = sum(rows for _, rows in joined), draw(st.sampled_from(["x", "(x, y)"]))
    return f"""
        mesh (x=2, y=2)
        def f(v: s32[{n}, 2]) -> (w: s32[{n - 1}, 2]) {{ return v[1:] }}
        def main(a: s32[{n}@{axes}, 2]) -> (s: s32[{n - 1}, 2], j: s32[{rows}@x, 2]) {{
          s = a[1:]
          return s, concatenate([{", ".join(text for text, _ in joined)}], dim=0)
        }}"""


@settings(max_examples=examples(40), deadline=None)
@given(programs())
def test_what_is_cut_is_joined_with_anything_computed_from_the_same(text: str) -> None:
    check_equivalence(spmdc.parse(text))
