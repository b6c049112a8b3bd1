"""Kernels of fft, cholesky and triangular_solve, over all matrices of all devices at once.

The factorisations proceed by column, for all matrices at once; matrices that are not positive definite, such as
padding, return NaN and do not affect the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ir.ops.rule_helpers import ints_attr
from ir.program import Op
from ir.types import Array
from lowering.reference.arrays import widen
from lowering.reference.interpreter import Interpreter, kernel

_TRANSFORMS: dict[str, Callable[..., Array]] = {
    "FFT": np.fft.fftn,
    "IFFT": np.fft.ifftn,
    "RFFT": np.fft.rfftn,
    "IRFFT": np.fft.irfftn,
}


@kernel("fft")
def _fft(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    (x,) = arrays
    length = ints_attr(op.attrs, "length")
    axes = tuple(range(-len(length), 0))
    if not op.result.type.size or not x.size:
        return (np.zeros((*x.shape[: machine.lead], *op.result.shape), op.result.dtype.numpy),)
    return (_TRANSFORMS[str(op.attrs["kind"])](x, length, axes).astype(op.result.dtype.numpy, copy=False),)


@kernel("cholesky")
def _cholesky(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    a = widen(arrays[0])
    factor = _lower_factor(a if op.attrs["lower"] else _adjoint(a))
    return ((factor if op.attrs["lower"] else _adjoint(factor)).astype(op.result.dtype.numpy, copy=False),)


def _adjoint(a: Array) -> Array:
    return np.conj(np.swapaxes(a, -1, -2))


def _lower_factor(a: Array) -> Array:
    factor = np.zeros(a.shape, a.dtype)
    for j in range(a.shape[-1]):
        row = factor[..., j, :j]
        squares = np.sum(row.real**2 + row.imag**2, -1) if row.dtype.kind == "c" else np.sum(row**2, -1)
        diagonal = np.sqrt(a[..., j, j].real - squares)
        factor[..., j, j] = diagonal
        below = a[..., j + 1 :, j] - np.squeeze(factor[..., j + 1 :, :j] @ np.conj(row)[..., np.newaxis], -1)
        factor[..., j + 1 :, j] = below / diagonal[..., np.newaxis]
    failed = ~np.isfinite(np.diagonal(factor, axis1=-2, axis2=-1)).all(-1)
    nothing = np.tril(np.full(a.shape[-2:], np.nan, a.dtype))
    return np.where(failed[..., np.newaxis, np.newaxis], nothing, factor)


@kernel("triangular_solve")
def _triangular_solve(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    a, b = map(widen, arrays)
    lower, transpose = bool(op.attrs["lower"]), op.attrs["transpose"]
    a = np.tril(a) if lower else np.triu(a)
    if op.attrs["unit_diagonal"]:
        eye = np.eye(a.shape[-1], dtype=np.bool_)
        a = np.where(eye, np.ones((), a.dtype), a)
    a = a if transpose == "NO" else np.swapaxes(a, -1, -2) if transpose == "T" else _adjoint(a)
    lower = lower == (transpose == "NO")
    if op.attrs["left_side"]:
        solved = _solve(a, b, lower=lower)
    else:
        solved = np.swapaxes(_solve(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2), lower=not lower), -1, -2)
    return (solved.astype(op.result.dtype.numpy, copy=False),)


def _solve(a: Array, b: Array, *, lower: bool) -> Array:
    """x of a x = b by substitution."""
    n = a.shape[-1]
    x = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]), b.dtype)
    for i in range(n) if lower else reversed(range(n)):
        known = slice(0, i) if lower else slice(i + 1, n)
        rest = b[..., i, :] - np.squeeze(a[..., i : i + 1, known] @ x[..., known, :], -2)
        x[..., i, :] = rest / a[..., i, i][..., np.newaxis]
    return x
