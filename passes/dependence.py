"""Which values of a program change with others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ir.program import Op, Program, Region, Value, callee_of, callees_first


def dependents(program: Program, values: Iterable[Value], carries: Callable[[Value], bool]) -> set[Value]:
    """`values` and those computed from them by way of values that carry it. A function depends on what any call gives
    it."""
    found = set(values)

    def spread(sources: Sequence[Value], targets: Sequence[Value]) -> None:
        found.update(t for s, t in zip(sources, targets, strict=True) if s in found and carries(t))

    def visit(region: Region) -> None:
        for op in region.ops:
            for inner in op.regions:
                if inner.params:
                    spread(op.operands, inner.params)
                visit(inner)
            results(op)

    def results(op: Op) -> None:
        name = callee_of(op)
        if name is not None:
            function = program.functions[name]
            spread(op.operands, function.params)
            spread(function.body.results, op.results)
        elif op.name == "while":
            body = op.regions[1]
            for targets in (*(r.params for r in op.regions), op.results):
                spread(body.results, targets)
            spread(op.operands, op.results)
        elif op.regions:
            for inner in op.regions:
                spread(inner.results, op.results)
        elif any(v in found for v in op.operands):
            found.update(filter(carries, op.results))

    before = -1
    while len(found) != before:
        before = len(found)
        for function in reversed(callees_first(program)):
            visit(function.body)
    return found
