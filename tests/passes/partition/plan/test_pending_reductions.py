"""When sums over devices are reduced: not twice, and not when they have become more."""

from __future__ import annotations

import spmdc
from spmdc.testing import check_equivalence


def moved(text: str) -> list[tuple[str, int]]:
    program = spmdc.parse(text)
    check_equivalence(program)
    return [(c.kind, c.bytes) for c in spmdc.partition(program).collectives()]


def test_a_sum_that_is_added_to_what_is_no_sum_is_reduced_for_all_who_use_it() -> None:
    text = """
mesh (x=4)
def main(a: s32[8, 16@x], w: s32[16@x, 8], c: s32[8, 8]{replicated}) -> (r: s32[8]{replicated}, s: s32[8]{replicated}) {
  d = matmul(a, w)
  s = cumsum(reduce(d * c, dims=[1], kind=sum), dim=0)
  r = reduce(c + d, dims=[0], kind=sum)
  return r, s
}
"""
    assert moved(text) == [("all_reduce", 384)]


def test_a_sum_carried_by_a_loop_stays_one_only_if_all_that_is_added_is() -> None:
    text = """
mesh (x=4)
def main(c: s32[8, 8]{replicated}, w: s32[8, 96@x], v: s32[96@x, 8]) -> (s: s32[8]{replicated}, r: s32[8]{replicated}) {
  n, h, t = while(i = 0, h = c, t = zeros(s32[8]), trip_count=3) cond { return i < 3 } do {
    d = matmul(matmul(h, w), v)
    return i + 1, h + d, maximum(t, reduce(d * c, dims=[1], kind=sum))
  }
  return t, reduce(h, dims=[0], kind=sum)
}
"""
    assert moved(text) == [("all_reduce", 384)]


def test_sums_are_reduced_before_numbers_are_put_beside_them() -> None:
    text = """
mesh (x=2)
def main(a: s32[16, 64@x], w: s32[64@x, 16], v: s32[64@x, 16]) -> (r: s32[4, 16, 16]) {
  b = reshape(matmul(a, w), shape=[1, 16, 16])
  c = reshape(matmul(a, v), shape=[1, 16, 16])
  return concatenate(b, c, zeros(s32[2, 16, 16]), dim=0) + 1
}
"""
    assert sum(sent for _, sent in moved(text)) == 2 * 1024


def test_to_join_sums_is_not_to_add_them_up() -> None:
    """Rows that devices look up for one another would be as many to reduce beside each other as one by one: those of
    the table are fewer."""
    text = """
mesh (x=2, y=4)
def main(nodes: s32[48@(x,y), 16], edges: s32[96@(x,y), 8], s: s32[96@(x,y)], r: s32[96@(x,y)]) -> (o: s32[96, 40]) {
  return concatenate(edges, take(nodes, s, dim=0), take(nodes, r, dim=0), dim=1) * 2
}
"""
    assert moved(text) == [("all_gather", 48 * 16 * 4 * 7 // 8)]
