"""Operands that several products or lookups read in the same way, so that one gather serves all of them.

A product whose operand is split along a contracted dim can send its partial sums, or gather the operand, and so can a
lookup in a table that is split along the dims that indices address. If several products of one operand gather it, as
those that make queries, keys and values of the same tokens, it is sent once; and so is a field that is interpolated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ir.ops import OPS, FactorKind
from ir.ops.declaration import InKernels
from ir.ops.layout import is_annotation
from ir.program import Op, Program, Value, all_regions
from passes.partition.closed_sharding import ClosedSharding
from passes.signatures import signature_of


def shares_of_readers(program: Program, sharding_of: Callable[[Value], ClosedSharding]) -> Mapping[Op, Sequence[float]]:
    """For products or lookups that share an operand: the share of each in a gather of each operand, one of as many as
    there are in a region that read it in the same way. They contract the same dims of it, and their other operands and
    their results have the same types, and are sharded alike, by `sharding_of`."""
    found: dict[Op, list[float]] = {}
    names: dict[Value, Value] = {}
    for region in all_regions(program):
        alike: dict[object, list[tuple[Op, int]]] = {}
        for op in region.ops:
            if is_annotation(op):
                names[op.result] = names.get(op.operands[0], op.operands[0])
            if op.name != "gather" and OPS[op.name].role is not InKernels.PRODUCT:
                continue
            sharded = [(value.type, sharding_of(value)) for value in (*op.operands, *op.results)]
            for position, value in enumerate(op.operands):
                others = *sharded[:position], *sharded[position + 1 :]
                how = names.get(value, value), position, _contracted(op, position), others
                alike.setdefault(how, []).append((op, position))
        for readers in alike.values():
            for op, position in readers if len(readers) > 1 else ():
                found.setdefault(op, [1.0] * len(op.operands))[position] = 1 / len(readers)
    return found


def _contracted(op: Op, position: int) -> tuple[int, ...]:
    """The dims of an operand that are contracted."""
    rule = signature_of(op).rule
    assert rule is not None
    kinds = ([rule.factors[f].kind for f in factors] for factors in rule.operands[position])
    return tuple(dim for dim, found in enumerate(kinds) if FactorKind.REDUCTION in found)
