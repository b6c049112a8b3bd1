"""Values that are computed again where they are needed, because that takes less than to send them."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import spmdc
from ir.ops.resharding import is_reshard
from ir.program import all_ops
from passes.cost.machine import machine, machine_names
from spmdc.testing import check_equivalence

P: Any = PartitionSpec


def collectives(text: str) -> list[tuple[str, int]]:
    """Kinds and bytes, after checking that the program computes what it says."""
    program = spmdc.parse(text)
    check_equivalence(program)
    return [(c.kind, c.bytes) for c in spmdc.partition(program).collectives()]


def test_weights_that_are_widened_are_gathered_before() -> None:
    program = spmdc.parse("""
        mesh (x=8)
        def main(w: bf16[4096@x, 4096], v: f32[4096, 4096]) -> (r: f32[4096, 4096]{replicated}) {
          return einsum("ij,jk->ik", v, replicate(convert(w, f32)))
        }""")
    assert spmdc.partition(program).received_bytes() == 7 * 4096 * 4096 // 8 * 2 == 29_360_128


@pytest.mark.parametrize(
    "use", ["convert(w, f32)", "replicate(transpose(convert(w, f32), perm=[1, 0]))", "-convert(w, f32)"]
)
def test_a_result_that_is_widened_is_gathered_before(use: str) -> None:
    text = f"mesh (x=4)\ndef main(w: bf16[64@x, 64]) -> (r: f32[64, 64]{{replicated}}) {{ return {use} }}"
    assert collectives(text) == [("all_gather", 3 * 64 * 64 // 4 * 2)]


def test_what_is_widened_and_used_is_exchanged_before() -> None:
    """512 elements of 16 bits, of which each of 8 devices keeps an eighth."""
    assert collectives("""
        mesh (x=8)
        def main(w: bf16[64@x, 64]) -> (r: f32[64, 64@x]) { return convert(w, f32) * 2.0 }
        """) == [("all_to_all", 7 * 512 * 2 // 8)]


def test_what_is_narrowed_behind_an_annotation_is_sent_narrow() -> None:
    assert collectives("""
        mesh (x=4)
        def main(w: f32[64@x, 64]) -> (r: bf16[64, 64]{replicated}) { return convert(replicate(w), bf16) }
        """) == [("all_gather", 3 * 64 * 64 // 4 * 2)]
    assert collectives("""
        mesh (x=4)
        def main(w: f32[64@x, 64]) -> (r: bf16[64, 64@x]) { return convert(shard(w, 'P(None, "x")'), bf16) }
        """) == [("all_to_all", 3 * 64 * 64 // 16 * 2)]


def test_whatever_op_narrows_is_done_before_what_is_narrowed_is_sent() -> None:
    assert collectives("""
        mesh (x=4)
        def main(w: f32[64@x, 64]) -> (r: pred[64, 64]{replicated}) { return is_finite(replicate(w)) }
        """) == [("all_gather", 3 * 64 * 64 // 4)]
    assert collectives("""
        mesh (x=4)
        def main(w: c64[64@x, 64]) -> (r: f32[64, 64]{replicated}) { return real(replicate(w)) }
        """) == [("all_gather", 3 * 64 * 64 // 4 * 4)]


def test_what_is_narrowed_in_ways_that_are_no_fewer_bytes_together_is_sent_wide() -> None:
    assert collectives("""
        mesh (x=4)
        def main(w: f32[64@x, 64]) -> (p: bf16[64, 64]{replicated}, q: f16[64, 64]{replicated}) {
          v = replicate(w)
          return convert(v, bf16), convert(v, f16)
        }""") == [("all_gather", 3 * 64 * 64 // 4 * 4)]


def test_what_a_loop_takes_is_not_narrowed_in_front_of_it() -> None:
    assert collectives("""
        mesh (x=4)
        def main(w: f32[64@x, 64]) -> (r: f32[64, 64]{replicated}) {
          n, y = while(i = 0, v = replicate(w), trip_count=3) cond { return i < 3 } do { return i + 1, v * 2.0 }
          return y
        }""") == [("all_gather", 3 * 64 * 64 // 4 * 4)]


def test_bits_that_become_more_elements_are_not_narrowed() -> None:
    assert collectives("""
        mesh (x=4)
        def main(w: u32[64@x, 64]) -> (r: u8[64, 64, 4]{replicated}) {
          return bitcast_convert(replicate(w), dtype=u8)
        }""") == [("all_gather", 3 * 64 * 64 // 4 * 4)]


def test_what_is_used_wide_too_is_sent_once() -> None:
    assert collectives("""
        mesh (x=4)
        def main(w: f32[64@x, 64]) -> (r: bf16[64, 64]{replicated}, s: f32[64, 64]{replicated}) {
          v = replicate(w)
          return convert(v, bf16), v
        }""") == [("all_gather", 3 * 64 * 64 // 4 * 4)]


def test_a_sum_that_is_narrowed_behind_an_annotation_is_reduced_before() -> None:
    """In 32 bits, as the program says."""
    assert collectives("""
        mesh (x=4)
        def main(a: f32[8@x, 64]) -> (r: bf16[64]{replicated}) {
          return convert(replicate(reduce(a, dims=[0], kind=sum)), bf16)
        }""") == [("all_reduce", 2 * 3 * 64 * 4 // 4)]


def test_a_value_is_made_again_from_a_whole_one() -> None:
    assert (
        collectives("""
        mesh (x=4)
        def main(a: f32[64]{replicated}) -> (p: f32[64@x], q: f32[64]{replicated}) {
          b = exp(a)
          return b, -b
        }""")
        == []
    )


def test_what_was_gathered_for_an_op_is_not_split_behind_it_and_gathered_again() -> None:
    def factor(a: Any) -> Any:
        return jnp.linalg.cholesky(a)

    jitted: Any = spmdc.jit(factor, mesh={"d": 8}, in_shardings=P("d"), out_shardings=P())
    program = jitted.partitioned(np.eye(128, dtype="f4"))
    assert [c.bytes for c in program.collectives() if c.kind == "all_gather"] == [7 * 128 * 128 * 4 // 8]


def test_an_op_of_two_operands_is_not_done_again_if_it_takes_both_to_be_sent() -> None:
    assert collectives("""
        mesh (x=4)
        def main(a: f32[64@x], b: f32[64@x]) -> (r: f32[64]{replicated}) { return a * b }
        """) == [("all_gather", 192)]


@pytest.mark.parametrize(("machine", "gathered"), [("tpu-v5e", "q.2"), ("h100", "e")])
def test_what_is_sent_to_products_in_16_bits_is_not_made_of_what_is_sent_in_32(machine: str, gathered: str) -> None:
    """On TPUs a gather for products alone sends that; elsewhere `e` is gathered, since others could use it."""
    program = spmdc.parse("""
        mesh (x=8)
        def main(a: f32[64, 512@x], e: f32[64, 512@x], w: f32[512, 256@x], v: f32[512, 256@x])
            -> (p: f32[64, 256@x], q: f32[64, 256@x], s: f32[64, 512@x]) {
          return einsum("bm,mn->bn", a, w), einsum("bm,mn->bn", a + exp(e), v), exp(e)
        }""")
    plan = spmdc.plan(program, machine=machine)
    assert [op.operands[0].name for op in all_ops(plan.program) if is_reshard(op)] == ["a", gathered]


def test_a_sum_over_devices_is_not_rounded_to_16_bits_to_send_less() -> None:
    """It is widened in parts, and then added up: to add up first would round to 16 bits."""
    assert collectives("""
        mesh (x=4)
        def main(a: bf16[8@x, 64]) -> (r: f32[64]{replicated}) {
          s = reduce(convert(a, f32), dims=[0], kind=sum)
          return s + 1.0
        }""") == [("all_reduce", 2 * 3 * 64 * 4 // 4)]


def test_a_value_of_a_loop_is_widened_after_it_is_gathered_in_front_of_it() -> None:
    """The weights are the same in each turn: 16 bits of them are gathered once."""
    program = spmdc.parse("""
        mesh (x=4)
        def main(w: bf16[64@x, 64], v: f32[8, 64]) -> (r: f32[8, 64]{replicated}) {
          i, r = while(i = 0, u: f32[8, 64] = v, trip_count=3) cond { return i < 3 } do {
            return i + 1, einsum("ij,jk->ik", u, replicate(convert(w, f32)))
          }
          return r
        }""")
    check_equivalence(program)
    assert spmdc.partition(program).received_bytes() == 3 * 64 * 64 // 4 * 2


@pytest.mark.parametrize(
    ("moved", "rows"),
    [
        ("concatenate(a, b, dim=0)", 18),
        ("pad(a, 0.0, low=[3, 0], high=[1, 0])", 20),
        ("reverse(a, dims=[0])", 16),
        ("a[1:14, :]", 13),
        ("sort(concatenate(b, 2.0 * a, dim=0), dim=0)", 18),
    ],
)
def test_elements_are_not_exchanged_for_what_is_needed_whole(moved: str, rows: int) -> None:
    """What is gathered is the operand, of which each device has 4 rows; then nobody needs the exchanged parts."""
    assert collectives(f"""
        mesh (x=4)
        def main(a: f32[16@x, 3], b: f32[2, 3]) -> (r: f32[{rows}, 3]{{replicated}}) {{ return {moved} }}
        """) == [("all_gather", 3 * 4 * 3 * 4)]


def test_what_is_exchanged_in_vain_is_in_no_plan() -> None:
    program = spmdc.parse("""
        mesh (x=4)
        def main(a: f32[16@x, 3], n: s32[]) -> (r: f32[16, 3]{replicated}, s: f32[16, 3]{replicated}) {
          i, s = while(i = 0, v = a, trip_count=2) cond { return i < n } do {
            return i + 1, sort(reverse(v, dims=[0]), dim=0)
          }
          return sort(reverse(tanh(a), dims=[0]), dim=0), s
        }""")
    plan = spmdc.plan(program)
    assert plan.cost().received == spmdc.partition(program).received_bytes()
    reversed_in = [op.strategy for op in all_ops(plan.program) if op.name == "reverse"]
    assert reversed_in
    assert not any(reversed_in)


@pytest.mark.parametrize("first", ["sort(-a, dim=1)", "sort(-(a + 1), dim=1)", "sort(a + b, dim=1)"])
def test_what_several_ops_are_computed_from_is_gathered_once_for_all(first: str) -> None:
    text = f"""
mesh (x=4)
def main(a: s32[3, 8@x], b: s32[3, 8]{{replicated}}) -> (r: s32[3, 8], s: s32[3, 8]) {{
  return {first}, sort(a * 2, dim=1)
}}
"""
    assert collectives(text) == [("all_gather", 3 * 6 * 4)]


def test_an_activation_that_uses_its_operand_often_is_gathered_and_not_its_operand() -> None:
    """GELU uses its operand four times. These uses are its own, and not of others, for which it would be gathered."""
    text = "mesh (x=4)\ndef main(a: f32[8@x, 5]) -> (r: f32[8, 5]{replicated}) { return gelu(a * a) }"
    assert collectives(text) == [("all_gather", 3 * 2 * 5 * 4)]
    *before, last = spmdc.plan(spmdc.parse(text)).program.main.body.ops
    assert [op for op in before if is_reshard(op)] == []
    assert is_reshard(last)


def test_parts_of_boxes_at_computed_places_are_not_cut_out_of_the_whole() -> None:
    program = spmdc.parse("""
        mesh (x=4, z=2)
        def main(a: u32[2, 8@x!1]) -> (r: u32[5@z, 4]) {
          at: s32[4@(x, z), 2] = iota(type=s32[4, 2], dim=0)
          return gather(a, at, offset_dims=[0], collapsed_slice_dims=[0], start_index_map=[0, 1], index_vector_dim=1,
                        slice_sizes=[1, 5])
        }""")
    for name in machine_names():
        check_equivalence(program, machine=machine(name))


@pytest.mark.parametrize("turns", [20, 64])
def test_chains_of_any_length_are_computed_again(turns: int) -> None:
    """Each turn exchanges blocks. Devices that gather once do all of the turns behind by themselves."""
    turn = "  {} = reshape(transpose(reshape({}, shape=[4, 64]), perm=[1, 0]), shape=[16, 16])"
    body = "\n".join(turn.format(f"v{i + 1}", f"sin(v{i})") for i in range(turns))
    text = f"mesh (x=8)\ndef main(v0: f32[16@x, 16]) -> (r: f32[16@x, 16]) {{\n{body}\n  return v{turns} }}"
    q = spmdc.partition(spmdc.parse(text))
    assert len(q.collectives()) == 2
    assert q.received_bytes() == 992
