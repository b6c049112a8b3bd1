"""Folding of ops on integers that change by equal steps along each dim, as those of an iota do."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Op
from ir.registry import Registry
from passes.optimize.fold.facts import AffineRange, IntegerFact, on_grid


def grid_of_op(op: Op, operands: Sequence[IntegerFact | None]) -> IntegerFact | None:
    rule = _GRIDS.get(op.name)
    grids = [known.grid for known in operands if known is not None and known.grid is not None]
    if rule is None or len(grids) < len(operands):
        return None
    found = rule(op, grids)
    return on_grid(op.result.type, found.start, found.steps) if found is not None else None


_GRIDS: Registry[Callable[[Op, Sequence[AffineRange]], AffineRange | None]] = Registry(
    {
        "convert": lambda op, grids: grids[0] if op.result.dtype.kind != "pred" else None,
        "negate": lambda op, grids: _scaled(grids[0], -1),
        "shard": lambda op, grids: grids[0],
    }
)


@_GRIDS.of("iota")
def _grid_of_iota(op: Op, grids: Sequence[AffineRange]) -> AffineRange:
    dim = int_attr(op.attrs, "dim")
    return AffineRange(0, tuple(int(d == dim) for d in range(op.result.type.rank)))


@_GRIDS.of("broadcast_in_dim")
def _grid_of_broadcast(op: Op, grids: Sequence[AffineRange]) -> AffineRange:
    steps = dict(zip(ints_attr(op.attrs, "dims"), grids[0].steps, strict=True))
    return AffineRange(grids[0].start, tuple(steps.get(d, 0) for d in range(op.result.type.rank)))


@_GRIDS.of("reshape")
def _grid_of_reshape(op: Op, grids: Sequence[AffineRange]) -> AffineRange | None:
    """Dims of size 1 are added or removed."""
    source, target = op.operands[0].shape, op.result.shape
    if grids[0].is_splat:
        return AffineRange(grids[0].start, (0,) * len(target))
    if [n for n in source if n > 1] != [n for n in target if n > 1]:
        return None
    steps = iter(s for s, n in zip(grids[0].steps, source, strict=True) if n > 1)
    return AffineRange(grids[0].start, tuple(next(steps) if n > 1 else 0 for n in target))


@_GRIDS.of("slice")
def _grid_of_slice(op: Op, grids: Sequence[AffineRange]) -> AffineRange:
    first = ints_attr(op.attrs, "start")
    strides = ints_attr(op.attrs, "stride") or (1,) * len(first)
    start = grids[0].start + sum(s * i for s, i in zip(grids[0].steps, first, strict=True))
    return AffineRange(start, tuple(s * k for s, k in zip(grids[0].steps, strides, strict=True)))


@_GRIDS.of("reverse")
def _grid_of_reverse(op: Op, grids: Sequence[AffineRange]) -> AffineRange:
    start, steps = grids[0].start, list(grids[0].steps)
    for d in ints_attr(op.attrs, "dims"):
        start += steps[d] * (op.result.shape[d] - 1)
        steps[d] = -steps[d]
    return AffineRange(start, tuple(steps))


@_GRIDS.of("add")
def _grid_of_sum(op: Op, grids: Sequence[AffineRange]) -> AffineRange:
    x, y = grids
    return AffineRange(x.start + y.start, tuple(map(operator.add, x.steps, y.steps)))


def _scaled(grid: AffineRange, factor: int) -> AffineRange:
    return AffineRange(grid.start * factor, tuple(s * factor for s in grid.steps))


@_GRIDS.of("subtract")
def _grid_of_difference(op: Op, grids: Sequence[AffineRange]) -> AffineRange | None:
    return _grid_of_sum(op, (grids[0], _scaled(grids[1], -1)))


@_GRIDS.of("multiply")
def _grid_of_product(op: Op, grids: Sequence[AffineRange]) -> AffineRange | None:
    x, y = grids
    if x.is_splat or y.is_splat:
        return _scaled(y, x.start) if x.is_splat else _scaled(x, y.start)
    return None


@_GRIDS.of("transpose")
def _grid_of_transpose(op: Op, grids: Sequence[AffineRange]) -> AffineRange:
    return AffineRange(grids[0].start, tuple(grids[0].steps[p] for p in ints_attr(op.attrs, "perm")))
