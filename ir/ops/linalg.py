"""fft, cholesky and triangular_solve: each works along its last dims, which stay whole; batch dims are parallel."""

from __future__ import annotations

import math

from ir.ops.declaration import AttrDef, Attrs, Factor, FactorKind, FactorRule, Linearity, TypeRuleError, Types, declare
from ir.ops.rule_helpers import a_factor_a_dim, check_same_dtype, ints_attr
from ir.program import Op
from ir.types import TensorType, c64, c128, f32

FFT_KINDS = ("FFT", "IFFT", "RFFT", "IRFFT")
_MOST_FFT_DIMS = 3
TRANSPOSITIONS = ("NO", "T", "C")


def _infer_fft(types: Types, attrs: Attrs) -> Types:
    (operand,) = types
    kind, length = str(attrs["kind"]), ints_attr(attrs, "length")
    count = len(length)
    if not 1 <= count <= min(_MOST_FFT_DIMS, operand.rank):
        raise TypeRuleError(f"length={list(length)} must name 1 to {_MOST_FFT_DIMS} of the last dims of {operand}")
    if kind == "RFFT" and (not operand.dtype.is_float or operand.dtype.bits < f32.bits):
        raise TypeRuleError(f"RFFT takes f32 or f64, and not {operand.dtype}", "convert(x, dtype=f32)")
    if kind != "RFFT" and not operand.dtype.is_complex:
        raise TypeRuleError(f"{kind} takes complex numbers, and not {operand.dtype}", "complex(x, 0 * x), or kind=RFFT")
    wanted = (*length[:-1], length[-1] // 2 + 1) if kind == "IRFFT" else length
    if operand.shape[-count:] != wanted:
        raise TypeRuleError(f"{kind} of length {list(length)} takes last dims of {list(wanted)}, and has {operand}")
    last = length[-1] // 2 + 1 if kind == "RFFT" else length[-1]
    dtype = operand.dtype
    if kind == "RFFT":
        dtype = c64 if operand.dtype == f32 else c128
    return (TensorType((*operand.shape[:-1], last), dtype.component if kind == "IRFFT" else dtype),)


def _fft_factors(op: Op) -> FactorRule:
    """The transformed dims stay whole. The last one has another size in the result of a real transform, so axes that
    split it go to the largest batch dim and stay there."""
    operand, result = op.operands[0].shape, op.result.shape
    first = len(operand) - len(ints_attr(op.attrs, "length"))
    rule = a_factor_a_dim(op, operand, dict.fromkeys(range(first, len(operand)), FactorKind.NEED_REPLICATION))
    if operand == result:
        return rule
    (left,), batch = rule.operands, max(range(first), key=lambda d: operand[d], default=None)
    ends = [Factor(n, FactorKind.NEED_REPLICATION, moves_to=batch) for n in (operand[-1], result[-1])]
    return FactorRule((*rule.factors[:-1], *ends), (left,), ((*left[:-1], (len(operand),)),))


def _fft_flops(op: Op) -> int:
    length = math.prod(ints_attr(op.attrs, "length"))
    return 5 * op.operands[0].type.size * max(1, length).bit_length()


declare(
    "fft",
    "linalg",
    1,
    _infer_fft,
    _fft_factors,
    (AttrDef("kind", "word", choices=FFT_KINDS), AttrDef("length", "ints")),
    linear=(Linearity(("sum",), (0,)),),
    flops=_fft_flops,
    doc="Discrete Fourier transforms along the last dims, as many as lengths; RFFT and IRFFT are of real signals.",
)


def _check_matrix(a: TensorType, name: str) -> None:
    if a.rank < 2 or a.shape[-1] != a.shape[-2]:
        raise TypeRuleError(f"{name} must be square matrices, and is {a}")
    if not a.dtype.is_float and not a.dtype.is_complex:
        raise TypeRuleError(f"the elements must be floats or complex numbers, and are {a.dtype}")


def _infer_cholesky(types: Types, attrs: Attrs) -> Types:
    _check_matrix(types[0], "the operand")
    return types


def _cholesky_factors(op: Op) -> FactorRule:
    rank = op.result.type.rank
    return a_factor_a_dim(op, op.result.shape, dict.fromkeys((rank - 2, rank - 1), FactorKind.NEED_REPLICATION))


declare(
    "cholesky",
    "linalg",
    1,
    _infer_cholesky,
    _cholesky_factors,
    (AttrDef("lower", "bool", default=True, required=False),),
    flops=lambda op: op.result.type.size * op.result.shape[-1] // 3,
    doc=(
        "The Cholesky factor of positive definite Hermitian matrices, of which one triangle is read; the other "
        "triangle of the result is 0. Of a matrix that has no such factor, the triangle is NaN."
    ),
)


def _infer_triangular_solve(types: Types, attrs: Attrs) -> Types:
    a, b = types
    _check_matrix(a, "the first operand")
    check_same_dtype(a, b)
    if a.rank != b.rank or a.shape[:-2] != b.shape[:-2]:
        raise TypeRuleError(f"the operands must have the same batch dims, and are {a} and {b}")
    side = -2 if attrs["left_side"] else -1
    if b.shape[side] != a.shape[-1]:
        raise TypeRuleError(f"dim {b.rank + side} of {b} must be of size {a.shape[-1]}, as the matrices of {a}")
    return (b,)


def _triangular_solve_factors(op: Op) -> FactorRule:
    """The dim of right sides that are solved at once is parallel; both dims of the matrices are whole."""
    a, b = (v.shape for v in op.operands)
    batch = len(b) - 2
    solved = batch if op.attrs["left_side"] else batch + 1
    kinds = [FactorKind.NEED_REPLICATION if d == solved else FactorKind.PARALLEL for d in range(len(b))]
    factors = [Factor(n, kind) for n, kind in zip(b, kinds, strict=True)]
    dims = tuple((d,) for d in range(len(b)))
    matrix = ((len(factors),), (len(factors) + 1,))
    factors += [Factor(a[-1], FactorKind.NEED_REPLICATION)] * 2
    return FactorRule(tuple(factors), ((*dims[:batch], *matrix), dims), (dims,))


declare(
    "triangular_solve",
    "linalg",
    2,
    _infer_triangular_solve,
    _triangular_solve_factors,
    (
        AttrDef("left_side", "bool", default=True, required=False),
        AttrDef("lower", "bool", default=True, required=False),
        AttrDef("unit_diagonal", "bool", default=False, required=False),
        AttrDef("transpose", "word", default="NO", required=False, choices=TRANSPOSITIONS),
    ),
    linear=(Linearity(("sum",), (1,)),),
    flops=lambda op: op.result.type.size * op.operands[0].shape[-1],
    doc=(
        "x of op(a) x = b, or of x op(a) = b; op(a) is a, its transpose (T), or the conjugate of that (C). "
        "Only one triangle of a is read, and with unit_diagonal its diagonal is taken for ones."
    ),
)
