"""The networkx graph of a region: what waits for what."""

from __future__ import annotations

import networkx as nx

import spmdc
from ir.graph import Graph, dataflow, longest_path
from ir.program import Op, Program

LOOP = """def main(x: f32[8], w: f32[8]) -> (f32[8], f32[8]) {
  scale = w * w
  apart = tanh(w)
  n, y = while(i = 0, v = x, trip_count=3) cond { return i < 3 } do { return i + 1, v * scale }
  return y + y, apart
}"""


def _graph(text: str) -> tuple[Program, Graph]:
    program = spmdc.parse(text)
    return program, dataflow(program.main.body.ops)


def _named(ops: list[Op]) -> list[str]:
    return [op.name for op in ops]


def test_ops_stand_behind_those_whose_results_they_use_themselves_or_inside() -> None:
    program, graph = _graph(LOOP)
    assert list(graph) == list(program.main.body.ops)
    assert {(a.name, b.name) for a, b in graph.edges} == {
        ("multiply", "while"), ("constant", "while"), ("while", "add")
    }  # fmt: skip
    assert nx.is_directed_acyclic_graph(graph)
    (loop,) = (op for op in graph if op.name == "while")
    body = dataflow(loop.regions[1].ops)
    assert {(a.name, b.name) for a, b in body.edges} == {("constant", "add")}


def test_the_longest_path_is_the_slowest_row_of_ops_that_wait_for_one_another() -> None:
    ops = spmdc.parse(LOOP).main.body.ops
    lengths = {"tanh": 8.5, "multiply": 3.0, "while": 5.0, "add": 1.0, "constant": 2.0}
    assert _named(longest_path(ops, lambda op: lengths[op.name])) == ["multiply", "while", "add"]
    lengths["tanh"] = 9.5
    assert _named(longest_path(ops, lambda op: lengths[op.name])) == ["tanh"]
    assert longest_path((), lambda op: 1.0) == []


def test_a_plans_graph_has_its_costs_and_its_critical_path() -> None:
    text = """mesh (x=4)
def main(a: f32[64, 64@x], b: f32[64@x, 64], c: f32[8]) -> (f32[64, 64], f32[8]) { return matmul(a, b), tanh(c) }"""
    plan = spmdc.plan(spmdc.parse(text))
    cost, graph = plan.cost(), plan.graph()
    critical = [op for op, data in graph.nodes(data=True) if data["critical"]]
    assert _named(critical) == ["dot_general", "reshard"] == _named(list(cost.critical_path))
    assert sum(graph.nodes[op]["seconds"] for op in critical) == cost.critical_seconds < cost.seconds
    assert sum(data["received"] for _, data in graph.nodes(data=True)) == cost.received > 0
    ops = spmdc.partition(plan).graph()
    assert nx.has_path(ops, *(op for op in ops if op.name in ("dot_general", "all_reduce")))


def test_a_plans_loop_costs_what_its_iterations_do() -> None:
    text = """mesh (x=4)
def main(x: f32[64@x]) -> (f32[64]) {
  n, y = while(i = 0, y = x, trip_count=3) cond { return i < 3 } do { return i + 1, tanh(y) }
  return y
}"""
    plan = spmdc.plan(spmdc.parse(text))
    graph = plan.graph()
    (loop,) = (op for op in graph if op.name == "while")
    (tanh,) = (op for op in loop.regions[1].ops if op.name == "tanh")
    assert graph.nodes[loop]["seconds"] > 3 * plan.cost().ops[tanh].seconds > 0
    assert graph.nodes[loop]["critical"]
