"""Reads and writes at index tensors that are fully known become slices and pads, which move only what they must.

JAX writes `x[jnp.arange(4) * 2]`, its update and its gradient as gathers and scatters at computed indices, and so do
libraries on top of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ir.ops.addressing import GATHER, SCATTER, Addressing, Spelling, gather_addressing, scatter_addressing
from ir.ops.layout import slice_along
from ir.ops.reduction import COMBINES, neutral_of, reduction_kind
from ir.ops.rule_helpers import ints_attr
from ir.program import Attr, Op, Value
from ir.registry import Registry
from ir.types import TensorType, s32
from passes.optimize.fold.data_movement import write_slice
from passes.optimize.fold.facts import AffineRange, grid_of, numbers_of
from passes.optimize.fold.rewriter import Rewriter, Rule

RULES: Registry[Rule] = Registry()

COMPUTED = ("gather", "scatter")
"""Ops that read or write at index tensors."""


@RULES.of("dynamic_slice")
def _dynamic_slice(r: Rewriter, op: Op) -> Value | None:
    x, sizes = op.operands[0], op.result.shape
    if x.shape == sizes:
        return x
    if not _is_worth_slicing(r, x, sizes):
        return None
    starts = [r.facts.number(v) for v in op.operands[1:]]
    known = [s for s in starts if s is not None]
    if len(known) < len(starts):
        return None
    clamped = [min(max(s, 0), n - size) for s, n, size in zip(known, x.shape, sizes, strict=True)]
    return write_slice(r, x, clamped, sizes, (1,) * len(sizes))


def _is_worth_slicing(r: Rewriter, x: Value, sizes: Sequence[int]) -> bool:
    """Whether a slice may be split wherever `x` is. If not, it is cheaper to send the few elements from their
    owners."""
    return all(size == n or size >= r.devices for n, size in zip(x.shape, sizes, strict=True))


@RULES.of("dynamic_update_slice")
def _dynamic_update_slice(r: Rewriter, op: Op) -> Value | None:
    operand, update = op.operands[:2]
    return update if update.shape == operand.shape else operand if 0 in update.shape else None


@dataclass(frozen=True, slots=True)
class Line:
    """The indices at which boxes begin in one dim: from `start` on in steps of `step`, counted by dim `dim` of the
    slices."""

    start: int
    step: int = 0
    dim: int | None = None


def _lines(r: Rewriter, op: Op, a: Addressing) -> dict[int, Line] | None:
    """The line of each dim of the operand; None if indices are unknown, depend on the same dim, or are out of
    bounds."""
    operand, indices = op.operands[:2]
    slices = dict(a.batch)
    if a.shared or 0 in a.sizes or any(indices.shape[i] == 0 for i, _ in a.batch):
        return None
    found: dict[int, Line] = {d: Line(0) for d in range(operand.type.rank)}
    counting: list[int] = []
    grids = _components(r, indices, a.vector_dim) if a.addressed else []
    if grids is None:
        return None
    for d, grid in zip(a.addressed, grids, strict=True):
        moving = [i for i, step in enumerate(grid.steps) if step]
        if len(moving) > 1 or (moving and a.sizes[d] != 1):
            return None
        step = grid.steps[moving[0]] if moving else 0
        last = grid.start + step * (indices.shape[moving[0]] - 1) if moving else grid.start
        if min(grid.start, last) < 0 or max(grid.start, last) + a.sizes[d] > operand.shape[d]:
            return None
        found[d] = Line(grid.start, step, slices[moving[0]] if moving else None)
        counting.extend(moving)
    return found if len(set(counting)) == len(counting) else None


def _components(r: Rewriter, indices: Value, vector: int | None) -> list[AffineRange] | None:
    """The components of index vectors as affine ranges over the dims of the indices; None if they are unknown."""
    known = r.facts.of(indices)
    if known is None:
        return None
    if vector is None:
        return [known.grid] if known.grid is not None else None
    count = indices.shape[vector]
    if known.grid is not None:
        start, steps = known.grid.start, list(known.grid.steps)
        by, steps[vector] = steps[vector], 0
        return [AffineRange(start + i * by, tuple(steps)) for i in range(count)]
    numbers = numbers_of(known, indices.type)
    if numbers is not None:
        grids = [grid_of(numbers.take([i], vector)) for i in range(count)]
        return [g for g in grids if g is not None] if None not in grids else None
    joined = r.behind(indices, "concatenate")
    if joined is None or joined.attrs["dim"] != vector:
        return None
    parts = [_components(r, x, vector) for x in joined.operands]
    return [g for part in parts for g in part or ()] if None not in parts else None


# Dims of the operand that indices enumerate.


def _walked_together(r: Rewriter, op: Op, a: Addressing, s: Spelling) -> Value | None:
    """`x[arange(n), labels]`: a dim at which box i begins at index i becomes one batch dim with the dim of the indices
    that enumerates it, so that it may be split as the operand is."""
    indices = op.operands[1]
    grids = _each_component(r, indices, a.vector_dim)
    pairs: dict[int, int] = {}
    for d, grid in zip(a.addressed, grids, strict=False):
        counted = _counted_dim(grid, indices.shape, op.operands[0].shape[d])
        taken = (*pairs.values(), *(i for _, i in a.shared))
        if counted is not None and counted not in taken and d in ints_attr(op.attrs, s.dropped):
            pairs[d] = counted
    if not pairs or len(pairs) == len(a.addressed) or a.vector_dim is None:
        return None
    rest = [k for k, d in enumerate(a.addressed) if d not in pairs]
    shared = sorted({**dict(a.shared), **pairs}.items())
    vectors = [r.write("slice", indices, **slice_along(indices.shape, a.vector_dim, k, k + 1)) for k in rest]
    attrs: dict[str, Attr] = {
        **op.attrs,
        s.dropped: tuple(d for d in ints_attr(op.attrs, s.dropped) if d not in pairs),
        s.addressed: tuple(a.addressed[k] for k in rest),
        s.batching: tuple(d for d, _ in shared),
        s.indices_batching: tuple(i for _, i in shared),
    }
    narrow = r.write("concatenate", *vectors, dim=a.vector_dim)
    return r.write(op.name, op.operands[0], narrow, *op.operands[2:], **attrs)


def _counted_dim(grid: AffineRange | None, shape: Sequence[int], n: int) -> int | None:
    """The dim of the indices along which they count from 0 to n - 1, if they depend on no other."""
    if grid is None or grid.start:
        return None
    moving = [i for i, step in enumerate(grid.steps) if step]
    return moving[0] if len(moving) == 1 and grid.steps[moving[0]] == 1 and shape[moving[0]] == n else None


def _each_component(r: Rewriter, indices: Value, vector: int | None) -> list[AffineRange | None]:
    """The components of index vectors, None for unknown ones."""
    joined, all_known = r.behind(indices, "concatenate"), r.facts.of(indices)
    numbers = numbers_of(all_known, indices.type) if all_known is not None else None
    if vector is not None and numbers is not None:
        return [grid_of(numbers.take([i], vector)) for i in range(indices.shape[vector])]
    if vector is None or joined is None or joined.attrs["dim"] != vector:
        return [*(_components(r, indices, vector) or ())]
    known = [(x.shape[vector], r.facts.of(x)) for x in joined.operands]
    if any(count != 1 for count, _ in known):
        return []
    return [k.grid if k is not None else None for _, k in known]


# Reading.


@RULES.of("gather")
def _gather(r: Rewriter, op: Op) -> Value | None:
    """A strided slice, with dims in the order of the result. Boxes that are all equal are broadcast."""
    a = gather_addressing(op)
    lines = _lines(r, op, a)
    if lines is None:
        return _walked_together(r, op, a, GATHER)
    x, result = op.operands[0], op.result
    counts = {d: result.shape[line.dim] for d, line in lines.items() if line.dim is not None}
    sizes = [counts.get(d, size) for d, size in enumerate(a.sizes)]
    if not _is_worth_slicing(r, x, sizes):
        return _walked_together(r, op, a, GATHER)
    lows = [line.start + min(0, line.step * (counts.get(d, 1) - 1)) for d, line in lines.items()]
    x = write_slice(r, x, lows, sizes, [abs(line.step) or 1 for line in lines.values()])
    backward = tuple(d for d, line in lines.items() if line.step < 0)
    x = r.write("reverse", x, dims=backward) if backward else x
    places = _places(a, lines)
    x = r.write("reshape", x, shape=tuple(sizes[d] for d in places))
    dims = tuple(places.values())
    order = tuple(sorted(range(len(dims)), key=lambda i: dims[i]))
    x = r.write("transpose", x, perm=order)
    return r.write("broadcast_in_dim", x, shape=result.shape, dims=tuple(dims[i] for i in order))


def _places(a: Addressing, lines: Mapping[int, Line]) -> dict[int, int]:
    """The dims of the operand that slices have, mapped to their dims in the slices."""
    window = dict(a.window)
    places = {d: line.dim if line.dim is not None else window.get(d) for d, line in lines.items()}
    return {d: place for d, place in places.items() if place is not None}


# Writing.


@RULES.of("scatter")
def _scatter(r: Rewriter, op: Op) -> Value | None:
    """Boxes that do not overlap: padded with the identity of the update, or, if they are one box, written in place."""
    a, (x, _, updates) = scatter_addressing(op), op.operands
    lines = _lines(r, op, a)
    if lines is None or not _apart(a, lines, updates.shape):
        return _walked_together(r, op, a, SCATTER)
    places = _places(a, lines)
    order = tuple(places.values())
    rest = [d for d in range(updates.type.rank) if d not in order]
    moved = r.write("transpose", updates, perm=(*order, *rest))
    sizes = tuple(updates.shape[places[d]] if d in places else 1 for d in range(x.type.rank))
    moved = r.write("reshape", moved, shape=sizes)
    backward = tuple(d for d, line in lines.items() if line.step < 0)
    moved = r.write("reverse", moved, dims=backward) if backward else moved
    lows = [line.start + min(0, line.step * (sizes[d] - 1)) for d, line in lines.items()]
    steps = [abs(line.step) or 1 for line in lines.values()]
    kind = reduction_kind(op.attrs)
    if kind is None:
        return _put(r, x, moved, lows) if set(steps) == {1} or not steps else None
    if kind == "prod" and x.dtype.is_complex:
        return None
    high = [n - low - (size - 1) * s - 1 for n, low, size, s in zip(x.shape, lows, sizes, steps, strict=True)]
    scalar, interior = r.full(neutral_of(kind, x.dtype), TensorType((), x.dtype)), tuple(s - 1 for s in steps)
    padded = r.write("pad", moved, scalar, low=tuple(lows), high=tuple(high), interior=interior)
    return r.write(COMBINES[kind], x, padded)


def _apart(a: Addressing, lines: Mapping[int, Line], slices: Sequence[int]) -> bool:
    """Whether no element is written twice: each dim of the indices moves the boxes, and no dim that they move along has
    several elements in a box."""
    moved = {line.dim for line in lines.values()}
    counted = all(slices[s] == 1 or s in moved for _, s in a.batch)
    window = dict(a.window)
    return counted and all(line.dim is None or d not in window or slices[window[d]] == 1 for d, line in lines.items())


def _put(r: Rewriter, x: Value, box: Value, starts: Sequence[int]) -> Value:
    at = [r.full(start, TensorType((), s32)) for start in starts]
    return r.write("dynamic_update_slice", x, box, *at)
