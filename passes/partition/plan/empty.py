"""Sums over nothing: what all devices know, none needs to hear from others."""

from __future__ import annotations

from dataclasses import replace

from ir.ops import FactorKind
from ir.ops.reduction import identity_of
from ir.program import Op
from passes.factors import factor_rule


def of_nothing(op: Op) -> Op | None:
    """A reduction over no elements, as its constant result; None for other ops."""
    if not op.operands or len(op.results) != 1 or 0 not in op.operands[0].type.shape:
        return None
    if not all(0 in v.shape for v in op.operands) or 0 in op.result.shape:
        return None
    rule = factor_rule(op)
    kinds = {(f.kind, f.reduction) for f in rule.factors if not f.size} if rule is not None else set()
    if len(kinds) != 1:
        return None
    ((factor_kind, kind),) = kinds
    if factor_kind is not FactorKind.REDUCTION or kind is None:
        return None
    value = identity_of(kind, op.result.dtype)
    return replace(op, name="constant", operands=(), attrs={"value": value, "type": op.result.type})
