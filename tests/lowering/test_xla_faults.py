"""Ops behind each other that XLA compiles wrongly or refuses, unless the module says them in another way."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from counted import growth

import spmdc
from ir.builder import RegionBuilder
from ir.program import Program, Value, all_ops, values_of
from ir.types import DTYPES, DType, TensorType, bf16, f32, s32
from lowering import jax as lowering_jax
from lowering.jax.running import compile_program
from lowering.jax.xla_faults import guards_of
from spmdc.testing import check_equivalence

pytestmark = [pytest.mark.usefixtures("devices"), pytest.mark.optimised]

Array = np.ndarray[Any, Any] | np.generic

_DOCS = Path(__file__).parents[2] / "docs" / "jax.md"


def on_one_device(program: Program, *arrays: Array) -> str:
    """Runs the program as it is, on one device, and compares with the reference; the text of what ran."""
    for got, want in zip(lowering_jax.compile(program)(*arrays), spmdc.evaluate(program, *arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)
    return lowering_jax.jax_source(program)


def test_an_update_by_a_slice_of_what_is_updated_on_devices() -> None:
    text = """
    mesh (x=2, y=2)
    def main(a: f32[3, 3@y, 3], i: s32[]) -> (r: f32[2@x, 3, 3, 3]{partial: max y}) {
      at: s32[3, 3, 2] = iota(type=s32[3, 3, 2], dim=1)
      g: f32[2, 3, 3, 3] = gather(a, at, offset_dims=[0, 3], collapsed_slice_dims=[1], start_index_map=[0, 1],
                                  index_vector_dim=2, slice_sizes=[2, 1, 3])
      return dynamic_update_slice(g, g[:, 0:2, 0:2, :], -1, 6, 3, i)
    }
    """
    check_equivalence(spmdc.parse(text), jax=True)


Form = Callable[[RegionBuilder, Value], Value]
_BEFORE: list[Form] = [
    lambda b, v: v,
    lambda b, v: b.op("reshape", v, shape=(1, 6, 5)),
    lambda b, v: b.op("reshape", v, shape=(3, 2, 5)),
    lambda b, v: b.op("transpose", v, perm=(1, 0)),
    lambda b, v: b.op("negate", v),
]
_BEHIND: list[Form] = [
    lambda b, v: v,
    lambda b, v: b.op("reshape", v, shape=(1, *v.shape)),
    lambda b, v: b.op("reshape", v, shape=(30,)),
    lambda b, v: b.op("negate", v),
]


def _updated_by_a_slice(b: RegionBuilder, h: Value, i: Value) -> Value:
    zero = b.op("constant", value=0, type=TensorType((), s32))
    box = b.op("slice", h, start=(0,) * h.type.rank, limit=tuple(max(1, n - 2) for n in h.shape))
    return b.op("dynamic_update_slice", h, box, *[zero] * (h.type.rank - 2), i, i)


def _scattered_to_itself(b: RegionBuilder, h: Value, i: Value) -> Value:
    rank = h.type.rank
    box = b.op("slice", h, start=(0,) * rank, limit=tuple(max(1, n - 2) for n in h.shape))
    updates = b.op("reshape", box, shape=(1, *box.shape))
    indices = b.op("broadcast_in_dim", i, shape=(1, 2), dims=())
    dims = tuple(range(rank - 2, rank))
    windows = tuple(range(1, rank + 1))
    return b.op(
        "scatter", h, indices, updates, kind="sum", update_window_dims=windows, inserted_window_dims=(),
        scatter_dims_to_operand_dims=dims, index_vector_dim=1,
    )  # fmt: skip


@pytest.mark.parametrize("update", [_updated_by_a_slice, _scattered_to_itself])
def test_an_update_by_what_it_overwrites_reads_all_of_it_before(
    update: Callable[[RegionBuilder, Value, Value], Value],
) -> None:
    b, results = RegionBuilder(), []
    i = b.param("i", TensorType((), s32))
    forms = list(itertools.product(_BEFORE, _BEHIND))
    for n, (before, behind) in enumerate(forms):
        a = b.param(f"a{n}", TensorType((6, 5), f32))
        results.append(behind(b, update(b, before(b, a), i)))
    program = Program((), {"main": b.function("main", results)})
    x = np.arange(30, dtype=np.float32).reshape(6, 5)
    source = on_one_device(program, np.int32(1), *[x] * len(forms))
    assert "lax.fori_loop(0, 2" in source


def test_a_scatter_of_several_boxes_of_what_it_overwrites_is_written_as_it_is() -> None:
    """Rows of it in other places, into one dim and, with a box for each row, into another; in a loop and outside."""
    text = """
    def main(a: f32[6, 5], i: s32[6, 1], j: s32[3, 1]) -> (r: f32[6, 5], s: f32[6, 5], t: f32[6, 5]) {
      r = turned(a, j)
      n, s = while(n = 0, v = a, trip_count=3) cond { return n < 3 } do { return n + 1, turned(v, j) }
      t = scatter(a, i, reverse(a, dims=[0])[:, 1], kind=replace, update_window_dims=[], inserted_window_dims=[1],
                  input_batching_dims=[0], scatter_indices_batching_dims=[0], scatter_dims_to_operand_dims=[1],
                  index_vector_dim=1)
      return r, s, t
    }
    def turned(a: f32[6, 5], j: s32[3, 1]) -> f32[6, 5] {
      return scatter(a, j, reverse(a[1:4, :], dims=[0, 1]), kind=replace, update_window_dims=[1],
                     inserted_window_dims=[0], scatter_dims_to_operand_dims=[0], index_vector_dim=1)
    }
    """
    x, i, j = np.arange(30, dtype=np.float32).reshape(6, 5), np.arange(6).reshape(6, 1) % 5, np.array([[2], [0], [5]])
    source = on_one_device(spmdc.parse(text), x, i.astype(np.int32), j.astype(np.int32))
    assert "scatter_to_itself" not in source


def test_a_box_that_is_read_and_replaced_at_the_same_place_takes_no_memory() -> None:
    """XLA updates it in place if the starts of both are alike, and so are both clamped or neither."""
    text = """
    mesh (x=8)
    def main(c: f32[16@x, 64, 8], u: f32[1, 32, 8], i: s32[]) -> f32[16@x, 64, 8] {
      zero: s32[] = constant(value=0, type=s32[])
      return dynamic_update_slice(c, u, i, i, zero)
    }
    """
    partitioned = spmdc.partition(spmdc.parse(text))
    assert "select" in [op.name for op in all_ops(partitioned.program)]
    compiled: Any = compile_program(partitioned.program, None).ahead()
    assert compiled.memory_analysis().temp_size_in_bytes < 32 * 8 * 4


def test_what_is_read_where_it_is_written_is_updated_in_place() -> None:
    text = """
    def main(a: f32[6, 5], u: f32[2, 5], i: s32[]) -> (r: f32[6, 5], s: f32[6, 5], t: f32[6, 5]) {
      r = dynamic_update_slice(a, 2.0 * dynamic_slice(a, i, 0, sizes=[2, 5]) + u, i, 0)
      s = dynamic_update_slice(r, einsum("ij,jk->ik", r[0:2, :], ones([5, 5])), i, 0)
      return r, s, dynamic_update_slice(zeros([6, 5]), u, i, 0)
    }
    """
    x = np.arange(30, dtype=np.float32).reshape(6, 5)
    source = on_one_device(spmdc.parse(text), x, x[:2], np.int32(3))
    assert "update_by_itself" not in source


@pytest.mark.parametrize(("outer", "inner"), [(0, 0), (2, -2), (-3, 2), (9, 9), (2, 2), (1, -9)])
def test_boxes_of_boxes_are_clamped_or_dropped_each_by_its_own_tensor(outer: int, inner: int) -> None:
    text = """
    def main(a: f32[6, 5], u: f32[1, 5], i: s32[1], j: s32[1])
        -> (p: f32[2, 5], q: f32[2, 5], r: f32[3, 5], s: f32[3, 5]) {
      b = dynamic_slice(a, i[0], 0, sizes=[3, 5])
      c = reshape(gather(a, i, offset_dims=[0, 1], collapsed_slice_dims=[], start_index_map=[0], index_vector_dim=0,
                         slice_sizes=[3, 5]), [3, 5])
      p = gather(b, j, offset_dims=[0, 1], collapsed_slice_dims=[], start_index_map=[0], index_vector_dim=0,
                 slice_sizes=[2, 5])
      q = dynamic_slice(c, j[0], 0, sizes=[2, 5])
      r = scatter(b, j, u, kind=replace, update_window_dims=[0, 1], inserted_window_dims=[],
                  scatter_dims_to_operand_dims=[0], index_vector_dim=0)
      s = scatter(c, j, u, kind=sum, update_window_dims=[0, 1], inserted_window_dims=[],
                  scatter_dims_to_operand_dims=[0], index_vector_dim=0)
      return p, q, r, s
    }
    """
    x = np.arange(30, dtype=np.float32).reshape(6, 5)
    on_one_device(spmdc.parse(text), x, -x[:1] - 50, np.array([outer], np.int32), np.array([inner], np.int32))


@pytest.mark.parametrize("index", [-5, -1, 1, 3, 8])
def test_a_shard_that_a_function_around_cuts_is_a_box_too(index: int) -> None:
    program = spmdc.parse(
        """
        mesh (x=3)
        def main(a: f32[4@x, 1], i: s32[1], u: f32[]) -> (r: f32[4], s: f32[1]) {
          m: f32[4] = reduce(a, dims=[1], kind=min)
          r = scatter(m, i, u, update_window_dims=[], inserted_window_dims=[0],
                      scatter_dims_to_operand_dims=[0], index_vector_dim=0, kind=min)
          s = gather(m, i, offset_dims=[0], collapsed_slice_dims=[], start_index_map=[0], index_vector_dim=0,
                     slice_sizes=[1])
          return r, s
        }
        """
    )
    arrays = np.array([[3], [7], [2], [9]], np.float32), np.array([index], np.int32), np.float32(-50)
    run = spmdc.partition(program).to_jax()
    found: Any = jax.jit(lambda *arrays: run(*arrays))(*arrays)
    for have, want in zip(found, spmdc.evaluate(program, *arrays), strict=True):
        np.testing.assert_array_equal(have, want)


def test_a_box_of_what_is_no_box_is_clamped_by_xla_alone() -> None:
    text = """
    def main(a: f32[6], i: s32[], j: s32[]) -> (r: f32[2]) {
      return BOX
    }
    """
    of_a = "dynamic_slice(a, i, sizes=[2])"
    of_a_box = "dynamic_slice(dynamic_slice(a, i, sizes=[4]), j, sizes=[2])"
    counts = [
        lowering_jax.jax_source(spmdc.parse(text.replace("BOX", box))).count("clamp(") for box in (of_a, of_a_box)
    ]
    assert counts == [0, 2]


def test_a_gather_of_a_parameter_is_written_as_it_is() -> None:
    text = """
    def main(a: f32[6, 5], i: s32[4]) -> (r: f32[4, 5]) {
      return gather(a, i, offset_dims=[1], collapsed_slice_dims=[0], start_index_map=[0], index_vector_dim=1,
                    slice_sizes=[1, 5])
    }
    """
    source = lowering_jax.jax_source(spmdc.parse(text))
    assert "clip(" not in source
    assert "barrier" not in source


def test_bitcasts_of_bitcasts() -> None:
    text = """
    mesh (x=3)
    def main(a: s32[3@x, 4]) -> (r: s8[3@x, 4, 2, 2], s: s8[3@x, 4, 2, 2], t: s32[3@x, 4]) {
      b = bitcast_convert(a, dtype=u16)
      c = reshape(bitcast_convert(b, dtype=f16), [3, 4, 2])
      return bitcast_convert(b, dtype=s8), bitcast_convert(c, dtype=s8), bitcast_convert(b, dtype=s32)
    }
    """
    check_equivalence(spmdc.parse(text), jax=True)


@pytest.mark.parametrize("dtype", ["s32", "u8"])
def test_an_integer_divided_by_itself_may_be_zero(dtype: str) -> None:
    text = f"""
    mesh (x=3)
    def main(a: {dtype}[6@x], b: {dtype}[6@x]) -> (r: {dtype}[6@x], s: {dtype}[6@x], t: {dtype}[6@x]) {{
      zeros = a - a
      return zeros / zeros, (a & b) / (b & a), a / 2
    }}
    """
    program = spmdc.parse(text)
    check_equivalence(program, jax=True)
    assert "lax.div(a, " in lowering_jax.jax_source(spmdc.partition(program).program)


def test_an_all_to_all_of_what_is_sliced_elsewhere_too() -> None:
    text = """
    mesh (x=3)
    mesh other (other_0=3)
    def main(a0: f32[3, 4@other_0], b: f32[3, 4], c: f32[3, 3], i: s32[]) -> (r0: f32[3, 4], r1: f32[1, 12]) {
      s = triangular_solve(c, a0, lower=false, unit_diagonal=true, transpose=C)
      return dynamic_update_slice(b, s[0:1, 0:1], -2, i), reshape(s, [1, 12])
    }
    """
    check_equivalence(spmdc.parse(text), jax=True)


def test_an_fft_between_gathers_of_its_dims() -> None:
    text = """
    mesh (x=4)
    def main(a: c64[2, 8, 16@x]) -> (r: f32[2, 8, 16@x], s: f32[2, 8@x, 16]) {
      b = abs(fft(a, kind=FFT, length=[16]))
      return b, abs(fft(replicate(a), kind=IFFT, length=[8, 16]))
    }
    """
    program = spmdc.parse(text)
    a = (np.arange(256).reshape(2, 8, 16) % 7).astype(np.complex64)
    for got, want in zip(spmdc.partition(program).to_jax()(a), spmdc.evaluate(program, a), strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-4)


_ATTENTION = """
mesh (data=4, model=2)
def main(k: f32[96@model, 32], b: f32[96@model], x: bf16[8@data, 16, 32]) -> (loss: f32[]) {
  h = einsum("bsm,cm->bsc", x, bf16(k)) + bf16(b)
  q = reshape(h[:, :, 0:32], [8, 16, 4, 8]) / 4.0
  keys = reshape(h[:, :, 32:64], [8, 16, 4, 8])
  v = reshape(h[:, :, 64:96], [8, 16, 4, 8])
  weights = softmax(einsum("bqhd,bkhd->bhqk", q, keys), dim=3)
  return sum(f32(einsum("bhqk,bkhd->bqhd", weights, v)))
}
"""


def test_16_bit_products_are_differentiated_in_16_bits_and_run() -> None:
    gradient = spmdc.gradient(spmdc.parse(_ATTENTION), wrt=["k", "b"])
    products = [op for op in all_ops(gradient) if op.name == "dot_general"]
    assert len(products) >= 7
    assert {v.dtype for op in products for v in values_of(op)} == {bf16}
    arrays = spmdc.random_inputs(gradient)
    partitioned = spmdc.partition(gradient)
    for got, want in zip(partitioned.to_jax()(*arrays), spmdc.evaluate(gradient, *arrays), strict=True):
        np.testing.assert_allclose(np.asarray(got), want, rtol=0.05, atol=0.05 * float(np.abs(want).max()))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_16_bit_products_are_summed_in_f32_and_rounded_once(dtype: str) -> None:
    text = f"""
    def main(a: {dtype}[4, 3000], b: {dtype}[3000, 4]) -> (r: {dtype}[4, 4], s: f32[4, 4], t: {dtype}[1, 4, 1]) {{
      r = dot_general(a, b, lhs_contract=[1], rhs_contract=[0])
      s = dot_general(a, b, lhs_contract=[1], rhs_contract=[0], dtype=f32)
      t = conv(reshape(a, [4, 3000, 1])[0:1, :, :], reshape(b, [3000, 4, 1]), "NCW,IOW->NCW")
      return r, s, t
    }}
    """
    program = spmdc.parse(text)
    ones = [np.ones(p.shape, p.dtype.numpy) for p in program.main.params]
    source = on_one_device(program, *ones)
    assert "lax.dot_general(a, b, (((1,), (0,)), ((), ())))" in source


def test_a_constant_start_may_lie_out_of_range() -> None:
    text = """
    def main(a: f32[6, 5], u: f32[2, 5]) -> (r: f32[6, 5], s: f32[6, 5], t: f32[2, 5]) {
      return dynamic_update_slice(a, u, -3, 0), updated(a, u, 9), dynamic_slice(a, 7, -1, sizes=[2, 5])
    }
    def updated(a: f32[6, 5], u: f32[2, 5], i: s32[]) -> (r: f32[6, 5]) { return dynamic_update_slice(a, u, i, 0) }
    """
    x = np.arange(30, dtype=np.float32).reshape(6, 5)
    on_one_device(spmdc.parse(text), x, -x[:2])


@pytest.mark.parametrize("dtype", [t.name for t in DTYPES.values() if t.is_float and t.bits == 8 and t.has_zero])
def test_every_number_of_8_bits_stays_as_it_is_where_a_loop_writes_beside_it(dtype: str) -> None:
    text = f"""
    mesh (x=2)
    def main(a: {dtype}[16, 16@x], u: {dtype}[2, 16@x]) -> (r: {dtype}[16, 16@x]) {{
      i, r = while(i = 0, v = a, trip_count=3) cond {{ return i < 3 }} do {{
        return i + 1, dynamic_update_slice(v, u, i, 0)
      }}
      return r
    }}
    """
    program, numbers = spmdc.parse(text), np.arange(256).astype(np.uint8).view(DTYPES[dtype].numpy).reshape(16, 16)
    (want,) = spmdc.evaluate(program, numbers, numbers[:2])
    (got,) = spmdc.partition(program).to_jax()(numbers, numbers[:2])
    np.testing.assert_array_equal(np.asarray(got).astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("dtype", [t for t in DTYPES.values() if t.is_float and t.bits == 8 and t.has_zero], ids=str)
def test_constants_of_8_bit_floats_are_rounded_as_other_numbers_are(dtype: DType) -> None:
    b = RegionBuilder()
    numbers = b.op("constant", value=(0, 1.5, 0.5, -3), type=TensorType((4,), dtype))
    rounded = [b.op(name, numbers) for name in ("round_nearest_afz", "round_nearest_even", "floor", "ceil")]
    program = Program((), {"main": b.function("main", rounded)})
    for got, want in zip(lowering_jax.compile(program)(), spmdc.evaluate(program), strict=True):
        np.testing.assert_array_equal(np.asarray(got).astype(np.float32), want.astype(np.float32))


def test_text_for_other_tools_has_no_loops_that_only_one_backend_needs() -> None:
    text = "def main(a: f32[6]) -> (r: f32[6]) { return dynamic_update_slice(a, a[0:4], 1) }"
    program = spmdc.parse(text)
    assert "fori_loop" in lowering_jax.jax_source(program)
    assert "while" not in lowering_jax.stablehlo_text(program)


def test_what_is_summed_to_be_whole_may_have_zeros_for_subnormal_numbers(devices: list[jax.Device]) -> None:
    """XLA's CPU takes them for zeros in every sum."""
    program = spmdc.parse("""
        mesh (x=8)
        def main(bits: u32[8, 1@x]) -> (r: bf16[8@(), 1, 2]) { return bitcast_convert(bits, dtype=bf16) }
    """)
    for seed in range(3):
        check_equivalence(program, jax=True, seed=seed, anything=True)


def test_what_needs_a_guard_is_found_in_time_linear_in_the_program() -> None:
    """All of these reshapes exchange elements, and what they exchange is made of all before it; so are the updates."""

    def guarded(count: int) -> Callable[[], object]:
        turned = "transpose(reshape(v{0}, shape=[8, 64]), perm=[1, 0])"
        turns = "\n".join(f"v{i + 1} = reshape({turned.format(i)}, shape=[64, 8]) + v{i}" for i in range(count))
        text = f"mesh (x=2, y=2)\ndef main(v0: f32[64@x, 8@y]) -> (r: f32[64, 8]) {{\n{turns}\nreturn v{count} }}"
        return partial(guards_of, spmdc.partition(spmdc.parse(text)).program)

    def updated(count: int) -> Callable[[], object]:
        updates = "\n".join(
            f"v{i + 1} = dynamic_update_slice(v{i}, tanh(v{i}[{i}:{i + 1}, :]) * w, {i}, 0)" for i in range(count)
        )
        text = f"def main(v0: f32[64, 8], w: f32[1, 8]) -> (r: f32[64, 8]) {{\n{updates}\nreturn v{count} }}"
        return partial(guards_of, spmdc.parse(text))

    assert growth(guarded, (8, 40)) < 1.3
    assert growth(updated, (8, 40)) < 1.3
