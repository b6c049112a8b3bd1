"""Ops that hold regions or name functions: while, case, call, map, manual.

All but map have no factor rule: propagation and partitioning look inside them (`ir.program.Region`). An op's
declaration says which of them it is; other files use that instead of its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ir.closure import reached
from ir.ops.declaration import CONTROLS, MONOTONE, OPS, AttrDef, ControlKind, TypeRuleError, declare
from ir.ops.rule_helpers import pointwise
from ir.program import Attr, Op, Program, Value, all_ops, called_in, callee_of
from ir.types import TensorType


def control_of(op: Op) -> ControlKind | None:
    """How the op runs its regions or its function; None if it has neither, or is not a declared op."""
    return CONTROLS.get(op.name)


def is_loop(op: Op) -> bool:
    return CONTROLS.get(op.name) is ControlKind.LOOP


def is_choice(op: Op) -> bool:
    return CONTROLS.get(op.name) is ControlKind.CHOICE


def is_call(op: Op) -> bool:
    return CONTROLS.get(op.name) is ControlKind.CALL


def mapped_functions(program: Program) -> frozenset[str]:
    """The functions that are mapped over elements, and their callees: they compute on scalars."""
    mapped = [callee_of(op) or "" for op in all_ops(program) if is_map(op)]
    return frozenset(reached(mapped, lambda name: called_in(program.functions[name].body)))


def is_map(op: Op) -> bool:
    return CONTROLS.get(op.name) is ControlKind.MAP


def is_manual(op: Op) -> bool:
    return CONTROLS.get(op.name) is ControlKind.MANUAL


def takes_operands_in(op: Op) -> bool:
    """Whether the op's operands become the parameters of its regions."""
    return CONTROLS.get(op.name) in (ControlKind.LOOP, ControlKind.MANUAL)


def runs_of_region(op: Op, i: int) -> int | None:
    """How often a region runs for each run of the op: a loop's condition once more than its body, any other region at
    most once. None if that is not known."""
    if not is_loop(op):
        return 1
    trips = op.attrs.get("trip_count")
    return trips + (i == 0) if isinstance(trips, int) else None


class Link(NamedTuple):
    """Two lists of values of which each source becomes the target at the same position: immediately, in some case, or,
    if `next_turn`, in the next iteration."""

    sources: Sequence[Value]
    targets: Sequence[Value]
    next_turn: bool = False


def links(program: Program, op: Op) -> Iterator[Link]:
    """The values that an op's regions or function make equal: into them, out of them, and from iteration to iteration.
    For a map these are tensors and their elements, for a manual region tensors and their shards. Empty for ops that
    compute something themselves."""
    opdef = OPS[op.name]
    if opdef.passes_each:
        yield Link(op.operands, op.results)
    if opdef.control is None:
        return
    match opdef.control:
        case ControlKind.CALL | ControlKind.MAP:
            callee = program.functions[callee_of(op) or ""]
            yield Link(op.operands, callee.params)
            yield Link(callee.body.results, op.results)
        case ControlKind.LOOP:
            condition, body = op.regions
            yield from (Link(op.operands, targets) for targets in (condition.params, body.params, op.results))
            yield from (Link(body.results, region.params, next_turn=True) for region in op.regions)
            yield Link(body.results, op.results)
        case ControlKind.CHOICE:
            yield from (Link(region.results, op.results) for region in op.regions)
        case ControlKind.MANUAL:
            (region,) = op.regions
            yield Link(op.operands, region.params)
            yield Link(region.results, op.results)


def _infer_while(types: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Sequence[TensorType]:
    trips = attrs["trip_count"]
    if isinstance(trips, int) and trips < 0:
        raise TypeRuleError(f"trip_count={trips}: a loop cannot run less than 0 times")
    return types


declare(
    "while",
    "control",
    None,
    _infer_while,
    None,
    (AttrDef("trip_count", "int", default=None, required=False),),
    regions=2,
    control=ControlKind.LOOP,
    doc="Region 0 returns a pred[] from the carried values, region 1 the next carried values.",
)


def _infer_nothing(types: Sequence[TensorType], attrs: Mapping[str, Attr]) -> Sequence[TensorType]:
    raise AssertionError("the result types are those of what a region or a function returns")


declare(
    "case",
    "control",
    1,
    _infer_nothing,
    None,
    regions=None,
    control=ControlKind.CHOICE,
    doc=(
        "What the region of that number returns; the index is s32[], and the last region stands for every index "
        "out of range. Regions have no parameters and see the values around them."
    ),
)

declare(
    "checkpoint",
    "control",
    0,
    _infer_nothing,
    None,
    regions=1,
    stages=("global",),
    control=ControlKind.CHOICE,
    doc=(
        "What its region returns. A gradient keeps nothing of what is computed inside, and computes it again, as with "
        "jax.checkpoint. Plans have the ops of the region in its place."
    ),
)

declare("call", "control", None, _infer_nothing, None, (AttrDef("function", "function"),), control=ControlKind.CALL)

declare(
    "map",
    "control",
    None,
    _infer_nothing,
    pointwise,
    (AttrDef("function", "function"),),
    control=ControlKind.MAP,
    unclaimed=(MONOTONE,),
    doc="A function of scalars, applied to the elements of tensors of one shape. It must not loop.",
)

declare(
    "manual",
    "control",
    None,
    _infer_nothing,
    None,
    (AttrDef("axes", "axes"),),
    stages=("global", "plan"),
    regions=1,
    control=ControlKind.MANUAL,
    doc=(
        "What the region computes on shards along the axes, which its parameters and the results' shardings "
        "describe (`ir.manual`). The region sees no values around it, and may communicate along the axes."
    ),
)
