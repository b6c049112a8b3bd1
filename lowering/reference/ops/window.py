"""Kernels of the ops that slide a window over a tensor.

reduce_window reduces dim by dim, over strided views; sums and products of floats of 16 bits and fewer accumulate in f32
and are rounded once, as in reduce. (XLA's CPU backend rounds bf16 after each addition or only once, by the window's
size.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ir.ops.elementwise import COMPARES
from ir.ops.reduction import reduction_kind
from ir.ops.window import Window, padding_value, window_of
from ir.program import Op
from ir.types import Array
from lowering.reference.arrays import combine, identity, widen
from lowering.reference.interpreter import Interpreter, kernel
from lowering.reference.ops.creation import literal


def padded(x: Array, lead: int, windows: Sequence[Window], fill: Array) -> Array:
    """`x` with the base dilation's holes and the padding of each dim after the first `lead`, filled with `fill`."""
    if all((w.low, w.high, w.base_dilation) == (0, 0, 1) for w in windows):
        return x
    shape = x.shape[:lead] + tuple(w.padded(n) for n, w in zip(x.shape[lead:], windows, strict=True))
    if math.prod(shape) * x.itemsize > np.iinfo(np.intp).max:  # numpy's word for it is a ValueError.
        raise MemoryError(f"there is no array of shape {shape}")
    result = np.full(shape, fill, x.dtype)
    every = (slice(None),) * lead
    places = [_kept(n, w) for n, w in zip(x.shape[lead:], windows, strict=True)]
    result[(*every, *(target for _, target in places))] = x[(*every, *(source for source, _ in places))]
    return result


def _kept(n: int, w: Window) -> tuple[slice, slice]:
    """Which elements of a dim of size n remain with negative padding, and where they are in the padded dim."""
    step = w.base_dilation
    first = max(0, -(w.low // step))
    last = min(n - 1, (w.padded(n) - 1 - w.low) // step)
    count = max(0, last - first + 1)
    start = w.low + first * step
    return slice(first, first + count), slice(start, start + count * step, step) if count else slice(0)


@kernel("reduce_window")
def _reduce_window(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    kind = reduction_kind(op.attrs)
    assert kind is not None
    windows, lead = window_of(op), machine.lead
    x = widen(padded(arrays[0], lead, windows, identity(kind, op.result.dtype)))
    for d, (w, count) in enumerate(zip(windows, op.result.shape, strict=True), start=lead):
        if (w.size, w.stride) != (1, 1):
            x = combine(kind, _windows(x, d, w, count), (x.ndim,))
    return (x.astype(op.result.dtype.numpy, copy=False),)


def _windows(x: Array, dim: int, w: Window, count: int) -> Array:
    """A view of `x` with `dim` counting windows, and a new last dim the elements of each."""
    if not count:
        return np.empty((*x.shape[:dim], 0, *x.shape[dim + 1 :], w.size), x.dtype)
    views = np.lib.stride_tricks.sliding_window_view(x, w.extent, dim)
    index: tuple[Any, ...] = (*(slice(None),) * dim, slice(0, None, w.stride), ..., slice(0, None, w.dilation))
    found: Array = views[index]
    return found


def window_slices(windows: Sequence[Window], counts: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """For each position in the window, the last dim's fastest, the elements of all windows at it in the padded
    tensor."""
    for place in itertools.product(*(range(w.size) for w in windows)):
        yield tuple(
            slice(at * w.dilation, at * w.dilation + (n - 1) * w.stride + 1, w.stride) if n else slice(0)
            for at, w, n in zip(place, windows, counts, strict=True)
        )


@kernel("select_and_scatter")
def _select_and_scatter(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    """Visits the window's positions twice: to find the one that each window selects, and to add the source there."""
    windows, lead = window_of(op), machine.lead
    devices = np.broadcast_shapes(*(x.shape[:lead] for x in arrays))
    operand, source = (widen(np.broadcast_to(x, devices + x.shape[lead:])) for x in arrays)
    fill = padding_value(op)
    values = padded(operand, lead, windows, widen(literal(0 if fill is None else fill, op.result.dtype)))
    exists = np.ones((1,) * lead + operand.shape[lead:], np.bool_)
    real = padded(exists, lead, windows, np.array(fill is not None))
    every = (slice(None),) * lead
    places = [(*every, *place) for place in window_slices(windows, source.shape[lead:])]
    chosen = _chosen(values, real, places, COMPARES[str(op.attrs["select"])])
    sums = np.zeros(values.shape, values.dtype)
    for i, place in enumerate(places):
        sums[place] += np.where(chosen == i, source, np.zeros((), source.dtype))
    return (_unpadded(sums, operand.shape, lead, windows).astype(op.result.dtype.numpy, copy=False),)


def _chosen(
    values: Array, real: Array, places: Sequence[tuple[slice, ...]], stays: Callable[[Array, Array], Array]
) -> Array:
    """For each window the number of the position that it selects, -1 if it has nothing but padding."""
    best = np.zeros_like(values[places[0]])
    chosen = np.full(best.shape, -1)
    for i, place in enumerate(places):
        taken = real[place] & ((chosen < 0) | ~stays(best, values[place]))
        best = np.where(taken, values[place], best)
        chosen = np.where(taken, i, chosen)
    return chosen


def _unpadded(x: Array, shape: tuple[int, ...], lead: int, windows: Sequence[Window]) -> Array:
    """The inverse of `padded`; zeros where padding removed elements."""
    result = np.zeros(shape, x.dtype)
    every = (slice(None),) * lead
    places = [_kept(n, w) for n, w in zip(shape[lead:], windows, strict=True)]
    result[(*every, *(source for source, _ in places))] = x[(*every, *(target for _, target in places))]
    return result
