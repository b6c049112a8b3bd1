"""Which values of a program change with others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ir.ops.control import links
from ir.program import Program, Value, callees_first, walk


def dependents(program: Program, values: Iterable[Value], carries: Callable[[Value], bool]) -> set[Value]:
    """`values` and those computed from them by way of values that carry it. A function depends on what any call passes
    it."""
    found = set(values)

    def spread(sources: Sequence[Value], targets: Sequence[Value]) -> None:
        found.update(t for s, t in zip(sources, targets, strict=True) if s in found and carries(t))

    ops = [op for function in reversed(callees_first(program)) for op in walk(function.body)]
    before = -1
    while len(found) != before:
        before = len(found)
        for op in ops:
            passed_on = list(links(program, op))
            for link in passed_on:
                spread(link.sources, link.targets)
            if not passed_on and any(v in found for v in op.operands):
                found.update(filter(carries, op.results))
    return found
