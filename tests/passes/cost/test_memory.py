"""The estimate of a device's peak memory, against what is alive counted by hand."""

from __future__ import annotations

import pytest

import spmdc
from passes.cost.memory import peak_bytes


@pytest.mark.parametrize(
    ("body", "extra"),
    [
        ("return a", 0),
        ("return negate(a)", 256),
        ("return negate(negate(a))", 256),
        ("b = sort(a)\n return sort(b)", 512),
        ("b = sort(a)\n c = sort(b)\n return add(b, c)", 512),
        ("return sum(a, dim=0)", 4),
        ("i = constant(value=0, type=s32[])\n return dynamic_update_slice(sort(a), slice(a, start=[0], limit=[4]), i)",
         256 + 16 + 4),
    ],
    ids=["argument", "one_op", "in_place", "one_behind_the_other", "used_later", "reduced", "updated_in_place"],
)  # fmt: skip
def test_an_argument_of_256_bytes_stays_and_values_live_to_their_last_use(body: str, extra: int) -> None:
    result = "f32[]" if "sum" in body else "f32[64]"
    program = spmdc.parse(f"def main(a: f32[64]) -> (out: {result}) {{\n {body}\n}}")
    assert peak_bytes(program) == 256 + extra


LOOP = """
def main(a: f32[64]) -> (out: f32[64]) {
  n = constant(value=0, type=s32[])
  START
  i: s32[], x: f32[64] = while(i: s32[] = n, x: f32[64] = first, trip_count=3) cond {
    three = constant(value=3, type=s32[])
    go = compare(i, three, direction=LT)
    return go
  } do {
    one = constant(value=1, type=s32[])
    next = add(i, one)
    y = STEP
    return next, y
  }
  return x
}
"""


@pytest.mark.parametrize(
    ("start", "step", "extra"),
    [
        ("first = sort(a)", "negate(x)", 256),
        ("first = negate(negate(a))", "sort(x)", 512),
        ("first = add(a, a)", "sort(sort(x))", 512),
        ("first = add(a, a)", "add(x, a)", 256),
    ],
)
def test_a_loop_updates_what_it_carries_in_place(start: str, step: str, extra: int) -> None:
    """Beside it, there are at most four numbers."""
    text = LOOP.replace("START", start).replace("STEP", step)
    assert 256 + extra <= peak_bytes(spmdc.parse(text)) <= 256 + extra + 16


def test_what_a_loop_carries_is_a_copy_of_an_argument() -> None:
    text = LOOP.replace("START", "").replace("first", "a").replace("STEP", "negate(x)")
    assert 512 <= peak_bytes(spmdc.parse(text)) <= 512 + 16


def test_a_function_takes_what_it_takes_and_what_its_caller_keeps() -> None:
    program = spmdc.parse("""
    def sorted_twice(x: f32[64]) -> (y: f32[64]) {
      return sort(sort(x))
    }
    def main(a: f32[64]) -> (out: f32[64]) {
      b = sort(a)
      return add(b, sorted_twice(b))
    }
    """)
    assert peak_bytes(program) == 4 * 256


def test_of_a_case_the_largest_branch_counts() -> None:
    program = spmdc.parse("""
    def main(a: f32[64], i: s32[]) -> (out: f32[64]) {
      return case(i) {
        return negate(a)
      } or {
        c = sort(a)
        return sort(c)
      }
    }
    """)
    assert peak_bytes(program) == 3 * 256 + 4


def test_a_device_has_its_shards_only() -> None:
    program = spmdc.parse("mesh (d=4) def main(a: f32[64@d]) -> (out: f32[64]) { return replicate(a) }")
    assert spmdc.partition(program).peak_bytes() == 64 + 256
