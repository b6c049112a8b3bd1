"""Assignments like an earlier one: a call with the same attributes, of other tensors of the same types.

In a program of many layers most statements repeat one of the first layer. What that became is known, so they are not
evaluated again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir.ops import OPS
from ir.ops.layout import is_annotation
from ir.program import Attr, Op, Value
from ir.sharding import Sharding
from ir.types import TensorType
from spmdc.frontends.spmd.items import Scope
from spmdc.frontends.spmd.syntax import nodes as s


@dataclass(frozen=True, slots=True)
class Expansion:
    """The one op that an assignment became, with the types of its operands and the annotation of its result. `known`
    has what the other names in it were bound to: None for those that were not."""

    name: str
    attrs: dict[str, Attr]
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    sharding: Sharding | None
    known: tuple[tuple[str, object], ...]

    def operands_of(self, repeated: s.Repeated, scope: Scope) -> Sequence[Value] | None:
        """The operands of the same op for another assignment of the pattern; None if it becomes something else."""
        if scope.is_within_seal or any(scope.find(name) is not item for name, item in self.known):
            return None
        found = [scope.find(name) for name in repeated.arguments]
        operands = [item for item in found if isinstance(item, Value)]
        alike = len(operands) == len(found) and tuple([v.type for v in operands]) == self.operands
        return operands if alike else None


def expansion_of(repeated: s.Repeated, made: Sequence[Op], scope: Scope) -> Expansion | None:
    """What an assignment became that made these ops, if another one of its pattern becomes the same: one op, whose
    operands are the arguments, and which depends on nothing else."""
    if len(made) != 1 or scope.is_within_seal:
        return None
    op = made[0]
    opdef, arguments = OPS[op.name], tuple([scope.find(name) for name in repeated.arguments])
    is_plain = opdef.control is None and opdef.regions == 0 and opdef.family != "host" and not is_annotation(op)
    if not is_plain or arguments != op.operands or scope.find(repeated.name) not in op.results or len(op.results) != 1:
        return None
    known = tuple([(name, scope.find(name)) for name in repeated.pattern.others])
    operands, results = tuple([v.type for v in op.operands]), (op.result.type,)
    return Expansion(op.name, dict(op.attrs), operands, results, op.result.sharding, known)
