"""What modules have in place of ops that XLA's GPU backend compiles wrongly or refuses: the same, computed on a CPU."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spmdc
from ir.builder import RegionBuilder
from ir.program import Program
from ir.types import DTYPES, DType, TensorType, s8, s16, s32, u8, u32
from lowering import jax as lowering_jax
from lowering.jax.module import write_entry
from spmdc.testing import inputs_for

_SIZES = st.sampled_from([1, 2, 3, 5])


def on_one_device(program: Program) -> str:
    """Runs a module for any devices on one, and compares it with the reference; its text."""
    arrays = inputs_for(program, anything=True)
    for got, want in zip(lowering_jax.compile(program)(*arrays), spmdc.evaluate(program, *arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(got), want)
    return lowering_jax.jax_source(program)


@pytest.mark.parametrize("dtype", [t for t in DTYPES.values() if t.bits in (2, 4) and t.has_zero], ids=str)
def test_elements_that_share_a_byte_are_written_over_as_whole_bytes(dtype: DType) -> None:
    t = dtype.name
    source = on_one_device(
        spmdc.parse(f"""
        def main(a: {t}[4, 6], u: {t}[2, 3], i: s32[], j: s32[1]) -> (p: {t}[4, 6], q: {t}[4, 6], r: {t}[3, 5]) {{
          p = dynamic_update_slice(a, u, i, -negate(i))
          q = scatter(a, j, u, kind=replace, update_window_dims=[0, 1], inserted_window_dims=[],
                      scatter_dims_to_operand_dims=[0], index_vector_dim=0)
          zero: {t}[] = constant(value=0, type={t}[])
          return p, q, pad(a, zero, low=[-1, 0], high=[0, -1])
        }}""")
    )
    written = [line for line in source.splitlines() if "dynamic_update_slice(" in line or "lax.pad(" in line]
    held = {"signed": "jnp.int8", "unsigned": "jnp.uint8", "float": "jnp.float32"}[dtype.kind]
    assert len(written) == 2
    assert all(held in line for line in written)


@pytest.mark.parametrize("dtype", [t for t in DTYPES.values() if t.bits in (2, 4) and t.has_zero], ids=str)
@pytest.mark.parametrize("kind", ["min", "max", "sum"])
def test_windows_without_elements_have_the_identity_of_the_type_that_shares_bytes(dtype: DType, kind: str) -> None:
    t = dtype.name
    on_one_device(
        spmdc.parse(f"""
        def main(x: {t}[3]) -> ({t}[2], {t}[3]) {{
          cut = reduce_window(x, window=[1], stride=[3], padding_low=[0], padding_high=[-1], base_dilation=[2],
                              window_dilation=[1], kind={kind})
          padded = reduce_window(x, window=[2], stride=[3], padding_low=[3], padding_high=[2], base_dilation=[1],
                                 window_dilation=[1], kind={kind})
          return cut, padded
        }}""")
    )


@pytest.mark.parametrize(
    ("shape", "sizes", "is_held"), [((5, 3), (1, 3), True), ((5, 4), (1, 4), False), ((4,), (2,), True)]
)
def test_slices_that_may_begin_within_a_byte_are_of_whole_bytes(
    shape: tuple[int, ...], sizes: tuple[int, ...], is_held: bool
) -> None:
    starts = ", ".join(["i", *["zero"] * (len(shape) - 1)])
    source = on_one_device(
        spmdc.parse(f"""
        def main(x: s4{list(shape)}, i: s32[]) -> s4{list(sizes)} {{
          zero: s32[] = constant(value=0, type=s32[])
          return dynamic_slice(x, {starts}, sizes={list(sizes)})
        }}""")
    )
    [cut] = [line for line in source.splitlines() if "dynamic_slice(" in line]
    assert ("jnp.int8" in cut) == is_held


def test_starts_are_clamped_before_an_update_except_for_the_cpu() -> None:
    text = """
        def main(a: f32[4, 6], u: f32[2, 3]) -> f32[4, 6] {
          c: s32[] = constant(value=-20, type=s32[])
          return dynamic_update_slice(a, u, c, negate(c))
        }"""
    assert "lax.clamp(np.int32(0), " in on_one_device(spmdc.parse(text))
    spmd = spmdc.partition(spmdc.parse("mesh (x=2)\n" + text)).program
    assert "lax.clamp" not in write_entry(spmd)[0].text
    assert "lax.clamp" in write_entry(spmd, is_for_cpu=False)[0].text


@pytest.mark.parametrize("count", [3, 4, 6])
def test_sums_of_products_of_bytes_that_do_not_come_in_fours_are_of_wider_factors(count: int) -> None:
    source = on_one_device(
        spmdc.parse(f"""
        def main(a: s8[3, {count}], b: s8[{count}, 5]) -> s32[3, 5] {{
          r = dot_general(a, b, lhs_contract=[1], rhs_contract=[0], dtype=s32)
          return r
        }}""")
    )
    assert ("preferred_element_type" in source) == (count % 4 == 0)


def _on_gpu(*operands: Any, cuda: Any, **_: Any) -> Any:
    return cuda(*operands)


def test_convolutions_of_integers_are_products_on_gpus() -> None:
    ran = 0

    @settings(max_examples=50)
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        nonlocal ran
        program = _convolution(data)
        if program is None:
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(jax.lax, "platform_dependent", _on_gpu)
            assert "integer_convolution(" in on_one_device(program)
        ran += 1

    holds()
    assert ran >= 30


def _convolution(data: st.DataObject) -> Program | None:
    """A program of one convolution of any kind; None if its windows do not fit."""
    features, batches = data.draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (1, 2)]))
    rank = data.draw(st.integers(0, 2))
    each = st.tuples(*[st.integers(1, 2)] * rank)
    padding = st.tuples(*[st.integers(-1, 2)] * rank)
    spatial, kernel = ([data.draw(_SIZES) for _ in range(rank)] for _ in range(2))
    n, summed, out = (data.draw(st.integers(1, 2)) for _ in range(3))
    orders = [data.draw(st.permutations(range(rank + 2))) for _ in range(3)]
    lhs, rhs = (n * batches, summed * features, *spatial), (out * features * batches, summed, *kernel)
    dtype = data.draw(st.sampled_from([s8, u8, s16, s32, u32]))
    shapes = [tuple(size for _, size in sorted(zip(order, sizes, strict=True))) for order, sizes in
              zip(orders, (lhs, rhs), strict=False)]  # fmt: skip
    b = RegionBuilder()
    operands = [b.param(name, TensorType(shape, dtype)) for name, shape in zip("xk", shapes, strict=True)]
    (lb, lf, *ls), (ro, ri, *rs), (ob, of, *os) = orders
    attrs: dict[str, Any] = {
        "lhs_batch": lb, "lhs_feature": lf, "lhs_spatial": tuple(ls),
        "rhs_output": ro, "rhs_input": ri, "rhs_spatial": tuple(rs),
        "out_batch": ob, "out_feature": of, "out_spatial": tuple(os),
        "stride": data.draw(each), "lhs_dilation": data.draw(each), "rhs_dilation": data.draw(each),
        "padding_low": data.draw(padding), "padding_high": data.draw(padding),
        "feature_group_count": features, "batch_group_count": batches,
    }  # fmt: skip
    try:
        return Program((), {"main": b.function("main", [b.op("convolution", *operands, **attrs)])})
    except spmdc.SpmdcError:
        return None
