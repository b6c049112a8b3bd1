"""Where the time of an SPMD program goes: each op that a device executes, with what bounds it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ir.graph import dataflow, longest_path
from ir.ops.control import is_call, is_loop
from ir.program import Op, Program, Region, callee_of, callees_first
from passes.cost.buffers import peak_of
from passes.cost.fusion import fusing
from passes.cost.kernel_times import kernel_times
from passes.cost.machine import Machine
from passes.cost.model import OpTime, cost_of_regions, seconds_of, trips_of, turn_seconds


@dataclass(frozen=True, slots=True)
class Executed:
    """An op, how often a device executes it in one run, and what one execution takes. A loop is there for what its
    iterations take besides their ops."""

    op: Op
    times: int
    time: OpTime


@dataclass(frozen=True, slots=True)
class Roofline:
    """An SPMD program on a machine.

    `seconds` are those of one run, `critical` the ops of the entry's longest path, which take `critical_seconds`
    however much runs at the same time. `peak` is the most memory that is taken at one time, in bytes.
    """

    machine: Machine
    seconds: float
    critical_seconds: float
    critical: tuple[Op, ...]
    peak: int
    executed: tuple[Executed, ...]


def roofline(program: Program, machine: Machine) -> Roofline:
    """What the program takes on the machine. Loops of unknown trips count ten times, of a choice the branch that takes
    longest. Raises SpmdcError (E604) if the program's mesh does not lie on the machine's network."""
    machine = machine.laid_out(program.meshes)
    fuse = fusing(machine.kernels is not None and machine.kernels.narrow)
    times = kernel_times(program, machine, fuse)
    functions: dict[str, float] = {}
    for function in callees_first(program):
        functions[function.name] = seconds_of(machine, function.body.ops, functions, times)
    ops = program.main.body.ops
    seconds = {op: seconds_of(machine, (op,), functions, times) for op in ops}
    path = longest_path(dataflow(ops), seconds.__getitem__)
    critical = sum(map(seconds.__getitem__, path))
    executed = tuple(_executed(program, machine, program.main.body, functions, times, 1))
    return Roofline(
        machine,
        functions[program.entry],
        critical,
        tuple(path),
        peak_of(program, machine.kernels, fuse).nbytes,
        executed,
    )


def _executed(
    program: Program,
    machine: Machine,
    region: Region,
    functions: Mapping[str, float],
    times: Mapping[Op, OpTime],
    runs: int,
) -> Iterator[Executed]:
    for op in region.ops:
        if is_call(op):
            body = program.functions[callee_of(op) or ""].body
            yield from _executed(program, machine, body, functions, times, runs)
        elif is_loop(op):
            turn = turn_seconds(machine, op)
            if turn:
                yield Executed(op, runs * trips_of(op), OpTime(turn, 0.0, 0.0, 0, 0, 0))
            for inside in op.regions:
                yield from _executed(program, machine, inside, functions, times, runs * trips_of(op))
        elif op.regions:
            seconds = [seconds_of(machine, r.ops, functions, times) for r in op.regions]
            longest = op.regions[seconds.index(cost_of_regions(op, seconds))]
            yield from _executed(program, machine, longest, functions, times, runs)
        else:
            yield Executed(op, runs, times[op])
