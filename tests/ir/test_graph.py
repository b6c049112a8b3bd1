"""The networkx view of a program."""

from __future__ import annotations

import networkx as nx

from ir.builder import RegionBuilder
from ir.causes import read_cause
from ir.diagnostics import Source, Span
from ir.graph import to_networkx
from ir.mesh import Mesh
from ir.program import Program
from ir.sharding import Sharding
from ir.types import TensorType, f32, pred

MESH = Mesh((("x", 4),))
VECTOR = TensorType((8,), f32)


def doubled(name: str = "main") -> RegionBuilder:
    b = RegionBuilder()
    x = b.param("x", VECTOR, Sharding.of(MESH, "x"))
    b.op("add", x, x, name="y", span=Span(Source("a.spmd"), 3, 1, 3, 9), cause=read_cause("why"))
    return b


def test_ops_stand_between_their_operands_and_results() -> None:
    b = doubled()
    (op,) = b.ops
    graph = to_networkx(b.function("main", op.results))
    assert list(graph.nodes) == [op.operands[0], op, op.result]
    edges = [(u, v, d["kind"], d["index"]) for u, v, d in graph.edges(data=True)]
    assert edges == [
        (op.operands[0], op, "operand", 0),
        (op.operands[0], op, "operand", 1),
        (op, op.result, "result", 0),
    ]


def test_nodes_say_what_they_are() -> None:
    b = doubled()
    (op,) = b.ops
    graph = to_networkx(b.function("main", op.results))
    assert graph.nodes[op.operands[0]] == {
        "kind": "param", "label": "x", "function": "main", "position": 0, "type": "f32[8]", "sharding": "[x]"
    }  # fmt: skip
    assert graph.nodes[op] == {
        "kind": "op", "label": "add", "function": "main", "position": 1, "location": "a.spmd:3:1", "cause": "why"
    }  # fmt: skip
    assert graph.nodes[op.result]["kind"] == "value"
    assert graph.nodes[op.result]["sharding"] == ""


def test_a_loop_is_a_cycle_through_its_regions() -> None:
    b = RegionBuilder()
    start = b.param("start", VECTOR)
    cond, body = RegionBuilder(b.names), RegionBuilder(b.names)
    cond.param("c", VECTOR)
    go = cond.op("constant", value=False, type=TensorType((), pred))
    following = body.op("negate", body.param("v", VECTOR))
    regions = (cond.region(go), body.region(following))
    (end,) = b.append("while", [start], {"trip_count": None}, regions=regions)
    graph = to_networkx(b.function("main", [end]))
    (loop,) = b.ops
    assert nx.has_path(graph, start, end)
    assert [set(cycle) for cycle in nx.simple_cycles(graph)] == [
        {loop, body.params[0], body.ops[0], following},
    ]
    flow = [(u, v) for u, v, data in graph.edges(data=True) if data["kind"] in ("operand", "result")]
    assert nx.is_directed_acyclic_graph(nx.DiGraph(flow))


def test_a_program_is_the_graphs_of_its_functions() -> None:
    functions = {name: (b := doubled()).function(name, b.ops[0].results) for name in ("main", "other")}
    graph = to_networkx(Program((MESH,), functions))
    assert nx.number_weakly_connected_components(graph) == 2
    assert {data["function"] for _, data in graph.nodes(data=True)} == {"main", "other"}
