"""The window ops and convolution as JAX runs them give what the reference gives, on one device and on several."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ir.builder import RegionBuilder
from ir.mesh import Mesh
from ir.program import Attr, Program
from ir.sharding import Sharding
from ir.types import DTYPES, DType, TensorType, dtype_of
from lowering import jax as lowering_jax
from lowering.reference import evaluate
from passes.cost.machine import TPU_V3
from passes.partition import make_plan, write_plan
from passes.partition.options import PartitionOptions
from passes.propagation.propagate import propagate

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.usefixtures("devices")


def numbers(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Array:
    low, high = (0, 2) if dtype.kind == "pred" else (0 if dtype.kind == "unsigned" else -2, 3)
    return np.asarray(np.random.default_rng(seed).integers(low, high, shape)).astype(dtype.numpy)


def check(opname: str, *arrays: Array, **attrs: Attr) -> None:
    """On one device, and on two that split the first dim of the first operand."""
    for axes in ((), ("x",)):
        b = RegionBuilder()
        mesh = Mesh((("x", 2),))
        given: dict[str, Any] = dict(attrs)
        split = Sharding.of(mesh, axes, *(None,) * (arrays[0].ndim - 1)) if axes else None
        params = [
            b.param(f"p{i}", TensorType(a.shape, dtype_of(a.dtype)), None if i else split) for i, a in enumerate(arrays)
        ]
        result = b.op(opname, *params, **given)
        program = Program((mesh,), {"main": b.function("main", [result])})
        (want,) = evaluate(program, *arrays)
        device_program = write_plan(make_plan(propagate(program), PartitionOptions.on(TPU_V3))) if axes else program
        (got,) = map(np.asarray, lowering_jax.compile(device_program)(*arrays))
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_array_equal(got, want)


KINDS = {"sum": ("f32", "bf16", "s8"), "prod": ("f32", "f16"), "max": ("bf16", "u8", "pred"), "min": ("f32", "s32"),
         "and": ("pred", "u8"), "or": ("pred", "s32")}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k, names in KINDS.items() for n in names])
def test_reduce_window(kind: str, name: str) -> None:
    x = numbers((4, 7, 5), DTYPES[name])
    check("reduce_window", x, kind=kind, window=(1, 3, 2), stride=(1, 2, 1), padding_low=(0, 1, -1))
    check(
        "reduce_window", x, kind=kind, window=(1, 3, 2), padding_high=(0, -1, 2), base_dilation=(1, 2, 1),
        window_dilation=(1, 1, 3),
    )  # fmt: skip


@pytest.mark.parametrize("low", [0, -1])
def test_windows_of_one_element_that_leave_out_some(low: int) -> None:
    x = numbers((4, 7), DTYPES["s32"])
    check("reduce_window", x, kind="min", window=(1, 1), padding_low=(0, low), padding_high=(0, -2))
    check(
        "reduce_window", x, kind="max", window=(1, 1), stride=(1, 2), padding_low=(0, low), padding_high=(1, -1),
        base_dilation=(1, 3),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "select"),
    [
        ("f32", "GE"),
        ("f32", "LT"),
        ("bf16", "GT"),
        ("bf16", "LE"),
        ("s8", "GE"),
        ("s8", "LE"),
        ("u32", "GT"),
        ("u32", "LT"),
    ],
)
def test_select_and_scatter(name: str, select: str) -> None:
    """Each way to select, and of each dtype the greatest and the least."""
    x = numbers((4, 7, 5), DTYPES[name])
    window: dict[str, Attr] = {"window": (1, 3, 2), "stride": (1, 2, 1), "select": select}
    check("select_and_scatter", x, numbers((4, 3, 4), DTYPES[name], 1), **window)
    padding: dict[str, Attr] = {"padding_low": (0, 1, -1), "padding_high": (0, 1, 2)}
    check("select_and_scatter", x, numbers((4, 4, 5), DTYPES[name], 1), **window, **padding)


def test_select_and_scatter_never_selects_padding() -> None:
    x = np.full((2, 3), -np.inf, np.float32)
    source = np.arange(8, dtype=np.float32).reshape(2, 4)
    check("select_and_scatter", x, source, window=(1, 2), padding_low=(0, 1), padding_high=(0, 1))


@pytest.mark.parametrize(("name", "select", "value"), [("bf16", "GE", 3), ("s8", "LT", -3)])
def test_select_and_scatter_into_padding(name: str, select: str, value: int) -> None:
    x, source = numbers((2, 7), DTYPES[name]), numbers((2, 4), DTYPES[name], 1)
    given: dict[str, Attr] = {"padding_low": (0, -1), "padding_high": (0, 2), "padding_value": value}
    check("select_and_scatter", x, source, window=(1, 2), stride=(1, 2), select=select, **given)


def test_windows_of_scalars() -> None:
    for opname, operands in (("select_and_scatter", 2), ("reduce_window", 1)):
        b = RegionBuilder()
        params = [b.param(f"p{i}", TensorType((), DTYPES["f32"])) for i in range(operands)]
        program = Program((), {"main": b.function("main", [b.op(opname, *params, window=())])})
        arrays = [np.float32(i + 2) for i in range(operands)]
        (got,) = lowering_jax.compile(program)(*arrays)
        assert got == evaluate(program, *arrays)[0] == operands + 1


IMAGE: dict[str, Any] = {
    "lhs_batch": 0, "lhs_feature": 3, "lhs_spatial": (1, 2), "rhs_input": 2, "rhs_output": 3, "rhs_spatial": (0, 1),
    "out_batch": 0, "out_feature": 3, "out_spatial": (1, 2),
}  # fmt: skip


@pytest.mark.parametrize(
    ("source", "target"),
    [("f32", None), ("bf16", None), ("f16", "f32"), ("f32", "bf16"), ("s8", "s32"), ("s32", None), ("s32", "f32")],
)
def test_convolution(source: str, target: str | None) -> None:
    lhs, rhs = numbers((4, 7, 5, 4), DTYPES[source]), numbers((3, 2, 4, 6), DTYPES[source], 1)
    dtype = DTYPES[target] if target else None
    check("convolution", lhs, rhs, dtype=dtype, stride=(2, 1), padding_low=(-1, 2), padding_high=(2, 1), **IMAGE)


def test_convolution_with_dilation_and_reversal() -> None:
    lhs, rhs = numbers((4, 7, 5, 4), DTYPES["f32"]), numbers((3, 2, 4, 6), DTYPES["f32"], 1)
    check("convolution", lhs, rhs, lhs_dilation=(2, 1), rhs_dilation=(1, 3), window_reversal=(1, 0), **IMAGE)


@pytest.mark.parametrize("split", [0, 3])
def test_convolution_in_groups(split: int) -> None:
    dims = dict(IMAGE)
    if split == 3:
        dims |= {"lhs_feature": 0, "lhs_batch": 3}
    shape = (4, 5, 5, 4)
    lhs = numbers(shape, DTYPES["f32"])
    for count in (2, 4):
        check("convolution", lhs, numbers((3, 2, 4 // count, 8), DTYPES["f32"], 1), feature_group_count=count, **dims)
        check("convolution", lhs, numbers((3, 2, 4, 8), DTYPES["f32"], 1), batch_group_count=count, **dims)


@pytest.mark.parametrize("opname", ["cumprod", "cummax", "cummin"])
def test_cumulative_ops(opname: str) -> None:
    for name in ("f32", "bf16", "s8", "u32", *(("pred",) if opname != "cumprod" else ())):
        for reverse in (False, True):
            check(opname, numbers((4, 7), DTYPES[name]), dim=1, reverse=reverse)


def test_reverse() -> None:
    check("reverse", numbers((4, 3, 5), DTYPES["f32"]), dims=(2, 1))
    check("reverse", numbers((4, 3), DTYPES["pred"]), dims=())
