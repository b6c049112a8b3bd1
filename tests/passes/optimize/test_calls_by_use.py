"""A call sends nothing for results that only other calls of its function use."""

from __future__ import annotations

from unittest.mock import patch

import spmdc
from spmdc.testing import check_equivalence

FUNCTIONS = """
    def outer(a: s32[8@x, 6]) -> (p: s32[6], q: s32[6], r: s32[8@x, 6]) {
      low, high = inner(a)
      return low + reduce(a, dims=[0], kind=max), high, abs(a)
    }
    def inner(a: s32[8@x, 6]) -> (low: s32[6], high: s32[6]) {
      return reduce(a, dims=[0], kind=min), reduce(a * a, dims=[0], kind=sum)
    }
    """


def total(main: str) -> int:
    """How often a program sends, which runs on devices what it reports."""
    program = spmdc.parse(f"mesh (x=4)\ndef main(a: s32[8@x, 6], b: s32[8@x, 6]) -> {main}\n{FUNCTIONS}")
    with patch("passes.partition.plan.versions.inlined_functions", return_value=frozenset()):
        check_equivalence(program, jax=True)
        return sum(c.count or 0 for c in spmdc.partition(program).collectives())


def test_a_result_that_one_call_uses_is_sent_in_that_call() -> None:
    """The second call needs a sum, and neither the minimum nor the maximum that the first needs."""
    both = total("(p: s32[6], q: s32[6], s: s32[6]) { p, q, r = outer(a)\n  t, s, u = outer(b)\n  return p, q, s }")
    alone = total("(p: s32[6], q: s32[6]) { p, q, r = outer(a)\n  return p, q }")
    assert both == alone + 1


def test_calls_that_need_the_same_share_a_function() -> None:
    text = "(p: s32[6], t: s32[6]) { p, q, r = outer(a)\n  t, s, u = outer(b)\n  return p, t }"
    program = spmdc.parse(f"mesh (x=4)\ndef main(a: s32[8@x, 6], b: s32[8@x, 6]) -> {text}\n{FUNCTIONS}")
    with patch("passes.partition.plan.versions.inlined_functions", return_value=frozenset()):
        assert list(spmdc.partition(program).program.functions) == ["main", "outer", "inner"]


def test_a_call_for_what_is_not_sent_sends_nothing() -> None:
    text = "(p: s32[6], u: s32[8@x, 6]) { p, q, r = outer(a)\n  t, s, u = outer(b)\n  return p, u }"
    assert total(text) == total("(p: s32[6]) { p, q, r = outer(a)\n  return p }")


def test_so_it_is_in_loops() -> None:
    loop = """(p: s32[6], q: s32[6]) {
      none = zeros([6], dtype=s32)
      i, v, w = while(i = 0, v = none, w = none, trip_count=3) cond { return i < 3 } do {
        p, q, r = outer(a * broadcast_in_dim(v + 1, shape=[8, 6], dims=[1]))
        s, t, u = outer(b * broadcast_in_dim(w + 1, shape=[8, 6], dims=[1]))
        return i + 1, reverse(p, dims=[0]), reverse(t, dims=[0])
      }
      return v, w
    }"""
    assert total(loop) == 3 * (2 + 1)
