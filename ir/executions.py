"""How often each op of a program runs, in regions and in functions that are called from several places."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

from ir.ops.control import is_call, runs_of_region
from ir.program import Op, Program, Region, callee_of, callees_first


class Counts(Protocol):
    """How often something runs: a number, or several under different assumptions."""

    def __add__(self, other: Any, /) -> Any: ...


Often = TypeVar("Often", bound=Counts)
Inside = Callable[[Op, Often], Iterable[tuple[Region, Often]]]
"""The regions that an op runs, each with how often it runs if the op runs so often."""


def executions(program: Program, once: Often, inside: Inside[Often]) -> Iterator[tuple[Op, Often]]:
    """Every op that the entry reaches, once, with how often it runs if the entry runs `once`. The ops of a function are
    behind its first call, with the executions of all calls."""
    runs = {program.entry: once}
    found: dict[str, list[tuple[Op, Often]]] = {}
    for function in reversed(callees_first(program)):
        if function.name not in runs:
            continue
        found[function.name] = list(_within(function.body, runs[function.name], inside))
        for op, often in found[function.name]:
            callee = callee_of(op)
            if callee is not None and is_call(op):
                runs[callee] = runs[callee] + often if callee in runs else often
    seen = {program.entry}
    stack = [iter(found[program.entry])]
    while stack:
        for op, often in stack[-1]:
            yield op, often
            callee = callee_of(op)
            if callee is not None and is_call(op) and callee not in seen:
                seen.add(callee)
                stack.append(iter(found[callee]))
                break
        else:
            stack.pop()


def in_all_regions(times: Callable[[Often, int | None], Often]) -> Inside[Often]:
    """All regions of an op, all branches of a choice included. `times` returns how often one runs, from how often the
    op does and how often the region does for each time, if that is known."""
    return lambda op, often: [(region, times(often, runs_of_region(op, i))) for i, region in enumerate(op.regions)]


def _within(region: Region, often: Often, inside: Inside[Often]) -> Iterator[tuple[Op, Often]]:
    for op in region.ops:
        yield op, often
        if op.regions:
            for inner, each in inside(op, often):
                yield from _within(inner, each, inside)
