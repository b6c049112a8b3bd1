"""Selects, by position, between tensors that are put together of pieces, where one of them holds nothing elsewhere.

A device gets the elements that cross a border, such as those that a rotation moves around the end or that an update
writes, as a piece of a tensor that is undefined elsewhere. Only the elements of such pieces are selected:

    select(p, concatenate(a, undefined), concatenate(b, c))  ->  concatenate(select(p[:k], a, b), c)
    select(p, concatenate(undefined, a), x)                  ->  dynamic_update_slice(x, select(p[k:], a, x[k:]), k)

The update is in place if x is a value that the program computes. A parameter would be copied for it, and is cut into
pieces instead, so that the concatenation is computed along with what uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ir.builder import Names, RegionBuilder
from ir.dataflow import uses_of
from ir.ops.creation import holds_nothing
from ir.ops.layout import slice_along
from ir.program import Op, Program, Value, all_ops
from ir.types import TensorType, s32
from passes.joined_parts import Pieces, pieces_of
from passes.rewrite import map_program


def select_pieces(program: Program) -> Program:
    """The SPMD program with each such select replaced by selects of pieces."""
    makers = uses_of(program).makers
    names: Names | None = None
    became: dict[Op, Sequence[Op]] = {}
    for op in all_ops(program):
        if op.name != "select" or op.operands[0].type.rank != op.result.type.rank:
            continue
        sides = [pieces_of(makers.get(v), lambda v: holds_nothing(makers.get(v))) for v in op.operands[1:]]
        put_together = [side for side in sides if side is not None and None in side.values]
        if (
            not any(v is not None for side in put_together for v in side.values)
            or len({(side.dim, side.sizes) for side in sides if side is not None}) > 1
        ):
            continue
        if names is None:
            names = Names.beside(*program.functions.values())
        b = RegionBuilder(names, span=op.span, cause=op.cause)
        on_true, on_false = (
            side or _cut_like(b, v, put_together[0], makers) for side, v in zip(sides, op.operands[1:], strict=True)
        )
        if on_true is None or on_false is None:
            _update(b, op, *put_together, is_on_true=on_false is None)
        else:
            _join(b, op, on_true, on_false)
        became[op] = b.in_place_of(op)
    return map_program(program, lambda op: became.get(op, (op,))) if became else program


def _cut_like(b: RegionBuilder, value: Value, pieces: Pieces, makers: Mapping[Value, Op]) -> Pieces | None:
    """A parameter, cut into pieces of the same sizes."""
    if value in makers:
        return None
    parts = [_cut(b, value, pieces.dim, *part) for part in zip(pieces.starts, pieces.sizes, strict=True)]
    return Pieces(pieces.dim, pieces.sizes, tuple(parts))


def _join(b: RegionBuilder, op: Op, on_true: Pieces, on_false: Pieces) -> None:
    """Writes the select of two tensors that are put together: a concatenation, of selects where both hold something."""
    dim, found = on_true.dim, list[Value]()
    for start, size, first, second in zip(on_true.starts, on_true.sizes, on_true.values, on_false.values, strict=True):
        if first is not None and second is not None:
            which = _cut(b, op.operands[0], dim, start, size)
            found.append(b.op("select", which, first, second, name=op.result.name))
            continue
        shape = (*op.result.shape[:dim], size, *op.result.shape[dim + 1 :])
        found.append(first or second or b.op("undefined", name="padding", type=op.result.type.with_shape(shape)))
    b.op("concatenate", *found, name=op.result.name, dim=dim)


def _update(b: RegionBuilder, op: Op, pieces: Pieces, *, is_on_true: bool) -> None:
    """Writes the select of a whole tensor and of pieces, which are the ones that are selected if they are `is_on_true`:
    updates of the whole one."""
    whole = op.operands[2 if is_on_true else 1]
    for start, size, piece in zip(pieces.starts, pieces.sizes, pieces.values, strict=True):
        if piece is None:
            continue
        which, own = (_cut(b, x, pieces.dim, start, size) for x in (op.operands[0], whole))
        both = (piece, own) if is_on_true else (own, piece)
        selected = b.op("select", which, *both, name=op.result.name)
        at = [start if d == pieces.dim else 0 for d in range(whole.type.rank)]
        starts = [b.op("constant", name="start", value=n, type=TensorType((), s32)) for n in at]
        whole = b.op("dynamic_update_slice", whole, selected, *starts, name=op.result.name)


def _cut(b: RegionBuilder, x: Value, dim: int, start: int, size: int) -> Value:
    return b.op("slice", x, name=x.name, **slice_along(x.shape, dim, start, start + size))
