"""Functions that written modules bring along as text: floats as integers of the same order, sorting and extremes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def limits_of(dtype: Any) -> Any:
    """How many bits a type of integers or floats has, and its smallest and largest number."""
    about: Any = jnp.finfo if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo
    return about(dtype)


def ordered_bits(x: jax.Array, *, nan_is_largest: bool) -> jax.Array:
    """Integers in the order of the floats `x`, -0.0 below 0.0; NaNs are the largest or the smallest ones."""
    limits = limits_of(f"int{limits_of(x.dtype).bits}")
    bits = lax.bitcast_convert_type(x, limits.dtype)
    ordered = jnp.where(bits < 0, bits ^ limits.max, bits)
    return jnp.where(jnp.isnan(x), limits.max if nan_is_largest else limits.min, ordered)


def floats_of(ordered: jax.Array, dtype: Any) -> jax.Array:
    """The floats that `ordered_bits` turned into these integers."""
    bits = jnp.where(ordered < 0, ordered ^ limits_of(ordered.dtype).max, ordered)
    return lax.bitcast_convert_type(bits, dtype)


def ordered_bits_of_fnuz(x: jax.Array, *, nan_is_largest: bool) -> jax.Array:
    """As `ordered_bits`, of floats of 8 bits whose NaN has the bits of -0.0: numbers on one side make room for it."""
    bits = lax.bitcast_convert_type(x, np.int8)
    ordered = jnp.where(bits < 0, bits ^ 127, bits)
    if nan_is_largest:
        return jnp.where(ordered == -1, 127, jnp.where(ordered >= 0, ordered - 1, ordered))
    return jnp.where(ordered == -1, -128, jnp.where(ordered < -1, ordered + 1, ordered))


def fnuz_of(ordered: jax.Array, dtype: Any, *, nan_is_largest: bool) -> jax.Array:
    """The floats that `ordered_bits_of_fnuz` turned into these integers."""
    if nan_is_largest:
        ordered = jnp.where(ordered == 127, -1, jnp.where(ordered >= -1, ordered + 1, ordered))
    else:
        ordered = jnp.where(ordered == -128, -1, jnp.where(ordered < 0, ordered - 1, ordered))
    return lax.bitcast_convert_type(jnp.where(ordered < 0, ordered ^ 127, ordered), dtype)


def ordered_bits_of_scales(x: jax.Array, *, nan_is_largest: bool) -> jax.Array:
    """Integers in the order of floats without a sign, of which NaN has all bits; it is the largest or the smallest."""
    bits = lax.bitcast_convert_type(x, jnp.uint8)
    return bits if nan_is_largest else bits + np.uint8(1)


def scales_of(ordered: jax.Array, dtype: Any, *, nan_is_largest: bool) -> jax.Array:
    """The floats that `ordered_bits_of_scales` turned into these integers."""
    return lax.bitcast_convert_type(ordered if nan_is_largest else ordered - np.uint8(1), dtype)


def reduce_arg(
    values: jax.Array, indices: jax.Array, dims: Sequence[int], *, largest: bool, counted: bool = False
) -> tuple[Any, Any]:
    """Value and index of the largest (or smallest) value along dims. A NaN wins; the lower index wins a tie.

    The value's derivative is that of the element which it is. Indices are distinct where they are `counted`: then the
    lower one is a minimum, and says which value is its own. LLVM vectorises this for a CPU, but not a selection.
    """

    def pick_counted(a: Any, b: Any) -> tuple[jax.Array, jax.Array]:
        (v, i), (w, j) = a, b
        ahead = ((v > w) if largest else (v < w)) | (v != v)
        level = (v == w) | ((v != v) & (w != w))
        index = lax.select(level, lax.min(i, j), lax.select(ahead, i, j))
        return lax.select(index == i, v, w), index

    def pick(a: Any, b: Any) -> tuple[jax.Array, jax.Array]:
        (v, i), (w, j) = a, b
        ahead = ((v > w) if largest else (v < w)) | ((v != v) & (w == w))
        level = (v == w) | ((v != v) & (w != w))
        first = ahead | (level & (i < j))
        return lax.select(first, v, w), lax.select(first, i, j)

    if values.dtype == jnp.bool_:
        worst: Any = np.bool_(not largest)
    elif jnp.issubdtype(values.dtype, jnp.floating):
        worst = np.asarray(-np.inf if largest else np.inf, values.dtype)
    else:
        worst = np.asarray(np.iinfo(values.dtype).min if largest else np.iinfo(values.dtype).max, values.dtype)
    last = np.asarray(np.iinfo(indices.dtype).max, indices.dtype)

    @jax.custom_jvp
    def found(values: jax.Array, indices: jax.Array) -> Any:
        return lax.reduce((values, indices), (worst, last), pick_counted if counted else pick, tuple(dims))

    @found.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        values, indices = primals
        value, index = found(values, indices)
        best, first = jnp.expand_dims(value, dims), jnp.expand_dims(index, dims)
        chosen = (indices == first) & ((values == best) | ((values != values) & (best != best)))
        moved = jnp.where(chosen, tangents[0], jnp.zeros_like(values)).sum(tuple(dims))
        return (value, index), (moved, np.zeros(index.shape, jax.dtypes.float0))

    value, index = found(values, indices)
    return value, index


def sort_descending(
    operands: Sequence[jax.Array], dimension: int, num_keys: int, *, is_stable: bool = True
) -> tuple[jax.Array, ...]:
    """The operands sorted together, largest first; equal keys keep their order if stable. A NaN is largest."""
    backward = tuple(lax.rev(x, (dimension,)) for x in operands)
    ascending = lax.sort(backward, dimension=dimension, is_stable=is_stable, num_keys=num_keys)
    return tuple(lax.rev(x, (dimension,)) for x in ascending)


def top_k_of_floats(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """lax.top_k, but for its order of NaNs and of zeros by their signs."""
    index = lax.top_k(_ranked(x), k)[1]
    return jnp.take_along_axis(x, index, -1), index


def largest_first(operands: Sequence[jax.Array], k: int) -> tuple[jax.Array, ...]:
    """The first `k` along the last dim of the operands, sorted together by the first one, largest first, where equal
    ones keep their order. A NaN is largest. XLA's CPU backend sorts several operands slowly."""
    index = lax.top_k(_ranked(operands[0]), k)[1]
    return tuple(jnp.take_along_axis(x, index, -1) for x in operands)


def _ranked(x: jax.Array) -> jax.Array:
    """Elements by which lax.top_k orders these: there is one NaN, and one zero."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x
    return jnp.where(jnp.isnan(x), jnp.full_like(x, jnp.nan), jnp.where(x == 0, jnp.zeros_like(x), x))
