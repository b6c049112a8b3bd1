"""When each op of an SPMD program runs on a device, according to the cost model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ir.garbage import uncollected
from ir.graph import longest_path
from ir.ops.control import is_call, is_loop
from ir.program import Op, Program, Region, callee_of
from passes.cost.fusion import fusing
from passes.cost.kernel_times import kernel_times
from passes.cost.machine import Machine
from passes.cost.model import OpTime, running, trips_of
from passes.cost.roofline import longest_branch, seconds_of_functions

MOST = 200_000
"""The most executions in a timeline. The ops inside later calls and loops are left out."""


@dataclass(frozen=True, slots=True)
class Execution:
    """An execution of an op: when it begins, in seconds from the beginning of the first op, and how long it takes.
    `depth` is the number of calls, loops and choices around it; `is_critical` says whether the op is on the entry's
    longest path. A loop, which takes the time of all `turns`, is followed by the ops of its first iteration."""

    op: Op
    begin: float
    seconds: float
    depth: int
    turns: int
    is_critical: bool


@uncollected()
def timeline(program: Program, machine: Machine) -> tuple[Execution, ...]:
    """What a device does in one run, each op before those inside it. Loops of unknown trip count are taken to run ten
    times, and a choice takes its slowest branch. Raises SpmdcError (E604) if the program's mesh does not fit on the
    machine's network."""
    machine = machine.laid_out(program.meshes)
    times = kernel_times(program, machine, fusing(machine.kernels))
    found = _Timeline(program, machine, seconds_of_functions(program, machine, times), times)
    return tuple(found.region(program.main.body, 0.0, 0))


class _Timeline:
    def __init__(
        self, program: Program, machine: Machine, functions: Mapping[str, float], times: Mapping[Op, OpTime]
    ) -> None:
        self.program, self.machine, self.functions, self.times = program, machine, functions, times
        self.count = 0
        ops = program.main.body.ops
        seconds = {op: taken for op, _, taken in running(machine, ops, functions, times)}
        self.critical = frozenset(longest_path(ops, seconds.__getitem__))

    def region(self, region: Region, start: float, depth: int) -> Iterator[Execution]:
        for op, begin, seconds in running(self.machine, region.ops, self.functions, self.times):
            self.count += 1
            yield Execution(op, start + begin, seconds, depth, trips_of(op) if is_loop(op) else 1, op in self.critical)
            if self.count < MOST:
                yield from self._inside(op, start + begin, depth + 1)

    def _inside(self, op: Op, start: float, depth: int) -> Iterator[Execution]:
        if is_call(op):
            yield from self.region(self.program.functions[callee_of(op) or ""].body, start, depth)
        elif is_loop(op):
            for region in op.regions:
                last = start
                for execution in self.region(region, start, depth):
                    last = max(last, execution.begin + execution.seconds)
                    yield execution
                start = last
        elif op.regions:
            yield from self.region(longest_branch(op, self.machine, self.functions, self.times), start, depth)
