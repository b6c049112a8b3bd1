"""Sorts by a comparator that is not an order by keys: a sorting network calls it on pairs."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir as mlir

from ir.ops.layout import slice_along
from ir.program import Value
from ir.types import s32
from spmdc.frontends.stablehlo.ops.reduction import body_function, mapped
from spmdc.frontends.stablehlo.scope import Scope


def sorted_by(
    op: mlir.Operation, scope: Scope, operands: Sequence[Value], region: mlir.Region, dim: int
) -> list[Value]:
    """The operands, sorted together along the dim by the function of scalars (a0, b0, a1, b1, …) that returns whether a
    comes before b. Stable. Raises SpmdcError (E708) if the region uses values from outside.

    The network is Batcher's bitonic one ("Sorting networks and their applications", 1968), in which all comparators
    have the same direction. In blocks of 2, 4, 8, … elements with sorted halves, element i is compared with the element
    equally far from the other end; then each half is merged by comparing elements at half of its size apart, a quarter,
    and so on.
    """
    n = operands[0].shape[dim]
    before = body_function(op, scope, region, "before", [v.dtype for v in operands for _ in range(2)])
    bits = max(n - 1, 0).bit_length()
    rows = [_padded(scope, v, dim, 2**bits) for v in operands]
    rows.append(scope.emit("iota", type=rows[0].type.with_dtype(s32), dim=dim))
    for block in range(bits):
        rows = _compared(scope, before, rows, dim, 2**block, n, is_mirrored=True)
        for half in reversed(range(block)):
            rows = _compared(scope, before, rows, dim, 2**half, n, is_mirrored=False)
    return [v if v.shape[dim] == n else scope.emit("slice", v, **slice_along(v.shape, dim, 0, n)) for v in rows[:-1]]


def _padded(scope: Scope, value: Value, dim: int, size: int) -> Value:
    """The value padded to `size` elements; the padding has positions after all others."""
    high = tuple(size - n if d == dim else 0 for d, n in enumerate(value.shape))
    if not any(high):
        return value
    return scope.emit("pad", value, scope.zeros(value.type.with_shape(())), low=(0,) * len(high), high=high)


def _compared(
    scope: Scope, before: str, rows: Sequence[Value], dim: int, half: int, count: int, *, is_mirrored: bool
) -> list[Value]:
    """Each element of the first half of a block put in order with one of the second: the one equally far from its
    beginning, or, if mirrored, from its end. The last of the rows has the original positions of elements, which for
    padding are from `count` on."""
    shape = rows[0].shape
    split = (*shape[:dim], shape[dim] // (2 * half), 2, half, *shape[dim + 1 :])

    def part(value: Value, i: int) -> Value:
        sliced = scope.emit("slice", value, **slice_along(split, dim + 1, i, i + 1))
        return scope.emit("reverse", sliced, dims=(dim + 2,)) if i and is_mirrored and half > 1 else sliced

    blocks = [scope.emit("reshape", v, shape=split) for v in rows]
    low, high = [part(v, 0) for v in blocks], [part(v, 1) for v in blocks]
    (ahead,) = mapped(scope, before, [v for pair in zip(high[:-1], low[:-1], strict=True) for v in pair])
    (behind,) = mapped(scope, before, [v for pair in zip(low[:-1], high[:-1], strict=True) for v in pair])
    came_later = scope.emit("compare", low[-1], high[-1], direction="LT")
    swaps = scope.emit("or", ahead, scope.emit("not", scope.emit("or", behind, came_later)))
    latest = scope.emit("maximum", low[-1], high[-1])
    is_padding = scope.emit("compare", latest, scope.full(count, latest.type), direction="GE")
    swaps = scope.emit("select", is_padding, scope.emit("not", came_later), swaps)
    ordered: list[Value] = []
    for a, b in zip(low, high, strict=True):
        first, second = scope.emit("select", swaps, b, a), scope.emit("select", swaps, a, b)
        if is_mirrored and half > 1:
            second = scope.emit("reverse", second, dims=(dim + 2,))
        ordered.append(scope.emit("reshape", scope.emit("concatenate", first, second, dim=dim + 1), shape=shape))
    return ordered
