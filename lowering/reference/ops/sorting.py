"""Kernels of sort and top_k."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ir.ops.rule_helpers import int_attr
from ir.program import Op
from ir.types import Array
from lowering.reference.arrays import widen
from lowering.reference.interpreter import Interpreter, kernel


def _order(keys: Sequence[Array], *, descending: bool) -> Array:
    """The stable order of rows, along the last dim, by the first key, then the second, and so on; NaN is largest."""
    flipped = [np.flip(widen(key), -1) if descending else widen(key) for key in keys]
    order = np.lexsort(flipped[::-1], -1) if len(keys) > 1 else np.argsort(flipped[0], -1, kind="stable")
    return keys[0].shape[-1] - 1 - np.flip(order, -1) if descending else order


@kernel("sort")
def _sort(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    dim = machine.lead + int_attr(op.attrs, "dim")
    rows = [np.moveaxis(x, dim, -1) for x in np.broadcast_arrays(*arrays)]
    order = _order(rows[: int_attr(op.attrs, "num_keys")], descending=bool(op.attrs["descending"]))
    order = order[..., : op.results[0].shape[dim - machine.lead]]
    return [np.moveaxis(np.take_along_axis(x, order, -1), -1, dim) for x in rows]


@kernel("top_k")
def _top_k(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    (x,) = arrays
    order = _order([x], descending=True)[..., : int_attr(op.attrs, "k")]
    return np.take_along_axis(x, order, -1), order.astype(np.int32)
