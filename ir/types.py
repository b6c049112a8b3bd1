"""Element types and tensor types."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ir.records import record

Array = npt.NDArray[Any]

MAX_ELEMENTS = 1 << 48
MAX_DIM = (1 << 31) - (1 << 20)
"""The most elements that a dim may have: devices count positions in s32, and shards have padding."""
MAX_RANK = 32
"""The most dims that a tensor may have. numpy's arrays have 64, some of which the simulator needs for the mesh, and for
the parts into which a reshape or a window cuts dims."""

Kind = Literal["pred", "signed", "unsigned", "float", "complex"]


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """The numbers of a floating-point type. Each format of 8 bits or fewer lacks something: infinities (`fn`), a
    negative zero as well (`uz`), a sign and zero (`u`), or both NaN and infinities."""

    exponent_bits: int
    mantissa_bits: int
    lowest: float
    highest: float
    smallest: float
    """The smallest positive normal number."""
    has_infinity: bool
    has_nan: bool
    has_zero: bool
    has_negative_zero: bool

    @property
    def exact_integers(self) -> int:
        """The integer up to which every integer is a number of the format, apart from 0 and negative ones that it may
        lack."""
        return int(min(2.0 ** (self.mantissa_bits + 1), self.highest))

    def contains(self, other: FloatFormat) -> bool:
        """Whether the format has every number of the other format."""
        return (
            self.mantissa_bits >= other.mantissa_bits
            and self.lowest <= other.lowest
            and self.highest >= other.highest
            and self.smallest * 2.0**-self.mantissa_bits <= other.smallest * 2.0**-other.mantissa_bits
            and self.has_infinity >= other.has_infinity
            and self.has_nan >= other.has_nan
            and self.has_zero >= other.has_zero
            and self.has_negative_zero >= other.has_negative_zero
        )

    def holds(self, number: float) -> bool:
        """Whether the format has the rounded number: not if it is a NaN or infinity, a zero or a sign that it lacks."""
        if math.isnan(number):
            return self.has_nan
        if math.isinf(number):
            return self.has_infinity
        if number == 0:
            return self.has_zero
        return number > 0 or self.lowest < 0


_finfo: Callable[[np.dtype[np.generic]], Any] = ml_dtypes.finfo


@functools.cache
def _format(dtype: np.dtype[np.generic]) -> FloatFormat:
    info = _finfo(dtype)
    with np.errstate(all="ignore"):
        infinity, nan, zero = (np.array([x]).astype(dtype).astype(np.float64)[0] for x in (np.inf, np.nan, -0.0))
    lowest = float(info.min)
    return FloatFormat(
        exponent_bits=int(info.bits - info.nmant - (lowest < 0)),
        mantissa_bits=int(info.nmant),
        lowest=lowest,
        highest=float(info.max),
        smallest=float(info.smallest_normal),
        has_infinity=bool(np.isinf(infinity)),
        has_nan=bool(np.isnan(nan)),
        has_zero=bool(zero == 0),
        has_negative_zero=bool(zero == 0 and np.signbit(zero)),
    )


@dataclass(frozen=True, slots=True)
class DType:
    """An element type, with its name in HLO."""

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype[np.generic]

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def nbytes(self) -> float:
        """Bytes of one element, in memory and in messages: one half for 4 bits, one for a boolean."""
        return max(self.bits, 8) / 8 if self.kind == "pred" else self.bits / 8

    @property
    def is_short(self) -> bool:
        """Whether it is a float of 8 bits or fewer, or an integer of less than a byte."""
        return self.bits < (16 if self.is_float else 8) and self.kind != "pred"

    @property
    def computed(self) -> DType:
        """The element type in which numbers of this one are computed: f32 for shorter floats, and 8 bits for shorter
        integers. It has every number of this one; results are converted back once."""
        if self.is_float and self.bits < 32:
            return f32
        if self.is_integer and self.bits < 8:
            return s8 if self.kind == "signed" else u8
        return self

    @property
    def format(self) -> FloatFormat:
        """The numbers that a floating-point type has."""
        return _format(self.numpy)

    @property
    def has_zero(self) -> bool:
        """Whether the type has 0: not if it has powers of two only."""
        return not self.is_float or self.format.has_zero

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_continuous(self) -> bool:
        """Whether elements are floats, or complex numbers: they are rounded, and have derivatives."""
        return self.kind in ("float", "complex")

    @property
    def is_integer(self) -> bool:
        return self.kind in ("signed", "unsigned")

    @property
    def is_ordered(self) -> bool:
        """Whether any two elements are ordered: not for complex numbers."""
        return self.kind != "complex"

    @property
    def component(self) -> DType:
        """The element type of the real and of the imaginary part; for any other type, itself."""
        return {"c64": f32, "c128": f64}.get(self.name, self)

    @property
    def lowest(self) -> float | int | bool:
        """The identity of `max`: the value that no other is below."""
        if self.kind == "pred":
            return False
        if self.kind == "float":
            return -math.inf if self.format.has_infinity else self.format.lowest
        assert self.is_ordered, self.name
        return _integer_limits(self)[0]

    @property
    def highest(self) -> float | int | bool:
        """The identity of `min`: the value that no other is above."""
        if self.kind == "pred":
            return True
        if self.kind == "float":
            return math.inf if self.format.has_infinity else self.format.highest
        assert self.is_ordered, self.name
        return _integer_limits(self)[1]

    def __str__(self) -> str:
        return self.name


def _integer_limits(dtype: DType) -> tuple[int, int]:
    if dtype.kind == "unsigned":
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


pred = DType("pred", "pred", 1, np.dtype(np.bool_))
s2 = DType("s2", "signed", 2, np.dtype(ml_dtypes.int2))
s4 = DType("s4", "signed", 4, np.dtype(ml_dtypes.int4))
s8 = DType("s8", "signed", 8, np.dtype(np.int8))
s16 = DType("s16", "signed", 16, np.dtype(np.int16))
s32 = DType("s32", "signed", 32, np.dtype(np.int32))
s64 = DType("s64", "signed", 64, np.dtype(np.int64))
u2 = DType("u2", "unsigned", 2, np.dtype(ml_dtypes.uint2))
u4 = DType("u4", "unsigned", 4, np.dtype(ml_dtypes.uint4))
u8 = DType("u8", "unsigned", 8, np.dtype(np.uint8))
u16 = DType("u16", "unsigned", 16, np.dtype(np.uint16))
u32 = DType("u32", "unsigned", 32, np.dtype(np.uint32))
u64 = DType("u64", "unsigned", 64, np.dtype(np.uint64))
f4e2m1fn = DType("f4e2m1fn", "float", 4, np.dtype(ml_dtypes.float4_e2m1fn))
f8e3m4 = DType("f8e3m4", "float", 8, np.dtype(ml_dtypes.float8_e3m4))
f8e4m3 = DType("f8e4m3", "float", 8, np.dtype(ml_dtypes.float8_e4m3))
f8e4m3b11fnuz = DType("f8e4m3b11fnuz", "float", 8, np.dtype(ml_dtypes.float8_e4m3b11fnuz))
f8e4m3fn = DType("f8e4m3fn", "float", 8, np.dtype(ml_dtypes.float8_e4m3fn))
f8e4m3fnuz = DType("f8e4m3fnuz", "float", 8, np.dtype(ml_dtypes.float8_e4m3fnuz))
f8e5m2 = DType("f8e5m2", "float", 8, np.dtype(ml_dtypes.float8_e5m2))
f8e5m2fnuz = DType("f8e5m2fnuz", "float", 8, np.dtype(ml_dtypes.float8_e5m2fnuz))
f8e8m0fnu = DType("f8e8m0fnu", "float", 8, np.dtype(ml_dtypes.float8_e8m0fnu))
bf16 = DType("bf16", "float", 16, np.dtype(ml_dtypes.bfloat16))
f16 = DType("f16", "float", 16, np.dtype(np.float16))
f32 = DType("f32", "float", 32, np.dtype(np.float32))
f64 = DType("f64", "float", 64, np.dtype(np.float64))
c64 = DType("c64", "complex", 64, np.dtype(np.complex64))
c128 = DType("c128", "complex", 128, np.dtype(np.complex128))

DTYPES: dict[str, DType] = {
    t.name: t
    for t in (
        pred, s2, s4, s8, s16, s32, s64, u2, u4, u8, u16, u32, u64,
        f4e2m1fn, f8e3m4, f8e4m3, f8e4m3b11fnuz, f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f8e8m0fnu,
        bf16, f16, f32, f64, c64, c128,
    )
}  # fmt: skip


@functools.cache
def _by_numpy() -> dict[np.dtype[np.generic], DType]:
    return {t.numpy: t for t in DTYPES.values()}


def dtype_of(dtype: np.dtype[np.generic]) -> DType:
    """The element type of a numpy dtype. Raises KeyError if there is none."""
    return _by_numpy()[dtype]


def size_problem(type: TensorType) -> str:
    """Why a tensor of the type cannot be addressed, in words; empty if it can."""
    if type.size > MAX_ELEMENTS:
        return f"a tensor {type} is too large: it has more than 2**48 elements"
    if max(type.shape, default=0) > MAX_DIM:
        return f"a tensor {type} is too large: a dim has more than 2**31 - 2**20 elements"
    return f"a tensor of {type.rank} dims is too large: it may have {MAX_RANK}" if type.rank > MAX_RANK else ""


@record
class TensorType:
    """A dense tensor: a static shape and an element type."""

    shape: tuple[int, ...]
    dtype: DType
    _size: int = field(init=False, default=-1, repr=False, compare=False)
    _nbytes: int = field(init=False, default=-1, repr=False, compare=False)
    """The numbers of elements and of bytes, cached."""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        if self._size < 0:
            object.__setattr__(self, "_size", math.prod(self.shape))
        return self._size

    @property
    def nbytes(self) -> int:
        """The bytes of all elements without gaps: the last byte may be filled in part."""
        if self._nbytes < 0:
            object.__setattr__(self, "_nbytes", math.ceil(self.size * self.dtype.nbytes))
        return self._nbytes

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(shape, self.dtype)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(self.shape, dtype)

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"
