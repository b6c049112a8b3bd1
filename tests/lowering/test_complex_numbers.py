"""Complex numbers, and the bits of numbers: the kernels and the JAX lowering against jax.lax, and their type rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pytest
from jax import lax

from ir.builder import RegionBuilder, infer_types
from ir.diagnostics import SpmdcError
from ir.program import Attr, Program
from ir.types import DTYPES, DType, TensorType, bf16, c64, c128, dtype_of, f16, f32, f64, pred, s8, s32, u8, u16, u32
from lowering import jax as lowering_jax
from lowering.reference import evaluate

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.usefixtures("devices")

COMPLEX = (c64, c128)


@pytest.fixture(autouse=True)
def _wide_types() -> Iterator[None]:
    with jax.enable_x64(True), np.errstate(all="ignore"):
        yield


def run(opname: str, *arrays: Any, **attrs: Attr) -> Array:
    """The op by the reference, which the JAX lowering must equal but for rounding."""
    b = RegionBuilder()
    params = [b.param(f"p{i}", TensorType(a.shape, dtype_of(a.dtype))) for i, a in enumerate(arrays)]
    program = Program((), {"main": b.function("main", b.append(opname, params, dict(attrs)))})
    (ours,) = evaluate(program, *arrays)
    (theirs,) = lowering_jax.compile(program)(*arrays)
    near(ours, theirs)
    return ours


def near(ours: Array, theirs: Any) -> None:
    wanted = np.asarray(theirs)
    assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape)
    exact = ours.dtype.kind not in "fc" and dtype_of(ours.dtype).kind != "float"
    tolerance = 0 if exact else 1e-5 if dtype_of(ours.dtype).component.bits < 64 else 1e-12
    np.testing.assert_allclose(ours, wanted, rtol=tolerance, atol=tolerance)


def drawn(dtype: DType, shape: tuple[int, ...] = (50,), seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    if dtype.is_complex:
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype.numpy)
    return np.asarray(rng.normal(size=shape) * 4).astype(dtype.numpy)


UNARY: dict[str, Callable[..., Any]] = {
    "abs": lax.abs,
    "cosine": lax.cos,
    "exponential": lax.exp,
    "exponential_minus_one": lax.expm1,
    "imag": lax.imag,
    "log": lax.log,
    "log_plus_one": lax.log1p,
    "logistic": lax.logistic,
    "negate": lax.neg,
    "real": lax.real,
    "rsqrt": lax.rsqrt,
    "sign": lax.sign,
    "sine": lax.sin,
    "sqrt": lax.sqrt,
    "tan": lax.tan,
    "tanh": lax.tanh,
}
BINARY: dict[str, Callable[..., Any]] = {
    "add": lax.add,
    "divide": lax.div,
    "multiply": lax.mul,
    "power": lax.pow,
    "subtract": lax.sub,
}


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary_ops_of_complex_numbers(name: str, dtype: DType) -> None:
    x = drawn(dtype)
    near(run(name, x), UNARY[name](x))


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary_ops_of_complex_numbers(name: str, dtype: DType) -> None:
    x, y = drawn(dtype), drawn(dtype, seed=1)
    near(run(name, x, y), BINARY[name](x, y))


def test_the_sign_of_complex_zero_is_zero() -> None:
    assert run("sign", np.zeros(1, np.complex64))[0] == 0


@pytest.mark.parametrize("part", [f32, f64], ids=str)
def test_complex_keeps_infinite_and_nan_parts_apart(part: DType) -> None:
    real = np.array([1, np.inf, np.nan, -0.0], part.numpy)
    imaginary = np.array([np.nan, -0.0, 2, np.inf], part.numpy)
    made = run("complex", real, imaginary)
    np.testing.assert_array_equal(made.real, real)
    np.testing.assert_array_equal(made.imag, imaginary)
    assert np.signbit(made.imag[1])
    np.testing.assert_array_equal(run("real", real), real)
    np.testing.assert_array_equal(run("imag", real), np.zeros(4))


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_numbers_take_part_in_every_op_that_only_places_or_sums(dtype: DType) -> None:
    x, y = drawn(dtype, (3, 4)), drawn(dtype, (4, 5), 1)
    near(run("dot_general", x, y, lhs_contract=(1,), rhs_contract=(0,)), x @ y)
    near(run("reduce", x, dims=(1,), kind="sum"), x.sum(1))
    near(run("reduce", x, dims=(0,), kind="prod"), x.prod(0))
    near(run("cumsum", x, dim=1), np.cumsum(x, 1))
    near(run("transpose", x, perm=(1, 0)), x.T)
    near(run("concatenate", x, x, dim=0), np.concatenate([x, x]))
    near(run("pad", x, y[0, 0], low=(1, 0), high=(0, 2)), np.pad(x, ((1, 0), (0, 2)), constant_values=y[0, 0]))
    near(run("compare", x, np.where(x.real > 0, x, -x), direction="EQ"), x.real > 0)
    near(run("select", x.real > 0, x, -x), np.where(x.real > 0, x, -x))


@pytest.mark.parametrize("target", list(DTYPES.values()), ids=str)
def test_convert_from_and_to_complex_numbers(target: DType) -> None:
    x = drawn(c64) * 3
    real = x.real
    near(run("convert", x, dtype=target), run("convert", x if target.is_complex else real, dtype=target))
    if target.is_complex:
        near(run("convert", real, dtype=target), real.astype(target.numpy))


def test_a_product_of_complex_numbers_may_be_summed_in_a_wider_type() -> None:
    x, y = drawn(c64, (3, 4)), drawn(c64, (4, 5), 1)
    wide = run("dot_general", x, y, lhs_contract=(1,), rhs_contract=(0,), dtype=c128)
    np.testing.assert_allclose(wide, x.astype(np.complex128) @ y.astype(np.complex128), rtol=1e-6)


REFUSED: list[tuple[str, list[TensorType], dict[str, Attr]]] = [
    ("maximum", [TensorType((2,), c64)] * 2, {}),
    ("remainder", [TensorType((2,), c64)] * 2, {}),
    ("and", [TensorType((2,), c64)] * 2, {}),
    ("clamp", [TensorType((2,), c64)] * 3, {}),
    ("cbrt", [TensorType((2,), c64)], {}),
    ("floor", [TensorType((2,), c64)], {}),
    ("is_finite", [TensorType((2,), c64)], {}),
    ("compare", [TensorType((2,), c64)] * 2, {"direction": "LT"}),
    ("reduce", [TensorType((2,), c64)], {"dims": (0,), "kind": "max"}),
    ("reduce", [TensorType((2,), c64), TensorType((2,), s32)], {"dims": (0,), "kind": "argmax"}),
    ("complex", [TensorType((2,), bf16)] * 2, {}),
    ("complex", [TensorType((2,), f32), TensorType((2,), f64)], {}),
    ("real", [TensorType((2,), s32)], {}),
    ("constant", [], {"value": 1j, "type": TensorType((), f32)}),
    ("dot_general", [TensorType((), f32)] * 2, {"dtype": c64}),
    ("bitcast_convert", [TensorType((2,), c64)], {"dtype": u32}),
    ("bitcast_convert", [TensorType((2,), pred)], {"dtype": u8}),
    ("bitcast_convert", [TensorType((3,), u8)], {"dtype": u32}),
    ("bitcast_convert", [TensorType((), u8)], {"dtype": u32}),
    ("reduce_precision", [TensorType((3,), s32)], {"exponent_bits": 5, "mantissa_bits": 2}),
    ("reduce_precision", [TensorType((3,), f32)], {"exponent_bits": 0, "mantissa_bits": 2}),
]


@pytest.mark.parametrize(("opname", "types", "attrs"), REFUSED, ids=lambda v: v if isinstance(v, str) else None)
def test_what_complex_numbers_and_bits_do_not_have_is_refused(
    opname: str, types: list[TensorType], attrs: dict[str, Attr]
) -> None:
    with pytest.raises(SpmdcError) as caught:
        infer_types(opname, types, attrs)
    assert caught.value.diagnostics[0].code == "E201"


@pytest.mark.parametrize("target", [u8, s8, u16, f16, bf16, u32, s32, f32, f64], ids=str)
@pytest.mark.parametrize("source", [u8, s8, u16, f16, bf16, u32, f32, f64], ids=str)
def test_bitcast_convert_splits_and_joins_elements_as_jax_does(source: DType, target: DType) -> None:
    joined = max(1, target.bits // source.bits)
    bits = np.random.default_rng(0).integers(0, 120, (3, 5, joined * source.numpy.itemsize), np.uint8)
    x = bits.view(source.numpy)
    x = x[..., 0] if joined == 1 else x
    np.testing.assert_array_equal(
        run("bitcast_convert", x, dtype=target), np.asarray(lax.bitcast_convert_type(x, target.numpy))
    )


def test_bitcast_convert_of_a_scalar() -> None:
    assert run("bitcast_convert", np.array(1.0, np.float32), dtype=u8).tolist() == [0, 0, 128, 63]


@pytest.mark.optimised
@pytest.mark.parametrize("dtype", [f32, f64, bf16, f16], ids=str)
@pytest.mark.parametrize(("exponent", "mantissa"), [(8, 7), (5, 10), (5, 2), (4, 3), (11, 52), (2, 1), (3, 0), (8, 23)])
def test_reduce_precision_rounds_as_jax_does(dtype: DType, exponent: int, mantissa: int) -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1.125, -1.375, 3.4e4, 6e-5, 240, 1e-2, 65504])
    x = np.concatenate([special, np.random.default_rng(0).normal(size=100) * 40]).astype(dtype.numpy)
    got = run("reduce_precision", x, exponent_bits=exponent, mantissa_bits=mantissa)
    wanted = np.asarray(jax.jit(lambda v: lax.reduce_precision(v, exponent, mantissa))(x))
    np.testing.assert_array_equal(got.astype(np.float64), wanted.astype(np.float64))
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(x)]), np.signbit(wanted[~np.isnan(x)]))
