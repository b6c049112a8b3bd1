"""The kernel of dot_general: one batched matrix product, with the device dims as more batch dims."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ir.ops.contraction import free_dims
from ir.ops.rule_helpers import ints_attr
from ir.program import Op
from ir.types import Array, DType
from lowering.reference.arrays import widen
from lowering.reference.interpreter import Interpreter, kernel
from lowering.reference.ops.elementwise import convert

_EXACT_IN_F64 = 2.0**53


@kernel("dot_general")
def _dot_general(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    lead = machine.lead
    lb, rb = ints_attr(op.attrs, "lhs_batch"), ints_attr(op.attrs, "rhs_batch")
    lc, rc = ints_attr(op.attrs, "lhs_contract"), ints_attr(op.attrs, "rhs_contract")
    lf = free_dims(op.operands[0].type.rank, lb, lc)
    rf = free_dims(op.operands[1].type.rank, rb, rc)
    lhs = _as_matrices(arrays[0], lead, lb, lf, lc)
    rhs = _as_matrices(arrays[1], lead, rb, rc, rf)
    product = _matmul(lhs, rhs, op.operands[0].dtype, op.result.dtype)
    return (product.reshape((*product.shape[:lead], *op.result.shape)),)


def _as_matrices(x: Array, lead: int, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> Array:
    x = x.transpose(*range(lead), *(lead + d for d in (*batch, *rows, *columns)))
    split = lead + len(batch)
    height = math.prod(x.shape[split : split + len(rows)])
    width = math.prod(x.shape[split + len(rows) :])
    return x.reshape((*x.shape[:split], height, width))


def _matmul(lhs: Array, rhs: Array, source: DType, target: DType) -> Array:
    """Products of integers wrap exactly; those of floats of 16 bits and fewer are summed in f32 and rounded once."""
    work = summing_dtype(source, target)
    return convert(matmul(summand(lhs, work), summand(rhs, work)), target)


def summand(x: Array, work: np.dtype[np.generic]) -> Array:
    """`x` in the type in which its products are summed. Integers wrap."""
    return widen(x).astype(work, copy=False)


def summing_dtype(source: DType, target: DType) -> np.dtype[np.generic]:
    """The numpy type in which products of elements of `source` are summed, for a result of type `target`."""
    if source.is_complex:
        return np.result_type(source.numpy, target.numpy)
    if source.is_integer and target.is_integer:
        return target.computed.numpy
    wide = 64 in (source.bits, target.bits) or source.is_integer
    return np.dtype(np.float64 if wide else np.float32)


def matmul(lhs: Array, rhs: Array) -> Array:
    """The product of the last two dims, earlier ones broadcast. Integers wrap."""
    return _float_matmul(lhs, rhs) if lhs.dtype.kind in "fc" else _integer_matmul(lhs, rhs)


def _float_matmul(lhs: Array, rhs: Array) -> Array:
    if lhs.shape[-1] == 1:
        outer: Array = lhs * rhs
        return outer
    product: Array = np.matmul(_for_blas(lhs), _for_blas(rhs))
    return product


def _for_blas(x: Array) -> Array:
    """numpy passes matrices to BLAS only if one of their two dims is contiguous and neither is broadcast."""
    rows, columns = x.strides[-2:]
    blas = min(rows, columns) == x.itemsize and max(rows, columns) > 0
    return x if blas and 0 not in (rows, columns) else x.copy(order="C")


def _integer_matmul(lhs: Array, rhs: Array) -> Array:
    """Computed by BLAS in f64 if every sum is exact in f64, else by numpy's loops, which wrap."""
    if not lhs.size or not rhs.size:
        product: Array = np.matmul(lhs, rhs)
        return product
    largest = float(np.abs(lhs.astype(np.float64)).max()) * float(np.abs(rhs.astype(np.float64)).max())
    if largest * lhs.shape[-1] < _EXACT_IN_F64:
        exact = _float_matmul(lhs.astype(np.float64), rhs.astype(np.float64))
        return exact.astype(np.int64).astype(lhs.dtype)
    wrapped: Array = np.matmul(lhs, rhs)
    return wrapped
