"""Convolution by spec and pooling equal what jax.lax computes; a wrong spec says what is wrong with it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jax import lax

from ir.diagnostics import SpmdcError
from ir.ops import OPS
from ir.program import walk
from ir.verify.program import check
from lowering.reference import evaluate
from spmdc.frontends.spmd import parse, print_program

Array = np.ndarray[Any, Any]

X, W = "f32[2, 7, 6, 4]", "f32[3, 2, 4, 5]"


def numbers(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def outcome(expression: str, result: str, x: Array, w: Array | None = None) -> Array:
    params = ", ".join(f"{n}: f32{list(a.shape)}" for n, a in (("x", x), ("w", w)) if a is not None)
    program = parse(f"def main({params}) -> {result} {{ return {expression} }}")
    check(program)
    text = print_program(program, locations=False)
    assert print_program(parse(text), locations=False) == text
    (value,) = evaluate(program, *(a for a in (x, w) if a is not None))
    return value


CONVOLUTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("", "f32[2, 5, 5, 5]", {}),
    (', padding="same"', "f32[2, 7, 6, 5]", {"padding": "SAME"}),
    (', padding="SAME", stride=2', "f32[2, 4, 3, 5]", {"padding": "SAME", "window_strides": (2, 2)}),
    (', stride=[3, 2], padding="valid"', "f32[2, 2, 3, 5]", {"window_strides": (3, 2)}),
    (", padding=1", "f32[2, 7, 7, 5]", {"padding": ((1, 1), (1, 1))}),
    (", padding=[[0, -1], [2, 3]]", "f32[2, 4, 10, 5]", {"padding": ((0, -1), (2, 3))}),
    (", rhs_dilation=2, padding=[[1, 0], 2]", "f32[2, 4, 8, 5]",
     {"rhs_dilation": (2, 2), "padding": ((1, 0), (2, 2))}),
    (", lhs_dilation=[2, 1]", "f32[2, 11, 5, 5]", {"lhs_dilation": (2, 1), "padding": ((0, 0), (0, 0))}),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "result", "wanted"), CONVOLUTIONS)
def test_conv_of_images_is_that_of_jax(arguments: str, result: str, wanted: dict[str, Any]) -> None:
    x, w = numbers((2, 7, 6, 4)), numbers((3, 2, 4, 5), 1)
    settings = {"window_strides": (1, 1), "padding": "VALID"} | wanted
    want = lax.conv_general_dilated(x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"), **settings)
    got = outcome(f'conv(x, w, "NHWC,HWIO->NHWC"{arguments})', result, x, w)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("spec", ["BXYI,xyIO->BOXY", "nhwc,hwco->nohw", "bhwi, hwio -> bohw", "NHWC,HWIO->NCHW"])
def test_a_spec_may_be_written_as_an_einsum(spec: str) -> None:
    x, w = numbers((2, 7, 6, 4)), numbers((3, 2, 4, 5), 1)
    want = lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NCHW"))
    np.testing.assert_array_equal(outcome(f'conv(x, w, "{spec}")', "f32[2, 5, 5, 5]", x, w), want)


def test_spatial_dims_may_stand_in_another_order_in_each_tensor() -> None:
    x, w = numbers((2, 7, 6, 4)), numbers((3, 2, 4, 5), 1)
    want = lax.conv_general_dilated(x, w, (1, 1), "VALID", dimension_numbers=("NHWC", "WHIO", "CWHN"))
    np.testing.assert_array_equal(outcome('conv(x, w, "NHWC,WHIO->CWHN")', "f32[5, 4, 6, 2]", x, w), want)


def test_conv_in_groups() -> None:
    x, w = numbers((2, 5, 4)), numbers((3, 2, 6), 1)
    want = lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=("NHC", "HIO", "NHC"), feature_group_count=2)
    got = outcome('conv(x, w, "NHC,HIO->NHC", padding="same", groups=2)', "f32[2, 5, 6]", x, w)
    np.testing.assert_array_equal(got, want)
    w = numbers((3, 4, 6), 1)
    want = lax.conv_general_dilated(x, w, (1,), "VALID", dimension_numbers=("NHC", "HIO", "NHC"), batch_group_count=2)
    np.testing.assert_array_equal(outcome('conv(x, w, "NHC,HIO->NHC", batch_groups=2)', "f32[1, 3, 6]", x, w), want)


def test_conv_with_the_kernel_reversed_is_a_convolution_in_the_sense_of_mathematics() -> None:
    x, w = numbers((1, 6, 1)), numbers((3, 1, 1), 1)
    got = outcome('conv(x, w, "NHC,HIO->NHC", padding=2, reverse=true)', "f32[1, 8, 1]", x, w)
    np.testing.assert_array_equal(got[0, :, 0], np.convolve(x[0, :, 0], w[:, 0, 0]))


def test_max_pool() -> None:
    x = numbers((2, 7, 6, 3))
    for arguments, result, window, strides, padding in (
        ("2", "f32[2, 3, 3, 3]", (2, 2), (2, 2), "VALID"),
        ('[3, 2], stride=2, padding="same"', "f32[2, 4, 3, 3]", (3, 2), (2, 2), "SAME"),
        ("3, stride=[2, 1], padding=[[1, 0], [-1, 2]]", "f32[2, 3, 5, 3]", (3, 3), (2, 1), ((1, 0), (-1, 2))),
    ):
        full = padding if isinstance(padding, str) else ((0, 0), *padding, (0, 0))
        want = lax.reduce_window(x, -np.inf, lax.max, (1, *window, 1), (1, *strides, 1), full)
        np.testing.assert_array_equal(outcome(f"max_pool(x, {arguments})", result, x), want)


def test_avg_pool_does_not_count_padding() -> None:
    x = numbers((2, 7, 3))
    np.testing.assert_allclose(outcome("avg_pool(x, 2)", "f32[2, 3, 3]", x), (x[:, :6:2] + x[:, 1:6:2]) / 2)
    got = outcome('avg_pool(x, 3, stride=1, padding="same")', "f32[2, 7, 3]", x)
    np.testing.assert_allclose(got[:, 0], x[:, :2].mean(1), rtol=1e-6)
    np.testing.assert_allclose(got[:, 3], x[:, 2:5].mean(1), rtol=1e-6)
    np.testing.assert_allclose(got[:, 6], x[:, 5:].mean(1), rtol=1e-6)


def test_avg_pool_of_16_bit_floats_sums_in_f32() -> None:
    program = parse("def main(x: bf16[1, 4, 1]) -> bf16[1, 1, 1] { return avg_pool(x, 4) }")
    sums = next(op for op in walk(program.main.body) if op.name == "reduce_window")
    assert sums.result.dtype.name == "f32"


def test_cumulative_ops_count_dims_from_the_last() -> None:
    x = numbers((2, 5))
    np.testing.assert_array_equal(outcome("cummax(x, -1)", "f32[2, 5]", x), np.maximum.accumulate(x, 1))
    np.testing.assert_array_equal(outcome("cumprod(x, 0, reverse=true)", "f32[2, 5]", x), x[::-1].cumprod(0)[::-1])
    np.testing.assert_array_equal(outcome("flip(x, -1)", "f32[2, 5]", x), x[:, ::-1])
    np.testing.assert_array_equal(outcome("reverse(x, dims=[0, -1])", "f32[2, 5]", x), x[::-1, ::-1])


WRONG: list[tuple[str, str, str]] = [
    ('conv(x, w, "NHWC")', "E206", "no two operands and a result"),
    ('conv(x, w, "NHWC,HWIO->NHHC")', "E206", "each of different letters"),
    ('conv(x, w, "NHC,HIO->NHC")', "E206", "it names 3 dims of x, which has 4"),
    ('conv(x, w, "NHWC,HWIO->NHOC")', "E206", "apart from spatial dims, each tensor has two"),
    ('conv(x, w, "ABHW,HWIO->CDHW")', "E206", "not to be told apart"),
    ("conv(x, w, stride=[1, 2, 3])", "E201", "one for each of 2 spatial dims"),
    ("conv(x, w, stride=0)", "E201", "must be positive"),
    ('conv(x, w, padding="some")', "E201", 'padding is "some"'),
    ("conv(x, w, padding=[1, 2, 3])", "E201", "there are 2 spatial dims"),
    ("conv(x, w, padding=[[1, 2, 3], 1])", "E203", "a pair [before, after]"),
    ("conv(x, w, groups=3)", "E201", "feature_group_count=3 must divide dim 3 of the lhs"),
    ("conv(x, w, groups=2, batch_groups=2)", "E201", "one of them 1"),
    ("conv(x, x)", "E201", "input features differ"),
    ("max_pool(x, [1, 2, 3])", "E201", "window is [1, 2, 3]"),
    ("max_pool(x, 0)", "E201", "must be positive"),
    ("avg_pool(convert(x, dtype=s32), 2)", "E201", "takes floats"),
    ("max_pool(x[0, 0], 2)", "E201", "a batch, spatial dims, and features"),
    ("reduce_window(x, window=[1, 2])", "E201", "a number for each of the operand's 4 dims"),
    ("reduce_window(x, window=[1, 2, 2, 1], stride=[1])", "E201", "each of the window's 4 dims"),
    ("reduce_window(x, window=[1, 2, 0, 1])", "E201", "must be positive in every dim"),
    ("reduce_window(x, window=[1, 2, 2, 1], base_dilation=[1, 0, 1, 1])", "E201", "must be positive in every dim"),
    ("reduce_window(x, window=[1, 1, 1, 1], padding_low=[0, -8, 0, 0])", "E201", "leaves -1 elements"),
    ("reduce_window(x, window=[1, 2, 2, 1], kind=and)", "E201", "kind=and needs booleans or integers"),
    ("select_and_scatter(x, w, window=[1, 2, 2, 1])", "E201", "an element for each window, [2, 6, 5, 4]"),
    ("select_and_scatter(x, x > 0, window=[1, 1, 1, 1])", "E201", "integers or floats of one element type"),
    ("select_and_scatter(x, x, window=[1, 1, 1, 1], padding_value=[1.0])", "E201", "padding_value must be one number"),
    ("reverse(x, dims=[0, 0])", "E201", "names a dim twice"),
    ("cummax(x, 4)", "E201", "dim 4 is out of range"),
]


@pytest.mark.parametrize(("expression", "code", "words"), WRONG)
def test_what_is_wrong_is_said(expression: str, code: str, words: str) -> None:
    with pytest.raises(SpmdcError) as raised:
        parse(f"def main(x: {X}, w: {W}) -> f32[] {{\n  y = {expression}\n  return 0.0\n}}")
    (diagnostic,) = raised.value.diagnostics
    assert (diagnostic.code, words in diagnostic.message) == (code, True), diagnostic.message
    assert diagnostic.span is not None
    assert diagnostic.span.line == 2


def rule(expression: str) -> str:
    program = parse(f"def main(x: {X}, w: {W}) -> f32[] {{\n  y = {expression}\n  return 0.0\n}}")
    op = next(op for op in walk(program.main.body) if op.name in ("convolution", "reduce_window", "reverse", "pad"))
    factors = OPS[op.name].factors
    assert factors is not None
    return str(factors(op))


RULES: list[tuple[str, str]] = [
    ("conv(x, w)", "i l n k, m o k j -> i l n j  {k: reduction(sum), l: window, m: window, n: window, o: window}"),
    ("conv(x, w[:1, :1])", "i l n k, m o k j -> i l n j  {k: reduction(sum), m: window, o: window}"),
    ("conv(x, w[:, :, :2, :4], groups=2)",
     "j m o (i l), n p l (i k) -> j m o (i k)  {l: reduction(sum), m: window, n: window, o: window, p: window}"),
    ("conv(x, w[:, :, :1, :4], groups=4)", "j m o i, n p () i -> j m o i  "
     "{l: reduction(sum), m: window, n: window, o: window, p: window}"),
    ("conv(x, w[:, :, :, :4], batch_groups=2)", "i m o l, n p l (i k) -> () m o (i k)  "
     "{l: reduction(sum), m: window, n: window, o: window, p: window}"),
    ("reduce_window(x, window=[1, 2, 1, 1], stride=[1, 1, 1, 2])", "i j k l -> i j k l  {j: window, l: window}"),
    ("reverse(x, dims=[1])", "i j k l -> i j k l  {j: window}"),
    ("pad(x, [0, 1, 0, 0])", "i j k l,  -> i j k l  {j: window}"),
]  # fmt: skip


@pytest.mark.parametrize(("expression", "wanted"), RULES)
def test_factors(expression: str, wanted: str) -> None:
    assert rule(expression) == wanted
