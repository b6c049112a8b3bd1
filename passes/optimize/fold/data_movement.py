"""Ops that only place elements: those that leave all in place, and two that are one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ir.ops.creation import constant_value
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Op, Value
from ir.registry import Registry
from passes.joined_parts import shift_of
from passes.optimize.fold.merged_dims import split_again
from passes.optimize.fold.rewriter import Rewriter, Rule
from passes.optimize.fold.windows import slice_of_scattered


def _constant_of(r: Rewriter, op: Op) -> Value | None:
    """One number wherever it is placed."""
    number = constant_value(r.maker(op.operands[0]))
    return r.full(number, op.result.type) if isinstance(number, bool | int | float | complex) else None


RULES: Registry[Rule] = Registry()


@RULES.of("broadcast_in_dim")
def _broadcast(r: Rewriter, op: Op) -> Value | None:
    """Two broadcasts are one, and so are a reshape that only adds dims of size 1 and a broadcast."""
    (x,), dims, shape = op.operands, ints_attr(op.attrs, "dims"), op.result.shape
    if x.type == op.result.type and dims == tuple(range(len(dims))):
        return x
    inner = r.maker(x)
    if inner is not None and inner.name == "broadcast_in_dim":
        through = tuple(dims[d] for d in ints_attr(inner.attrs, "dims"))
        return r.write("broadcast_in_dim", inner.operands[0], shape=shape, dims=through)
    if inner is not None and inner.name == "reshape" and list(inner.operands[0].shape) == _sizes(x.shape):
        own = tuple(d for d, n in zip(dims, x.shape, strict=True) if n != 1)
        return r.write("broadcast_in_dim", inner.operands[0], shape=shape, dims=own)
    if inner is not None and inner.name == "iota":
        dim = int_attr(inner.attrs, "dim")
        if x.shape[dim] == shape[dims[dim]]:
            return r.write("iota", type=op.result.type, dim=dims[dim])
    return _constant_of(r, op)


@RULES.of("reshape")
def _reshape(r: Rewriter, op: Op) -> Value | None:
    """Two reshapes are one where one of them only adds or drops dims of size 1, or the second undoes the first; so are
    a broadcast that only adds such dims and a reshape. Dims that are split again are merged in order."""
    (x,) = op.operands
    if x.type == op.result.type:
        return x
    inner = r.maker(x)
    if inner is not None and (inner.name == "reshape" or _adds_units(inner)):
        first, second, third = _sizes(inner.operands[0].shape), _sizes(x.shape), _sizes(op.result.shape)
        if second in (first, third) or first == third:
            return r.write("reshape", inner.operands[0], shape=op.result.shape)
    found = _constant_of(r, op)
    return found if found is not None else split_again(r, op)


def _adds_units(op: Op) -> bool:
    """Whether a broadcast only adds dims of size 1."""
    if op.name != "broadcast_in_dim" or op.operands[0].type.size != op.result.type.size:
        return False
    dims = ints_attr(op.attrs, "dims")
    return list(dims) == sorted(dims)


def _sizes(shape: Sequence[int]) -> list[int]:
    return [n for n in shape if n != 1]


@RULES.of("transpose")
def _transpose(r: Rewriter, op: Op) -> Value | None:
    (x,), perm = op.operands, ints_attr(op.attrs, "perm")
    if perm == tuple(range(len(perm))):
        return x
    inner = r.maker(x, "transpose")
    if inner is not None:
        first = ints_attr(inner.attrs, "perm")
        return r.write("transpose", inner.operands[0], perm=tuple(first[p] for p in perm))
    return _constant_of(r, op)


@RULES.of("slice")
def _slice(r: Rewriter, op: Op) -> Value | None:
    (x,) = op.operands
    if x.type == op.result.type:
        return x
    padded = r.behind(x, "pad")
    if padded is not None and 0 not in op.result.shape:
        found = _slice_of_padded(r, op, padded)
        return r.annotated(found, x) if found is not None else None
    inner = r.maker(x)
    if inner is None or 0 in op.result.shape:
        return None
    rule = _SLICED.get(inner.name)
    return rule(r, op, inner) if rule is not None else _constant_of(r, op)


_SLICED: Registry[Callable[[Rewriter, Op, Op], Value | None]] = Registry({"select_and_scatter": slice_of_scattered})
"""What a slice is of the result of an op."""


@_SLICED.of("slice")
def _slice_of_slice(r: Rewriter, op: Op, inner: Op) -> Value:
    start, stride, steps = ints_attr(op.attrs, "start"), _strides(op), _strides(inner)
    first = [a + s * b for a, s, b in zip(ints_attr(inner.attrs, "start"), steps, start, strict=True)]
    by = [s * t for s, t in zip(steps, stride, strict=True)]
    return write_slice(r, inner.operands[0], first, op.result.shape, by)


def _slice_of_padded(r: Rewriter, op: Op, padded: Op) -> Value | None:
    """What is shifted by a pad and a slice is padded at one end, and cut off, which is padded by less than nothing, at
    the other."""
    x, value = padded.operands
    if any((*ints_attr(padded.attrs, "interior"), *(s - 1 for s in _strides(op)))):
        return None
    edges = zip(ints_attr(padded.attrs, "low"), ints_attr(op.attrs, "start"), x.shape, op.result.shape, strict=True)
    low, high = zip(*((before - start, n - size - before + start) for before, start, size, n in edges), strict=True)
    if any(-edge > n for edge, n in (*zip(low, x.shape, strict=True), *zip(high, x.shape, strict=True))):
        return None
    return r.write("pad", x, value, low=low, high=high, interior=padded.attrs["interior"])


def _strides(op: Op) -> tuple[int, ...]:
    return ints_attr(op.attrs, "stride") or (1,) * op.result.type.rank


def write_slice(r: Rewriter, x: Value, start: Sequence[int], sizes: Sequence[int], stride: Sequence[int]) -> Value:
    """So many elements of each dim, in steps from a start on."""
    limit = tuple(a + (n - 1) * s + 1 if n else a for a, n, s in zip(start, sizes, stride, strict=True))
    steps = tuple(stride) if any(s != 1 for s in stride) else ()
    return r.write("slice", x, start=tuple(start), limit=limit, stride=steps)


@_SLICED.of("concatenate")
def _slice_of_part(r: Rewriter, op: Op, joined: Op) -> Value | None:
    """A slice of what was concatenated that is in one of the parts."""
    dim, start, before = int_attr(joined.attrs, "dim"), list(ints_attr(op.attrs, "start")), 0
    last = start[dim] + (op.result.shape[dim] - 1) * _strides(op)[dim]
    for part in joined.operands:
        behind = before + part.shape[dim]
        if before <= start[dim] and last < behind:
            start[dim] -= before
            return write_slice(r, part, start, op.result.shape, _strides(op))
        before = behind
    return None


@RULES.of("concatenate")
def _concatenate(r: Rewriter, op: Op) -> Value | None:
    dim = int_attr(op.attrs, "dim")
    parts = [x for x in op.operands if x.shape[dim]] or [op.operands[0]]
    if len(parts) == 1:
        return parts[0]
    return r.write("concatenate", *parts, dim=dim) if len(parts) < len(op.operands) else None


@RULES.of("pad")
def _pad(r: Rewriter, op: Op) -> Value | None:
    """Nothing is added; or to a slice, at ends where nothing was cut off."""
    if not any((*ints_attr(op.attrs, "low"), *ints_attr(op.attrs, "high"), *ints_attr(op.attrs, "interior"))):
        return op.operands[0]
    shift = shift_of(op, r.maker)
    if shift is None:
        return None
    return r.write("pad", shift.source, op.operands[1], low=shift.low, high=shift.high, interior=())


@RULES.of("reverse")
def _reverse(r: Rewriter, op: Op) -> Value | None:
    (x,) = op.operands
    dims = tuple(d for d in ints_attr(op.attrs, "dims") if x.shape[d] > 1)
    if not dims:
        return x
    inner = r.maker(x, "reverse")
    if inner is not None:
        again = tuple(sorted(set(dims) ^ set(ints_attr(inner.attrs, "dims"))))
        return r.write("reverse", inner.operands[0], dims=again)
    return _constant_of(r, op)
