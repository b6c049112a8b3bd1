"""Sums of tensors that are padded with zeros and do not overlap become concatenations.

The gradients of slices are such sums, each padded to the size of the sliced tensor: those of the layers of stacked
weights, of heads and of gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ir.program import Op, Value
from passes.joined_parts import Pieces, pieces_of
from passes.optimize.fold.rewriter import Rewriter


def sum_in_a_row(r: Rewriter, op: Op) -> Value | None:
    """The concatenation of the pieces. For floats, 0.0 is added to all elements, because it changes -0.0."""
    first, second = (_pieces(r, x) for x in op.operands)
    if first is None or second is None or first.dim != second.dim:
        return None
    dim, both = first.dim, (first, second)
    pieces = [(at, v) for side in both for at, v in zip(side.starts, side.values, strict=True) if v is not None]
    pieces.sort(key=lambda piece: piece[0])
    ends = [start + value.shape[dim] for start, value in pieces]
    if any(end > after for end, (after, _) in zip(ends, pieces[1:], strict=False)):
        return None
    joined = r.write("concatenate", *_with_zeros(r, op.result, dim, pieces), dim=dim)
    type = op.result.type
    return joined if type.dtype.is_integer else r.write("add", joined, r.full(_zero(op.result), type))


def _with_zeros(r: Rewriter, whole: Value, dim: int, pieces: Sequence[tuple[int, Value]]) -> Iterator[Value]:
    """The pieces, with zeros before, between and behind them."""
    end, n = 0, whole.shape[dim]
    for start, value in (*pieces, (n, None)):
        if start > end:
            shape = (*whole.shape[:dim], start - end, *whole.shape[dim + 1 :])
            yield r.full(_zero(whole), whole.type.with_shape(shape))
        if value is not None:
            yield value
            end = start + value.shape[dim]


def _zero(like: Value) -> complex | float | int:
    return 0j if like.dtype.is_complex else 0 if like.dtype.is_integer else 0.0


def _pieces(r: Rewriter, value: Value) -> Pieces | None:
    """What a tensor is put together of along a dim, but for zeros; none of these is -0.0."""
    if value.dtype.kind == "pred":
        return None
    added = r.maker(value, "add")
    if added is not None and r.is_number(added.operands[1], 0):
        value = added.operands[0]
    return pieces_of(r.maker(value), lambda v: r.is_number(v, 0))
