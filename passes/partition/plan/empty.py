"""Sums over nothing: what all devices know, none needs to hear from others."""

from __future__ import annotations

from dataclasses import replace

from ir.ops import FactorKind
from ir.ops.reduction import identity_of
from ir.program import Op
from passes.factors import factor_rule


def of_nothing(op: Op) -> Op | None:
    """A reduction over no elements, as the constant that it gives; None for other ops."""
    rule = factor_rule(op) if op.name in ("reduce", "dot_general") else None
    if rule is None or all(v.type.size for v in op.operands) or not op.result.type.size:
        return None
    (kind,) = {f.reduction for f in rule.factors if f.kind is FactorKind.REDUCTION and not f.size}
    if kind is None:
        return None
    return replace(
        op, name="constant", operands=(), attrs={"value": identity_of(kind, op.result.dtype), "type": op.result.type}
    )
