"""A program's dataflow as a networkx graph, for whoever wants to search, measure or draw it."""

from __future__ import annotations

from typing import TypeAlias

import networkx as nx

from ir.program import Function, Op, Program, Region, Value
from ir.spelling.printer import print_sharding

Node: TypeAlias = Op | Value
Graph: TypeAlias = "nx.MultiDiGraph[Node]"


def to_networkx(source: Program | Function) -> Graph:
    """The values and ops of a function, or of every function of a program, with an edge for each use and each result.

    Nodes are the `Op` and `Value` objects themselves. Their attributes: `kind` ("op", "value" or "param"), `label` (an
    op's or value's name), `function`, and `position`, which counts them in program order; of an op also `location` and
    `cause`; of a value also `type` and `sharding`, its text or "" if it has none.

    Edges lead from operands to ops and from ops to results, and have a `kind` and an `index`: "operand" or "result",
    and the place in the list. An op that holds regions has "enter" edges to their parameters and "leave" edges from
    what they return, so that a loop is a cycle; without those two kinds the graph is acyclic. Calls are not followed.
    """
    graph: Graph = nx.MultiDiGraph()
    functions = source.functions.values() if isinstance(source, Program) else (source,)
    for function in functions:
        _add_region(graph, function.body, function.name)
    return graph


def _add_region(graph: Graph, region: Region, function: str) -> None:
    for value in region.params:
        _add_value(graph, value, "param", function)
    for op in region.ops:
        _add_op(graph, op, function)


def _add_value(graph: Graph, value: Value, kind: str, function: str) -> None:
    sharding = print_sharding(value.sharding) if value.sharding is not None else ""
    graph.add_node(
        value,
        kind=kind,
        label=value.name,
        function=function,
        position=len(graph),
        type=str(value.type),
        sharding=sharding,
    )


def _add_op(graph: Graph, op: Op, function: str) -> None:
    location = str(op.span) if op.span is not None else ""
    graph.add_node(
        op,
        kind="op",
        label=op.name,
        function=function,
        position=len(graph),
        location=location,
        cause=str(op.cause or ""),
    )
    for i, value in enumerate(op.operands):
        graph.add_edge(value, op, kind="operand", index=i)
    for region in op.regions:
        _add_region(graph, region, function)
        for i, value in enumerate(region.params):
            graph.add_edge(op, value, kind="enter", index=i)
        for i, value in enumerate(region.results):
            graph.add_edge(value, op, kind="leave", index=i)
    for i, value in enumerate(op.results):
        _add_value(graph, value, "value", function)
        graph.add_edge(op, value, kind="result", index=i)
