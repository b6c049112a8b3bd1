"""Functions on numpy arrays for kernels and shards: reductions, the bits of elements, and short types in wider ones.

Sums and products of floats of 16 bits and fewer accumulate in f32 and are rounded once. XLA's CPU backend rounds after
every addition, so its sum of n bf16 numbers may be n/2 ulps away; ours is within half an ulp of the exact sum's f32
value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ir.ops.reduction import identity_of
from ir.sharding import ReductionKind
from ir.types import DTYPES, Array, DType, dtype_of

_COMPUTED = {t.numpy: t.computed.numpy for t in DTYPES.values() if t.computed != t}


def widen(x: Array) -> Array:
    """Elements of a short type in the type in which they are computed; anything else unchanged."""
    wide = _COMPUTED.get(x.dtype)
    return x if wide is None else x.astype(wide)


def bits_of(x: Array) -> Array:
    """The bits of each element, as an unsigned integer. If it has fewer bits than a byte, the others are 0."""
    bits = np.ascontiguousarray(x).view(np.dtype(f"u{x.dtype.itemsize}")).reshape(x.shape)
    width = 8 if x.dtype == np.bool_ else dtype_of(x.dtype).bits
    return bits & bits.dtype.type((1 << width) - 1) if width < 8 else bits


def combine(
    kind: ReductionKind, x: Array, dims: tuple[int, ...], *, keepdims: bool = False, from_identity: bool = True
) -> Array:
    """The reduction of `x` over dims. Without elements it is the kind's identity.

    Like that of HLO, it begins with the identity, so a sum of -0.0 is 0.0, unless not `from_identity`.
    """
    if not dims:
        return x
    wide = widen(x)
    initial = widen(identity(kind, dtype_of(x.dtype))) if from_identity else None
    result: Array = UFUNCS[kind].reduce(wide, dims, wide.dtype, keepdims=True, initial=initial)
    if kind in ("max", "min"):
        meet = partial(np.logical_or.reduce, axis=dims, keepdims=True)
        result = order_zeros(result, (wide,), meet, largest=kind == "max")
    result = result.astype(x.dtype, copy=False)
    return result if keepdims else result.squeeze(dims)


UFUNCS: dict[ReductionKind, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def identity(kind: ReductionKind, dtype: DType) -> Array:
    """The identity: it leaves every other element unchanged."""
    return np.array(identity_of(kind, dtype), dtype.numpy)


def order_zeros(result: Array, operands: Sequence[Array], meet: Callable[..., Array], *, largest: bool) -> Array:
    """Extremes in which 0.0 is above -0.0, in whatever order numpy compared them.

    `meet` returns for which elements of the result the decisive zero is among the elements that were compared, from
    where it is in each operand.
    """
    if result.dtype.kind != "f" or not (result == 0).any():
        return result
    met = meet(*((x == 0) & (np.signbit(x) != largest) for x in operands))
    sign = np.where(met == largest, np.ones((), result.dtype), -np.ones((), result.dtype))
    return np.where(result == 0, np.copysign(result, sign), result)
