"""Ops that only place elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ir.dataflow import uses_of
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Op, Value
from lowering.jax.assemblies import Assembly
from lowering.jax.names import tuple_text
from lowering.jax.ops.elementwise import converted, unpacked
from lowering.jax.writer import FunctionWriter, emits


@emits("broadcast_in_dim")
def _broadcast_in_dim(w: FunctionWriter, op: Op) -> str:
    shape, dims = ints_attr(op.attrs, "shape"), ints_attr(op.attrs, "dims")
    return f"lax.broadcast_in_dim({w[op.operands[0]]}, {tuple_text(shape)}, {tuple_text(dims)})"


@emits("reshape")
def _reshape(w: FunctionWriter, op: Op) -> str:
    return f"lax.reshape({w[op.operands[0]]}, {tuple_text(op.result.shape)})"


@emits("transpose")
def _transpose(w: FunctionWriter, op: Op) -> str:
    x = w[op.operands[0]]
    if w.module.is_for_cpu and not w.module.is_for_others and _is_folded(w, op.operands[0]):
        x = f"lax.optimization_barrier({x})"
    return f"lax.transpose({x}, {tuple_text(ints_attr(op.attrs, 'perm'))})"


def _is_folded(w: FunctionWriter, value: Value) -> bool:
    """Whether XLA's CPU backend would compute a product transposed, as nothing else uses it, and slower: gradients of
    weights take up to six times as long."""
    uses = uses_of(w.module.program)
    made = uses.makers.get(value)
    if made is None or made.name != "dot_general" or w.module.is_differentiated:
        return False
    return uses.count(value) == 1 and not ints_attr(made.attrs, "lhs_batch") and _is_slower_transposed(made)


_FEW_TERMS = 64
"""Sums of fewer terms are computed faster in any order than they are transposed."""


def _is_slower_transposed(product: Op) -> bool:
    """Whether the product of the operands in the other order takes longer than a transpose. XLA's CPU backend calls its
    library if the first operand is summed along its last dim, and else is fast only if the second is wide. Products of
    other ranks than 2 are computed transposed without reordering, in loops."""
    if product.result.type.rank != 2:
        return True
    lhs, rhs = (x.type for x in product.operands)
    summed, of_rhs = ints_attr(product.attrs, "lhs_contract"), ints_attr(product.attrs, "rhs_contract")
    terms = math.prod(lhs.shape[d] for d in summed)
    if terms < _FEW_TERMS or rhs.rank - 1 in of_rhs:
        return False
    return lhs.rank - 1 in summed or rhs.size > lhs.size


@emits("slice")
def _slice(w: FunctionWriter, op: Op) -> str:
    start, limit, stride = (ints_attr(op.attrs, name) for name in ("start", "limit", "stride"))
    if op.result in w.module.slices_alike:
        return f"{w.module.helper('columns')}({w[op.operands[0]]}, {start[1]}, {limit[1]})"
    assembly = w.module.assemblies.of.get(op.result)
    if assembly is not None:
        return _assembled(w, assembly, start, limit)
    steps = f", {tuple_text(stride)}" if any(s != 1 for s in stride) else ""
    return f"lax.slice({w[op.operands[0]]}, {tuple_text(start)}, {tuple_text(limit)}{steps})"


def _assembled(w: FunctionWriter, assembly: Assembly, start: Sequence[int], limit: Sequence[int]) -> str:
    pieces, starts = tuple_text(w.names(assembly.pieces)), tuple_text([w.table(v) for v in assembly.starts])
    dim = assembly.dim
    box = f"{assembly.size}, {start[dim]}, {limit[dim]}"
    return f"{w.module.helper('assembled')}({pieces}, {starts}, {w[assembly.index]}, {dim}, {box})"


@emits("pad")
def _pad(w: FunctionWriter, op: Op) -> str:
    operand, value = w.names(op.operands)
    low, high = ints_attr(op.attrs, "low"), ints_attr(op.attrs, "high")
    interior = ints_attr(op.attrs, "interior") or (0,) * len(low)
    held = w.module.held(op.result.dtype) if min((*low, *high), default=0) < 0 else op.result.dtype
    operand, value = (converted(x, op.result.dtype, held) for x in (operand, value))
    config = tuple_text(tuple_text(dim) for dim in zip(low, high, interior, strict=True))
    return converted(f"lax.pad({operand}, {value}, {config})", held, op.result.dtype)


@emits("reverse")
def _reverse(w: FunctionWriter, op: Op) -> str:
    return f"lax.rev({w[op.operands[0]]}, {tuple_text(ints_attr(op.attrs, 'dims'))})"


@emits("concatenate")
def _concatenate(w: FunctionWriter, op: Op) -> str:
    dtype = op.result.dtype
    parts = ", ".join(converted(x, dtype, unpacked(dtype)) for x in w.names(op.operands))
    return converted(f"lax.concatenate([{parts}], {int_attr(op.attrs, 'dim')})", unpacked(dtype), dtype)


@emits("shard")
def _shard(w: FunctionWriter, op: Op) -> str:
    return w[op.operands[0]]


@emits("optimization_barrier")
def _optimization_barrier(w: FunctionWriter, op: Op) -> str:
    return f"lax.optimization_barrier({w.returned(w.names(op.operands))})"
