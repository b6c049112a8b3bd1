"""The dataflow of a planned program, its ops folded by line or by function; a loop is one box."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape

import networkx as nx

from ir.ops.control import is_call
from ir.ops.resharding import is_reshard
from ir.program import Op, Program, callee_of, values_within
from passes.partition.write.cost import OpCost
from spmdc.page.charts import FONT
from spmdc.reports.cost_text import seconds_text
from spmdc.reports.groups import grouping

_MOST_NODES = 160
_BOX, _TALL, _ACROSS, _DOWN = 150, 34, 20, 34


@dataclass
class _Group:
    """Ops that are drawn as one box."""

    name: str = ""
    count: int = 0
    seconds: float = 0.0


def by_function(program: Program, costs: Mapping[Op, OpCost], source: Program) -> str:
    """A box for each function of the program that this is a plan of; empty if there is only one."""
    function_of = grouping(program, "function", source)
    names = {function_of(op) for op in program.main.body.ops}
    return _drawing(program, costs, function_of) if len(names) > 1 else ""


def by_line(program: Program, costs: Mapping[Op, OpCost]) -> str:
    """A box for each line; if the program has many lines, for several consecutive ones."""
    return _drawing(program, costs, _line)


def _drawing(program: Program, costs: Mapping[Op, OpCost], box_of: Callable[[Op], str]) -> str:
    """An SVG of the entry's dataflow from top to bottom: darker boxes take longer, thick arrows are resharded."""
    lines = list(dict.fromkeys(map(box_of, program.main.body.ops)))
    fold = max(1, -(-len(lines) // _MOST_NODES))
    number = {line: i // fold for i, line in enumerate(lines)}
    first = {number[line]: line for line in reversed(lines)}
    graph, groups = _folded(program, costs, lambda op: number[box_of(op)])
    for i, group in groups.items():
        group.name = first[i] if fold == 1 else f"{first[i]} …"
    return _drawn(graph, groups) if groups else ""


def _line(op: Op) -> str:
    if is_call(op):
        return f"{callee_of(op)}()"
    return f"{op.span.source.name.rpartition('/')[2]}:{op.span.line}" if op.span is not None else op.label


def _folded(
    program: Program, costs: Mapping[Op, OpCost], group_of: Callable[[Op], int]
) -> tuple[nx.DiGraph[int], dict[int, _Group]]:
    graph: nx.DiGraph[int] = nx.DiGraph()
    groups: dict[int, _Group] = {}
    made: dict[object, tuple[int, int]] = {}
    for op in program.main.body.ops:
        i = group_of(op)
        group = groups.setdefault(i, _Group())
        group.count += 1
        group.seconds += costs[op].seconds
        graph.add_node(i)
        inside = {v for region in op.regions for v in values_within(region)}
        used = [*op.operands, *(v for r in op.regions for each in r.ops for v in each.operands if v not in inside)]
        sent = costs[op].received if is_reshard(op) else 0
        for value in used:
            if value in made:
                source, before = made[value]
                if source != i:
                    known = graph.get_edge_data(source, i, {"sent": 0})["sent"]
                    graph.add_edge(source, i, sent=max(known, before, sent))
        for value in op.results:
            made[value] = i, sent
    return graph, groups


def _drawn(graph: nx.DiGraph[int], groups: Mapping[int, _Group]) -> str:
    forward = nx.DiGraph([(a, b, d) for a, b, d in graph.edges(data=True) if a < b])
    forward.add_nodes_from(graph)
    places: dict[int, tuple[float, float]] = {}
    widest = 1
    for level, nodes in enumerate(nx.topological_generations(forward)):
        widest = max(widest, len(nodes))
        for i, node in enumerate(sorted(nodes)):
            places[node] = i * (_BOX + _ACROSS), level * (_TALL + _DOWN)
    most = max((g.seconds for g in groups.values()), default=0.0) or 1.0
    height = max(y for _, y in places.values()) + _TALL + 8
    parts: list[str] = []
    for a, b, data in graph.edges(data=True):
        (x1, y1), (x2, y2) = places[a], places[b]
        x1, y1, x2 = x1 + _BOX / 2, y1 + _TALL, x2 + _BOX / 2
        style = 'stroke="#f58518" stroke-width="4"' if data["sent"] else 'stroke="currentColor" stroke-opacity=".4"'
        title = f"<title>{data['sent']:,} bytes are received</title>" if data["sent"] else ""
        middle = (y1 + y2) / 2
        curve = f"M{x1:g} {y1:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}"
        parts.append(f'<path d="{curve}" fill="none" {style}>{title}</path>')
    for node, (x, y) in places.items():
        group = groups[node]
        shade = 0.08 + 0.6 * group.seconds / most
        about = f"{group.name}: {group.count} ops, {seconds_text(group.seconds)}"
        name = group.name if len(group.name) <= 20 else f"…{group.name[-19:]}"
        parts.append(
            f'<g><title>{escape(about)}</title><rect x="{x:g}" y="{y:g}" width="{_BOX}" height="{_TALL}" rx="4" '
            f'fill="#4c78a8" fill-opacity="{shade:.2f}" stroke="currentColor" stroke-opacity=".5"/>'
            f'<text x="{x + _BOX / 2:g}" y="{y + 14:g}" text-anchor="middle">{escape(name)}</text>'
            f'<text x="{x + _BOX / 2:g}" y="{y + 28:g}" text-anchor="middle" opacity=".7">'
            f"{escape(seconds_text(group.seconds))}</text></g>"
        )
    width = widest * (_BOX + _ACROSS)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:g}" '
        f'viewBox="-4 -4 {width} {height:g}" {FONT} font-size="11" fill="currentColor">{"".join(parts)}</svg>'
    )
