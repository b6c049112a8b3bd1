"""Plans functions, each once for each way in which calls pass the arguments.

A version is planned when a call first needs it. It takes its arguments in the shardings that its body computes with:
reshards of arguments are left to the caller, which may have done them already, for another call or in front of a loop.
Arguments and results may have pending reductions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from ir.builder import Names, RegionBuilder
from ir.causes import Cause
from ir.closure import reached
from ir.dataflow import uses_within
from ir.program import Function, Result, Value, all_ops, called_in, callee_of
from passes.cost.model import LOOP_HOIST_WEIGHT
from passes.optimize.dce import live_region
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan.partitioned_value import PartitionedValue
from passes.partition.plan.plan import Plan
from passes.partition.plan.planner import Planner
from passes.partition.plan.versions import Given, Version
from passes.partition.plan.warnings import Warnings


def plan_program(p: Planner) -> Plan:
    """The plan of the program, with the warnings of all functions that it has."""
    program, versions = p.program, p.versions
    entry = _entry(p, program.main)
    called = {name for name, _ in versions.planned}
    for name in program.functions:
        if name not in called and name not in versions.inlined and name != program.entry:
            _version(p, name, _as_wanted(p, name))
    kept = _reached(p, entry)
    functions: dict[str, Function] = {}
    warnings = list(entry.warnings)
    for name in program.functions:
        for original, version in ((program.entry, entry), *((o, v) for (o, _), v in versions.planned.items())):
            if original == name and version.function.name in kept:
                functions[version.function.name] = version.function
                warnings.extend(version.warnings if version is not entry else ())
    return Plan(replace(program, functions=functions, stage="plan"), p.sub_axes, tuple(dict.fromkeys(warnings)))


def version_for(p: Planner, name: str, given: Sequence[Given], ready: Sequence[Collection[ClosedSharding]]) -> Version:
    """The version for a call that passes the arguments in this way, and has them `ready` in these shardings.

    It may be a version that was planned for other calls, if all arguments that it takes are ready.
    """
    if (name, tuple(given)) not in p.versions.planned:
        for (original, _), version in p.versions.planned.items():
            if original == name and all(sharding in ready[i] for i, sharding in version.takes):
                return version
    return _version(p.whole, name, given)


def _version(p: Planner, name: str, given: Sequence[Given]) -> Version:
    """The version of a function for calls that pass the arguments in this way."""
    versions = p.versions
    key = name, tuple(given) if name not in versions.mapped else _as_wanted(p, name)
    found = versions.planned.get(key)
    if found is None:
        first = all(original != name for original, _ in versions.planned)
        called = name if first else versions.names.fresh(name)
        found = versions.planned[key] = _planned(p, p.program.functions[name], called, key[1])
        versions.seconds[called] = p.draft.seconds(found.function.body.ops)
        if not any(map(p.draft.sends, found.function.body.ops)):
            versions.silent.add(called)
    return found


def _as_wanted(p: Planner, name: str) -> tuple[Given, ...]:
    return tuple(Given(p.values.wanted(param), False) for param in p.program.functions[name].params)


def _reached(p: Planner, entry: Version) -> set[str]:
    """The functions that the entry calls, directly or not, and those that the program never calls."""
    planned = {v.function.name: v.function for v in (entry, *p.versions.planned.values())}
    called = {callee_of(op) for op in all_ops(p.program)}
    pending = [name for name in planned if name == p.program.entry or name not in called]
    pending = [name for name in pending if name in p.program.functions] + list(p.versions.mapped & planned.keys())
    return set(reached(pending, lambda name: called_in(planned[name].body)))


# Planning one version.


def _entry(p: Planner, function: Function) -> Version:
    """The entry, with the shardings of its signature."""
    b = RegionBuilder(Names())
    for param in function.params:
        sharding = p.shardings.or_replicated(param.sharding, param.type)
        closed = p.shardings.closed(sharding, param.type)
        value = b.param(param.name, param.type, sharding, span=param.span)
        p.values.partitioned[param] = PartitionedValue(param, closed, {closed: value}, b)
    p.shardings.put(_returned_only(p, function))
    p.ops(b, function.body.ops)
    declared: list[Result] = []
    for result in function.results:
        sharding = p.shardings.or_replicated(result.sharding, result.type)
        declared.append(Result(result.name, result.type, sharding, span=result.span))
    results = _results(p, function, [p.shardings.closed(result.sharding, result.type) for result in declared])
    done = Function(function.name, live_region(b.region(*results)), tuple(declared), function.span)
    return Version(done, (), (), tuple(p.warnings.found))


def _returned_only(p: Planner, function: Function) -> Iterator[tuple[Value, ClosedSharding]]:
    """The values that are only returned, and only once, with the sharding in which they are returned, which replaces
    the propagated one."""
    ends = Counter(function.body.results)
    for value, result in zip(function.body.results, function.results, strict=True):
        if not p.facts.uses[value] and ends[value] == 1 and result.sharding is not None:
            yield value, p.shardings.closed(result.sharding, result.type)


def _planned(p: Planner, function: Function, name: str, given: Sequence[Given]) -> Version:
    b, is_mapped, values = RegionBuilder(Names()), function.name in p.versions.mapped, p.values
    before, p.warnings = p.warnings, Warnings()
    taken = values.arguments[b] = []
    for i, (param, how) in enumerate(zip(function.params, given, strict=True)):
        local = p.draft.param(b, param, how.sharding)
        taken.append((i, how.sharding, local))
        share = LOOP_HOIST_WEIGHT if how.outside else 1.0
        argument = None if is_mapped else i
        values.partitioned[param] = PartitionedValue(
            param, values.wanted(param), {how.sharding: local}, b, argument=argument, share=share
        )
    p.ops(b, function.body.ops)
    shardings: list[ClosedSharding] = []
    declared: list[Result] = []
    for value, result in zip(function.body.results, function.results, strict=True):
        shardings.append(values.pending([value], p.shardings.closed(result.sharding, result.type)))
        declared.append(Result(result.name, result.type, p.shardings.spelled(shardings[-1]), span=result.span))
    body = live_region(b.region(*_results(p, function, shardings)))
    uses = uses_within(body)
    takes = [(i, sharding, v) for i, sharding, v in values.arguments.pop(b) if uses.count(v) or is_mapped]
    body = replace(body, params=tuple(v for _, _, v in takes))
    warnings, p.warnings = tuple(p.warnings.found), before
    done = Function(name, body, tuple(declared), function.span)
    return Version(done, tuple((i, sharding) for i, sharding, _ in takes), tuple(shardings), warnings)


def _results(p: Planner, function: Function, shardings: Sequence[ClosedSharding]) -> Sequence[Value]:
    """The function's results in these shardings. Those that are made first are brought there first: others may then be
    computed from what was sent."""
    body, found = function.body, dict[int, Value]()
    made = {value: at for at, op in enumerate(body.ops) for value in op.results}
    for i in sorted(range(len(body.results)), key=lambda i: made.get(body.results[i], -1)):
        value, result = body.results[i], function.results[i]
        cause = Cause("result", name=result.name, function=function.name)
        found[i] = p.values.reshard_to(value, shardings[i], value.span or result.span, cause)
    return [found[i] for i in range(len(found))]
