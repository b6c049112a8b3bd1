"""Windows along split dims: devices compute the same as one would, and exchange only what the windows need."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from ir.builder import RegionBuilder
from ir.mesh import Mesh
from ir.ops.window import Window
from ir.program import Op, Program, Result, Value, all_ops
from ir.sharding import Sharding
from ir.types import DType, TensorType, bf16, f32, s32, u8
from ir.verify.program import check
from passes.cost.machine import TPU_V3
from passes.cost.model import collective_bytes
from passes.partition import make_plan, write_plan
from passes.partition.options import PartitionOptions
from passes.propagation.propagate import propagate
from spmdc import evaluate
from spmdc import partition as partitioned
from spmdc.frontends.spmd import parse
from spmdc.testing import check_equivalence


def split_program(program: Program) -> tuple[Op, ...]:
    """The ops of a device; nothing must be gathered, and the program as a whole compute the same."""
    check_equivalence(program)
    plan = make_plan(propagate(program), PartitionOptions.on(TPU_V3))
    spmd, warnings = write_plan(plan), plan.warnings
    assert not warnings
    return tuple(all_ops(spmd))


def received(ops: tuple[Op, ...]) -> int:
    """Bytes that the worst device receives."""
    return sum(collective_bytes(op) for op in ops if op.name == "box_permute")


@st.composite
def windows(draw: st.DrawFn, n: int, *, dilations: bool = True, largest: int = 5) -> Window:
    """Any window that a dim of size n has room for, and that fits into it or not."""
    size = draw(st.integers(1, largest))
    base = draw(st.integers(1, 3)) if dilations else 1
    room = (n - 1) * base + 1
    low = draw(st.integers(-min(2, room), min(size, 5)))
    high = draw(st.integers(-min(2, room + min(low, 0)), min(size, 5)))
    return Window(size, draw(st.integers(1, 4)), low, high, base, draw(st.integers(1, 2)) if dilations else 1)


def settings_of(given: list[Window], base: str = "base_dilation", dilation: str = "window_dilation") -> dict[str, Any]:
    return {
        "stride": tuple(w.stride for w in given),
        "padding_low": tuple(w.low for w in given),
        "padding_high": tuple(w.high for w in given),
        base: tuple(w.base_dilation for w in given),
        dilation: tuple(w.dilation for w in given),
    }


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    """Up to 8 devices, in one row or in two dims."""
    x = draw(st.integers(1, 5))
    return Mesh((("x", x), ("y", draw(st.integers(1, min(3, 8 // x))))))


def program_of(mesh: Mesh, b: RegionBuilder, x: Value, spec: tuple[str, ...]) -> Program:
    result = Result("r", x.type, spec_of(mesh, spec))
    program = Program((mesh,), {"main": b.function("main", (x,), (result,))})
    check(program)
    return program


def spec_of(mesh: Mesh, spec: tuple[str, ...]) -> Sharding:
    return Sharding.of(mesh, *(tuple(a for a in mesh.whole_axes() if a.name in names) for names in spec))


LAYOUTS = (("x", ""), ("", "x"), ("x", "y"), ("y", "x"), ("xy", ""))


@st.composite
def reductions(draw: st.DrawFn, dtype: DType) -> Program:
    mesh, b = draw(meshes()), RegionBuilder()
    shape = tuple(draw(st.integers(1, 13)) for _ in range(2))
    spec = draw(st.sampled_from(LAYOUTS))
    x = b.param("x", TensorType(shape, dtype), spec_of(mesh, spec))
    given = [draw(windows(n)) for n in shape]
    kind = draw(st.sampled_from(["sum", "max", "min"]))
    sizes = tuple(w.size for w in given)
    y = b.op("reduce_window", x, window=sizes, kind=kind, **settings_of(given))
    return program_of(mesh, b, y, draw(st.sampled_from((spec, *LAYOUTS))))


@st.composite
def scatters(draw: st.DrawFn, dtype: DType) -> Program:
    mesh, b = draw(meshes()), RegionBuilder()
    shape = tuple(draw(st.integers(1, 13)) for _ in range(2))
    spec = draw(st.sampled_from(LAYOUTS))
    given = [draw(windows(n, dilations=False)) for n in shape]
    x = b.param("x", TensorType(shape, dtype), spec_of(mesh, spec))
    counts = tuple(w.count(n) for w, n in zip(given, shape, strict=True))
    source = b.param("source", TensorType(counts, dtype), spec_of(mesh, spec))
    select = draw(st.sampled_from(["GE", "GT", "LE", "LT"]))
    window = {k: v for k, v in settings_of(given).items() if "dilation" not in k}
    window["padding_value"] = draw(st.sampled_from([None, 0, 9]))
    y = b.op("select_and_scatter", x, source, window=tuple(w.size for w in given), select=select, **window)
    return program_of(mesh, b, y, spec)


@st.composite
def convolutions(draw: st.DrawFn) -> Program:
    """Any dimension numbers; lhs and result split along spatial dims, or lhs and the kernel."""
    mesh, b, rank = draw(meshes()), RegionBuilder(), draw(st.integers(3, 4))
    lhs, rhs, out = (draw(st.permutations(range(rank))) for _ in range(3))
    sizes = [draw(st.integers(1, 12)) for _ in lhs[2:]]
    gradient = draw(st.booleans())
    given = [draw(windows(n, largest=12 if gradient else 5)) for n in sizes]
    split = dict(zip(lhs[2:], draw(st.permutations(["x", "y"])), strict=False))
    kernel_split = dict(zip(rhs[2:], split.values(), strict=True)) if gradient else {}
    features, groups = draw(st.sampled_from([(2, 1), (2, 2), (1, 1)]))
    left = dict(zip(lhs, (2, features, *sizes), strict=True))
    right = dict(zip(rhs, (features // groups, 2, *(w.size for w in given)), strict=True))
    x = b.param(
        "x",
        TensorType(tuple(left[d] for d in range(rank)), f32),
        spec_of(mesh, tuple(split.get(d, "") for d in range(rank))),
    )
    kernel = b.param(
        "kernel",
        TensorType(tuple(right[d] for d in range(rank)), f32),
        spec_of(mesh, tuple(kernel_split.get(d, "") for d in range(rank))),
    )
    attrs: dict[str, Any] = {
        "lhs_batch": lhs[0], "lhs_feature": lhs[1], "lhs_spatial": tuple(lhs[2:]),
        "rhs_input": rhs[0], "rhs_output": rhs[1], "rhs_spatial": tuple(rhs[2:]),
        "out_batch": out[0], "out_feature": out[1], "out_spatial": tuple(out[2:]),
        "window_reversal": tuple(draw(st.integers(0, 1)) for _ in given),
        "feature_group_count": groups,
    }  # fmt: skip
    y = b.op("convolution", x, kernel, **attrs, **settings_of(given, "lhs_dilation", "rhs_dilation"))
    wanted = {} if kernel_split else dict(zip(out[2:], split.values(), strict=True))
    return program_of(mesh, b, y, tuple(wanted.get(d, "") for d in range(rank)))


KINDS = {
    "reduce_window": st.sampled_from([s32, f32]).flatmap(reductions),
    "select_and_scatter": st.sampled_from([u8, f32]).flatmap(scatters),
    "convolution": convolutions(),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(60))
@given(st.data())
def test_windows_compute_the_same_on_shards(kind: str, data: st.DataObject) -> None:
    check_equivalence(data.draw(KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(8))
@given(st.data())
def test_windows_compute_the_same_on_jax_devices(kind: str, data: st.DataObject) -> None:
    check_equivalence(data.draw(KINDS[kind]), jax=True)


def local(ops: tuple[Op, ...], name: str = "convolution") -> Op:
    (found,) = (op for op in ops if op.name == name)
    return found


def convolved(n: int, devices: int, kernel: int, features: int = 16) -> Program:
    """A convolution along one dim, whose result is as large as the image."""
    return parse(f"""mesh (d={devices})
    def main(a: f32[1, {n}@d, {features}], w: f32[{kernel}, {features}, 4]) -> (r: f32[1, {n}@d, 4]) {{
      return conv(a, w, "NHC,HIO->NHC", padding=[{kernel // 2}])
    }}""")


def test_windows_of_three_take_one_row_from_each_side() -> None:
    ops = split_program(convolved(64, 8, 3))
    assert [op.operands[0].shape for op in ops if op.name == "box_permute"] == [(1, 1, 16), (1, 1, 16)]
    assert local(ops).operands[0].shape == (1, 10, 16)
    assert {op.name for op in ops} & {"all_gather", "all_reduce"} == set()


def test_zeros_around_full_shards_are_what_a_permute_leaves() -> None:
    """No select writes them once more. Shards that hold padding, and other fills, need one."""
    assert "select" not in {op.name for op in split_program(convolved(64, 8, 3))}
    assert "select" not in {op.name for op in split_program(convolved(16, 8, 7, features=2))}
    assert "select" in {op.name for op in split_program(convolved(63, 8, 3))}
    largest = parse("""mesh (d=4)
    def main(a: f32[16@d]) -> (r: f32[16@d]) {
      r = reduce_window(a, window=[3], stride=[1], padding_low=[1], padding_high=[1], kind=max)
      return r
    }""")
    assert "select" in {op.name for op in split_program(largest)}


def test_zeros_at_the_ends_of_a_padded_vector_are_what_a_permute_leaves() -> None:
    program = """mesh (d=4)
    def main(a: f32[16@d]) -> (r: f32[16@d]) {{
      zero = constant(value={}, type=f32[])
      r = pad(a, zero, low=[1], high=[-1])
      return r
    }}"""
    assert "select" not in {op.name for op in split_program(parse(program.format("0.0")))}
    assert "select" in {op.name for op in split_program(parse(program.format("-0.0")))}


@pytest.mark.parametrize("devices", [2, 4, 8, 64])
def test_communication_of_a_convolution_is_the_same_on_any_number_of_devices(devices: int) -> None:
    """GShard, Table 4: the image grows with the devices."""
    plan = make_plan(propagate(convolved(16 * devices, devices, 5)), PartitionOptions.on(TPU_V3))
    spmd, warnings = write_plan(plan), plan.warnings
    ops = tuple(all_ops(spmd))
    assert (received(ops), len(ops), warnings) == (2 * 2 * 16 * 4, len_of_two_devices(), ())


def len_of_two_devices() -> int:
    return len(tuple(all_ops(write_plan(make_plan(propagate(convolved(32, 2, 5)), PartitionOptions.on(TPU_V3))))))


def test_windows_larger_than_shards_reach_over_several() -> None:
    ops = split_program(convolved(16, 8, 7, features=2))
    assert received(ops) == 6 * 2 * 4


def test_halos_that_grow_along_the_row_are_exchanged() -> None:
    """GShard, Figure 11: 12 elements on 4 devices, windows of 3, stride 2, padding 1."""
    ops = split_program(
        parse("""mesh (d=4)
    def main(a: f32[12@d]) -> (r: f32[6@d]) {
      r = reduce_window(a, window=[3], stride=[2], padding_low=[1], padding_high=[1], kind=max)
      return r
    }""")
    )
    op = local(ops, "reduce_window")
    assert (op.operands[0].shape, op.result.shape) == ((5,), (2,))


def figure_13(n: int, stride: int, window: int, low: int, high: int) -> tuple[Op, ...]:
    """A convolution with holes of two between elements, on three devices."""
    count = (3 * n - 2 + low + high - window) // stride + 1
    return split_program(
        parse(f"""mesh (d=3)
    def main(a: f32[2, {n}@d, 2], w: f32[{window}, 2, 2]) -> (r: f32[2, {count}@d, 2]) {{
      r = convolution(a, w, lhs_batch=0, lhs_feature=2, lhs_spatial=[1], rhs_input=1, rhs_output=2, rhs_spatial=[0],
                      out_batch=0, out_feature=2, out_spatial=[1], stride=[{stride}], padding_low=[{low}],
                      padding_high=[{high}], lhs_dilation=[3])
      return r
    }}""")
    )


def test_holes_at_the_same_places_on_all_devices_do_not_travel() -> None:
    """GShard, Figure 13, case 1: all devices start with the same pattern."""
    op = local(figure_13(6, 3, 5, 1, 3))
    assert (op.attrs["lhs_dilation"], op.attrs["padding_low"]) == ((3,), (1,))
    assert op.operands[0].shape == (2, 3, 2)


def test_holes_of_stride_one_at_other_places_on_each_device() -> None:
    """GShard, Figure 13, case 2: two windows a device, and a pattern of three."""
    assert local(figure_13(2, 1, 3, 1, 2)).attrs["lhs_dilation"] == ()


def test_holes_of_longer_strides_at_other_places_on_each_device() -> None:
    """GShard, Figure 13, case 3."""
    assert local(figure_13(4, 2, 3, 2, 0)).attrs["lhs_dilation"] == ()


def test_windows_with_holes_reach_as_far_as_their_last_element() -> None:
    ops = split_program(
        parse("""mesh (d=4)
    def main(a: s32[16@d]) -> (r: s32[16@d]) {
      r = reduce_window(a, window=[3], window_dilation=[2], padding_low=[2], padding_high=[2])
      return r
    }""")
    )
    assert received(ops) == 4 * 4
    assert local(ops, "reduce_window").operands[0].shape == (8,)


def test_images_split_in_both_dims_take_corners_too() -> None:
    ops = split_program(
        parse("""mesh (x=2, y=2)
    def main(a: f32[1, 8@x, 8@y, 1], w: f32[3, 3, 1, 1]) -> (r: f32[1, 8@x, 8@y, 1]) {
      return conv(a, w, padding=[1, 1])
    }""")
    )
    assert received(ops) == (4 + 4 + 6 + 6) * 4


def test_the_gradient_of_a_kernel_is_summed_where_the_images_lie() -> None:
    """Its own kernel is the gradient of the result: split alike, it needs a halo of the image and one all_reduce."""
    ops = split_program(
        parse("""mesh (d=4)
    def main(image: f32[2, 32@d, 3], gradient: f32[2, 32@d, 5]) -> (r: f32[3, 3, 5]) {
      r = convolution(image, gradient, lhs_batch=2, lhs_feature=0, lhs_spatial=[1],
                      rhs_input=0, rhs_output=2, rhs_spatial=[1], out_batch=1, out_feature=2, out_spatial=[0],
                      padding_low=[1], padding_high=[1])
      return r
    }""")
    )
    assert local(ops).operands[1].shape == (2, 8, 5)
    assert received(ops) == 2 * 2 * 3 * 4
    assert [op.name for op in ops if op.name in ("all_reduce", "all_gather")] == ["all_reduce"]


def test_the_gradient_of_a_strided_kernel_is_summed_where_the_images_lie() -> None:
    ops = split_program(
        parse("""mesh (d=4)
    def main(image: f32[2, 30@d, 3], gradient: f32[2, 15@d, 5]) -> (r: f32[3, 3, 5]) {
      r = convolution(image, gradient, lhs_batch=2, lhs_feature=0, lhs_spatial=[1],
                      rhs_input=0, rhs_output=2, rhs_spatial=[1], out_batch=1, out_feature=2, out_spatial=[0],
                      padding_low=[1], rhs_dilation=[2])
      return r
    }""")
    )
    kernels = [op.operands[1].shape for op in ops if op.name == "convolution"]
    assert kernels == [(2, 3, 5), (2, 1, 5)], "the last device has three of four"


POOL = """mesh (d=4)
def main(a: {dtype}[{n}@d], g: {dtype}[{m}@d]) -> (r: {dtype}[{n}@d]) {{
  r = select_and_scatter(a, g, window=[{window}], stride=[{stride}], padding_low=[{low}], padding_high=[{high}],
                         select={select})
  return r
}}"""


def test_windows_side_by_side_scatter_without_communication() -> None:
    ops = split_program(parse(POOL.format(dtype="f32", n=16, m=8, window=2, stride=2, low=0, high=0, select="GE")))
    assert received(ops) == 0
    assert local(ops, "select_and_scatter").attrs["stride"] == (2,)


@pytest.mark.parametrize("select", ["GE", "GT", "LE", "LT"])
@pytest.mark.parametrize("low", [0, 1, 2, 3, 5])
def test_padding_is_not_selected_even_over_infinities_and_nan(select: str, low: int) -> None:
    text = POOL.format(
        dtype="f32", n=13, m=(13 + low + 2 - 3) // 2 + 1, window=3, stride=2, low=low, high=2, select=select
    )
    program = parse(text)
    on_devices = partitioned(program)
    assert not on_devices.warnings
    inf, nan = np.inf, np.nan
    for values in ([-inf] * 13, [inf] * 13, [nan, 1, -inf, nan, nan, inf, 2, 2, 3, nan, -inf, inf, nan], [nan] * 13):
        a = np.array(values, np.float32)
        g = np.arange(1, 1 + program.main.params[1].shape[0], dtype=np.float32)
        (want,) = evaluate(program, a, g)
        (got,) = on_devices.simulate(a, g)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("value", ["-inf", "nan", "2.0"])
@pytest.mark.parametrize(("n", "low", "high"), [(13, 2, 2), (16, 0, 1), (16, 5, 3), (16, -1, 2)])
def test_padding_with_a_value_may_be_selected(value: str, n: int, low: int, high: int) -> None:
    m = (n + low + high - 3) // 2 + 1
    text = POOL.format(dtype="f32", n=n, m=m, window=3, stride=2, low=low, high=high, select="GE")
    program = parse(text.replace("select=GE", f"select=GE, padding_value={value}"))
    on_devices = partitioned(program)
    g = np.arange(1, 1 + m, dtype=np.float32)
    for values in ([-np.inf] * n, [np.nan] * n, [1, 3, 2, np.nan, 2, 5, -np.inf, 1, 4, 4, 4, 0, 7, 2, 2, 2][:n]):
        a = np.array(values, np.float32)
        (want,) = evaluate(program, a, g)
        (got,) = on_devices.simulate(a, g)
        np.testing.assert_array_equal(got, want)


def test_sums_of_scattered_halves_are_rounded_once() -> None:
    program = parse(POOL.format(dtype="bf16", n=8, m=10, window=3, stride=1, low=2, high=2, select="GE"))
    a = np.array([9, 0, 0, 0, 0, 0, 0, 9], bf16.numpy)
    g = np.array([256, 1, 1, 1, 1, 1, 1, 1, 1, 256], bf16.numpy)
    (want,) = evaluate(program, a, g)
    (got,) = partitioned(program).simulate(a, g)
    np.testing.assert_array_equal(got, want)
    assert want[0] == 258


@pytest.mark.parametrize(
    ("settings", "results", "columns"),
    [
        ("window=[3, 1], padding_low=[1, 0], padding_high=[1, 0]", 12, 4),
        ("window=[4, 2], stride=[3, 2], base_dilation=[2, 1], padding_low=[4, 0]", 8, 2),
        ("window=[4, 1], base_dilation=[3, 1], padding_low=[4, 0], padding_high=[{high}, 0]", 11, 4),
    ],
)
def test_the_program_does_not_grow_with_the_devices(settings: str, results: int, columns: int) -> None:
    def names(devices: int) -> list[str]:
        program = parse(f"""mesh (d={devices})
        def main(a: f32[{12 * devices}@d, 4]) -> (r: f32[{results * devices}@d, {columns}]) {{
          r = reduce_window(a, {settings.format(high=1 - 25 * devices)})
          return r
        }}""")
        return [
            op.name
            for op in all_ops(write_plan(make_plan(propagate(program), PartitionOptions.on(TPU_V3))))
            if op.name != "constant"
        ]

    assert names(64) == names(128) == names(256)
