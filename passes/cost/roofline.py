"""The time of an SPMD program, op by op: each op that a device executes, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ir.garbage import uncollected
from ir.graph import longest_path
from ir.ops.collective import COLLECTIVES
from ir.ops.control import is_call, is_loop
from ir.program import Op, Program, Region, callee_of, callees_first
from ir.records import record
from passes.cost.buffers import Peak, peak_of
from passes.cost.fusion import fusing
from passes.cost.kernel_times import kernel_times
from passes.cost.machine import Machine
from passes.cost.model import OpTime, cost_of_regions, running, seconds_of, trips_of, turn_seconds


@record
class Executed:
    """An op, how often a device executes it in one run, and the time of one execution. A loop stands for the overhead
    of its iterations."""

    op: Op
    times: int
    time: OpTime


@dataclass(frozen=True, slots=True)
class Roofline:
    """An SPMD program on a machine.

    `seconds` is the time of one run. `critical` has the ops of the entry's longest path, which take `critical_seconds`
    however much runs at the same time, and `beside` the entry's collectives that are not on it, with their seconds.
    `peak` is the most memory that is taken at one time.
    """

    machine: Machine
    seconds: float
    critical_seconds: float
    critical: tuple[Op, ...]
    beside: tuple[tuple[Op, float], ...]
    peak: Peak
    executed: tuple[Executed, ...]


@uncollected()
def roofline(program: Program, machine: Machine) -> Roofline:
    """The time of a program on a machine. Loops of unknown trip count are taken to run ten times, and a choice takes
    its slowest branch. Raises SpmdcError (E604) if the program's mesh does not fit on the machine's network."""
    machine = machine.laid_out(program.meshes)
    fuse = fusing(machine.kernels)
    times = kernel_times(program, machine, fuse)
    functions = seconds_of_functions(program, machine, times)
    ops = program.main.body.ops
    seconds = {op: taken for op, _, taken in running(machine, ops, functions, times)}
    path = longest_path(ops, seconds.__getitem__)
    on_path = frozenset(path)
    critical = sum(map(seconds.__getitem__, path))
    executed = tuple(_executed(program, machine, functions, times))
    return Roofline(
        machine,
        functions[program.entry],
        critical,
        tuple(path),
        tuple((op, seconds[op]) for op in ops if op.name in COLLECTIVES and seconds[op] and op not in on_path),
        peak_of(program, machine.kernels, fuse),
        executed,
    )


def seconds_of_functions(program: Program, machine: Machine, times: Mapping[Op, OpTime]) -> dict[str, float]:
    """The seconds of a call of each function."""
    found: dict[str, float] = {}
    for function in callees_first(program):
        found[function.name] = seconds_of(machine, function.body.ops, found, times)
    return found


def _executed(
    program: Program, machine: Machine, functions: Mapping[str, float], times: Mapping[Op, OpTime]
) -> Iterator[Executed]:
    """Every op once, with how often it is executed. The ops of a function are at its first call, with the executions of
    all calls."""
    inside: dict[str, list[tuple[Op, int]]] = {}
    runs = {program.entry: 1}
    for function in reversed(callees_first(program)):
        found = inside[function.name] = list(_runs_of_ops(function.body, machine, functions, times))
        for op, times_each in found:
            if is_call(op):
                callee = callee_of(op) or ""
                runs[callee] = runs.get(callee, 0) + runs.get(function.name, 0) * times_each
    called = {program.entry}
    stack = [(program.entry, iter(inside[program.entry]))]
    while stack:
        name, rest = stack[-1]
        for op, times_each in rest:
            callee = callee_of(op) or ""
            if not is_call(op):
                count = runs[name] * times_each
                turn = OpTime(turn_seconds(machine, op), 0.0, 0.0, 0, 0, 0) if is_loop(op) else None
                yield Executed(op, count, turn or times[op])
            elif callee not in called:
                called.add(callee)
                stack.append((callee, iter(inside[callee])))
                break
        else:
            stack.pop()


def _runs_of_ops(
    region: Region, machine: Machine, functions: Mapping[str, float], times: Mapping[Op, OpTime], runs: int = 1
) -> Iterator[tuple[Op, int]]:
    """The ops that run in a region, and how often if the region runs `runs` times. A choice has the ops of its slowest
    branch, and the condition of a loop runs once more than its body. A loop is included itself if its iterations have
    an overhead."""
    for op in region.ops:
        if is_loop(op):
            each = runs * trips_of(op)
            if turn_seconds(machine, op):
                yield op, each
            for inside, once_more in zip(op.regions, (runs, 0), strict=True):
                yield from _runs_of_ops(inside, machine, functions, times, each + once_more)
        elif op.regions:
            longest = longest_branch(op, machine, functions, times)
            yield from _runs_of_ops(longest, machine, functions, times, runs)
        else:
            yield op, runs


def longest_branch(op: Op, machine: Machine, functions: Mapping[str, float], times: Mapping[Op, OpTime]) -> Region:
    """The slowest branch of a choice."""
    seconds = [seconds_of(machine, r.ops, functions, times) for r in op.regions]
    return op.regions[seconds.index(cost_of_regions(op, seconds))]
