"""A plan: what the planner decided, as a program, and its warnings. How it gets the steps that it does not spell, and
how it becomes the program that it is for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ir.diagnostics import Diagnostic
from ir.ops.resharding import is_reshard
from ir.program import Function, Op, Program, Region, Value
from ir.sharding import Sharding
from passes.partition.closed_sharding import closed_sharding_of
from passes.partition.reshard.planner import Resharder
from passes.partition.spelling import IDENTITY, spell_steps
from passes.rewrite import map_program
from passes.sub_axes import SubAxes


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Plan:
    """A program of stage "plan", the sub-axes that its shardings are made of, and warnings of data that is gathered for
    lack of a better way, and of lack of memory."""

    program: Program
    sub_axes: SubAxes
    warnings: tuple[Diagnostic, ...] = ()


def are_alike(one: Plan, other: Plan) -> bool:
    """Whether two plans of one program are the same but for names and causes."""
    functions, others = one.program.functions, other.program.functions
    same: dict[Value, Value] = {}
    return functions.keys() == others.keys() and all(
        _is_alike(function.body, others[name].body, same) for name, function in functions.items()
    )


def _is_alike(one: Region, other: Region, same: dict[Value, Value]) -> bool:
    """Whether two regions have the same ops. `same` has the other one's values by this one's."""
    if len(one.ops) != len(other.ops) or _shardings(one.params) != _shardings(other.params):
        return False
    same.update(zip(one.params, other.params, strict=True))
    for a, b in zip(one.ops, other.ops, strict=True):
        if a.name != b.name or a.strategy != b.strategy or a.attrs != b.attrs:
            return False
        if _shardings(a.results) != _shardings(b.results) or [same[v] for v in a.operands] != [*b.operands]:
            return False
        if not all(_is_alike(*regions, same) for regions in zip(a.regions, b.regions, strict=True)):
            return False
        same.update(zip(a.results, b.results, strict=True))
    return [same[v] for v in one.results] == [*other.results]


def _shardings(values: Sequence[Value]) -> list[Sharding | None]:
    return [value.sharding for value in values]


def with_steps(program: Program, resharder: Resharder) -> Program:
    """The plan with steps for each reshard between two shardings that has none."""

    def spelled(op: Op) -> Iterator[Op]:
        if not is_reshard(op) or op.attrs["steps"]:
            yield op
            return
        value, source, target = op.result, op.operands[0].sharding, op.result.sharding
        if source is None or target is None:
            yield op
            return
        ends = (closed_sharding_of(sharding, resharder.sub_axes) for sharding in (source, target))
        plan = resharder.plan(value.shape, value.dtype.nbytes, *ends)
        steps = spell_steps(program.mesh, plan.steps) if plan.steps else IDENTITY
        yield replace(op, attrs={**op.attrs, "steps": steps})

    return map_program(program, spelled)


def without_plan(program: Program) -> Program:
    """The global program that a plan is for: the same without reshards and strategies."""
    same: dict[Value, Value] = {}

    def found(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple([same.get(v, v) for v in values])

    def inside(region: Region) -> Region:
        ops: list[Op] = []
        for op in region.ops:
            if is_reshard(op):
                same[op.result] = same.get(op.operands[0], op.operands[0])
                continue
            regions = tuple(map(inside, op.regions))
            ops.append(replace(op, operands=found(op.operands), regions=regions, strategy=""))
        return Region(region.params, tuple(ops), found(region.results))

    functions: dict[str, Function] = {n: replace(f, body=inside(f.body)) for n, f in program.functions.items()}
    return replace(program, functions=functions, stage="global")
