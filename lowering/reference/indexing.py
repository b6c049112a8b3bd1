"""Kernels of the ops that read at computed indices. Every device may have a start of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ir.ops.rules import ints_attr
from ir.program import Op
from lowering.reference.registry import Array, Machine, kernel


def clamped_start(start: Array, size: int, n: int) -> Array:
    """The start nearest to `start` at which a box of that size lies within n elements."""
    wide = start.astype(np.int64) if start.dtype != np.uint64 else np.minimum(start, np.uint64(n)).astype(np.int64)
    return np.clip(wide, 0, n - size)


@kernel("dynamic_slice")
def _dynamic_slice(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
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
    """Each device's box: a window of every size at every start is a view, of which each device reads one."""
    axes = [lead + d for d in dims]
    windows = np.lib.stride_tricks.sliding_window_view(x, tuple(sizes), tuple(axes))
    windows = np.moveaxis(windows, axes, range(lead, lead + len(axes)))
    devices = np.ogrid[tuple(slice(n) for n in x.shape[:lead])]
    boxes = windows[(*devices, *starts)]
    return np.moveaxis(boxes, range(boxes.ndim - len(axes), boxes.ndim), axes)
