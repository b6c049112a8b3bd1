"""Sharding propagation: from a few annotations to a sharding for every value (GShard, section 3.2).

A deterministic worklist over factor rules runs from the annotations outward, forward and backward, in levels (the
layering is Shardy's): data-movement and elementwise ops first, then factors that every tensor of an op shares (batch
dims), so that an einsum is split as its inputs are and the `split` after it reshards, then backward through
annotations, and last the rest. Axes are only ever added, minor to those that a dim has, and only to open dims. So each
value changes at most as often as there are axes, and propagation is linear in the program. Every axis on every value
keeps its reason.

    graph.py         the program as nodes: an op with its factor rule, or values that are split equally.
                     The state of each value has the axes of its dims
    step.py          one step at one node: claims of its tensors -> axes of its factors -> targets for its tensors
    conflicts.py     which of two claims goes first, and what is reported of the other
    fixpoint.py      for each user priority, on each level, steps from a worklist until nothing changes
    free_tensors.py  tensors that conflicts leave free are split if that saves bytes (traffic.py)
    reasons.py       what comes out
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from ir.mesh import Axes, AxisRef, merge_axes
from ir.program import Function, Program, Result, Value, values_within
from ir.sharding import DimSharding, Sharding
from passes.propagation.conflicts import conflicts_at
from passes.propagation.fixpoint import Fixpoint
from passes.propagation.free_tensors import FreeTensors
from passes.propagation.graph import PropagationGraph
from passes.propagation.manual_contexts import one_context_each
from passes.propagation.nodes import Learned
from passes.propagation.reasons import Propagated, Provenance, Reason, ValueId, name_outside
from passes.rewrite import map_values
from passes.sub_axes import find_sub_axes

Boundary = tuple[tuple[Axes, ...], ...]
"""The axes of each dim of a function's parameters, then of its results."""


def propagate(program: Program) -> Propagated:
    """Gives every value a closed sharding. Raises SpmdcError (E307) if annotations cut an axis in ways that clash.

    A function that is called where other axes are manual than elsewhere becomes one function for each place.
    """
    return _propagated(one_context_each(program))


def boundaries(program: Program) -> dict[str, Boundary]:
    """The propagated shardings of each function's boundary. Raises SpmdcError (E307) as `propagate` does."""
    graph = _spread(program).graph

    def boundary(name: str) -> Boundary:
        function = program.functions[name]
        slots = (graph.slots[name, i] for i in range(len(function.results)))
        return tuple(tuple(graph.states[value].axes) for value in (*function.params, *slots))

    return {name: boundary(name) for name in program.functions}


def _propagated(program: Program, *, beside: bool = True, at_once: bool = False) -> Propagated:
    free = _spread(program, beside=beside, at_once=at_once)
    fixpoint = free.fixpoint
    bodies = [function.body for function in program.functions.values()]
    annotated = frozenset(v.name for body in bodies for v in values_within(body) if v.sharding is not None)
    explained = partial(_provenance, fixpoint, free.compared)
    found = Propagated(_with_shardings(fixpoint.graph), explained, fixpoint.step, annotated)
    if fixpoint.has_yielded and not at_once:
        return replace(found, otherwise=lambda: _propagated(program, beside=beside, at_once=True))
    if free.split_beside:
        return replace(found, otherwise=lambda: _propagated(program, beside=False, at_once=at_once))
    return found


def _spread(program: Program, *, beside: bool = True, at_once: bool = False) -> FreeTensors:
    """Propagates until nothing changes, batch dims before others unless `at_once`. Results may be split beside the
    factors that are claimed if `beside`.

    A dim of several factors may be split over an axis of which each factor can take a part, as by a reshape to fewer
    rows than devices. Then the axis is cut there and propagation starts again, at most as often as the axes of the mesh
    have prime factors.
    """
    sub_axes = find_sub_axes(program)
    while True:
        fixpoint = Fixpoint(PropagationGraph(program, sub_axes), at_once=at_once)
        fixpoint.run()
        free = FreeTensors(fixpoint, beside=beside)
        free.split()
        cut = sub_axes.cut_at(fixpoint.cuts)
        if cut is sub_axes:
            return free
        sub_axes = cut


def _with_shardings(graph: PropagationGraph) -> Program:
    """The graph's program with the closed sharding of every value. What is sharded equally shares one."""
    shardings: dict[object, Sharding] = {}

    def sharding(value: Value) -> Sharding:
        annotated = value.sharding
        if annotated is not None and annotated.mesh != graph.program.mesh:
            return annotated.closed()
        axes, partial = tuple(graph.states[value].axes), annotated.partial if annotated is not None else ()
        if (axes, partial) not in shardings:
            dims = tuple(DimSharding(merge_axes(split)) for split in axes)
            shardings[axes, partial] = Sharding(graph.program.mesh, dims, partial)
        return shardings[axes, partial]

    def result(function: Function, i: int) -> Result:
        return replace(function.results[i], sharding=sharding(graph.slots[function.name, i]))

    def value(old: Value) -> Value:
        return Value(old.name, old.type, sharding(graph.edges.get(old, old)), old.span, old.of)

    return map_values(graph.program, value, result)


def _provenance(fixpoint: Fixpoint, compared: Mapping[int, Sequence[str]]) -> Provenance:
    """The reasons and conflicts of the propagated program. `compared` is as for `conflicts_at`."""
    names = _names(fixpoint.graph)

    def reason(r: Learned) -> Reason:
        source = names[r.source] if r.source is not None else None
        return Reason(names[r.value], r.dim, r.axis, r.step, r.how, r.span, source, r.source_dim)

    reasons: dict[tuple[ValueId, int], tuple[Reason, ...]] = {}
    for (value, dim), found in fixpoint.reasons.items():
        key = names[value], dim
        reasons[key] = _earliest((*reasons.get(key, ()), *map(reason, found)))
    return Provenance(reasons, tuple(conflicts_at(fixpoint.graph, compared, names)))


def _names(graph: PropagationGraph) -> Mapping[Value, ValueId]:
    functions = graph.program.functions
    names = {v: (f, v.name) for f, function in functions.items() for v in values_within(function.body)}
    for (function, i), slot in graph.slots.items():
        names[slot] = function, f"-> {functions[function].results[i].name}"
    for param, edge in graph.edges.items():
        names[edge] = names[param][0], name_outside(param.name)
    return names


def _earliest(reasons: Sequence[Reason]) -> tuple[Reason, ...]:
    """The earliest reason for each axis: the condition and the body of a loop have parameters of the same names."""
    found: dict[AxisRef, Reason] = {}
    for reason in reasons:
        known = found.setdefault(reason.axis, reason)
        if reason.step < known.step:
            found[reason.axis] = reason
    return tuple(found.values())
