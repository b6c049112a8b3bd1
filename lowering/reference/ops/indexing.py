"""Kernels of the ops that read and write at computed indices. Every device may have indices of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ir.ops.addressing import Addressing, gather_addressing, scatter_addressing
from ir.ops.indexing import gather_fill
from ir.ops.reduction import reduction_kind
from ir.ops.rule_helpers import ints_attr
from ir.program import Op
from ir.sharding import ReductionKind
from ir.types import Array
from lowering.reference.arrays import UFUNCS, order_zeros, widen
from lowering.reference.interpreter import Interpreter, kernel
from lowering.reference.ops.creation import literal


def _signed(index: Array, n: int) -> Array:
    """Indices as s64; those beyond n, which u64 may have, become n."""
    return np.minimum(index, np.uint64(n)).astype(np.int64) if index.dtype == np.uint64 else index.astype(np.int64)


def clamped_start(start: Array, size: int, n: int) -> Array:
    """The start nearest to `start` at which a box of that size is within n elements."""
    return np.clip(_signed(start, n), 0, n - size)


@kernel("dynamic_slice")
def _dynamic_slice(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    x, *given = arrays
    lead, sizes, shape = machine.lead, ints_attr(op.attrs, "sizes"), op.operands[0].shape
    starts = [clamped_start(s, size, n) for s, size, n in zip(given, sizes, shape, strict=True)]
    alike = [slice(None)] * lead
    varying: list[int] = []
    for d, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        first = int(start.reshape(-1)[0])
        same = bool((start == first).all())
        alike.append(slice(first, first + size) if same else slice(None))
        if not same:
            varying.append(d)
    x = x[tuple(alike)]
    return (_boxes(x, lead, varying, [sizes[d] for d in varying], [starts[d] for d in varying]) if varying else x,)


def _boxes(x: Array, lead: int, dims: Sequence[int], sizes: Sequence[int], starts: Sequence[Array]) -> Array:
    """Each device's box: the windows at all starts are a view, of which each device reads one.

    numpy supports such views of its own types only."""
    axes = [lead + d for d in dims]
    bits = x if x.dtype.isbuiltin == 1 else x.view(np.dtype(f"u{x.dtype.itemsize}"))
    windows = np.lib.stride_tricks.sliding_window_view(bits, tuple(sizes), tuple(axes))
    windows = np.moveaxis(windows, axes, range(lead, lead + len(axes)))
    boxes = windows[(*_devices(x, lead), *starts)].view(x.dtype)
    return np.moveaxis(boxes, range(boxes.ndim - len(axes), boxes.ndim), axes)


def _devices(x: Array, lead: int, behind: int = 0) -> list[Array]:
    """An index of `x` in each device dim, followed by `behind` dims of size 1: the positions along it."""
    return [i.reshape(i.shape + (1,) * behind) for i in np.ogrid[tuple(slice(n) for n in x.shape[:lead])]]


@kernel("dynamic_update_slice")
def _dynamic_update_slice(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    x, update, *given = arrays
    lead, sizes, shape = machine.lead, op.operands[1].shape, op.operands[0].shape
    result = np.array(np.broadcast_to(x, np.broadcast_shapes(*(a.shape[:lead] for a in arrays)) + shape))
    starts = [clamped_start(s, size, n) for s, size, n in zip(given, sizes, shape, strict=True)]
    if all((s == s.reshape(-1)[:1]).all() for s in starts):
        corner = [int(s.reshape(-1)[0]) for s in starts]
        box = [slice(first, first + size) for first, size in zip(corner, sizes, strict=True)]
        result[(*(slice(None),) * lead, *box)] = update
        return (result,)
    rank = len(shape)
    places = [
        start.reshape(start.shape + (1,) * rank) + _along(size, d, rank)
        for d, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    result[(*_devices(result, lead, rank), *places)] = update
    return (result,)


def _along(size: int, dim: int, rank: int) -> Array:
    """0, 1, … along one of `rank` dims."""
    return np.arange(size).reshape((1,) * dim + (size,) + (1,) * (rank - dim - 1))


class _Boxes:
    """Where the boxes of a gather or scatter are.

    Operand dims that boxes have whole are moved by rows and need no index. Operands are transposed to the device dims,
    then the dims `indexed`, then the dims `rows`; slices to the device dims, then the dims of indices and those of
    `counted`, then the dims `rows`.
    """

    def __init__(self, a: Addressing, shape: Sequence[int], lead: int) -> None:
        self.a, self.shape, self.lead = a, shape, lead
        self.rows = [d for d in range(len(shape)) if a.is_whole(d, shape)]
        self.indexed = [d for d in range(len(shape)) if d not in self.rows]
        window = dict(a.window)
        self.counted = [d for d in self.indexed if d in window]
        self.operand_order = [*self.indexed, *self.rows]
        self.slices_order = [*(s for _, s in a.batch), *(window[d] for d in [*self.counted, *self.rows])]
        self.rank = len(a.batch) + len(self.counted)

    def arrange(self, x: Array, order: Sequence[int]) -> Array:
        return x.transpose(*range(self.lead), *(self.lead + d for d in order))

    def restore(self, x: Array, order: Sequence[int]) -> Array:
        return x.transpose(*range(self.lead), *(self.lead + int(i) for i in np.argsort(order)))

    def starts(self, indices: Array) -> dict[int, Array]:
        """For each addressed operand dim, the starts of the boxes, along device dims and the dims of indices."""
        vector = self.a.vector_dim
        vectors = indices[..., None] if vector is None else np.moveaxis(indices, self.lead + vector, -1)
        return {d: _signed(vectors[..., c], self.shape[d]) for c, d in enumerate(self.a.addressed)}

    def inside(self, starts: dict[int, Array]) -> Array:
        """Which boxes are inside the operand, along device dims, the dims of indices and those of `counted`."""
        inside: Array = np.ones((1,) * (self.lead + self.rank), np.bool_)
        for d, start in starts.items():
            fits = (start >= 0) & (start <= self.shape[d] - self.a.sizes[d])
            inside = inside & fits.reshape(fits.shape + (1,) * len(self.counted))
        return inside

    def places(self, starts: dict[int, Array], indices_shape: Sequence[int]) -> list[Array]:
        """The index of each element of the boxes in each dim of `indexed`."""
        scanned = [d for d, _ in self.a.batch]
        shared = dict(self.a.shared)
        found: list[Array] = []
        for d in self.indexed:
            place: Array = np.zeros((1,) * (self.lead + self.rank), np.int64)
            if d in starts:
                place = starts[d].reshape(starts[d].shape + (1,) * len(self.counted))
            elif d in shared:
                place = place + _along(indices_shape[shared[d]], scanned.index(shared[d]), self.rank)
            if d in self.counted:
                place = place + _along(self.a.sizes[d], len(scanned) + self.counted.index(d), self.rank)
            found.append(place)
        return found


@kernel("gather")
def _gather(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    x, indices = arrays
    lead, shape = machine.lead, op.operands[0].shape
    boxes = _Boxes(gather_addressing(op), shape, lead)
    given = boxes.starts(indices)
    starts = {d: np.clip(s, 0, shape[d] - boxes.a.sizes[d]) for d, s in given.items()}
    devices = np.broadcast_shapes(x.shape[:lead], indices.shape[:lead])
    if not op.result.type.size:
        return (np.zeros(devices + op.result.shape, x.dtype),)
    places = boxes.places(starts, op.operands[1].shape)
    taken = boxes.arrange(x, boxes.operand_order)[(*_devices(x, lead, boxes.rank), *places)]
    taken = np.broadcast_to(taken, devices + tuple(op.result.shape[d] for d in boxes.slices_order))
    fill = gather_fill(op)
    if fill is not None:
        inside = boxes.inside(given)
        inside = inside.reshape(inside.shape + (1,) * len(boxes.rows))
        taken = np.where(inside, taken, literal(fill, op.result.dtype))
    return (boxes.restore(taken, boxes.slices_order),)


@kernel("scatter")
def _scatter(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    x, indices, updates = arrays
    lead, kind = machine.lead, reduction_kind(op.attrs)
    if kind is not None:
        x, updates = widen(x), widen(updates)
    boxes = _Boxes(scatter_addressing(op), op.operands[0].shape, lead)
    devices = np.broadcast_shapes(*(a.shape[:lead] for a in arrays))
    result = boxes.arrange(np.broadcast_to(x, devices + op.operands[0].shape), boxes.operand_order).copy()
    if op.operands[2].type.size:
        _write(kind, boxes, result, indices, np.broadcast_to(updates, devices + op.operands[2].shape), op)
    return (boxes.restore(result, boxes.operand_order).astype(op.result.dtype.numpy, copy=False),)


def _write(kind: ReductionKind | None, boxes: _Boxes, result: Array, indices: Array, updates: Array, op: Op) -> None:
    """Combines the updates into `result`, which is modified, in the order of the indices."""
    lead = boxes.lead
    starts = boxes.starts(indices)
    updates = boxes.arrange(updates, boxes.slices_order)
    scanned = updates.shape[: lead + boxes.rank]
    inside = boxes.inside(starts)
    places = (*_devices(result, lead, boxes.rank), *boxes.places(starts, op.operands[1].shape))
    row: Array = np.zeros((1,) * len(scanned), np.int64)
    for place, n in zip(places, result.shape, strict=False):
        row = row * n + place
    chosen = np.broadcast_to(inside, scanned).reshape(-1)
    width = math.prod(boxes.shape[d] for d in boxes.rows)
    _combine(
        kind,
        result.reshape(-1, width),
        np.broadcast_to(row, scanned).reshape(-1)[chosen],
        updates.reshape(-1, width)[chosen],
    )


def _combine(kind: ReductionKind | None, rows: Array, at: Array, updates: Array) -> None:
    """Combines updates into the rows at the indices `at`, one after the other; without a kind they replace them."""
    if rows.shape[1] == 1:
        rows, updates = rows[:, 0], updates[:, 0]
    if kind is None:
        rows[at] = updates
        return
    own = rows.copy() if kind in ("max", "min") else None
    UFUNCS[kind].at(rows, at, updates)
    if own is not None:

        def meet(first: Array, others: Array) -> Array:
            np.logical_or.at(first, at, others)
            return first

        rows[...] = order_zeros(rows, (own, updates), meet, largest=kind == "max")
