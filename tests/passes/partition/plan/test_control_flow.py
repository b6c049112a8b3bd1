"""Functions, loops and choices: partitioned, they compute what they compute unpartitioned."""

from __future__ import annotations

import numpy as np
import pytest

import spmdc
from ir.program import Program, walk
from ir.verify.program import check
from spmdc.frontends.spmd import parse
from spmdc.testing import check_equivalence

PROGRAMS = {
    "a function of several results, each placed otherwise": """
mesh (x=2, y=2)
def main(a: f32[5@x, 6], b: f32[5, 6@y]) -> (p: f32[5, 6@x], q: f32[6@y], r: f32[]) {
  p, q, r = three(a, b)
  return p, q, r
}
def three(a: f32[5, 6], b: f32[5@y, 6]) -> (p: f32[5@x, 6], q: f32[6], r: f32[]) {
  return a * b, reduce(a, dims=[0], kind=sum), reduce(b, dims=[0, 1], kind=max)
}
""",
    "a call in a loop, and a loop in the function": """
mesh (x=4)
def main(a: f32[7@x, 3]) -> (b: f32[7, 3@x]) {
  i, b = while(i = 0, b = a, trip_count=3) cond { return i < 3 } do {
    return i + 1, step(b, a)
  }
  return b
}
def step(b: f32[7, 3], a: f32[7, 3@x]) -> (c: f32[7@x, 3]) {
  j, c = while(j = 0, c = b) cond { return j < 2 } do {
    return j + 1, c + a
  }
  return c
}
""",
    "nested loops that carry values of different shardings": """
mesh (x=2, y=3)
def main(a: f32[5@x, 7], b: f32[5, 7@y], k: s32[]) -> (p: f32[5, 7@y], q: f32[5@(x,y), 7], s: f32[]) {
  n, p, q, s = while(n = 0, p = a, q: f32[5@y, 7] = b, s = 0.0) cond { return n < 2 } do {
    m, pp, ss = while(m = 0, pp: f32[5, 7@x] = p, ss = s) cond { return (m < k) & (m < 3) } do {
      return m + 1, pp + q, ss + reduce(pp, dims=[0, 1], kind=sum)
    }
    return n + 1, pp, q + a, ss
  }
  return p, q, s
}
""",
    "a loop that runs no time": """
mesh (x=3)
def main(a: f32[4@x, 2]) -> (b: f32[4, 2], i: s32[]) {
  i, b = while(i = 5, b: f32[4, 2@x] = a, trip_count=0) cond { return i < 5 } do {
    return i + 1, b * 2.0
  }
  return b, i
}
""",
    "a body that wants another sharding than its first value": """
mesh (x=2, y=2)
def main(a: f32[6@x, 6], w: f32[6, 6@y]) -> (b: f32[6@x, 6]) {
  i, b = while(i = 0, b: f32[6@x, 6] = a, trip_count=2) cond { return i < 2 } do {
    next: f32[6, 6@y] = dot_general(b, w, lhs_contract=[1], rhs_contract=[0])
    return i + 1, next
  }
  return b
}
""",
    "a loop whose condition depends on split data": """
mesh (x=4)
def main(a: s32[9@x]) -> (b: s32[9@x], n: s32[]) {
  b, n = while(b = a, n = 0) cond { return (reduce(b, dims=[0], kind=max) < 40) & (n < 20) } do {
    return b + b + 1, n + 1
  }
  return b, n
}
""",
    "a loop whose carried value is made by a reduction over a split dim": """
mesh (x=4)
def main(a: f32[6, 8@x], c: f32[6]) -> (s: f32[6]) {
  i, s = while(i = 0, s = c, trip_count=2) cond { return i < 2 } do {
    return i + 1, reduce(a, dims=[1], kind=sum) + s
  }
  return s
}
""",
    "a loop that swaps what it carries": """
mesh (x=2, y=2)
def main(a: f32[3@x, 5], b: f32[3, 5@y]) -> (p: f32[3, 5], q: f32[3, 5]) {
  i, p, q = while(i = 0, p = a, q = b, trip_count=3) cond { return i < 3 } do { return i + 1, q, p }
  return p, q
}
""",
    "a choice between ways to place and to compute": """
mesh (x=2, y=2)
def main(a: f32[6@x, 5], b: f32[6, 5@y], i: s32[]) -> (r: f32[6@y, 5], t: f32[]) {
  r: f32[6, 5@x], t = case(i) {
    s = a * b
    return s, reduce(s, dims=[0, 1], kind=sum)
  } or {
    return b + 1.0, 0.0
  } or {
    w: f32[6@(x,y), 5] = a - b
    return w, reduce(w, dims=[0, 1], kind=max)
  }
  return r, t
}
""",
    "choices in a loop, in a function and in one another": """
mesh (x=3)
def main(a: s32[7@x], p: pred[]) -> (b: s32[7@x]) {
  i, b = while(i = 0, b = a, trip_count=4) cond { return i < 4 } do {
    next = case(i) {
      return b + a
    } or {
      return flip(b, p)
    } or {
      inner = if (p) { return b * 2 } else { return case_free(b) }
      return inner
    }
    return i + 1, next
  }
  return b
}
def flip(b: s32[7], p: pred[]) -> (c: s32[7]) {
  c = if (p) { return -b } else { return reverse(b, dims=[0]) }
  return c
}
def case_free(b: s32[7]) -> (c: s32[7@x]) {
  return b + iota(type=s32[7], dim=0)
}
""",
    "a choice by an index that reductions over split data make": """
mesh (x=4)
def main(a: s32[9@x]) -> (b: s32[9@x]) {
  b = case(reduce(a, dims=[0], kind=sum)) { return a } or { return a + a } or { return -a }
  return b
}
""",
    "a function of elements, over shards of every kind": """
mesh (x=2, y=2)
def main(a: f32[5@x, 3@y], b: f32[3@x]) -> (r: f32[5, 3], s: pred[5@y, 3]) {
  r, s = map(a, b, 2.0, function=pick)
  return r, s
}
def pick(x: f32[], y: f32[], k: f32[]) -> (z: f32[], larger: pred[]) {
  larger = x > y
  z = if (larger) { return x - y } else { return twice(y) * k }
  return z, larger
}
def twice(y: f32[]) -> f32[] { return y + y }
""",
    "a function of elements in a loop": """
mesh (x=3)
def main(a: s32[5@x]) -> (b: s32[5]) {
  i, b = while(i = 0, b = a, trip_count=3) cond { return i < 3 } do { return i + 1, map(b, i, function=f) }
  return b
}
def f(b: s32[], i: s32[]) -> s32[] {
  c = case(i) { return b } or { return b + i } or { return -b }
  return c
}
""",
}


def program(name: str) -> Program:
    parsed = parse(PROGRAMS[name], name)
    check(parsed)
    return parsed


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_partitioned_program_computes_the_same(name: str) -> None:
    for seed in range(4):
        check_equivalence(program(name), seed=seed)


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_partitioned_program_computes_the_same_on_jax_devices(name: str) -> None:
    check_equivalence(program(name), jax=True)


CHOICE = """
mesh (x=2)
def main(a: f32[4@x], i: s32[]) -> (b: f32[4@x]) {
  b = case(i) { return a } or { return a + 1.0 } or { return a + 2.0 }
  return b
}
"""


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize(("index", "added"), [(0, 0), (1, 1), (2, 2), (3, 2), (99, 2), (-1, 2), (-(2**31), 2)])
def test_an_index_out_of_range_takes_the_last_branch(index: int, added: int) -> None:
    parsed = parse(CHOICE)
    a, i = np.arange(4, dtype=np.float32), np.array(index, np.int32)
    partitioned = spmdc.partition(parsed)
    for results in (spmdc.evaluate(parsed, a, i), partitioned.simulate(a, i), partitioned.to_jax()(a, i)):
        assert np.asarray(results[0]).tolist() == [0 + added, 1 + added, 2 + added, 3 + added]


def test_branches_give_their_results_in_the_layout_that_the_choice_has() -> None:
    text = spmdc.partition(parse(CHOICE)).text()
    assert "b: f32[2] = case(i)" in text
    assert "all_gather" not in text


DIFFERENT_ROADS = """
mesh (x=4)
def main(a: f32[8@x], i: s32[]) -> (s: f32[]) {
  s = case(i) { return reduce(a, dims=[0], kind=sum) } or { return 0.0 }
  return s
}
"""


def test_a_branch_communicates_only_where_it_is_taken() -> None:
    partitioned = spmdc.partition(parse(DIFFERENT_ROADS))
    (collective,) = partitioned.collectives()
    assert (collective.kind, collective.count) == ("all_reduce", 1)
    outside = [op.name for op in partitioned.program.main.body.ops]
    inside = [op.name for op in walk(partitioned.program.main.body)]
    assert "all_reduce" in inside
    assert "all_reduce" not in outside


def kinds_outside_and_inside(text: str) -> tuple[list[str], list[str]]:
    """The collectives of a program with one choice, outside of it and inside."""
    partitioned = spmdc.partition(parse(text))
    found = [c.kind for c in partitioned.collectives()]
    outside = [op.name for op in partitioned.program.main.body.ops if op.name in found]
    for kind in outside:
        found.remove(kind)
    return outside, found


def test_what_all_branches_need_in_another_layout_is_brought_there_once_in_front_of_the_choice() -> None:
    text = """
mesh (x=4)
def main(a: f32[8@x], b: f32[8]{replicated}, i: s32[]) -> (s: f32[8]) {
  s: f32[8]{replicated} = case(i) { return a } or { return sin(a) + b } or { return a + 1 }
  return s
}
"""
    assert kinds_outside_and_inside(text) == (["all_gather"], [])


def test_what_some_branches_need_in_another_layout_is_brought_there_in_these() -> None:
    text = """
mesh (x=4)
def main(a: f32[8@x], i: s32[]) -> (s: f32[8]) {
  s: f32[8]{replicated} = case(i) { return a } or { return 0.0 } or { return a }
  return s
}
"""
    assert kinds_outside_and_inside(text) == ([], ["all_gather", "all_gather"])


def test_what_a_branch_needs_of_what_a_loop_around_it_keeps_is_brought_there_in_front_of_the_loop() -> None:
    text = """
mesh (x=4)
def main(a: f32[8@x], b: f32[8, 8]{replicated}) -> (s: f32[8, 8]) {
  n, s: f32[8, 8]{replicated} = while(i = 0, h = b, trip_count=6) cond { return i < 6 } do {
    c = case(i) { return matmul(h, h) + a } or { return h + 1 }
    return i + 1, c
  }
  return s
}
"""
    assert kinds_outside_and_inside(text) == (["all_gather"], [])


HANDWRITTEN = """
spmd
mesh (x=4)
def main(a: f32[2] of f32[8@x]) -> (b: f32[2] of f32[8@x]) {
  i: s32[] = axis_index(axes=(x))
  b: f32[2] = case(i) {
    return a
  } or {
    c: f32[2] = add(a, a)
    return c
  } or {
    d: f32[2] = negate(a)
    return d
  }
  return b
}
"""


@pytest.mark.usefixtures("devices")
def test_devices_may_take_different_branches() -> None:
    parsed = parse(HANDWRITTEN)
    check(parsed)
    a = np.arange(8, dtype=np.float32)
    expected = [0, 1, 4, 6, -4, -5, -6, -7]
    from lowering import jax as lowering_jax
    from lowering.reference import simulate

    assert simulate(parsed, a)[0].tolist() == expected
    assert np.asarray(lowering_jax.compile(parsed)(a)[0]).tolist() == expected
