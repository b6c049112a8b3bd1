"""Matrix factorisations, triangular systems, Fourier transforms: StableHLO's ops, and LAPACK calls that JAX makes on a
CPU."""

from __future__ import annotations

from jaxlib.mlir import ir as mlir

from ir.program import Value
from ir.types import s32
from spmdc.frontends.stablehlo.attributes import flag, int_of, ints, typed_options, word_of
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts

_TRANSPOSITIONS = {"NO_TRANSPOSE": "NO", "TRANSPOSE": "T", "ADJOINT": "C", "TRANSPOSE_INVALID": "NO"}
_LETTERS = {"N": "NO", "T": "T", "C": "C"}


@converts("cholesky")
def _cholesky(op: mlir.Operation, scope: Scope) -> Value:
    return scope.emit("cholesky", *scope.operands(op), lower=flag(op, "lower"))


@converts("triangular_solve")
def _triangular_solve(op: mlir.Operation, scope: Scope) -> Value:
    return scope.emit(
        "triangular_solve",
        *scope.operands(op),
        left_side=flag(op, "left_side", True),
        lower=flag(op, "lower"),
        unit_diagonal=flag(op, "unit_diagonal"),
        transpose=_TRANSPOSITIONS[word_of(op.attributes["transpose_a"])],
    )


@converts("fft")
def _fft(op: mlir.Operation, scope: Scope) -> Value:
    kind, length = word_of(op.attributes["fft_type"]), ints(op.attributes["fft_length"])
    return scope.emit("fft", *scope.operands(op), kind=kind, length=length)


def _letter(op: mlir.Operation, scope: Scope, name: str, letters: str) -> str:
    """An option of a LAPACK routine, which is one of these letters. Raises SpmdcError (E702)."""
    given = typed_options(op)
    letter = chr(int_of(given[name])) if name in given else ""
    if letter not in tuple(letters):
        raise scope.refuse(op, f"its {name} is not one of {letters}", help="lower the function with JAX")
    return letter


def potrf(op: mlir.Operation, scope: Scope) -> list[Bound]:
    """The Cholesky factor, and 0, or another number if there is none: then its first element is NaN."""
    (operand,) = scope.operands(op)
    factor = scope.emit("cholesky", operand, lower=_letter(op, scope, "uplo", "LU") == "L")
    *batch, n, _ = operand.shape
    corner = scope.emit("slice", factor, start=(0,) * operand.type.rank, limit=(*batch, min(n, 1), min(n, 1)))
    first = scope.emit("real", corner) if factor.dtype.is_complex else corner
    is_nan = scope.emit("compare", first, first, direction="NE")
    failed = scope.emit("reduce", is_nan, dims=(len(batch), len(batch) + 1), kind="or")
    return [factor, scope.emit("convert", failed, dtype=s32)]


def trsm(op: mlir.Operation, scope: Scope) -> Value:
    """A triangular system."""
    a, b = scope.operands(op)
    return scope.emit(
        "triangular_solve",
        a,
        b,
        left_side=_letter(op, scope, "side", "LR") == "L",
        lower=_letter(op, scope, "uplo", "LU") == "L",
        unit_diagonal=_letter(op, scope, "diag", "NU") == "U",
        transpose=_LETTERS[_letter(op, scope, "trans_x", "NTC")],
    )
