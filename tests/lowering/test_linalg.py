"""fft, cholesky and triangular_solve: kernels and JAX lowering against numpy and jax.lax, and on split batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

import spmdc
from ir.builder import RegionBuilder, infer_types
from ir.diagnostics import SpmdcError
from ir.program import Attr, Program
from ir.types import DType, TensorType, bf16, c64, c128, dtype_of, f32, f64, s32
from lowering import jax as lowering_jax
from lowering.reference import evaluate
from spmdc.frontends.spmd import parse

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.usefixtures("devices")


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def tolerance(dtype: DType) -> float:
    return {16: 5e-2, 32: 2e-4, 64: 1e-9}[dtype.component.bits]


def near(got: Any, want: Any) -> None:
    ours, wanted = np.asarray(got), np.asarray(want)
    assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape)
    limit = tolerance(dtype_of(ours.dtype))
    wide = np.complex128 if ours.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(ours.astype(wide), wanted.astype(wide), rtol=limit, atol=limit)


def run(opname: str, *arrays: Any, **attrs: Attr) -> Array:
    """The op by the reference; the JAX lowering must give the same but for rounding."""
    b = RegionBuilder()
    params = [b.param(f"p{i}", TensorType(a.shape, dtype_of(a.dtype))) for i, a in enumerate(arrays)]
    program = Program((), {"main": b.function("main", b.append(opname, params, dict(attrs)))})
    (ours,) = evaluate(program, *arrays)
    near(lowering_jax.compile(program)(*arrays)[0], ours)
    return ours


def drawn(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape) + (1j * rng.normal(size=shape) if dtype.is_complex else 0)
    return np.asarray(x).astype(dtype.numpy)


def positive_definite(dtype: DType, shape: tuple[int, ...]) -> Array:
    x = drawn(dtype, shape).astype(np.complex128 if dtype.is_complex else np.float64)
    a = x @ np.conj(np.swapaxes(x, -1, -2)) + shape[-1] * np.eye(shape[-1])
    return np.asarray(a.astype(dtype.numpy))


SHAPES = [((8,), 1), ((3, 7), 1), ((2, 3, 4), 2), ((2, 3, 5), 3), ((1,), 1), ((4, 1, 6), 2)]


@pytest.mark.parametrize(("shape", "count"), SHAPES)
@pytest.mark.parametrize("kind", ["FFT", "IFFT", "RFFT", "IRFFT"])
@pytest.mark.parametrize("wide", [False, True])
def test_fft(kind: str, shape: tuple[int, ...], count: int, wide: bool) -> None:
    dtype = (f64 if wide else f32) if kind == "RFFT" else (c128 if wide else c64)
    length = shape[-count:]
    given = (*shape[:-1], shape[-1] // 2 + 1) if kind == "IRFFT" else shape
    x = drawn(dtype, given)
    near(run("fft", x, kind=kind, length=length), lax.fft(x, getattr(lax.FftType, kind), length))


@pytest.mark.parametrize("dtype", [f32, f64, c64, c128, bf16], ids=str)
@pytest.mark.parametrize("lower", [True, False])
def test_cholesky_reads_one_triangle_and_leaves_the_other_zero(dtype: DType, lower: bool) -> None:
    a = positive_definite(dtype, (2, 3, 5, 5))
    part = np.tril(a) if lower else np.triu(a)
    other = np.triu(np.full_like(a, 77), 1) if lower else np.tril(np.full_like(a, 77), -1)
    factor = run("cholesky", part + other, lower=lower)
    wide = factor.astype(np.complex128)
    adjoint = np.conj(np.swapaxes(wide, -1, -2))
    product = wide @ adjoint if lower else adjoint @ wide
    np.testing.assert_allclose(product, a.astype(np.complex128), rtol=tolerance(dtype) * 5, atol=tolerance(dtype) * 20)
    np.testing.assert_array_equal(factor, np.tril(factor) if lower else np.triu(factor))


def test_a_matrix_without_a_factor_gives_nan_and_disturbs_no_other() -> None:
    a = np.stack([np.eye(3), -np.eye(3), np.full((3, 3), np.nan), 4 * np.eye(3)]).astype(np.float32)
    factor = run("cholesky", a)
    assert np.isnan(factor[1][np.tril_indices(3)]).all()
    assert np.isnan(factor[2][np.tril_indices(3)]).all()
    np.testing.assert_array_equal(factor[0], np.eye(3))
    np.testing.assert_array_equal(factor[3], 2 * np.eye(3))


@pytest.mark.parametrize("dtype", [f32, c64, f64, bf16], ids=str)
@pytest.mark.parametrize("left_side", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit_diagonal", [True, False])
@pytest.mark.parametrize("transpose", ["NO", "T", "C"])
def test_triangular_solve(dtype: DType, left_side: bool, lower: bool, unit_diagonal: bool, transpose: str) -> None:
    a = (drawn(dtype, (2, 4, 4)) / 4 + np.eye(4)).astype(dtype.numpy)
    b = drawn(dtype, (2, 4, 3) if left_side else (2, 3, 4), 1)
    options: dict[str, Attr] = {"left_side": left_side, "lower": lower, "unit_diagonal": unit_diagonal}
    x = run("triangular_solve", a, b, transpose=transpose, **options).astype(np.complex128)
    triangle = (np.tril(a) if lower else np.triu(a)).astype(np.complex128)
    if unit_diagonal:
        triangle[..., range(4), range(4)] = 1
    turned = triangle if transpose == "NO" else np.swapaxes(triangle, -1, -2)
    matrix = np.conj(turned) if transpose == "C" else turned
    product = matrix @ x if left_side else x @ matrix
    np.testing.assert_allclose(product, b.astype(np.complex128), rtol=tolerance(dtype) * 5, atol=tolerance(dtype) * 5)


def test_nothing_is_read_from_the_other_triangle_nor_from_a_unit_diagonal() -> None:
    a = np.array([[np.nan, np.nan], [3, np.nan]], np.float32)
    b = np.array([[1], [5]], np.float32)
    assert run("triangular_solve", a, b, unit_diagonal=True).tolist() == [[1], [2]]


REFUSED: list[tuple[str, list[TensorType], dict[str, Attr]]] = [
    ("fft", [TensorType((8,), f32)], {"kind": "FFT", "length": (8,)}),
    ("fft", [TensorType((8,), c64)], {"kind": "RFFT", "length": (8,)}),
    ("fft", [TensorType((8,), bf16)], {"kind": "RFFT", "length": (8,)}),
    ("fft", [TensorType((8,), c64)], {"kind": "FFT", "length": (4,)}),
    ("fft", [TensorType((8,), c64)], {"kind": "IRFFT", "length": (8,)}),
    ("fft", [TensorType((8,), c64)], {"kind": "FFT", "length": ()}),
    ("fft", [TensorType((8,), c64)], {"kind": "FFT", "length": (1, 8)}),
    ("fft", [TensorType((1, 1, 1, 8), c64)], {"kind": "FFT", "length": (1, 1, 1, 8)}),
    ("cholesky", [TensorType((2, 3), f32)], {}),
    ("cholesky", [TensorType((3,), f32)], {}),
    ("cholesky", [TensorType((3, 3), s32)], {}),
    ("triangular_solve", [TensorType((3, 3), f32), TensorType((2, 3), f32)], {}),
    ("triangular_solve", [TensorType((3, 3), f32), TensorType((3, 3), f64)], {}),
    ("triangular_solve", [TensorType((1, 3, 3), f32), TensorType((3, 3), f32)], {}),
    ("triangular_solve", [TensorType((3, 3), f32), TensorType((3, 2), f32)], {"left_side": False}),
]


@pytest.mark.parametrize(("opname", "types", "attrs"), REFUSED)
def test_operands_that_do_not_fit_are_refused(opname: str, types: list[TensorType], attrs: dict[str, Attr]) -> None:
    with pytest.raises(SpmdcError) as caught:
        infer_types(opname, types, attrs)
    assert caught.value.diagnostics[0].code == "E201"


BATCHES = """
mesh (x=2, y=2)
def main(z: c64[5@x, 6, 4], a: f32[5@x, 4, 4@y], b: f32[5, 4, 7@y])
    -> (spectrum: c64[5@x, 6, 4], back: f32[5, 6, 6], factor: f32[5@(x,y), 4, 4], solved: f32[5@x, 4, 7@y]) {
  spectrum = fft(z, kind=FFT, length=[6, 4])
  back = fft(z, kind=IRFFT, length=[6])
  factor = cholesky(a)
  solved = triangular_solve(cholesky(a), b, transpose=C)
  return spectrum, back, factor, solved
}
"""


def test_batches_and_right_sides_are_split_and_what_is_worked_along_is_whole() -> None:
    program = parse(BATCHES)
    arrays = (drawn(c64, (5, 6, 4)), positive_definite(f32, (5, 4, 4)), drawn(f32, (5, 4, 7)))
    wanted = spmdc.evaluate(program, *arrays)
    partitioned = spmdc.partition(program)
    for results in (partitioned.simulate(*arrays), partitioned.to_jax()(*arrays)):
        for got, want in zip(results, wanted, strict=True):
            near(got, want)
    ops = {op.name: op for op in partitioned.program.main.body.ops}
    assert ops["fft"].operands[0].shape[0] < 5
    assert ops["cholesky"].operands[0].shape == (3, 4, 4)
    assert ops["triangular_solve"].operands[1].shape == (3, 4, 4)


def test_a_transform_along_a_split_dim_gathers_it_with_a_warning() -> None:
    program = parse("mesh (x=2)\ndef main(z: c64[6@x]) -> (s: c64[6@x]) { return fft(z, kind=FFT, length=[6]) }")
    partitioned = spmdc.partition(program)
    assert [w.code for w in partitioned.warnings] == ["W001"]
    z = drawn(c64, (6,))
    near(partitioned.simulate(z)[0], spmdc.evaluate(program, z)[0])


def test_parts_of_a_sum_are_transformed_and_solved_before_they_are_added() -> None:
    text = """
mesh (x=4)
def main(a: f32[6, 8@x], b: f32[8@x, 6], t: f32[6, 6]) -> (s: f32[6, 6]) {
  p = dot_general(a, b, lhs_contract=[1], rhs_contract=[0])
  return triangular_solve(t, p, lower=true)
}
"""
    program = parse(text)
    arrays = (
        drawn(f32, (6, 8)),
        drawn(f32, (8, 6), 1),
        (np.tril(drawn(f32, (6, 6), 2)) / 4 + np.eye(6, dtype=np.float32)),
    )
    near(spmdc.partition(program).simulate(*arrays)[0], spmdc.evaluate(program, *arrays)[0])
