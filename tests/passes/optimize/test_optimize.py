"""Clean-ups: equal ops are computed once, unused ops not at all, and nothing else changes."""

from __future__ import annotations

import numpy as np

import spmdc
from ir.program import all_ops
from ir.spelling.printer import print_program
from ir.verify.program import verify
from passes.optimize.cse import eliminate_common_subexpressions
from passes.optimize.dce import eliminate_dead_code
from spmdc.testing import check_equivalence


def names(text: str) -> list[str]:
    program = eliminate_dead_code(eliminate_common_subexpressions(spmdc.parse(text)))
    return [op.name for op in all_ops(program)]


def test_equal_ops_are_computed_once() -> None:
    assert names("def main(a: f32[4]) -> (b: f32[4]) { return tanh(a) + tanh(a) }") == ["tanh", "add"]
    in_two_orders = "iota(dim=0, type=s32[4]) + iota(type=s32[4], dim=0)"
    assert names(f"def main() -> (b: s32[4]) {{ return {in_two_orders} }}") == ["iota", "add"]


def test_ops_of_zeros_of_other_signs_are_not_equal() -> None:
    def named(*fills: float) -> list[str]:
        dims = "offset_dims=[], collapsed_slice_dims=[0], start_index_map=[0], index_vector_dim=1, slice_sizes=[1]"
        takes = ", ".join(f"gather(a, i, {dims}, mode=fill, fill_value={fill})" for fill in fills)
        return names(f"def main(a: f32[4], i: s32[3, 1]) -> (b: f32[3], c: f32[3]) {{ return {takes} }}")

    assert named(0.0, -0.0) == ["gather", "gather"]
    assert named(-0.0, -0.0) == ["gather"]


def test_unused_ops_are_dropped_also_inside_loops() -> None:
    text = """
        def main(a: f32[4]) -> (b: f32[4]) {
          unused = tanh(a)
          n, y = while(i: s32[] = 0, v: f32[4] = a) cond { return i < 3 } do {
            idle = exp(v)
            return i + 1, v + v
          }
          return y
        }
        """
    assert not {"tanh", "exponential"}.intersection(names(text))


def test_what_is_sorted_along_for_nobody_is_dropped() -> None:
    """Keys stay."""
    text = """
        def main(a: f32[4], b: f32[4], c: f32[4], d: f32[4]) -> (x: f32[4], y: f32[4]) {
          x, key, y, idle = sort(a, exp(b), tanh(c), cosine(d), dim=0, num_keys=2)
          return x, y
        }
        """
    assert names(text) == ["exponential", "tanh", "sort"]


def test_results_of_functions_that_no_call_uses_are_dropped_and_what_only_they_need() -> None:
    text = """
        def main(a: f32[4], b: f32[4]) -> (x: f32[4], y: f32[4]) {
          p, q, r = outer(a)
          s, t, u = outer(b)
          return p, u
        }
        def outer(a: f32[4]) -> (p: f32[4], q: f32[4], r: f32[4]) {
          first, second = inner(a)
          return exp(a), second, first
        }
        def inner(a: f32[4]) -> (first: f32[4], second: f32[4]) {
          return tanh(a), cosine(a)
        }
        """
    assert names(text) == ["call", "call", "call", "exponential", "tanh"]
    check_equivalence(spmdc.parse("mesh (x=2)" + text.replace("a: f32[4], b", "a: f32[4@x], b")))


def test_the_indices_of_top_k_that_nobody_uses_are_not_sent() -> None:
    """Each of two devices receives 64 x 40 values of f32."""
    program = spmdc.parse("""
        mesh (x=2)
        def main(a: f32[64, 256000@x]) -> (v: f32[64, 40]{replicated}) {
          v, i = top_k(a, k=40)
          return v
        }""")
    assert spmdc.partition(program).received_bytes() == 64 * 40 * 4 == 10_240
    check_equivalence(
        spmdc.parse("""
        mesh (x=4)
        def main(a: f32[3, 9@x]) -> (v: f32[3, 2]{replicated}) {
          v, i = top_k(a, k=2)
          return v
        }""")
    )


def test_zero_and_minus_zero_are_different_constants() -> None:
    text = """
        mesh (x=4)
        def main(a: f32[4@x]) -> (b: f32[4], c: f32[4]) {
          p: f32[4] = 0.0
          q: f32[4] = -0.0
          one: f32[4] = 1.0
          return one / p, one / q
        }
        """
    check_equivalence(spmdc.parse(text))
    assert names(text).count("divide") == 2


def test_an_op_in_a_loop_uses_an_equal_one_outside() -> None:
    text = """
        def main(a: f32[4]) -> (b: f32[4]) {
          t = tanh(a)
          n, y = while(i: s32[] = 0, v: f32[4] = t) cond { return i < 3 } do { return i + 1, v + tanh(a) }
          return y
        }
        """
    assert names(text).count("tanh") == 1


def test_a_manual_region_uses_nothing_from_outside() -> None:
    text = """
        mesh (x=4)
        def main(a: f32[4]) -> (b: f32[4]) {
          outside = a + full(f32[4], 2.0)
          return manual(v = outside) { return v * full(f32[4], 2.0) }
        }
        """
    program = eliminate_dead_code(eliminate_common_subexpressions(spmdc.parse(text)))
    assert not verify(program)


def test_a_loop_carries_only_what_somebody_needs() -> None:
    text = """
        def main(a: f32[4], n: s32[]) -> (b: f32[4]) {
          i, total, turns, y, k = while(i = 0, total = a, turns = 0, v = a, w = a) cond { return i < n } do {
            return i + 1, total + v, turns + 1, v + w, w * 2
          }
          return y
        }
        """
    program = eliminate_dead_code(spmdc.parse(text))
    (loop,) = (op for op in all_ops(program) if op.name == "while")
    assert [v.name for v in loop.regions[1].params] == ["i", "v", "w"]
    a = np.arange(4, dtype=np.float32)
    np.testing.assert_array_equal(spmdc.evaluate(program, a, np.int32(3))[0], a * 8)


def test_a_choice_gives_only_what_somebody_needs() -> None:
    text = """
        def main(a: f32[4], i: s32[]) -> (b: f32[4]) {
          unused, y = case(i) { return tanh(a), a } or { return exp(a), a + a }
          return y
        }
        """
    assert names(text) == ["case", "add"]


def test_what_gives_nothing_and_awaits_nothing_is_dropped() -> None:
    """A choice without results, which an equal value in all branches leaves to a gradient, could not be parsed."""
    program = spmdc.parse("""
        mesh (x=8)
        def main(a: f32[2, 4], k: s32[]) -> (loss: f32[]) {
          s = case(k) { return a } or { return a }
          return sum(s * s)
        }
        """)
    gradient = spmdc.gradient(program, ["a"], "loss")
    for text in (print_program(gradient), spmdc.plan(gradient).text(), spmdc.partition(gradient).text()):
        assert "case" not in text
        spmdc.parse(text)


def test_a_call_that_gives_nothing_is_dropped_unless_its_function_awaits_something() -> None:
    text = """
        def main(a: f32[4]) -> (b: f32[4]) {
          idle(a)
          awaits_inside(a)
          return a
        }
        def idle(p: f32[4]) -> () { return }
        def awaits_inside(q: f32[4]) -> () {
          awaits(q)
          return
        }
        def awaits(r: f32[4]) -> () {
          await_callbacks(r)
          return
        }
        """
    program = eliminate_dead_code(spmdc.parse(text))
    assert [op.attrs["function"] for op in program.main.body.ops] == ["awaits_inside"]
    assert [op.name for op in program.functions["awaits"].body.ops] == ["await_callbacks"]


def test_what_nobody_uses_is_not_in_the_way_of_how_the_rest_is_split() -> None:
    """Neither the whole value that an unused sort wants, nor what a loop carries for nobody."""
    program = spmdc.parse("""
        mesh (x=4)
        def main(a: f32[64@x, 8]) -> (r: f32[64@x, 8]) {
          unused = sort(replicate(a), dim=0)
          i, v, idle = while(i = 0, v = a, idle = a, trip_count=4) cond { return i < 4 } do {
            return i + 1, v * 2.0, cumsum(idle, 0) + 1.0
          }
          return v
        }""")
    check_equivalence(program)
    q = spmdc.partition(program)
    assert q.collectives() == []
    assert q.warnings == ()


def test_rounds_of_two_exchanges_that_take_the_same_to_the_same_devices_are_one() -> None:
    """A row from below is what a window of 5 rows lacks, and one of 7."""
    text = """
spmd
mesh (y=4)
def main(a: f32[1, 2] of f32[4@y, 2]) -> (b: f32[1, 2] of f32[4@y, 2], c: f32[1, 2] of f32[4@y, 2]) {
  b = box_permute(a, axes=(y), boxes=[16, 4, 0, 4, 5], round=1)
  c = box_permute(a, axes=(y), boxes=[16, 4, -2, 4, 7], round=2)
  d = box_permute(a, axes=(y), boxes=[16, 4, -2, 4, 7], round=0)
  return b + c, d
}
"""
    program = eliminate_common_subexpressions(spmdc.parse(text))
    assert [op.attrs["round"] for op in program.main.body.ops if op.name == "box_permute"] == [1, 0]


def test_a_product_and_a_sum_are_the_same_with_their_operands_swapped_and_a_difference_is_not() -> None:
    text = """
def main(a: f32[4], b: f32[4]) -> (c: f32[4], d: f32[4], e: f32[4], f: f32[4], g: f32[4], h: f32[4], i: f32[4]) {
  return a * b, b * a, a + b, b + a, a - b, b - a, a * a
}
"""
    program = eliminate_common_subexpressions(spmdc.parse(text))
    c, d, e, f, *others = program.main.body.results
    assert (c, e) == (d, f)
    assert len({c, e, *others}) == 5


def test_products_of_complex_numbers_are_rounded_by_the_order_of_their_operands() -> None:
    text = "def main(a: c64[4], b: c64[4]) -> (c: c64[4], d: c64[4]) { return a * b, b * a }"
    c, d = eliminate_common_subexpressions(spmdc.parse(text)).main.body.results
    assert c != d
