"""Functions that written modules bring along as text: who sends to whom, and several arrays in one message."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def device_order(axes: Mapping[str, int], ids: np.ndarray, order: Sequence[str]) -> np.ndarray:
    """The device ids of a mesh in the order of its axes `order`, major first, and then of its other axes."""
    names = list(axes)
    every = [*order, *(a for a in names if a not in order)]
    return ids.reshape(list(axes.values())).transpose([names.index(a) for a in every]).ravel()


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


def exchanged(x: jax.Array, axes: str | tuple[str, ...], devices: int, split: int, concat: int) -> jax.Array:
    """What `lax.all_to_all` makes, tiled, its parts along a leading dim on the way.

    The TPU compiler moves no conversion past an exchange that it has to find in dims of size 1: it would send twice
    the bytes of what products round to 16 bits. And of parts with fewer rows than a register, of 8 x 128, it computes
    what it sends in the order in which that is sent, from copies of operands, unless they are sent in rows of 128.
    """
    parts = lax.reshape(x, (*x.shape[:split], devices, x.shape[split] // devices, *x.shape[split + 1 :]))
    parts = jnp.moveaxis(parts, split, 0)
    rows, left = divmod(math.prod(parts.shape[1:]), 128)
    is_flat = not left and math.prod(parts.shape[1:-1]) < 8
    sent = lax.reshape(parts, (devices, rows, 128)) if is_flat else parts
    exchange: Any = lax.all_to_all
    arrived = exchange(sent, axes, 0, 0, tiled=True)
    shape = list(parts.shape[1:])
    shape[concat] *= devices
    return lax.reshape(jnp.moveaxis(lax.reshape(arrived, parts.shape), 0, concat), shape)


def gathered_inside(x: jax.Array, axes: str | tuple[str, ...], dim: int) -> jax.Array:
    """What `lax.all_gather` makes along a dim, tiled, gathered along a first one and moved to its place.

    Dims before and after are merged first, so that three dims are transposed: XLA's CPU backend computes each element's
    place from all dims.
    """
    gather: Any = lax.all_gather
    arrived = gather(lax.reshape(x, (1, x.size)), axes, axis=0, tiled=True, to="invarying")
    devices = arrived.shape[0]
    parts = jnp.moveaxis(lax.reshape(arrived, (devices, math.prod(x.shape[:dim]), math.prod(x.shape[dim:]))), 0, 1)
    return lax.reshape(parts, (*x.shape[:dim], devices * x.shape[dim], *x.shape[dim + 1 :]))


def scattered_inside(x: jax.Array, axes: str | tuple[str, ...], dim: int, devices: int) -> jax.Array:
    """What `lax.psum_scatter` makes along a dim, tiled, of parts moved to a first one as in `gathered_inside`."""
    scatter: Any = lax.psum_scatter
    shape = (*x.shape[:dim], x.shape[dim] // devices, *x.shape[dim + 1 :])
    parts = jnp.moveaxis(lax.reshape(x, (math.prod(shape[:dim]), devices, math.prod(shape[dim:]))), 1, 0)
    return lax.reshape(scatter(lax.reshape(parts, (devices, math.prod(shape))), axes, tiled=True), shape)


def sent_together(
    arrays: Sequence[jax.Array], axes: str | tuple[str, ...], pairs: Sequence[Sequence[tuple[int, int]]], devices: int
) -> list[jax.Array]:
    """Each array sent along its own pairs, all in one message: no device sends two of them, or receives two.

    They are of one element type and of any shapes. A device that receives nothing of an array gets zeros.
    """
    sends, gets = np.full(devices, 0, np.int32), np.full(devices, len(arrays), np.int32)
    for k, own in enumerate(pairs):
        sends[[source for source, _ in own]] = k
        gets[[receiver for _, receiver in own]] = k
    place, longest = lax.axis_index(axes), max(x.size for x in arrays)
    rows = [lax.pad(lax.reshape(x, (x.size,)), x.dtype.type(0), [(0, longest - x.size, 0)]) for x in arrays]
    permuted: Any = lax.ppermute
    arrived = permuted(lax.select_n(at(sends, place), *rows), axes, [pair for own in pairs for pair in own])
    parts = [lax.slice(arrived, (0,), (x.size,)) for x in arrays]
    kept = [lax.select(at(gets == k, place), part, lax.full_like(part, 0)) for k, part in enumerate(parts)]
    return [lax.reshape(part, x.shape) for part, x in zip(kept, arrays, strict=True)]


def at(table: np.ndarray, place: jax.Array) -> jax.Array:
    """An element of a table, at a place that is not negative. Elements at equal distances are computed: XLA's CPU
    backend would load one for each element of a mask that is compared with it."""
    if table.dtype == place.dtype and len(steps := np.unique(np.diff(table))) == 1:
        return lax.add(lax.mul(place, steps[0]), table[0])
    return lax.squeeze(lax.dynamic_slice(table, (place,), (1,), allow_negative_indices=False), (0,))


def assembled(
    pieces: Sequence[jax.Array], starts: Sequence[Any], index: jax.Array, dim: int, size: int, low: int, high: int
) -> jax.Array:
    """From `low` to `high` along a dim, what a buffer of that size has after each piece in turn is put into it.

    `starts` are where, for each device or for all of them. What no piece is put into is anything.
    """
    devices = max(np.size(start) for start in starts)
    places, begin = np.zeros((devices, size), np.int32), 0
    for piece, start in zip(pieces, starts, strict=True):
        held = np.arange(piece.shape[dim], dtype=np.int32)
        first = np.broadcast_to(np.clip(start, 0, size - len(held)), (devices,))
        np.put_along_axis(places, first[:, None] + held, begin + held, 1)
        begin += len(held)
    row = lax.dynamic_index_in_dim(places[:, low:high], index, allow_negative_indices=False)
    kept = tuple(d for d in range(pieces[0].ndim) if d != dim)
    dims = lax.GatherDimensionNumbers(offset_dims=kept, collapsed_slice_dims=(dim,), start_index_map=(dim,))
    whole = lax.concatenate(pieces, dim)
    sizes = tuple(1 if d == dim else n for d, n in enumerate(whole.shape))
    return lax.gather(whole, lax.reshape(row, (high - low, 1)), dims, sizes, mode="promise_in_bounds")


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
