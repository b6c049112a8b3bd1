"""Every op as JAX runs it gives what the reference gives. Types of few bits are in `test_short_types_on_devices.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ir.builder import RegionBuilder, infer_types
from ir.diagnostics import SpmdcError
from ir.ops import OPS
from ir.program import Attr, Function, Program, Value
from ir.sharding import REDUCTION_KINDS
from ir.types import DTYPES, DType, TensorType, bf16, dtype_of, f16, f32, f64, pred, s8, s32, u8, u32, u64
from lowering import jax as lowering_jax
from lowering.jax import module
from lowering.reference import KERNELS, evaluate
from spmdc.frontends.spmd import parse

Array = np.ndarray[Any, Any]

LONG = [t for t in DTYPES.values() if not t.is_short]

pytestmark = pytest.mark.usefixtures("devices")


def same(ours: Sequence[Any], wanted: Sequence[Any], rtol: float = 0, what: str = "") -> None:
    assert len(ours) == len(wanted)
    for got, want in zip(map(np.asarray, ours), map(np.asarray, wanted), strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype), what
        if rtol:
            wide = np.complex128 if got.dtype.kind == "c" else np.float64
            np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=rtol, atol=rtol)
        else:
            np.testing.assert_array_equal(got, want, err_msg=what)


def numbers(shape: Sequence[int], dtype: DType = f32, seed: int = 0) -> Array:
    """Small integers, so that sums are exact."""
    if dtype.is_complex:
        real, imaginary = (numbers(shape, dtype.component, s) for s in (seed, seed + 100))
        return np.asarray(real + 1j * imaginary).astype(dtype.numpy)
    drawn = np.random.default_rng(seed).integers(0 if dtype.kind in ("unsigned", "pred") else -4, 5, tuple(shape))
    return np.asarray(drawn).astype(dtype.numpy)


def run_global(opname: str, *arrays: Array | np.generic, **attrs: Attr) -> tuple[Program, tuple[Any, ...]]:
    b = RegionBuilder()
    params = [b.param(f"p{i}", TensorType(a.shape, dtype_of(a.dtype))) for i, a in enumerate(arrays)]
    program = Program((), {"main": b.function("main", b.append(opname, params, dict(attrs)))})
    return program, lowering_jax.compile(program)(*arrays)


def check_op(opname: str, *arrays: Array | np.generic, **attrs: Attr) -> None:
    program, ours = run_global(opname, *arrays, **attrs)
    same(ours, evaluate(program, *arrays))


Case = tuple[str, Sequence[Array | np.generic], dict[str, Attr]]
"""An op, its operands and its attributes."""


def check_ops(cases: Sequence[Case]) -> None:
    """Each on operands of its own, all in one module, which is compiled once."""
    b = RegionBuilder()
    results: list[Value] = []
    arrays: list[Array | np.generic] = []
    for opname, operands, attrs in cases:
        params = [
            b.param(f"p{len(arrays) + i}", TensorType(a.shape, dtype_of(a.dtype))) for i, a in enumerate(operands)
        ]
        arrays += operands
        results += b.append(opname, params, attrs)
    program = Program((), {"main": b.function("main", results)})
    for result, got, want in zip(
        results, lowering_jax.compile(program)(*arrays), evaluate(program, *arrays), strict=True
    ):
        same([got], [want], what=str(result.type))


def test_every_op_has_an_emitter() -> None:
    """But a manual region, which is written in place, and is refused unpartitioned, and a plan's reshard."""
    missing = sorted(OPS.keys() - module.EMITTERS.keys() - {"manual", "reshard"})
    assert not missing, f"lowering/jax has no emitter for {', '.join(missing)}"


def test_an_op_for_which_nothing_is_registered_says_which_decorator_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse("def main(x: f32[4]) -> (y: f32[4]) { return tanh(x) }")
    monkeypatch.delitem(module.EMITTERS, "tanh")
    monkeypatch.delitem(KERNELS, "tanh")
    for use, missing, folder in (
        (lambda: lowering_jax.hlo_text(program), "@emits('tanh')", "lowering/jax/ops"),
        (lambda: evaluate(program, np.zeros(4, "f4")), "@kernel('tanh')", "lowering/reference/ops"),
    ):
        with pytest.raises(SpmdcError) as caught:
            use()
        (found,) = caught.value.diagnostics
        assert (found.code, found.message.split()[-1]) == ("E522", missing)
        assert folder in found.help


def test_a_program_with_manual_regions_runs_partitioned_only() -> None:
    program = parse("mesh (d=2)\ndef main(x: f32[4]) -> (s: f32[]) { return manual(x = x) { return sum(x) } }")
    with pytest.raises(SpmdcError) as caught:
        module.write_module(program)
    assert [d.code for d in caught.value.diagnostics] == ["E412"]


def accepts(opname: str, dtype: DType, operands: int, attrs: dict[str, Attr]) -> bool:
    try:
        infer_types(opname, [TensorType((1,) * 3, dtype)] * operands, attrs)
    except SpmdcError:
        return False
    return True


POINTWISE = [
    (name, op.operands or 0)
    for name, op in OPS.items()
    if op.family == "elementwise" and not op.attrs and name not in ("select", "clamp")
]


@pytest.mark.parametrize(("opname", "operands"), POINTWISE)
def test_elementwise_ops_equal_the_reference(opname: str, operands: int) -> None:
    dtypes = [t for t in LONG if accepts(opname, t, operands, {}) and not t.is_complex]
    assert dtypes
    b = RegionBuilder()
    arrays: list[Array] = []
    results: list[Value] = []
    for i, dtype in enumerate(dtypes):
        params = [b.param(f"{dtype}_{k}", TensorType((40,), dtype)) for k in range(operands)]
        arrays += [numbers((40,), dtype, seed=7 * i + k) for k in range(operands)]
        results.append(b.op(opname, *params))
    program = Program((), {"main": b.function("main", results)})
    for dtype, got, want in zip(
        dtypes, lowering_jax.compile(program)(*arrays), evaluate(program, *arrays), strict=True
    ):
        same([got], [want], rtol={16: 2e-2, 32: 1e-5, 64: 1e-5}[dtype.bits] if dtype.is_float else 0)


@pytest.mark.parametrize("direction", ["EQ", "NE", "LT", "LE", "GT", "GE"])
def test_compare_equals_the_reference_with_nan(direction: str) -> None:
    x = np.array([1, 2, np.nan, -0.0, np.inf], np.float32)
    check_op("compare", x, np.array([2, 2, np.nan, 0.0, -np.inf], np.float32), direction=direction)
    check_op("compare", numbers((9,), s8), numbers((9,), s8, seed=1), direction=direction)
    check_op("compare", numbers((9,), pred), numbers((9,), pred, seed=1), direction=direction)


def test_select_and_clamp_take_scalars() -> None:
    x, y = numbers((3, 4)), numbers((3, 4), seed=1)
    check_op("select", np.array(True), x, y)
    check_op("select", x > 0, x, y)
    check_op("clamp", np.float32(-1), x, np.float32(2))
    check_op("clamp", y, x, y + 1)


@pytest.mark.parametrize("target", LONG, ids=str)
def test_convert_equals_the_reference(target: DType) -> None:
    check_ops([("convert", [numbers((20,), source)], {"dtype": target}) for source in LONG])


def test_integer_power_wraps_around_and_takes_negative_exponents() -> None:
    base = np.array([3, -1, -1, 1, 2, 0, 7], np.int32)
    check_op("power", base, np.array([40, -3, -2, -5, -1, 0, 31], np.int32))
    check_op("power", np.array([3, 255], np.uint8), np.array([200, 3], np.uint8))


def test_constants_are_exact() -> None:
    b = RegionBuilder()
    large = tuple(tuple(float(i * 20 + j) / 3 for j in range(20)) for i in range(20))
    cases: list[tuple[Attr, TensorType]] = [
        (0.1, TensorType((), f32)),
        (-float("inf"), TensorType((2,), bf16)),
        (float("nan"), TensorType((), f16)),
        (255, TensorType((), u8)),
        (2**63 + 1, TensorType((2, 2), u64)),
        (0.1, TensorType((), f64)),
        (((1, 2), (3, 4)), TensorType((2, 2), s32)),
        ((True, False), TensorType((2,), pred)),
        (large, TensorType((20, 20), f32)),
        (large, TensorType((20, 20), bf16)),
        (((), ()), TensorType((2, 0), f32)),
    ]
    results = [b.op("constant", value=value, type=t) for value, t in cases]
    program = Program((), {"main": b.function("main", results)})
    same(lowering_jax.compile(program)(), evaluate(program))


def test_iota_counts_along_its_dim() -> None:
    check_op("iota", type=TensorType((3, 4), s32), dim=1)
    check_op("iota", type=TensorType((5,), bf16), dim=0)


@pytest.mark.parametrize("dtype", [DTYPES[n] for n in ("u8", "u16", "u32", "u64")], ids=str)
def test_random_bits_of_a_box_equal_the_box_of_the_whole_draw(dtype: DType) -> None:
    key = np.array([17, 4], np.uint32)
    _, (whole,) = run_global("random_bits", key, type=TensorType((6, 10), dtype))
    starts = (np.int32(2), np.int32(3))
    b = RegionBuilder()
    params = [b.param("k", TensorType((2,), u32)), *(b.param("s", TensorType((), s32)) for _ in starts)]
    box = b.op("random_bits", *params, type=TensorType((3, 4), dtype), whole=(6, 10))
    program = Program((), {"main": b.function("main", [box])})
    (ours,) = lowering_jax.compile(program)(key, *starts)
    same([ours], [np.asarray(whole)[2:5, 3:7]])
    same([whole], evaluate(Program((), {"main": _draw(dtype)}), key))


def _draw(dtype: DType) -> Function:
    b = RegionBuilder()
    k = b.param("k", TensorType((2,), u32))
    return b.function("main", [b.op("random_bits", k, type=TensorType((6, 10), dtype))])


def test_random_positions_beyond_32_bits() -> None:
    whole = (2**20, 2**9, 2**12)
    starts = np.array([2**19 + 5, 300, 4000], np.int32)
    b = RegionBuilder()
    params = [b.param("k", TensorType((2,), u32)), *(b.param("s", TensorType((), s32)) for _ in starts)]
    box = b.op("random_bits", *params, type=TensorType((2, 3, 4), u32), whole=whole)
    program = Program((), {"main": b.function("main", [box])})
    arguments = (np.array([1, 2], np.uint32), *starts)
    same(lowering_jax.compile(program)(*arguments), evaluate(program, *arguments))


@pytest.mark.parametrize(
    ("source", "target"),
    [(f32, None), (bf16, None), (f16, None), (bf16, f32), (s8, s32), (s32, s8), (f32, bf16), (s32, f32), (f64, None)],
)
def test_dot_general_equals_the_reference(source: DType, target: DType | None) -> None:
    attrs: dict[str, Attr] = {"lhs_batch": (0,), "rhs_batch": (1,), "lhs_contract": (2,), "rhs_contract": (0,)}
    lhs, rhs = numbers((2, 3, 40), source), numbers((40, 2, 5), source, seed=1)
    check_op("dot_general", lhs, rhs, **attrs, dtype=target)


@pytest.mark.parametrize("kind", REDUCTION_KINDS)
def test_reduce_equals_the_reference(kind: str) -> None:
    attrs: dict[str, Attr] = {"kind": kind, "dims": (0, 2)}
    check_ops([("reduce", [numbers((3, 4, 5), t)], attrs) for t in LONG if accepts("reduce", t, 1, attrs)])


@pytest.mark.parametrize("kind", ["argmax", "argmin"])
def test_argmax_lets_nan_and_then_the_lower_index_win(kind: str) -> None:
    x = np.array([[1, 3, 3, 0], [np.nan, 5, np.nan, 1], [-np.inf] * 4, [np.inf, np.inf, -0.0, 0]], np.float32)
    indices = np.broadcast_to(np.array([7, 3, 2, 9], np.int32), x.shape).copy()
    check_op("reduce", x, indices, kind=kind, dims=(1,))
    check_op("reduce", numbers((3, 8), s8), np.tile(np.arange(8, dtype=np.int32), (3, 1)), kind=kind, dims=(1,))
    check_op("reduce", numbers((3, 8), pred), np.tile(np.arange(8, dtype=np.int32), (3, 1)), kind=kind, dims=(1,))


@pytest.mark.parametrize("reverse", [False, True])
def test_cumsum_equals_the_reference(reverse: bool) -> None:
    attrs: dict[str, Attr] = {"dim": 1, "reverse": reverse}
    check_ops([("cumsum", [numbers((3, 9), dtype)], attrs) for dtype in (f32, bf16, s8, u32, f64)])


def test_layout_ops_equal_the_reference() -> None:
    x = numbers((3, 1, 4))
    check_op("broadcast_in_dim", x, shape=(2, 3, 5, 4), dims=(1, 2, 3))
    check_op("reshape", x, shape=(2, 6))
    check_op("transpose", x, perm=(2, 0, 1))
    check_op("slice", x, start=(1, 0, 0), limit=(3, 1, 4), stride=(1, 1, 3))
    check_op("slice", x, start=(1, 0, 0), limit=(3, 1, 2))
    check_op("pad", x, np.float32(7), low=(1, 0, -1), high=(0, 2, -1), interior=(1, 0, 0))
    check_op("pad", x, np.float32(7), low=(1, 0, 0), high=(0, 0, 0))
    check_op("concatenate", x, x + 1, x[:1], dim=0)
    check_op("shard", x)
    check_op("optimization_barrier", x)
    check_op("optimization_barrier", x, x + 1)


@pytest.mark.parametrize("start", [-9, -1, 0, 2, 4, 99])
def test_dynamic_slice_clamps_and_never_counts_from_the_end(start: int) -> None:
    check_op("dynamic_slice", numbers((5, 6)), np.int32(start), np.int32(-start), sizes=(2, 3))
