"""The functions of a plan that are planned so far: a version for each way in which calls pass the arguments."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from ir.builder import Names
from ir.diagnostics import Diagnostic
from ir.ops.control import is_call, is_map
from ir.program import Function, Program, all_ops, callee_of, callees_first, walk
from passes.partition.closed_sharding import ClosedSharding

_SMALL = 10
"""Functions with at most this many ops are inlined."""


@dataclass(frozen=True, slots=True)
class Given:
    """How a call passes an argument: its sharding, and whether a reshard of it would be in front of a loop around the
    call."""

    sharding: ClosedSharding
    outside: bool


@dataclass(frozen=True, eq=False, slots=True)
class Version:
    """A function of the plan. `takes` has the numbers and shardings of the arguments that it takes: an argument may be
    taken in several shardings, or not at all if it is not used."""

    function: Function
    takes: tuple[tuple[int, ClosedSharding], ...]
    results: tuple[ClosedSharding, ...]
    warnings: tuple[Diagnostic, ...]


class Versions:
    """The versions of one program's functions. The `inlined` functions are planned where they are called, the
    `repeated` ones of them several times, the `mapped` ones in a single way; `seconds` has the time of one call of each
    version, and the `silent` ones do not communicate."""

    def __init__(self, program: Program) -> None:
        self.mapped = {name for op in all_ops(program) if is_map(op) and (name := callee_of(op)) is not None}
        calls = Counter(callee_of(op) for op in all_ops(program) if is_call(op))
        self.inlined = inlined_functions(program, self.mapped, calls)
        self.repeated = frozenset(name for name in self.inlined if calls[name] > 1)
        self.names = Names(set(program.functions))
        self.planned: dict[tuple[str, tuple[Given, ...]], Version] = {}
        self.seconds: dict[str, float] = {}
        self.silent: set[str] = set()


def inlined_functions(program: Program, mapped: set[str], calls: Counter[str | None]) -> frozenset[str]:
    """The functions that are planned where they are called: small ones, and those with a single one of these `calls`,
    which are counted by callee."""
    inlined: set[str] = set()
    sizes: dict[str | None, int] = {}
    for function in callees_first(program):
        name = function.name
        callees = [callee_of(op) for op in walk(function.body)]
        sizes[name] = sum(sizes[c] if c in inlined else 1 for c in callees)
        is_kept = name == program.entry or name in mapped
        if not is_kept and (calls[name] == 1 or (calls[name] and sizes[name] <= _SMALL)):
            inlined.add(name)
    return frozenset(inlined)
