"""Kernels of constant, iota and random_bits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ir.ops.rules import int_attr, ints_attr
from ir.program import Attr, Op
from ir.types import DType
from lowering.reference.registry import Array, Machine, kernel


def literal(value: Attr, dtype: DType) -> Array:
    """A number or nested tuples of numbers as an array. Integers wrap."""
    if dtype.is_float:
        return np.array(value, np.float64).astype(dtype.numpy)
    if dtype.is_complex:
        return np.array(value, np.complex128).astype(dtype.numpy)
    if dtype.kind == "pred":
        return np.array(value, np.bool_)
    exact = np.array(value, object)
    wrapped = np.array([int(v) % 2**dtype.bits for v in exact.reshape(-1)], np.uint64)
    return wrapped.astype(f"u{dtype.nbytes}").view(dtype.numpy).reshape(exact.shape)


def _alike(x: Array, shape: tuple[int, ...], lead: int) -> Array:
    """The same tensor on every device. A view."""
    return np.broadcast_to(x, (1,) * lead + shape)


@kernel("constant")
def _constant(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    return (_alike(literal(op.attrs["value"], op.result.dtype), op.result.shape, machine.lead),)


@kernel("iota")
def _iota(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    dim, shape = int_attr(op.attrs, "dim"), op.result.shape
    along = np.arange(shape[dim]).astype(op.result.dtype.numpy)
    return (_alike(along.reshape(-1, *(1,) * (len(shape) - dim - 1)), shape, machine.lead),)


@kernel("random_bits")
def _random_bits(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    key, *starts = arrays
    shape, lead = op.result.shape, machine.lead
    whole = ints_attr(op.attrs, "whole") or shape
    position = np.zeros((1,) * (lead + len(shape)), np.uint64)
    for d, n in enumerate(shape):
        stride = np.uint64(math.prod(whole[d + 1 :]) % 2**64)
        index = np.arange(n, dtype=np.uint64).reshape(n, *(1,) * (len(shape) - d - 1))
        if starts:
            index = index + starts[d].astype(np.uint64).reshape((*starts[d].shape, *(1,) * len(shape)))
        position = position + index * stride
    keys = [key[..., i].reshape((*key.shape[:lead], *(1,) * len(shape))) for i in range(2)]
    high, low = _threefry(keys, (position >> np.uint64(32)).astype(np.uint32), position.astype(np.uint32))
    if op.result.dtype.bits == 64:
        return ((high.astype(np.uint64) << np.uint64(32)) | low,)
    return ((high ^ low).astype(op.result.dtype.numpy),)


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _threefry(key: Sequence[Array], high: Array, low: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds, as in Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x, y = high + schedule[0], low + schedule[1]
    for block in range(5):
        for rotation in _ROTATIONS[block % 2]:
            x = x + y
            y = x ^ ((y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation)))
        x = x + schedule[(block + 1) % 3]
        y = y + schedule[(block + 2) % 3] + np.uint32(block + 1)
    return x, y
