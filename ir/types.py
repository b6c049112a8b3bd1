"""Element types and tensor types."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Literal

import ml_dtypes
import numpy as np

Kind = Literal["pred", "signed", "unsigned", "float", "complex"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type, under the name HLO gives it."""

    name: str
    kind: Kind
    bits: int
    numpy: np.dtype[np.generic]

    @property
    def nbytes(self) -> int:
        """Bytes of one element in memory."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_complex(self) -> bool:
        return self.kind == "complex"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("signed", "unsigned")

    @property
    def is_ordered(self) -> bool:
        """Whether of any two elements one is the larger: not so of complex numbers."""
        return self.kind != "complex"

    @property
    def component(self) -> DType:
        """The element type of the real and of the imaginary part; of any other type, itself."""
        return {"c64": f32, "c128": f64}.get(self.name, self)

    @property
    def lowest(self) -> float | int | bool:
        """The identity of `max`: the value that no other is below."""
        if self.kind == "pred":
            return False
        if self.kind == "float":
            return -math.inf
        assert self.is_ordered, self.name
        return _integer_limits(self)[0]

    @property
    def highest(self) -> float | int | bool:
        """The identity of `min`: the value that no other is above."""
        if self.kind == "pred":
            return True
        if self.kind == "float":
            return math.inf
        assert self.is_ordered, self.name
        return _integer_limits(self)[1]

    def __str__(self) -> str:
        return self.name


def _integer_limits(dtype: DType) -> tuple[int, int]:
    if dtype.kind == "unsigned":
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


pred = DType("pred", "pred", 1, np.dtype(np.bool_))
s8 = DType("s8", "signed", 8, np.dtype(np.int8))
s16 = DType("s16", "signed", 16, np.dtype(np.int16))
s32 = DType("s32", "signed", 32, np.dtype(np.int32))
s64 = DType("s64", "signed", 64, np.dtype(np.int64))
u8 = DType("u8", "unsigned", 8, np.dtype(np.uint8))
u16 = DType("u16", "unsigned", 16, np.dtype(np.uint16))
u32 = DType("u32", "unsigned", 32, np.dtype(np.uint32))
u64 = DType("u64", "unsigned", 64, np.dtype(np.uint64))
bf16 = DType("bf16", "float", 16, np.dtype(ml_dtypes.bfloat16))
f16 = DType("f16", "float", 16, np.dtype(np.float16))
f32 = DType("f32", "float", 32, np.dtype(np.float32))
f64 = DType("f64", "float", 64, np.dtype(np.float64))
c64 = DType("c64", "complex", 64, np.dtype(np.complex64))
c128 = DType("c128", "complex", 128, np.dtype(np.complex128))

DTYPES: dict[str, DType] = {
    t.name: t for t in (pred, s8, s16, s32, s64, u8, u16, u32, u64, bf16, f16, f32, f64, c64, c128)
}


@functools.cache
def _by_numpy() -> dict[np.dtype[np.generic], DType]:
    return {t.numpy: t for t in DTYPES.values()}


def dtype_of(dtype: np.dtype[np.generic]) -> DType:
    """The element type that a numpy dtype stands for. Raises KeyError if there is none."""
    return _by_numpy()[dtype]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor: a static shape and an element type."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return math.prod(self.shape) * self.dtype.nbytes

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(shape, self.dtype)

    def with_dtype(self, dtype: DType) -> TensorType:
        return TensorType(self.shape, dtype)

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"
