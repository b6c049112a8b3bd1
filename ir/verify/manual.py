"""Checks manual regions: their axes, what crosses their boundaries, and what is inside (`ir.manual`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ir.diagnostics import Diagnostic
from ir.manual import NOWHERE, Manual, contexts, inner_type, is_in_order, ops_within, region_axes
from ir.mesh import Mesh
from ir.ops import OPS
from ir.ops.collective import axes_attr, collective_axes
from ir.ops.control import is_manual
from ir.program import Function, Op, Program, Result, Value
from ir.spelling.printer import print_type


def region_diagnostics(op: Op, mesh: Mesh) -> list[Diagnostic]:
    """The errors in a manual region of well-formed axes and shardings, apart from its contents (E405, E409, E410).
    `mesh` is the program's default mesh."""
    axes = axes_attr(op.attrs)
    foreign = [a for a in axes if a.name not in mesh.names or not mesh.is_whole(a)]
    if foreign:
        listed = ", ".join(f"{a.name}:({a.pre}){a.size}" if a.name in mesh.names else a.name for a in foreign)
        message = f"the axes of a manual region are whole axes of the default mesh ({mesh}), and {listed} is none"
        return [Diagnostic("E410", message, op.span, help=f"axes=({', '.join(mesh.names)})")]
    region = op.regions[0]
    found = list(_counts(op))
    if found:
        return found
    for operand, param in zip(op.operands, region.params, strict=True):
        found.extend(_param_faults(operand, param, op, mesh))
    for returned, result in zip(region.results, op.results, strict=True):
        found.extend(_result_faults(returned, result, op, mesh))
    return found


def _counts(op: Op) -> Iterator[Diagnostic]:
    region = op.regions[0]
    for what, here, there in (
        ("is passed", len(op.operands), f"takes {len(region.params)}"),
        ("gives", len(op.results), f"returns {len(region.results)}"),
    ):
        if str(here) != there.split()[1]:
            yield Diagnostic(
                "E405",
                f"the manual region {what} {here} values, and its block {there}",
                op.span,
                help="pass and return one value for each that is declared",
            )


def _param_faults(operand: Value, param: Value, op: Op, mesh: Mesh) -> Iterator[Diagnostic]:
    title = f"parameter {param.name!r} of the manual region"
    if param.of is None or param.sharding is None:
        yield Diagnostic(
            "E409",
            f"{title} does not say which shard of which tensor it is",
            param.span,
            help="declare of what it is a shard: a of f32[8@x] = x",
        )
        return
    if param.of != operand.type:
        message = f"{title} is a shard of {param.of}, and {operand.name!r} is {operand.type}"
        yield Diagnostic("E405", message, param.span or op.span, help=f"declare it as a shard of {operand.type}")
    yield from _placement_faults(param, title, op, mesh)
    local = inner_type(param.of, param.sharding, region_axes(op))
    if local != param.type:
        yield Diagnostic(
            "E409",
            f"{title} has type {param.type}, and a shard has type {local}",
            param.span,
            help=f"declare it {local}, or split the tensor otherwise",
        )


def _result_faults(returned: Value, result: Value, op: Op, mesh: Mesh) -> Iterator[Diagnostic]:
    title = f"result {result.name!r} of the manual region"
    if result.sharding is None:
        yield Diagnostic(
            "E409",
            f"{title} does not specify the sharding of what the region returns",
            result.span,
            help="write its type where it is named: y: f32[8@x] = manual(…)",
        )
        return
    yield from _placement_faults(result, title, op, mesh)
    local = inner_type(result.type, result.sharding, region_axes(op))
    if local != returned.type:
        shown = print_type(result.type, result.sharding)
        message = f"the manual region must return {local} for {shown}, and returns {returned.type}"
        yield Diagnostic("E405", message, op.span, help="return a value of that type, or declare the result otherwise")


def _placement_faults(value: Value, title: str, op: Op, mesh: Mesh) -> Iterator[Diagnostic]:
    assert value.sharding is not None
    if value.sharding.mesh != mesh and any(value.sharding.used_axes()):
        message = f"{title} is placed on the mesh ({value.sharding.mesh})"
        yield Diagnostic("E410", message, value.span or op.span, help=f"place it on the default mesh ({mesh})")
        return
    for dim, axes in enumerate(value.sharding.axes):
        if not is_in_order(axes, region_axes(op)):
            manual = ", ".join(a.name for a in axes if a.name in region_axes(op))
            message = f"dim {dim} of {title} has a free axis in front of a manual one"
            yield Diagnostic("E410", message, value.span or op.span, help=f"write ({manual}) first")


def inside_diagnostics(program: Program) -> list[Diagnostic]:
    """The ops and shardings that are not allowed at their place, in a program that is well-formed otherwise:
    collectives over axes that are not manual there (E406, E411), annotations over axes that are (E411), and regions
    that use axes twice (E410)."""
    found: dict[tuple[object, str], Diagnostic] = {}
    called = [
        (program.functions[name], manual)
        for name, around in contexts(program).items()
        for manual in sorted(around, key=sorted)
    ]
    for function, manual in called:
        for at, diagnostic in _faults_within(function, manual, program.mesh):
            found.setdefault((at, diagnostic.message), diagnostic)
    return list(found.values())


def _faults_within(function: Function, manual: Manual, mesh: Mesh) -> Iterator[tuple[object, Diagnostic]]:
    """What is not allowed in a function that is called where these axes are manual, each with where it is."""
    values: Sequence[Value | Result] = (*function.params, *function.results)
    for diagnostic in _annotations(values, manual, mesh, function.name):
        yield diagnostic.span, diagnostic
    for op, inside in ops_within(function.body, manual):
        yield from ((op, diagnostic) for diagnostic in _op_faults(op, inside, mesh))


def _op_faults(op: Op, manual: Manual, mesh: Mesh) -> Iterator[Diagnostic]:
    if OPS[op.name].family == "collective":
        yield from _collective_faults(op, manual, mesh)
        return
    if is_manual(op):
        twice = sorted(manual & region_axes(op))
        if twice:
            message = f"axis {twice[0]!r} is manual already where this manual region is"
            yield Diagnostic("E410", message, op.span, help="a nested region takes further axes")
            return
    params = op.regions[0].params if is_manual(op) else [p for r in op.regions for p in r.params]
    yield from _annotations((*params, *op.results), manual, mesh)


def _collective_faults(op: Op, manual: Manual, mesh: Mesh) -> Iterator[Diagnostic]:
    missing = [a.name for a in collective_axes(op) if a.name not in manual]
    if not missing:
        return
    if manual == NOWHERE:
        message = f"{op.name} belongs to SPMD programs and manual regions, and here is neither"
        help = "annotate how tensors are sharded, and the partitioner adds the communication"
        yield Diagnostic("E406", message, op.span, help=help)
        return
    listed = ", ".join(n for n in mesh.names if n in manual)
    yield Diagnostic(
        "E411",
        f"{op.name} runs along {missing[0]!r}, which is not manual here",
        op.span,
        help=f"the manual axes are ({listed}); add {missing[0]} to them, or leave the communication to the partitioner",
    )


def _annotations(
    values: Sequence[Value | Result], manual: Manual, mesh: Mesh, callee: str = ""
) -> Iterator[Diagnostic]:
    """Errors for shardings that are not along free axes only. `callee` is the function that has them in its
    signature."""
    where = f"{callee} is called from a manual region" if callee else "this is a manual region"
    for value in values:
        axes = list(value.sharding.used_axes()) if value.sharding is not None and manual else []
        axis = next((a.name for a in axes if a.name in manual), None)
        if axis is not None:
            message = f"{value.name!r} is placed along {axis!r}, and {where} over that axis"
            help_text = "leave the axis out: what is manual is a device's own part already"
            yield Diagnostic("E411", message, value.span, help=help_text)
        elif axes and value.sharding is not None and value.sharding.mesh != mesh:
            message = f"{value.name!r} is placed on the mesh ({value.sharding.mesh}), and {where}"
            yield Diagnostic("E411", message, value.span, help=f"place it on the default mesh ({mesh})")
