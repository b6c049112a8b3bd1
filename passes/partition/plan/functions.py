"""Functions: a version for each way in which calls pass the arguments.

A version is planned when a call first needs it. It takes its arguments in the shardings that its body computes with: a
reshard of an argument is asked of the caller, who may have done it already, for another call or in front of a loop. An
argument with a pending reduction is passed so, and results are returned so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ir.builder import Names, RegionBuilder
from ir.causes import Cause
from ir.dataflow import uses_within
from ir.diagnostics import Diagnostic, Span
from ir.ops.control import is_call, is_map
from ir.program import Function, Op, Program, Result, Value, all_ops, callee_of, callees_first, walk
from ir.sharding import Sharding
from ir.types import TensorType
from passes.optimize.dce import live_region
from passes.partition.closed_sharding import ClosedSharding

_SMALL = 10
"""Functions of so few ops are planned where they are called."""


@dataclass(frozen=True, slots=True)
class Given:
    """How a call has an argument: its sharding, and whether a reshard of it would be in front of a loop
    around the call."""

    sharding: ClosedSharding
    outside: bool


@dataclass(frozen=True, eq=False, slots=True)
class Version:
    """A function of the plan. `takes` are the arguments it is called with, by number, and their shardings; one
    may come in several, and one that nothing needs does not come."""

    function: Function
    takes: tuple[tuple[int, ClosedSharding], ...]
    results: tuple[ClosedSharding, ...]
    warnings: tuple[Diagnostic, ...]


def inlined_functions(program: Program) -> frozenset[str]:
    """Functions that are planned where they are called: small ones, and those with one call only."""
    calls = Counter(callee_of(op) for op in all_ops(program) if is_call(op))
    kept = {program.entry, *_mapped(program)}
    inlined: set[str] = set()
    sizes: dict[str | None, int] = {}
    for function in callees_first(program):
        name = function.name
        callees = [callee_of(op) for op in walk(function.body)]
        sizes[name] = sum(sizes[c] if c in inlined else 1 for c in callees)
        if name not in kept and (calls[name] == 1 or (calls[name] and sizes[name] <= _SMALL)):
            inlined.add(name)
    return frozenset(inlined)


def _mapped(program: Program) -> set[str]:
    return {name for op in all_ops(program) if is_map(op) and (name := callee_of(op)) is not None}


class BodyPlanner(Protocol):
    """What functions ask of the planner, which plans their bodies."""

    program: Program
    warnings: list[Diagnostic]
    warned: set[tuple[Value, ClosedSharding]]
    arguments: dict[RegionBuilder, list[tuple[int, ClosedSharding, Value]]]
    """Of functions in the making, the arguments that they take, by number, and their shardings."""

    @property
    def inlined(self) -> frozenset[str]:
        """Functions that are planned where they are called."""

    def add_parameter(self, b: RegionBuilder, param: Value) -> None:
        """A parameter of the entry, with its propagated sharding."""

    def add_argument(self, b: RegionBuilder, i: int, param: Value, given: Given, *, fixed: bool) -> None:
        """A parameter of a function. Unless it is `fixed`, the function can ask for it in other shardings too."""

    def ops(self, b: RegionBuilder, ops: Sequence[Op]) -> None:
        """Partitions these ops, in order."""

    def or_replicated(self, sharding: Sharding | None, type: TensorType) -> Sharding:
        """The sharding itself; replicated if there is none."""

    def closed_sharding(self, sharding: Sharding | None, type: TensorType) -> ClosedSharding:
        """The compact form of a sharding; replicated if there is none."""

    def spelled(self, sharding: ClosedSharding) -> Sharding:
        """The sharding as values of the plan have it."""

    def seconds(self, ops: Sequence[Op]) -> float:
        """Time of ops of the plan on one device."""

    def wanted(self, value: Value) -> ClosedSharding:
        """The sharding that propagation gave a value."""

    def pending(self, values: Sequence[Value], wanted: ClosedSharding) -> ClosedSharding:
        """The sharding in which all of these values exist with reductions still pending; the wanted one if there is
        none."""

    def reshard_to(self, value: Value, sharding: ClosedSharding, span: Span | None, cause: Cause) -> Value:
        """The value in that sharding, resharded the cheapest way from the shardings it has if need be."""


class Functions:
    """The functions of a plan as far as they are made. `seconds` is what one call of each takes."""

    def __init__(self, p: BodyPlanner) -> None:
        self.p = p
        self.program = p.program
        self.mapped = _mapped(p.program)
        self.names = Names(set(p.program.functions))
        self.versions: dict[tuple[str, tuple[Given, ...]], Version] = {}
        self.seconds: dict[str, float] = {}

    def planned(self) -> tuple[Program, tuple[Diagnostic, ...]]:
        """The program, and the warnings of all of its functions."""
        entry = self._entry(self.program.main)
        called = {name for name, _ in self.versions}
        for name in self.program.functions:
            if name not in called and name not in self.p.inlined and name != self.program.entry:
                self.version(name, self._as_wanted(name))
        kept = self._reached(entry)
        functions: dict[str, Function] = {}
        warnings = list(entry.warnings)
        for name in self.program.functions:
            for original, version in ((self.program.entry, entry), *((o, v) for (o, _), v in self.versions.items())):
                if original == name and version.function.name in kept:
                    functions[version.function.name] = version.function
                    warnings.extend(version.warnings if version is not entry else ())
        return replace(self.program, functions=functions, stage="plan"), tuple(dict.fromkeys(warnings))

    def version_for(self, name: str, given: Sequence[Given], ready: Sequence[Collection[ClosedSharding]]) -> Version:
        """The version for a call that passes the arguments so, and has them `ready` in these shardings.

        It may be one for other calls, if all that it takes is ready.
        """
        if (name, tuple(given)) not in self.versions:
            for (original, _), version in self.versions.items():
                if original == name and all(sharding in ready[i] for i, sharding in version.takes):
                    return version
        return self.version(name, given)

    def version(self, name: str, given: Sequence[Given]) -> Version:
        """The version of a function for calls that pass the arguments so."""
        key = name, tuple(given) if name not in self.mapped else self._as_wanted(name)
        found = self.versions.get(key)
        if found is None:
            first = all(original != name for original, _ in self.versions)
            called = name if first else self.names.fresh(name)
            found = self.versions[key] = self._version(self.program.functions[name], called, key[1])
            self.seconds[called] = self.p.seconds(found.function.body.ops)
        return found

    def _as_wanted(self, name: str) -> tuple[Given, ...]:
        return tuple(Given(self.p.wanted(param), False) for param in self.program.functions[name].params)

    def _reached(self, entry: Version) -> set[str]:
        """Functions that are called, or that the program has without calling them."""
        planned = {v.function.name: v.function for v in (entry, *self.versions.values())}
        called = {callee_of(op) for op in all_ops(self.program)}
        pending = [name for name in planned if name == self.program.entry or name not in called]
        pending = [name for name in pending if name in self.program.functions] + list(self.mapped & planned.keys())
        reached: set[str] = set()
        while pending:
            name = pending.pop()
            if name not in reached:
                reached.add(name)
                pending.extend(c for op in walk(planned[name].body) if (c := callee_of(op)) is not None)
        return reached

    # Planning one.

    def _entry(self, function: Function) -> Version:
        p, b = self.p, RegionBuilder(Names())
        for param in function.params:
            p.add_parameter(b, param)
        p.ops(b, function.body.ops)
        results: list[Value] = []
        declared: list[Result] = []
        for value, result in zip(function.body.results, function.results, strict=True):
            sharding = p.or_replicated(result.sharding, result.type)
            results.append(self._result(function, value, result, p.closed_sharding(sharding, result.type)))
            declared.append(Result(result.name, result.type, sharding, span=result.span))
        done = b.function(function.name, results, declared, span=function.span)
        return Version(done, (), (), tuple(p.warnings))

    def _version(self, function: Function, name: str, given: Sequence[Given]) -> Version:
        p, b = self.p, RegionBuilder(Names())
        before = p.warnings, p.warned
        p.warnings, p.warned = [], set()
        for i, (param, how) in enumerate(zip(function.params, given, strict=True)):
            p.add_argument(b, i, param, how, fixed=function.name in self.mapped)
        p.ops(b, function.body.ops)
        results: list[Value] = []
        shardings: list[ClosedSharding] = []
        declared: list[Result] = []
        for value, result in zip(function.body.results, function.results, strict=True):
            shardings.append(p.pending([value], p.closed_sharding(result.sharding, result.type)))
            results.append(self._result(function, value, result, shardings[-1]))
            declared.append(Result(result.name, result.type, p.spelled(shardings[-1]), span=result.span))
        body = live_region(b.region(*results))
        uses, taken = uses_within(body), p.arguments.pop(b)
        takes = [(i, sharding, v) for i, sharding, v in taken if uses.count(v) or function.name in self.mapped]
        body = replace(body, params=tuple(v for _, _, v in takes))
        warnings = tuple(p.warnings)
        p.warnings, p.warned = before
        done = Function(name, body, tuple(declared), function.span)
        return Version(done, tuple((i, sharding) for i, sharding, _ in takes), tuple(shardings), warnings)

    def _result(self, function: Function, value: Value, result: Result, sharding: ClosedSharding) -> Value:
        cause = Cause("result", name=result.name, function=function.name)
        return self.p.reshard_to(value, sharding, value.span or result.span, cause)
