"""Sums of tensors that are padded with zeros and do not overlap become concatenations.

The gradients of slices are such sums, each padded to the size of the sliced tensor: those of the layers of stacked
weights, of heads and of gates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ir.ops.rule_helpers import int_attr
from ir.program import Op, Value
from ir.registry import Registry
from passes.joined_parts import padded_dim
from passes.optimize.fold.rewriter import Rewriter


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor at a position along a dim."""

    start: int
    value: Value


@dataclass(frozen=True, slots=True)
class _Row:
    """A tensor that is zero except for pieces along a dim, in order."""

    dim: int
    pieces: tuple[_Piece, ...]


def sum_in_a_row(r: Rewriter, op: Op) -> Value | None:
    """The concatenation of the pieces. For floats, 0.0 is added to all elements, because it changes -0.0."""
    first, second = (_row(r, x) for x in op.operands)
    if first is None or second is None or first.dim != second.dim:
        return None
    dim = first.dim
    pieces = sorted((*first.pieces, *second.pieces), key=lambda piece: piece.start)
    ends = [piece.start + piece.value.shape[dim] for piece in pieces]
    if any(end > after.start for end, after in zip(ends, pieces[1:], strict=False)):
        return None
    joined = r.write("concatenate", *_with_zeros(r, op.result, dim, pieces), dim=dim)
    type = op.result.type
    return joined if type.dtype.is_integer else r.write("add", joined, r.full(_zero(op.result), type))


def _with_zeros(r: Rewriter, whole: Value, dim: int, pieces: Sequence[_Piece]) -> Iterator[Value]:
    end = 0
    for start, value in ((p.start, p.value) for p in pieces):
        if start > end:
            yield _zeros(r, whole, dim, start - end)
        yield value
        end = start + value.shape[dim]
    if end < whole.shape[dim]:
        yield _zeros(r, whole, dim, whole.shape[dim] - end)


def _zeros(r: Rewriter, like: Value, dim: int, size: int) -> Value:
    shape = (*like.shape[:dim], size, *like.shape[dim + 1 :])
    return r.full(_zero(like), like.type.with_shape(shape))


def _zero(like: Value) -> complex | float | int:
    return 0j if like.dtype.is_complex else 0 if like.dtype.is_integer else 0.0


def _row(r: Rewriter, value: Value) -> _Row | None:
    if value.dtype.kind == "pred":
        return None
    added = r.maker(value, "add")
    if added is not None and _is_zero(r, added.operands[1]):
        value = added.operands[0]
    op = r.maker(value)
    if op is None:
        return None
    rule = _ROWS.get(op.name)
    return rule(r, op) if rule is not None else None


_ROWS: Registry[Callable[[Rewriter, Op], _Row | None]] = Registry()


@_ROWS.of("pad")
def _of_padded(r: Rewriter, op: Op) -> _Row | None:
    x, fill = op.operands
    padded = padded_dim(op)
    if padded is None or not _is_zero(r, fill):
        return None
    dim, low, _ = padded
    return _Row(dim, (_Piece(low, x),))


@_ROWS.of("concatenate")
def _of_joined(r: Rewriter, op: Op) -> _Row:
    dim, start = int_attr(op.attrs, "dim"), 0
    pieces: list[_Piece] = []
    for x in op.operands:
        if not _is_zero(r, x):
            pieces.append(_Piece(start, x))
        start += x.shape[dim]
    return _Row(dim, tuple(pieces))


def _is_zero(r: Rewriter, value: Value) -> bool:
    """Whether all elements are known to be 0, and not -0.0."""
    number = r.splat(value)
    if number is None or number != 0:
        return False
    return all(math.copysign(1, part) > 0 for part in (complex(number).real, complex(number).imag))
