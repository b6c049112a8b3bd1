"""The time of an SPMD program, op by op: each op that a device executes, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ir.executions import executions
from ir.garbage import uncollected
from ir.graph import longest_path
from ir.ops.collective import COLLECTIVES
from ir.ops.control import is_call, is_loop
from ir.program import Op, Program, Region, callees_first
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
    all calls. A choice has the ops of its slowest branch, and the condition of a loop runs once more than its body."""

    def inside(op: Op, runs: int) -> Sequence[tuple[Region, int]]:
        if not is_loop(op):
            return ((longest_branch(op, machine, functions, times), runs),)
        (condition, body), turns = op.regions, runs * trips_of(op)
        return ((condition, turns + runs), (body, turns))

    for op, runs in executions(program, 1, inside):
        turn = turn_seconds(machine, op) if is_loop(op) else 0.0
        if turn:
            yield Executed(op, runs * trips_of(op), OpTime(turn, 0.0, 0.0, 0, 0, 0))
        elif not op.regions and not is_call(op):
            yield Executed(op, runs, times[op])


def longest_branch(op: Op, machine: Machine, functions: Mapping[str, float], times: Mapping[Op, OpTime]) -> Region:
    """The slowest branch of a choice."""
    seconds = [seconds_of(machine, r.ops, functions, times) for r in op.regions]
    return op.regions[seconds.index(cost_of_regions(op, seconds))]
