"""What waits for what in a region, as a networkx graph: to cost it, to order it, to search or draw it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import networkx as nx

from ir.program import Op, used_inside

Graph: TypeAlias = "nx.DiGraph[Op]"


def dataflow(ops: Sequence[Op]) -> Graph:
    """The ops of a region, in their order, with an edge from each to those that use what it makes.

    What runs inside an op belongs to the op, which uses what that uses from around it; so the graph has no cycles. What
    is inside has a graph of its own: that of the ops of each region that the op holds. Calls are not followed.
    """
    graph: Graph = nx.DiGraph()
    graph.add_nodes_from(ops)
    maker = {v: op for op in ops for v in op.results}
    for op in ops:
        used = (*op.operands, *used_inside(op)) if op.regions else op.operands
        graph.add_edges_from((maker[v], op) for v in used if v in maker)
    return graph


def longest_path(graph: Graph, length: Callable[[Op], float]) -> list[Op]:
    """The ops one behind the other that take longest, each as long as `length` says: however much runs at one time, the
    whole takes no less."""
    end: dict[Op, float] = {}
    before: dict[Op, Op | None] = {}
    for op in graph:
        before[op] = max(graph.pred[op], key=end.__getitem__, default=None)
        last = before[op]
        end[op] = length(op) + (end[last] if last is not None else 0.0)
    path: list[Op] = []
    op_or_none = max(end, key=end.__getitem__, default=None)
    while op_or_none is not None:
        path.append(op_or_none)
        op_or_none = before[op_or_none]
    return path[::-1]
