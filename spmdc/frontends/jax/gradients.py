"""Gradients of programs: the program is converted to JAX, differentiated by JAX, and imported.

Annotations are preserved: each also applies to the cotangent of its value (`spmdc.frontends.jax.annotations`), and the
gradient with respect to a parameter is sharded as the parameter.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from ir.diagnostics import Source, error
from ir.manual import has_manual
from ir.ops.collective import axes_attr
from ir.ops.control import links
from ir.ops.host import TOKEN, host_function
from ir.ops.rule_helpers import types_attr
from ir.program import Op, Program, Region, Result, Value, all_ops, callees_first, walk
from lowering.jax.module import has_64_bits, write_annotated
from lowering.jax.running import FEWEST_DEVICES, ask_for_cpu_devices, load
from lowering.jax.untyped import struct_of
from passes.optimize.cse import eliminate_common_subexpressions
from passes.optimize.dce import eliminate_dead_code
from passes.optimize.rows_again import take_rows_again
from passes.propagation.manual_contexts import one_context_each
from spmdc.arguments import names_of, program_of
from spmdc.frontends.jax.annotations import annotated, annotating
from spmdc.frontends.jax.draws import drawn_bits
from spmdc.frontends.jax.lowering import Lowering, annotate, entered, import_lowered
from spmdc.frontends.jax.meshes import mesh_for_jax, on_mesh, program_on_mesh
from spmdc.frontends.stablehlo.locations import Locations


def gradient(
    program: Program, wrt: str | Sequence[str] = (), of: str | None = None, *, with_value: bool = False
) -> Program:
    """The program that computes the gradients of a result with respect to parameters, by default the weights.

    Its parameters are those of `program`, its results a `d_NAME` for each name in `wrt`, with the type and the
    annotation of that parameter. `of` names the result, and may be omitted if only one result is a float scalar. If the
    result is no scalar, its cotangent is an additional parameter, `d_NAME`. With `with_value`, the result itself comes
    first. Raises SpmdcError (E101, E103, E406, E601, E710).
    """
    program, wrt = program_of(program), names_of(wrt, "parameters are given")
    if program.stage != "global":
        raise error(
            "E406", "a plan or an SPMD program has no gradient", help="differentiate the program that it came from"
        )
    plan = _plan(program, wrt or _float_weights(program), of)
    wide: AbstractContextManager[Any] = jax.enable_x64(True) if has_64_bits(program) else nullcontext()
    ask_for_cpu_devices(FEWEST_DEVICES)
    program = one_context_each(_of_one_result(program, plan.position))
    _check_derivatives(program, plan)
    own = mesh = program.meshes[0] if program.meshes else None
    around: AbstractContextManager[Any] = nullcontext()
    if own is not None and has_manual(program):
        mesh = mesh_for_jax(program)
        around = entered(mesh)
    written, entry, annotations = write_annotated(program, differentiable=True)
    names = load(written.text, program)
    if own is not None and mesh is not None and mesh != own:
        annotations = [replace(a, sharding=on_mesh(a.sharding, own, mesh)) for a in annotations]
    names["annotated"] = lambda x, i: annotated(x, annotations[i])
    names["drawn_bits"] = drawn_bits
    types = [p.type for p in program.main.params] + ([plan.result.type] if plan.takes_cotangent else [])
    with wide, annotating(mesh), around:
        derivative = _derivative(names[entry], plan, with_value)
        lowered = Lowering(derivative, [struct_of(t.shape, t.dtype.numpy) for t in types], {}, keeps_stops=True).lowered
        locations = Locations(Source("<gradient>"), written={names["__name__"]: written.span_of_line()})
        imported = import_lowered(lowered, mesh, locations)
    if own is not None and mesh is not None and mesh != own:
        imported = program_on_mesh(imported, mesh, own)
    return _finished(imported, program, plan, with_value)


@dataclass(frozen=True)
class _Plan:
    """The result that is differentiated, and the parameters, by position."""

    params: tuple[Value, ...]
    position: int
    result: Result
    wrt: tuple[int, ...]

    @property
    def takes_cotangent(self) -> bool:
        return bool(self.result.type.shape)


def _plan(program: Program, wrt: Sequence[str], of: str | None) -> _Plan:
    main = program.main
    results = [r.name for r in main.results]
    params = [p.name for p in main.params]
    for name in wrt:
        if name not in params:
            raise _unknown(name, "parameter", params)
    if of is not None and of not in results:
        raise _unknown(of, "result", results)
    positions = tuple(params.index(name) for name in dict.fromkeys(wrt))
    for p in (main.params[i] for i in positions):
        if not (p.type.dtype.is_continuous):
            raise error(
                "E710",
                f"{p.name} is of type {p.type}, and only floats have gradients",
                p.span,
                help="leave it out of wrt, or make it a float and convert it where it is used",
            )
    position = results.index(of) if of is not None else _only_scalar(program)
    result = main.results[position]
    if not result.type.dtype.is_float:
        raise error(
            "E710",
            f"{result.name} is of type {result.type}, and only floats are differentiated",
            result.span,
            help=f"differentiate a float of it: real({result.name})"
            if result.type.dtype.is_continuous
            else "its derivatives are zero wherever it has any: differentiate a float that it is computed from",
        )
    return _Plan(main.params, position, result, positions)


def _float_weights(program: Program) -> list[str]:
    found = [p.name for p in program.main.params if p.name in program.weights and p.dtype.is_continuous]
    if not found:
        shown = ", ".join(p.name for p in program.main.params if p.dtype.is_continuous)
        help_text = f"name some with --wrt: {shown}; or say what they hold at first, which makes them weights"
        raise error("E101", "the program has no weights to differentiate by", help=help_text)
    return found


def _unknown(name: str, what: str, known: Sequence[str]) -> Exception:
    close = difflib.get_close_matches(str(name), known, 3)
    help_text = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
    return error("E101", f"the program has no {what} {name!r}", help=help_text)


def _only_scalar(program: Program) -> int:
    results = program.main.results
    found = [i for i, r in enumerate(results) if not r.type.shape and r.type.dtype.is_float]
    if len(found) != 1:
        count = "no result is" if not found else "several results are"
        names = ", ".join(r.name for r in results if r.type.dtype.is_float)
        raise error("E710", f"{count} a float scalar", help=f"say which to differentiate: {names}")
    return found[0]


def _of_one_result(program: Program, position: int) -> Program:
    """The program with that result only, and the ops that it depends on."""
    main = program.main
    ops = tuple(_awaiting_tokens(op) if op.name == "await_callbacks" else op for op in main.body.ops)
    only = Region(main.params, ops, (main.body.results[position],))
    function = replace(main, body=only, results=(main.results[position],))
    return eliminate_dead_code(replace(program, functions={**program.functions, main.name: function}))


def _awaiting_tokens(op: Op) -> Op:
    """Awaits only ops with effects, and not those that other results need."""
    return replace(op, operands=tuple(v for v in op.operands if v.type == TOKEN))


def _check_derivatives(program: Program, plan: _Plan) -> None:
    """Raises SpmdcError (E710) if the result depends on a parameter through an op without a known derivative."""
    stopped = {op.result for op in all_ops(program) if op.name == "stop_gradient"}
    moved = _dependents(
        program, (plan.params[i] for i in plan.wrt), lambda v: v.dtype.is_continuous and v not in stopped
    )
    by = ", ".join(plan.params[i].name for i in plan.wrt)
    for op in all_ops(program):
        if op.name == "opaque" and any(v in moved for v in (op.results if op.attrs["function"] else op.operands)):
            raise error(
                "E710",
                f"{plan.result.name} depends on {by} by way of @{op.attrs['target']}, of which no derivative is known",
                op.span,
                help="differentiate the function that the program was made from, and import its gradient",
            )
        if op.name == "callback" and (axes_attr(op.attrs, "each") or op.attrs["split"]):
            message = f"the program calls {host_function(op.attrs).name} on the host for each device by itself"
            help = "leave it out, or take the gradient of the function in JAX"
            raise error("E710", message, op.span, help=help)
        if op.name == "callback" and types_attr(op.attrs) and any(v in moved for v in op.operands):
            raise error(
                "E710",
                f"{host_function(op.attrs).name} on the host is called with what depends on {by}, and its derivative "
                "is not known",
                op.span,
                help="leave it out, or take the gradient of the function in JAX, with jax.custom_vjp around the call",
            )


def _derivative(function: Any, plan: _Plan, with_value: bool) -> Any:
    def derivative(*arrays: Any) -> tuple[Any, ...]:
        given = arrays[: len(plan.params)]

        def result(*moving: Any) -> Any:
            arguments = list(given)
            for i, x in zip(plan.wrt, moving, strict=True):
                arguments[i] = x
            return function(*arguments)[0]

        value, pull_back = jax.vjp(result, *(given[i] for i in plan.wrt))
        gradients = pull_back(arrays[-1] if plan.takes_cotangent else jnp.ones_like(value))
        return (value, *gradients) if with_value else tuple(gradients)

    names = [p.name for p in plan.params] + ([f"d_{plan.result.name}"] if plan.takes_cotangent else [])
    parameters = [inspect.Parameter(n.replace(".", "_"), inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in names]
    named: Any = derivative
    named.__signature__ = inspect.Signature(parameters)
    return named


def _finished(imported: Program, program: Program, plan: _Plan, with_value: bool) -> Program:
    """The imported program with the names and annotations of the original one."""
    params = list(program.main.params)
    annotations: list[Any] = [p.sharding for p in params]
    if plan.takes_cotangent:
        annotations.append(plan.result.sharding)
    moved = [params[i] for i in plan.wrt]
    returned: list[Any] = [plan.result.sharding] if with_value else []
    returned += [p.sharding for p in moved]
    names = ([plan.result.name] if with_value else []) + [f"d_{p.name}" for p in moved]
    with_meshes = replace(imported, meshes=program.meshes)
    placed = annotate(with_meshes, annotations, returned)
    placed = eliminate_dead_code(eliminate_common_subexpressions(take_rows_again(placed)))
    main = placed.main
    results = tuple(replace(r, name=name) for r, name in zip(main.results, names, strict=True))
    functions = {**placed.functions, placed.entry: replace(main, results=results)}
    return replace(placed, functions=functions, source=program.source, weights=program.weights)


def _dependents(program: Program, values: Iterable[Value], carries: Callable[[Value], bool]) -> set[Value]:
    """`values` and those that depend on them through values that carry it. A function depends on the arguments of all
    calls."""
    following: dict[Value, list[Sequence[Value]]] = {}
    for op in (op for function in callees_first(program) for op in walk(function.body)):
        passed_on = list(links(program, op))
        for source, target in (pair for link in passed_on for pair in zip(link.sources, link.targets, strict=True)):
            following.setdefault(source, []).append((target,))
        if not passed_on:
            for operand in dict.fromkeys(op.operands):
                following.setdefault(operand, []).append(op.results)
    found = set(values)
    left = list(found)
    while left:
        reached = {v for targets in following.get(left.pop(), ()) for v in targets if v not in found and carries(v)}
        found |= reached
        left += reached
    return found
