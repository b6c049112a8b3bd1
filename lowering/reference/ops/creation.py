"""Kernels of constant, undefined, iota, random_bits and rng_bit_generator."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ir.ops.creation import generator_split, generator_steps
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Attr, Op
from ir.types import Array, DType
from lowering.reference.interpreter import Interpreter, kernel


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
    return wrapped.astype(f"u{dtype.numpy.itemsize}").view(dtype.numpy).reshape(exact.shape)


def _alike(x: Array, shape: tuple[int, ...], lead: int) -> Array:
    """The same tensor on every device. A view."""
    return np.broadcast_to(x, (1,) * lead + shape)


@kernel("constant")
def _constant(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    return (_alike(literal(op.attrs["value"], op.result.dtype), op.result.shape, machine.lead),)


@kernel("undefined")
def _undefined(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    return (_alike(np.resize(machine.poison(op.result.dtype), op.result.shape), op.result.shape, machine.lead),)


@kernel("iota")
def _iota(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    dim, shape = int_attr(op.attrs, "dim"), op.result.shape
    along = np.arange(shape[dim]).astype(op.result.dtype.numpy)
    return (_alike(along.reshape(-1, *(1,) * (len(shape) - dim - 1)), shape, machine.lead),)


@kernel("random_bits")
def _random_bits(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    key, *starts = arrays
    shape, lead = op.result.shape, machine.lead
    whole = ints_attr(op.attrs, "whole") or shape
    position = _position(_indices(starts, shape), whole, lead)
    keys = [key[..., i].reshape((*key.shape[:lead], *(1,) * len(shape))) for i in range(2)]
    high, low = _threefry(keys, (position >> np.uint64(32)).astype(np.uint32), position.astype(np.uint32))
    if op.result.dtype.bits == 64:
        return ((high.astype(np.uint64) << np.uint64(32)) | low,)
    return ((high ^ low).astype(op.result.dtype.numpy),)


def _indices(starts: Sequence[Array], shape: tuple[int, ...]) -> list[Array]:
    """The index of each element along each dim, in the whole draw."""
    indices: list[Array] = []
    for d, n in enumerate(shape):
        index = np.arange(n, dtype=np.uint64).reshape(n, *(1,) * (len(shape) - d - 1))
        if starts:
            index = index + starts[d].astype(np.uint64).reshape((*starts[d].shape, *(1,) * len(shape)))
        indices.append(index)
    return indices


def _position(indices: Sequence[Array], whole: tuple[int, ...], lead: int) -> Array:
    """Row-major positions in a tensor of shape `whole`."""
    position: Array = np.zeros((1,) * (lead + len(whole)), np.uint64)
    for d, index in enumerate(indices):
        position = position + index * np.uint64(math.prod(whole[d + 1 :]) % 2**64)
    return position


@kernel("rng_bit_generator")
def _rng_bit_generator(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    state, *starts = arrays
    result, lead = op.results[1], machine.lead
    whole = ints_attr(op.attrs, "whole") or result.shape
    words = (state[..., i].reshape((*state.shape[:lead], *(1,) * len(whole))) for i in range(state.shape[-1]))
    key, *counter = words
    draw = _three_fry if op.attrs["algorithm"] == "THREE_FRY" else _philox_bits
    bits = draw(key, counter, _indices(starts, result.shape), whole, result.dtype, lead)
    advanced = _counted(counter, np.uint64(generator_steps(op.attrs)))
    state = np.stack([word.reshape(state.shape[:-1]) for word in (key, *advanced)], axis=-1)
    return state, np.broadcast_to(bits.astype(result.dtype.numpy), (*bits.shape[:lead], *result.shape))


def _words(x: Array) -> tuple[Array, Array]:
    """The lower and the upper half of u64."""
    return x.astype(np.uint32), (x >> np.uint64(32)).astype(np.uint32)


def _joined(low: Array, high: Array) -> Array:
    return (high.astype(np.uint64) << np.uint64(32)) | low


def _counted(counter: Sequence[Array], steps: Array | np.uint64) -> list[Array]:
    """The counter, its lower word first, advanced by that many steps."""
    low = counter[0] + steps
    return [low, *(high + (low < counter[0]) for high in counter[1:])]


def _three_fry(
    key: Array, counter: list[Array], indices: list[Array], whole: tuple[int, ...], dtype: DType, lead: int
) -> Array:
    """Each counter makes two words: one u64, or two neighbours along the dim that `generator_split` names."""
    split = generator_split(whole) if dtype.bits < 64 else None
    odd = np.zeros((), np.bool_)
    counted = whole
    if split is not None:
        odd = indices[split] % np.uint64(2) == 1
        indices = [i // np.uint64(2) if d == split else i for d, i in enumerate(indices)]
        counted = tuple(-(-n // 2) if d == split else n for d, n in enumerate(whole))
    low, high = _words(counter[0] + _position(indices, counted, lead))
    first, second = _threefry(_words(key), low, high)
    return _joined(first, second) if dtype.bits == 64 else np.where(odd, second, first)


_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)


def _philox_bits(
    key: Array, counter: list[Array], indices: list[Array], whole: tuple[int, ...], dtype: DType, lead: int
) -> Array:
    """Each counter makes four words to elements that follow one another in row-major order: four, or two of u64."""
    position = _position(indices, whole, lead)
    share = np.uint64(2 if dtype.bits == 64 else 4)
    low, high = _counted([counter[0], counter[1] if len(counter) > 1 else key], position // share)
    words = _philox(_words(key), (*_words(low), *_words(high)))
    place = position % share
    if dtype.bits == 64:
        return np.where(place == 0, _joined(words[0], words[1]), _joined(words[2], words[3]))
    return np.choose(place.astype(np.intp), words)


def _philox(key: tuple[Array, Array], counter: tuple[Array, ...]) -> tuple[Array, ...]:
    """Philox-4x32 with 10 rounds, as in Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"."""
    a, b, c, d = counter
    first, second = key
    for _ in range(10):
        low0, high0 = _words(a * np.uint64(_PHILOX_MULTIPLIERS[0]))
        low1, high1 = _words(c * np.uint64(_PHILOX_MULTIPLIERS[1]))
        a, b, c, d = high1 ^ b ^ first, low1, high0 ^ d ^ second, low0
        first, second = first + np.uint32(_PHILOX_WEYL[0]), second + np.uint32(_PHILOX_WEYL[1])
    return a, b, c, d


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
