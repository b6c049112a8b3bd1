"""Compositions that rearrange elements: reshape, transpose, broadcast, joining, padding, matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.diagnostics import error
from ir.program import Value
from ir.types import DType
from spmdc.frontends.spmd.items import Item, expect_ints, normal_dim
from spmdc.frontends.spmd.library.declare import Ints, Values, composition
from spmdc.frontends.spmd.library.emitter import Emitter, Operand


def join(e: Emitter, values: Sequence[Value], dim: int) -> Value:
    """The values, concatenated along dim; one alone as it is."""
    return values[0] if len(values) == 1 else e.op("concatenate", *values, dim=dim)


@composition(computes=False)
def convert(e: Emitter, x: Value, dtype: DType) -> Value:
    """x with another element type."""
    return e.op("convert", x, dtype=dtype)


@composition(computes=False)
def reshape(e: Emitter, x: Value, shape: Ints) -> Value:
    """The elements of x, in row-major order, in another shape, of which one size may be -1."""
    known = math.prod(n for n in shape if n != -1)
    if shape.count(-1) > 1:
        raise error("E201", f"shape {list(shape)} leaves more than one size open", e.span, help="write all but one")
    if shape.count(-1) == 1:
        if not known or x.type.size % known:
            raise error("E201", f"{x.type} has {x.type.size} elements, which {known} does not divide", e.span)
        shape = tuple(x.type.size // known if n == -1 else n for n in shape)
    if min(shape, default=0) < 0:
        raise error("E205", f"a dim's size must not be negative: {list(shape)}", e.span)
    return e.op("reshape", x, shape=shape)


@composition(computes=False)
def transpose(e: Emitter, x: Value, perm: Ints | None = None) -> Value:
    """x with result dim i being dim perm[i]; without perm, the dims in reverse."""
    dims = range(x.type.rank - 1, -1, -1) if perm is None else [normal_dim(d, x.type.rank, e.span) for d in perm]
    return e.op("transpose", x, perm=tuple(dims))


@composition(computes=False)
def swapaxes(e: Emitter, x: Value, a: int, b: int) -> Value:
    """x with dims a and b exchanged."""
    perm = list(range(x.type.rank))
    i, j = normal_dim(a, x.type.rank, e.span), normal_dim(b, x.type.rank, e.span)
    perm[i], perm[j] = perm[j], perm[i]
    return e.op("transpose", x, perm=tuple(perm))


@composition("broadcast_to", computes=False)
def broadcast(e: Emitter, x: Value, shape: Ints) -> Value:
    """x repeated to a shape, aligned from the last dim, as numpy.broadcast_to."""
    offset = len(shape) - x.type.rank
    if min(shape, default=0) < 0:
        raise error("E205", f"a dim's size must not be negative: {list(shape)}", e.span)
    if offset < 0 or any(n not in (1, shape[offset + d]) for d, n in enumerate(x.shape)):
        raise error("E201", f"{x.type} does not broadcast to {list(shape)}", e.span)
    return e.broadcast_to(x, shape)


@composition(computes=False)
def expand_dims(e: Emitter, x: Value, dim: Ints) -> Value:
    """x with dims of size 1 inserted, at these places of the result."""
    rank = x.type.rank + len(dim)
    places = {normal_dim(d, rank, e.span) for d in dim}
    if len(places) != len(dim):
        raise error("E201", f"dims {list(dim)} name a dim twice", e.span)
    sizes = iter(x.shape)
    return e.op("reshape", x, shape=tuple(1 if d in places else next(sizes) for d in range(rank)))


@composition(computes=False)
def squeeze(e: Emitter, x: Value, dim: Ints | None = None) -> Value:
    """x without these dims, which must have size 1; without all such dims if none is named."""
    if dim is None:
        dim = tuple(d for d, n in enumerate(x.shape) if n == 1)
    places = {normal_dim(d, x.type.rank, e.span) for d in dim}
    for d in sorted(places):
        if x.shape[d] != 1:
            raise error(
                "E201",
                f"dim {d} of {x.type} has size {x.shape[d]}: only dims of size 1 go away",
                e.span,
                help="take an element: x[0], or reduce it",
            )
    return e.reshape(x, tuple(n for d, n in enumerate(x.shape) if d not in places))


@composition("concat")
def concatenate(e: Emitter, values: Values, dim: int = 0) -> Value:
    """The tensors of a list, one behind the other along dim."""
    if not values:
        raise error("E203", "there is nothing to concatenate", e.span, help="give a list: concat([a, b], dim=0)")
    return e.op("concatenate", *values, dim=normal_dim(dim, values[0].type.rank, e.span))


@composition()
def stack(e: Emitter, values: Values, dim: int = 0) -> Value:
    """The tensors of a list, alike in type, along a new dim."""
    if not values:
        raise error("E203", "there is nothing to stack", e.span, help="give a list: stack([a, b], dim=0)")
    place = normal_dim(dim, values[0].type.rank + 1, e.span)
    for v in values[1:]:
        if v.type != values[0].type:
            raise error("E201", f"stack takes tensors of one type, and is given {values[0].type} and {v.type}", e.span)
    shape = (*values[0].shape[:place], 1, *values[0].shape[place:])
    return join(e, [e.op("reshape", v, shape=shape) for v in values], place)


@composition(computes=False)
def pad(e: Emitter, x: Value, widths: Item, value: Operand = 0) -> Value:
    """x with [before, after] elements added to each dim; numbers instead of pairs pad both sides alike."""
    pairs = widths if isinstance(widths, tuple) else (widths,) * x.type.rank
    if len(pairs) != x.type.rank:
        raise error("E201", f"pad takes a pair for each of the {x.type.rank} dims of {x.type}", e.span)
    low, high = [], []
    for pair in pairs:
        ints = expect_ints(pair, e.span, "the widths")
        if len(ints) not in (1, 2):
            raise error("E203", "the widths of a dim are a pair [before, after]", e.span)
        low.append(ints[0])
        high.append(ints[-1])
    fill = bool(value) if isinstance(value, int) and x.dtype.kind == "pred" else value
    return e.op("pad", x, e.scalar_like(fill, x), low=tuple(low), high=tuple(high))


@composition(computes=False)
def flip(e: Emitter, x: Value, dims: Ints) -> Value:
    """x with the elements of dims in reverse order."""
    return e.op("reverse", x, dims=tuple(normal_dim(d, x.type.rank, e.span) for d in dims))


@composition("dot")
def matmul(e: Emitter, a: Value, b: Value) -> Value:
    """The matrix product over the last dim of a and the last but one of b, as numpy.matmul; earlier dims broadcast."""
    if not a.type.rank or not b.type.rank:
        raise error("E201", f"matmul takes tensors of one or more dims, and is given {a.type} and {b.type}", e.span)
    inner = b.shape[-2] if b.type.rank > 1 else b.shape[0]
    if a.shape[-1] != inner:
        raise error(
            "E201", f"matmul: {a.type} and {b.type} differ in the dim summed, {a.shape[-1]} and {inner}", e.span,
            help="transpose one of them, or say what is summed: einsum(\"ij,kj->ik\", a, b)",
        )  # fmt: skip
    batch = _common_batch(e, a, b)
    if b.type.rank <= 2:
        return e.op("dot_general", a, b, lhs_contract=(a.type.rank - 1,), rhs_contract=(max(0, b.type.rank - 2),))
    wide_a = a if a.type.rank == 1 else e.broadcast_to(a, (*batch, *a.shape[-2:]))
    wide_b = e.broadcast_to(b, (*batch, *b.shape[-2:]))
    if a.type.rank == 1:
        wide_a = e.broadcast_to(a, (*batch, *a.shape))
    dims = tuple(range(len(batch)))
    contract = {"lhs_contract": (wide_a.type.rank - 1,), "rhs_contract": (len(batch),)}
    return e.op("dot_general", wide_a, wide_b, lhs_batch=dims, rhs_batch=dims, **contract)


def _common_batch(e: Emitter, a: Value, b: Value) -> tuple[int, ...]:
    left, right = a.shape[:-2], b.shape[:-2]
    rank = max(len(left), len(right))
    sizes: list[int] = []
    for x, y in zip((1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right, strict=True):
        if x != y and 1 not in (x, y):
            raise error("E201", f"matmul: the batch dims of {a.type} and {b.type} do not broadcast", e.span)
        sizes.append(y if x == 1 else x)
    return tuple(sizes)
