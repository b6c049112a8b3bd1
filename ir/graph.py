"""The dataflow graph of a region, as a networkx graph, for costs, schedules, searches and drawings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ir.program import Op, Value, used_inside

if TYPE_CHECKING:
    import networkx as nx

Graph: TypeAlias = "nx.DiGraph[Op]"


def dataflow(ops: Sequence[Op]) -> Graph:
    """The ops of a region, in order, with an edge from each op to those that use its results.

    An op's regions belong to the op, which also uses what they use from outside; so the graph has no cycles. Each
    region has a graph of its own. Calls are not followed.
    """
    # Imported late, as it is a third of all modules that compiling imports, and hardly any program needs a graph.
    import networkx as nx

    graph: Graph = nx.DiGraph()
    graph.add_nodes_from(ops)
    maker = {v: op for op in ops for v in op.results}
    for op in ops:
        graph.add_edges_from((made, op) for made in _made_for(op, maker))
    return graph


def longest_path(ops: Iterable[Op], length: Callable[[Op], float]) -> list[Op]:
    """The longest path through a region's ops, which are in order, where `length` gives the time of each op: the region
    takes at least that long, however much runs at the same time."""
    end: dict[Op, float] = {}
    before: dict[Op, Op | None] = {}
    maker: dict[Value, Op] = {}
    for op in ops:
        before[op] = max(_made_for(op, maker), key=end.__getitem__, default=None)
        maker.update(dict.fromkeys(op.results, op))
        last = before[op]
        end[op] = length(op) + (end[last] if last is not None else 0.0)
    path: list[Op] = []
    op_or_none = max(end, key=end.__getitem__, default=None)
    while op_or_none is not None:
        path.append(op_or_none)
        op_or_none = before[op_or_none]
    return path[::-1]


def _made_for(op: Op, maker: Mapping[Value, Op]) -> Iterator[Op]:
    """The ops that make the values which an op uses, directly or in its regions."""
    used = (*op.operands, *used_inside(op)) if op.regions else op.operands
    return (maker[value] for value in used if value in maker)
