"""Dims that are merged for an op, and split again behind it.

A solve of one matrix for many right sides takes them as the columns of one, as batching writes it: `[19, 16]` are
merged to 304 columns, and split again. A transpose before often puts first what is the second of them in memory. If
that is the dim that devices split, the columns of each lie apart in the merged dim, and would have to be exchanged. The
op treats them all alike, so they are merged in the order in which the tensor before the transpose has them: the
outermost batch dim first. They stay as they are if the first of them is annotated as split.
"""

from __future__ import annotations

from collections.abc import Sequence

from ir.ops import OPS, FactorKind
from ir.ops.reshape_blocks import blocks_of
from ir.ops.rule_helpers import ints_attr
from ir.program import Op, Value
from passes.factors import factor_rule
from passes.optimize.fold.rewriter import Rewriter

_MOST_OPS = 4
"""The most ops between where dims are merged and where they are split again."""


def split_again(r: Rewriter, op: Op) -> Value | None:
    """The result of a reshape that splits a dim into those that it was merged from, if these were not merged in
    order."""
    behind = _split_dim(op.operands[0].shape, op.result.shape)
    found = _ops_along(r, op.operands[0], behind[0]) if behind is not None else None
    if behind is None or found is None:
        return None
    (_, dims), (ops, merge, dim) = behind, found
    moved = r.maker(merge.operands[0], "transpose")
    before = _split_dim(merge.result.shape, merge.operands[0].shape)
    if moved is None or before is None or before[0] != dim:
        return None
    group, perm = before[1], ints_attr(moved.attrs, "perm")
    places = [perm[d] for d in group]
    order = [places.index(place) for place in sorted(places)]
    sizes = [moved.result.shape[d] for d in group]
    if order == list(range(len(group))) or sizes != [op.result.shape[d] for d in dims]:
        return None
    if _is_split(r, moved.operands[0], places[0]):
        return None
    value = r.write("transpose", moved.result, perm=_permuted(moved.result.type.rank, group, order))
    value = r.write("reshape", value, shape=merge.result.shape)
    for each, i in reversed(ops):
        value = r.write(each.name, *each.operands[:i], value, *each.operands[i + 1 :], **each.attrs)
    there = _permuted(op.result.type.rank, dims, order)
    value = r.write("reshape", value, shape=tuple(op.result.shape[d] for d in there))
    return r.write("transpose", value, perm=tuple(there.index(d) for d in range(len(there))))


def _split_dim(merged: Sequence[int], split: Sequence[int]) -> tuple[int, range] | None:
    """The only dim that is split from one shape to the other, and those that it becomes; None if anything else is done
    to dims."""
    blocks = [b for b in blocks_of(merged, split) if (len(b.source), len(b.target)) != (1, 1)]
    return (blocks[0].source[0], blocks[0].target) if len(blocks) == 1 and len(blocks[0].source) == 1 else None


def _permuted(rank: int, dims: range, order: Sequence[int]) -> tuple[int, ...]:
    return (*range(dims.start), *(dims[k] for k in order), *range(dims.stop, rank))


def _is_split(r: Rewriter, value: Value, dim: int) -> bool:
    """Whether an annotation splits a dim of the value, or of what it is computed from element by element."""
    for _ in range(_MOST_OPS):
        op = r.maker(value)
        if op is None or OPS[op.name].family != "elementwise":
            break
        value = next((v for v in op.operands if v.shape == value.shape and v.sharding is not None), op.operands[0])
    return value.sharding is not None and bool(value.sharding.dims[dim].axes)


def _ops_along(r: Rewriter, value: Value, dim: int) -> tuple[Sequence[tuple[Op, int]], Op, int] | None:
    """The ops behind the reshape that merges dims to this dim of the value, the last first, each with its operand that
    has the dim, and that reshape, with the dim of its result; None if there are none, or something else uses what one
    of them computes, which would be computed twice."""
    found: list[tuple[Op, int]] = []
    while (op := r.maker(value)) is not None and op.name != "reshape":
        along = _along(op, dim) if len(found) < _MOST_OPS and r.is_used_once(value) else None
        if along is None:
            return None
        i, dim = along
        found.append((op, i))
        value = op.operands[i]
    return (found, op, dim) if op is not None and found else None


def _along(op: Op, dim: int) -> tuple[int, int] | None:
    """The operand that has the factor of that dim of the op's result, and its dim; None unless only one has it, once,
    and nothing depends on places along it."""
    rule = factor_rule(op) if len(op.results) == 1 and not op.regions and OPS[op.name].family == "linalg" else None
    if rule is None or len(rule.results[0][dim]) != 1:
        return None
    (factor,) = rule.results[0][dim]
    has = [(i, d) for i, tensor in enumerate(rule.operands) for d, factors in enumerate(tensor) if factor in factors]
    if rule.factors[factor].kind is not FactorKind.PARALLEL or len(has) != 1:
        return None
    (i, d) = has[0]
    return (i, d) if rule.operands[i][d] == (factor,) else None
