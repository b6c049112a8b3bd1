"""Functions that generated modules use. Their text is copied into a module that needs them; nothing imports this file.

What the names of one call to `jax.lax` cannot say stands here, once, as plain code that is checked like any other.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def branch_index(index: jax.Array, branches: int) -> jax.Array:
    """The number of the branch that a case takes: the last one for every index out of range."""
    return jnp.where((index >= 0) & (index < branches), index, branches - 1)


def chosen_result(index: jax.Array, results: Sequence[Any]) -> Any:
    """Of the results of all branches of a case, those of the branch that it takes."""
    chosen = results[-1]
    for i, result in enumerate(results[:-1]):
        chosen = jax.tree.map(lambda mine, other, taken=index == i: jnp.where(taken, mine, other), result, chosen)
    return chosen


def loop_of_any_length(
    goes_on: Any, step: Any, zero: Any, carry: tuple[Any, ...], moving: tuple[Any, ...], fixed: tuple[Any, ...]
) -> Any:
    """lax.while_loop, with a derivative. What `goes_on` and `step` see besides `carry` is `moving`, floats that may
    depend on what is differentiated by, and `fixed`. On the way back, the state before each turn is computed again
    from the first: for n turns, n**2 / 2 of them. `zero` varies between devices as the number of turns does."""

    def turns_of(goes_on: Any, zero: Any, carry: Any, *around: Any) -> Any:
        def turn(state: Any) -> Any:
            return state[0] + 1, step(state[1], *around)

        return lax.while_loop(lambda state: goes_on(state[0], state[1], *around), turn, (zero, carry))

    @jax.custom_vjp
    def run(zero: Any, carry: Any, *around: Any) -> Any:
        return lax.while_loop(lambda c: goes_on(c, *around), lambda c: step(c, *around), carry)

    def forward(zero: Any, carry: Any, *around: Any) -> Any:
        turns, last = turns_of(lambda _, c, *around: goes_on(c, *around), zero, carry, *around)
        return last, (turns, zero, carry, around)

    def backward(kept: Any, cotangents: Any) -> Any:
        turns, zero, carry, (moving, fixed) = kept
        floats = [i for i, x in enumerate(carry) if jnp.issubdtype(x.dtype, jnp.inexact)]

        def turn_back(state: Any) -> Any:
            turns, back, owed = state
            _, before = turns_of(lambda turn, *_: turn + 1 < turns, zero, carry, moving, fixed)

            def stepped(some: Any, moving: Any) -> Any:
                given = dict(zip(floats, some, strict=True))
                following = step(tuple(given.get(i, x) for i, x in enumerate(before)), moving, fixed)
                return tuple(following[i] for i in floats)

            back, more = jax.vjp(stepped, tuple(before[i] for i in floats), moving)[1](back)
            return turns - 1, back, jax.tree.map(jnp.add, owed, more)

        first = turns, tuple(cotangents[i] for i in floats), jax.tree.map(jnp.zeros_like, moving)
        _, back, owed = lax.while_loop(lambda state: state[0] > 0, turn_back, first)
        found = dict(zip(floats, back, strict=True))
        return None, tuple(found.get(i) for i in range(len(carry))), owed, None

    run.defvjp(forward, backward)
    return run(zero, carry, moving, fixed)


def pad_to(x: Any, shape: Sequence[int]) -> Any:
    """`x` with zeros behind its end in each dim, up to `shape`."""
    library: Any = np if isinstance(x, np.ndarray) else jnp
    return library.pad(x, [(0, n - m) for m, n in zip(x.shape, shape, strict=True)])


def partial_parts(x: Any, parts: int, identity: Any) -> Any:
    """Along a new first dim, `parts` partial values that combine to `x`: itself, then the reduction's identity."""
    rest = np.full((parts - 1, *x.shape), identity, x.dtype)
    library: Any = np if isinstance(x, np.ndarray) else jnp
    return library.concatenate([x[None], rest])


def device_order(axes: Mapping[str, int], ids: np.ndarray, order: Sequence[str]) -> np.ndarray:
    """The device ids of a mesh in the order of its axes `order`, major first, and then of its other axes."""
    names = list(axes)
    every = [*order, *(a for a in names if a not in order)]
    return ids.reshape(list(axes.values())).transpose([names.index(a) for a in every]).ravel()


def tile_of_device(axes: Mapping[str, int], ids: np.ndarray, split: Sequence[str], devices: np.ndarray) -> np.ndarray:
    """For each of `devices`, which tile it has of a tensor that the mesh's axes `split` cut into tiles, major first."""
    coordinates = np.unravel_index(np.argsort(ids)[devices], list(axes.values()))
    tiles = np.zeros(len(devices), int)
    for name, coordinate in zip(axes, coordinates, strict=True):
        minor = split[split.index(name) + 1 :] if name in split else None
        if minor is not None:
            tiles += coordinate * math.prod(axes[a] for a in minor)
    return tiles


def take_tiles(x: Any, parts: Sequence[int], tiles: np.ndarray) -> Any:
    """`x` cut into parts[d] equal parts along each dim d; its tiles of these numbers, along a new first dim."""
    rank = len(parts)
    cut = x.reshape([n for d in range(rank) for n in (parts[d], x.shape[d] // parts[d])])
    cut = cut.transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)])
    return cut.reshape(math.prod(parts), *cut.shape[rank:])[tiles]


def taken(x: Any, index: Any) -> Any:
    """x[index], bit for bit. XLA adds zeros to what it takes from several devices, and -0.0 + 0.0 is 0.0."""
    if jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.complex(taken(x.real, index), taken(x.imag, index))
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x[index]
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{limits_of(x.dtype).bits}"))
    return lax.bitcast_convert_type(bits[index], x.dtype)


def join_tiles(stacked: Any, parts: Sequence[int], tiles: np.ndarray) -> Any:
    """The tensor that `take_tiles` cuts into `stacked`: of equal tiles, the first counts."""
    rank = len(parts)
    _, first = np.unique(tiles, return_index=True)
    shape = stacked.shape[1:]
    cut = taken(stacked, first).reshape(*parts, *shape)
    cut = cut.transpose([i for d in range(rank) for i in (d, rank + d)])
    return cut.reshape([p * n for p, n in zip(parts, shape, strict=True)])


def permutation(
    axes: Mapping[str, int], over: Sequence[str], target: Sequence[str], source: Sequence[str]
) -> list[tuple[int, int]]:
    """(sender, receiver) pairs along the axes `over`: position p of order `target` receives from p of `source`."""
    grid = np.arange(math.prod(axes[a] for a in over)).reshape([axes[a] for a in over])
    senders = grid.transpose([over.index(a) for a in source]).ravel().tolist()
    receivers = grid.transpose([over.index(a) for a in target]).ravel().tolist()
    return list(zip(senders, receivers, strict=True))


def shifted(pairs: Sequence[tuple[int, int]], positions: int, shift: int) -> list[tuple[int, int]]:
    """The pairs, which are of that many positions one after the other, each with the sender `shift` positions on."""
    ahead = shift * (len(pairs) // positions)
    return [(pairs[(k + ahead) % len(pairs)][0], receiver) for k, (_, receiver) in enumerate(pairs)]


def box_pairs(boxes: Sequence[int], round: int, devices: int) -> list[tuple[int, int]]:
    """(sender, receiver): device i holds [chunk i, chunk (i + 1)) of n elements and needs `size` from start + step i.

    `boxes` are n, chunk, start, step and size; every, phase and receivers may follow: only elements phase + every k are
    wanted, and only by so many of the devices, or by all if that is 0. Round r takes a receiver to the r-th shard that
    its box touches if boxes advance at least as fast as shards, else a sender to the r-th box that touches its shard.
    """
    n, chunk, start, step, size, every, phase, receivers = (*boxes, 1, 0, 0)[:8]
    pairs: list[tuple[int, int]] = []
    for k in range(devices):
        if abs(step) >= chunk:
            source, receiver = (start + step * k) // chunk + round, k
        elif step > 0:
            source, receiver = k, (chunk * k - start - size) // step + 1 + round
        else:
            source, receiver = k, (start - chunk * (k + 1)) // -step + 1 + round
        low = max(start + step * receiver, chunk * source, 0)
        high = min(start + step * receiver + size, chunk * (source + 1), n)
        moves = (high - phase - 1) // every >= -((phase - low) // every)
        exist = 0 <= source < devices and 0 <= receiver < (receivers or devices)
        if source != receiver and exist and moves:
            pairs.append((source, receiver))
    return pairs


def in_mesh_order(
    axes: Mapping[str, int], over: Sequence[str], order: Sequence[str], pairs: Sequence[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Pairs of positions along the axes in `order`, as positions along the same axes in mesh order, `over`.

    Whatever the order in which ppermute is given axes, it counts positions in that of the mesh.
    """
    grid = np.arange(math.prod(axes[a] for a in over)).reshape([axes[a] for a in over])
    place = grid.transpose([over.index(a) for a in order]).ravel().tolist()
    return [(place[source], place[receiver]) for source, receiver in pairs]


def permutation_of_devices(target: np.ndarray, source: np.ndarray, devices: np.ndarray) -> list[tuple[int, int]]:
    """(sender, receiver) positions in `devices`: device target[p] receives from device source[p]."""
    place = np.argsort(devices)
    return list(zip(place[source].tolist(), place[target].tolist(), strict=True))


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


def reduce_arg(values: jax.Array, indices: jax.Array, dims: Sequence[int], *, largest: bool) -> tuple[Any, Any]:
    """Value and index of the largest (or smallest) value along dims. A NaN wins; the lower index wins a tie.

    The value's derivative is that of the element which it is.
    """

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
        return lax.reduce((values, indices), (worst, last), pick, tuple(dims))

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
    second turn all indices are out of range."""
    nowhere = np.asarray(np.iinfo(indices.dtype).max, indices.dtype)

    def once(x: jax.Array, indices: jax.Array, updates: jax.Array) -> Any:
        return scatter(x, indices, updates, *rest, **options)

    def turns(x: jax.Array, indices: jax.Array, updates: jax.Array) -> Any:
        return lax.fori_loop(0, 2, lambda i, y: once(y, jnp.where(i == 0, indices, nowhere), updates), x)

    return lax.platform_dependent(x, indices, updates, cpu=turns, default=once)


def widened_product(x: jax.Array, y: jax.Array, dims: Any, dtype: Any) -> jax.Array:
    """lax.dot_general of narrow floats with a result of that wider type, which XLA's CPU backend has not always."""

    def on_cpu(x: jax.Array, y: jax.Array) -> jax.Array:
        return lax.dot_general(x.astype(dtype), y.astype(dtype), dims)

    def elsewhere(x: jax.Array, y: jax.Array) -> jax.Array:
        return lax.dot_general(x, y, dims, preferred_element_type=dtype)

    result: jax.Array = lax.platform_dependent(x, y, cpu=on_cpu, default=elsewhere)
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


def sort_descending(
    operands: Sequence[jax.Array], dimension: int, num_keys: int, *, is_stable: bool = True
) -> tuple[jax.Array, ...]:
    """The operands sorted together, largest first; equal keys keep their order if stable. A NaN is largest."""
    backward = tuple(lax.rev(x, (dimension,)) for x in operands)
    ascending = lax.sort(backward, dimension=dimension, is_stable=is_stable, num_keys=num_keys)
    return tuple(lax.rev(x, (dimension,)) for x in ascending)


def first_along(values: Sequence[jax.Array], count: int, dim: int) -> list[jax.Array]:
    """Of each, the first elements along a dim."""
    return [lax.slice_in_dim(x, 0, count, axis=dim) for x in values]


def top_k_of_floats(x: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """lax.top_k, but for its order of NaNs and of zeros by their signs."""
    key = jnp.where(jnp.isnan(x), jnp.full_like(x, jnp.nan), jnp.where(x == 0, jnp.zeros_like(x), x))
    index = lax.top_k(key, k)[1]
    return jnp.take_along_axis(x, index, -1), index


def integer_power(base: jax.Array, exponent: jax.Array) -> jax.Array:
    """base ** exponent, wrapping around. A negative exponent gives 0, except for the bases 1 and -1."""
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
    words = philox4x32(key, (*halves(state[1] + position // share), *key))
    place = position % share
    if jnp.dtype(dtype).itemsize == 8:
        return jnp.where(place == 0, joined(words[0], words[1]), joined(words[2], words[3]))
    chosen = jnp.where(place < 2, jnp.where(place == 0, words[0], words[1]), jnp.where(place == 2, words[2], words[3]))
    return chosen.astype(dtype)


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


def upper_cholesky(a: jax.Array) -> jax.Array:
    """The Cholesky factor that is an upper triangle; only the upper triangle of `a` is read."""
    lower = lax.linalg.cholesky(jnp.conj(jnp.swapaxes(a, -1, -2)), symmetrize_input=False)
    return jnp.conj(jnp.swapaxes(lower, -1, -2))


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
