"""Functions that generated modules use. Their text is copied into a module that needs them; nothing imports this file.

What the names of one call to `jax.lax` cannot express is here, once, as plain code that is checked like any other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from lowering.jax.runtime.ordering import limits_of


def as_types(arrays: Sequence[jax.Array], dtypes: Sequence[Any]) -> list[jax.Array]:
    """The arrays, each of its element type."""
    return [lax.convert_element_type(x, dtype) for x, dtype in zip(arrays, dtypes, strict=True)]


def bits_as(x: jax.Array, dtype: Any) -> jax.Array:
    """The bits of `x` as elements of another size, of less than a byte on one side: the least significant first."""
    source, target = limits_of(x.dtype).bits, limits_of(dtype).bits
    longer = jnp.dtype(f"uint{max(8, source, target)}")
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{source}")).astype(longer)
    if source > target:
        places = np.arange(0, source, target).astype(longer)
        bits = (bits[..., None] >> places) & np.asarray(2**target - 1, longer)
    else:
        places = np.arange(0, target, source).astype(longer)
        bits = lax.reduce_or(bits << places, (bits.ndim - 1,))
    return lax.bitcast_convert_type(bits.astype(jnp.dtype(f"uint{target}")), dtype)


def select_and_scatter(
    operand: jax.Array,
    source: jax.Array,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    stays: Any,
) -> jax.Array:
    """Adds each element of `source` to zeros, at the element of `operand` that its window selects: one that `stays`
    when compared with those behind it. Padding is never selected."""

    def pick(a: Any, b: Any) -> tuple[jax.Array, jax.Array]:
        (v, i), (w, j) = a, b
        first = lax.select(i < j, stays(v, w), ~stays(w, v))
        keep = (j < 0) | ((i >= 0) & first)
        return lax.select(keep, v, w), lax.select(keep, i, j)

    index = jnp.arange(operand.size, dtype=jnp.int32).reshape(operand.shape)
    operand = lax.stop_gradient(operand)
    nothing = (np.zeros((), operand.dtype), np.int32(-1))
    _, chosen = lax.reduce_window((operand, index), nothing, pick, tuple(window), tuple(strides), tuple(padding))
    sums = jnp.zeros(operand.size + 1, source.dtype).at[chosen.ravel()].add(source.ravel())
    return sums[:-1].reshape(operand.shape)


def reduce_slices(
    x: jax.Array,
    start: Any,
    combine: Any,
    window: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> jax.Array:
    """`lax.reduce_window`, a slice for each element of the window: so it has a derivative whatever is combined."""
    x = lax.pad(x, start, [(low, high, 0) for low, high in padding])
    settings = zip(x.shape, window, strides, dilation, strict=True)
    counts = [max(0, (n - (k - 1) * d - 1) // s + 1) for n, k, s, d in settings]
    if 0 in counts:
        return jnp.zeros(counts, x.dtype)

    def part(place: Sequence[int]) -> jax.Array:
        first = [i * d for i, d in zip(place, dilation, strict=True)]
        limit = [i + (n - 1) * s + 1 for i, n, s in zip(first, counts, strides, strict=True)]
        return lax.slice(x, first, limit, strides)

    return functools.reduce(combine, map(part, np.ndindex(*window)))


def scatter_product(operand: jax.Array, indices: jax.Array, updates: jax.Array, numbers: Any) -> jax.Array:
    """`lax.scatter_mul`, with a derivative that is right also where several updates go to one element."""

    @jax.custom_jvp
    def product(operand: jax.Array, indices: jax.Array, updates: jax.Array) -> jax.Array:
        return lax.scatter_mul(operand, indices, updates, numbers, mode="drop")

    @product.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:
        operand, indices, updates = primals

        def add(x: jax.Array) -> jax.Array:
            return lax.scatter_add(jnp.zeros_like(operand), indices, x, numbers, mode="drop")

        is_zero = updates == 0
        others = product(jnp.ones_like(operand), indices, jnp.where(is_zero, jnp.ones_like(updates), updates))
        (others,), (zeros,) = (jax.vjp(add, updates)[1](x) for x in (others, add(is_zero.astype(updates.dtype))))
        nothing = jnp.zeros_like(updates)
        by_others = jnp.where(zeros == 0, others / jnp.where(is_zero, jnp.ones_like(updates), updates), nothing)
        by_others = jnp.where(is_zero, jnp.where(zeros == 1, others, nothing), by_others)
        moved = product(jnp.ones_like(operand), indices, updates) * tangents[0]
        return product(operand, indices, updates), moved + operand * add(by_others * tangents[2])

    return product(operand, indices, updates)


def hermitian(a: jax.Array, *, lower: bool) -> jax.Array:
    """The Hermitian matrix that has this triangle of `a`, which is all that a Cholesky factor depends on."""
    row, column = (lax.broadcasted_iota(jnp.int32, a.shape, a.ndim - i) for i in (2, 1))
    other = jnp.conj(jnp.swapaxes(a, -1, -2))
    kept = row > column if lower else row < column
    return jnp.where(kept, a, jnp.where(row == column, a.real.astype(a.dtype), other))


def update_by_itself(x: jax.Array, update: jax.Array, starts: Sequence[jax.Array]) -> jax.Array:
    """lax.dynamic_update_slice of a tensor that the update is read from.

    XLA's CPU backend may write while it still reads, but not in a loop, which it fuses with nothing before.
    """

    def once(x: jax.Array, update: jax.Array, *starts: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(x, update, starts, allow_negative_indices=False)

    def twice(x: jax.Array, update: jax.Array, *starts: jax.Array) -> Any:
        return lax.fori_loop(0, 2, lambda _, y: once(y, update, *starts), x)

    result: jax.Array = lax.platform_dependent(x, update, *starts, cpu=twice, default=once)
    return result


def scatter_to_itself(
    scatter: Any, x: jax.Array, indices: jax.Array, updates: jax.Array, *rest: Any, **options: Any
) -> Any:
    """A scatter into a tensor that the updates are read from. On a CPU it is in a loop, as `update_by_itself`, in whose
    second iteration all indices are out of range."""
    nowhere = np.asarray(np.iinfo(indices.dtype).max, indices.dtype)

    def once(x: jax.Array, indices: jax.Array, updates: jax.Array) -> Any:
        return scatter(x, indices, updates, *rest, **options)

    def turns(x: jax.Array, indices: jax.Array, updates: jax.Array) -> Any:
        return lax.fori_loop(0, 2, lambda i, y: once(y, jnp.where(i == 0, indices, nowhere), updates), x)

    return lax.platform_dependent(x, indices, updates, cpu=turns, default=once)


def integer_convolution(
    x: jax.Array,
    kernel: jax.Array,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    *,
    dimension_numbers: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    preferred_element_type: Any = None,
) -> jax.Array:
    """lax.conv_general_dilated of integers. XLA has none for GPUs that wraps around: there, the elements below each
    element of the kernel are collected, and multiplied with the kernel as a matrix."""
    to = preferred_element_type or x.dtype
    settings: dict[str, Any] = {
        "lhs_dilation": lhs_dilation,
        "rhs_dilation": rhs_dilation,
        "dimension_numbers": dimension_numbers,
        "feature_group_count": feature_group_count,
        "batch_group_count": batch_group_count,
        "preferred_element_type": preferred_element_type,
    }

    def as_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
        wide = jnp.promote_types(to, jnp.uint32 if jnp.issubdtype(to, jnp.unsignedinteger) else jnp.int32)
        x = lax.transpose(x, dimension_numbers.lhs_spec).astype(wide)
        kernel = lax.transpose(kernel, dimension_numbers.rhs_spec).astype(wide)
        spread, apart = lhs_dilation or (1,) * len(strides), rhs_dilation or (1,) * len(strides)
        margins = [(low, high, n - 1) for (low, high), n in zip(padding, spread, strict=True)]
        x = lax.pad(x, np.zeros((), wide), [(0, 0, 0), (0, 0, 0), *margins])
        for d, (stride, step, size) in enumerate(zip(strides, apart, kernel.shape[2:], strict=True)):
            dim = 2 + 2 * d
            count = max(0, (x.shape[dim] - (size - 1) * step - 1) // stride + 1)
            x = x[(slice(None),) * dim + (stride * np.arange(count)[:, None] + step * np.arange(size),)]
        (n, features, *spatial), (out, summed, *sizes) = x.shape, kernel.shape
        counts, groups = spatial[::2], feature_group_count * batch_group_count
        n, length = n // batch_group_count, summed * math.prod(sizes)
        x = x.reshape(batch_group_count, n, feature_group_count, features // feature_group_count, *spatial)
        x = lax.transpose(x, (0, 2, 1, *range(4, x.ndim, 2), 3, *range(5, x.ndim, 2)))
        x = x.reshape(groups, n * math.prod(counts), length)
        kernel = kernel.reshape(groups, out // groups, length)
        product = lax.dot_general(x, kernel, (((2,), (2,)), ((0,), (0,)))).astype(to)
        product = product.reshape(groups, n, *counts, out // groups)
        product = jnp.moveaxis(product, (1, 0, -1), (0, 1, 2)).reshape(n, out, *counts)
        return lax.transpose(product, np.argsort(dimension_numbers.out_spec))

    def as_it_is(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(x, kernel, strides, padding, **settings)

    result: jax.Array = lax.platform_dependent(x, kernel, cuda=as_product, rocm=as_product, default=as_it_is)
    return result


def row_major_fft(x: jax.Array, kind: Any, length: Sequence[int]) -> jax.Array:
    """lax.fft. XLA's CPU backend computes it of tensors in row-major order, but does not always ask for them: there,
    operand and result pass through a vector, which has no other order."""

    barrier: Any = lax.optimization_barrier

    def through_a_vector(x: jax.Array) -> jax.Array:
        return lax.reshape(barrier(lax.reshape(x, (x.size,))), x.shape)

    def on_cpu(x: jax.Array) -> jax.Array:
        return through_a_vector(lax.fft(through_a_vector(x), kind, tuple(length)))

    result: jax.Array = lax.platform_dependent(x, cpu=on_cpu, default=lambda x: lax.fft(x, kind, tuple(length)))
    return result


def first_along(values: Sequence[jax.Array], count: int, dim: int) -> list[jax.Array]:
    """Of each, the first elements along a dim."""
    return [lax.slice_in_dim(x, 0, count, axis=dim) for x in values]


def integer_power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """base ** exponent, wrapping around. A negative exponent yields 0, except for the bases 1 and -1."""
    power = jnp.ones_like(base)
    factor = base
    for bit in range(limits_of(base.dtype).bits):
        power = jnp.where((exponent >> bit) & 1 == 1, power * factor, power)
        factor = factor * factor
    if not jnp.issubdtype(base.dtype, jnp.signedinteger):
        return power
    return jnp.where((exponent < 0) & (base != 1) & (base != -1), 0, power)


def integer_quotient(dividend: jax.Array, divisor: jax.Array) -> jax.Array:
    """dividend / divisor, rounded towards zero; by 0, all bits are ones, of what is known to be equal as well."""
    nothing = lax.full_like(divisor, 0)
    return lax.select(lax.eq(divisor, nothing), lax.bitwise_not(nothing), lax.div(dividend, divisor))


def upper_cholesky(a: jax.Array) -> jax.Array:
    """The Cholesky factor that is an upper triangle; only the upper triangle of `a` is read."""
    lower = lax.linalg.cholesky(jnp.conj(jnp.swapaxes(a, -1, -2)), symmetrize_input=False)
    return jnp.conj(jnp.swapaxes(lower, -1, -2))


def columns(x: jax.Array, start: int, limit: int) -> jax.Array:
    """The columns of a matrix from `start` on, before `limit`, gathered by rows; of a matrix of one row, by halves.

    XLA's CPU backend compiles kernels that differ in nothing but their operands once. The places of what is gathered
    are an operand, if there are several; the place of one, as the start of a slice, is a number in the kernel.
    """
    return lax.reshape(boxes_of(x, *box_places(x, start, limit)), (x.shape[0], limit - start))


def box_places(x: jax.Array, start: int, limit: int) -> tuple[np.ndarray, int]:
    """Where in the matrix the boxes begin that make up these columns, and how many elements each of them has."""
    rows, width = x.shape[0], limit - start
    size = width if rows > 1 else width // 2
    return np.array([(row, first) for row in range(rows) for first in range(start, limit, size)], np.int32), size


def boxes_of(x: jax.Array, places: np.ndarray | jax.Array, size: int) -> jax.Array:
    """So many elements of a row from each place on."""
    dims = lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0, 1))
    return lax.gather(x, places, dims, (1, size), mode="promise_in_bounds")


def of_parts(x: jax.Array, dim: int, devices: int) -> jax.Array:
    """`x`, put together of its parts along a dim for so many devices, each of them gathered as `columns`."""
    rows = math.prod(x.shape[:dim])
    matrix, width = lax.reshape(x, (rows, x.size // rows)), x.size // rows // devices
    shape = (*x.shape[:dim], x.shape[dim] // devices, *x.shape[dim + 1 :])
    boxes = [box_places(matrix, k * width, (k + 1) * width) for k in range(devices)]
    # Of one function, which JAX traces and lowers once.
    part: Any = jax.jit(lambda matrix, places: lax.reshape(boxes_of(matrix, places, boxes[0][1]), shape))
    return lax.concatenate([part(matrix, places) for places, _ in boxes], dim)
