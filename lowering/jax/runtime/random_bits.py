"""Functions that written modules bring along as text: bits of counter-based generators, for a box of positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def widening_multiply(index: jax.Array, stride: int) -> tuple[jax.Array, jax.Array]:
    """High and low 32 bits of index * stride, for a u32 index and a stride below 2**64."""
    stride_high, stride_low = divmod(stride, 2**32)
    index_high, index_low = index >> 16, index & 0xFFFF
    high_half, low_half = np.uint32(stride_low >> 16), np.uint32(stride_low & 0xFFFF)
    middle = index_high * low_half + ((index_low * low_half) >> 16)
    carry = index_low * high_half + (middle & 0xFFFF)
    high = index_high * high_half + (middle >> 16) + (carry >> 16)
    return high + index * np.uint32(stride_high), index * np.uint32(stride_low)


def box_indices(starts: Sequence[jax.Array], shape: Sequence[int]) -> list[jax.Array]:
    """The index of each element of the box of `shape` at `starts`, along each dim, as u64."""
    return [
        lax.broadcasted_iota(jnp.uint64, tuple(shape), d) + start.astype(jnp.uint64) for d, start in enumerate(starts)
    ]


def counters(start: jax.Array, indices: Sequence[jax.Array], shape: Sequence[int]) -> jax.Array:
    """`start` and on, in row-major order of a tensor of `shape`, at these indices."""
    return start + sum((i * np.uint64(math.prod(shape[d + 1 :])) for d, i in enumerate(indices)), np.uint64(0))


def halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The lower and the upper 32 bits of u64."""
    return x.astype(jnp.uint32), (x >> np.uint64(32)).astype(jnp.uint32)


def joined(low: jax.Array, high: jax.Array) -> jax.Array:
    """The u64 of these halves."""
    return (high.astype(jnp.uint64) << np.uint64(32)) | low.astype(jnp.uint64)


def three_fry_box(
    state: jax.Array, starts: Sequence[jax.Array], shape: Sequence[int], whole: Sequence[int], dtype: Any, split: Any
) -> jax.Array:
    """The box of `shape` at `starts` of what lax.rng_bit_generator draws by THREE_FRY as a tensor of shape `whole`."""
    indices, counted = box_indices(starts, shape), list(whole)
    odd: Any = False
    if split is not None and jnp.dtype(dtype).itemsize < 8:
        odd = indices[split] % np.uint64(2) == 1
        indices[split] = indices[split] // np.uint64(2)
        counted[split] = -(-whole[split] // 2)
    low, high = halves(counters(state[1], indices, counted))
    first, second = threefry2x32(jnp.stack(halves(state[0])), low, high)
    if jnp.dtype(dtype).itemsize == 8:
        return joined(first, second)
    return jnp.where(odd, second, first).astype(dtype)


def philox_box(
    state: jax.Array, starts: Sequence[jax.Array], shape: Sequence[int], whole: Sequence[int], dtype: Any
) -> jax.Array:
    """The box of `shape` at `starts` of what lax.rng_bit_generator draws by PHILOX as a tensor of shape `whole`."""
    position = counters(jnp.uint64(0), box_indices(starts, shape), whole)
    share = np.uint64(2 if jnp.dtype(dtype).itemsize == 8 else 4)
    key = halves(state[0])
    low = state[1] + position // share
    high = (state[2] if len(state) > 2 else state[0]) + (low < state[1]).astype(jnp.uint64)
    words = philox4x32(key, (*halves(low), *halves(high)))
    place = position % share
    if jnp.dtype(dtype).itemsize == 8:
        return jnp.where(place == 0, joined(words[0], words[1]), joined(words[2], words[3]))
    chosen = jnp.where(place < 2, jnp.where(place == 0, words[0], words[1]), jnp.where(place == 2, words[2], words[3]))
    return chosen.astype(dtype)


def advanced(state: jax.Array, steps: int) -> jax.Array:
    """The state of a generator, a key and a counter of which the lower word is first, so many steps on."""
    low = state[1] + np.uint64(steps)
    return jnp.stack([state[0], low, *(state[2:] + (low < state[1]).astype(jnp.uint64))])


def philox4x32(key: Sequence[jax.Array], counter: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    """Four random words for each counter: Salmon et al., 2011, with 10 rounds."""
    a, b, c, d = counter
    first, second = key
    for _ in range(10):
        low0, high0 = halves(a.astype(jnp.uint64) * np.uint64(0xD2511F53))
        low1, high1 = halves(c.astype(jnp.uint64) * np.uint64(0xCD9E8D57))
        a, b, c, d = high1 ^ b ^ first, low1, high0 ^ d ^ second, low0
        first, second = first + np.uint32(0x9E3779B9), second + np.uint32(0xBB67AE85)
    return a, b, c, d


def threefry2x32(key: jax.Array, high: jax.Array, low: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two random words for each counter (high, low): Salmon et al., 2011, with 20 rounds."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    high, low = high + keys[0], low + keys[1]
    for i in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[i % 2]:
            high = high + low
            low = ((low << turn) | (low >> (32 - turn))) ^ high
        high = high + keys[(i + 1) % 3]
        low = low + keys[(i + 2) % 3] + np.uint32(i + 1)
    return high, low


def random_box(
    key: jax.Array, starts: Sequence[jax.Array], shape: Sequence[int], whole: Sequence[int], dtype: Any
) -> jax.Array:
    """The box of `shape` at `starts` of jax.random.bits(key, whole, dtype): each element by its row-major position."""
    high = low = jnp.zeros(shape, jnp.uint32)
    for d, start in enumerate(starts):
        index = lax.broadcasted_iota(jnp.uint32, tuple(shape), d) + start.astype(jnp.uint32)
        term_high, term_low = widening_multiply(index, math.prod(whole[d + 1 :]))
        low = low + term_low
        high = high + term_high + (low < term_low).astype(jnp.uint32)
    first, second = threefry2x32(key, high, low)
    if jnp.dtype(dtype).itemsize == 8:
        return (first.astype(jnp.uint64) << 32) | second.astype(jnp.uint64)
    return (first ^ second).astype(dtype)
