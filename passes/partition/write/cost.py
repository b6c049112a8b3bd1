"""The cost of a plan: for each of its ops, the time, bytes and memory of the ops that it becomes on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ir.graph import longest_path
from ir.ops.collective import COLLECTIVES
from ir.ops.control import is_call, is_loop
from ir.program import Op, Program, Value, callee_of, callees_first
from passes.cost.machine import Machine
from passes.cost.memory import MemoryEstimate
from passes.cost.model import UNKNOWN_TRIPS, collective_bytes, cost_of_regions, in_loops, seconds_of
from passes.optimize.rounds import Load, is_round
from passes.partition.closed_sharding import bytes_of
from passes.partition.plan.plan import Plan
from passes.partition.write.writer import Writer, write_plan


@dataclass(frozen=True, slots=True)
class OpCost:
    """The cost of one execution of an op on the device on which it takes longest: seconds, bytes received from others,
    and bytes of memory in use while it runs."""

    seconds: float
    received: int
    alive: int


@dataclass(frozen=True, eq=False, slots=True)
class PlanCost:
    """What a plan costs on a machine.

    `seconds` are those of all ops, one after another, `critical_seconds` those of `critical_path`, the longest through
    the entry's dataflow; loops count as often as they run, those of unknown trips ten times.
    `received` are the bytes that the worst device receives, `peak` is the most memory that is taken at one time.
    """

    seconds: float
    critical_seconds: float
    received: int
    peak: int
    ops: Mapping[Op, OpCost]
    critical_path: tuple[Op, ...]


def plan_cost(plan: Plan, machine: Machine) -> PlanCost:
    """The cost of a plan: of the ops that each of its ops becomes, as if each ran by itself.

    The plan is written for it, and what is written is dropped: how many messages a box exchange takes, or which padding
    is masked, is known where it is written and nowhere else, so that a price without it could not be that of what runs.
    It takes as long as `write`. What runs as one kernel is known of whole programs (`passes.cost.fusion`).
    """
    machine = machine.laid_out(plan.program.meshes)
    writer = Writer(plan)
    writer.written()

    def size(value: Value) -> int:
        return bytes_of(value, writer.shardings.of(value))

    memory = MemoryEstimate(plan.program, size)
    peak = memory.peak()
    sums = _Sums(plan.program, machine, writer.became)
    total = sums.functions[plan.program.entry]
    ops = {op: OpCost(seconds, int(received), memory.alive.get(op, 0)) for op, (seconds, received) in sums.ops.items()}
    path = longest_path(plan.program.main.body.ops, lambda op: ops[op].seconds)
    return PlanCost(total[0], sum(ops[op].seconds for op in path), int(total[1]), peak, ops, tuple(path))


def bytes_received(plan: Plan) -> float:
    """The bytes that the worst device receives in the program that a plan becomes. In each round of a box exchange some
    devices receive nothing: the one that receives most in all of them counts."""
    program, functions = write_plan(plan), dict[str, float]()
    for function in callees_first(program):
        functions[function.name] = _received(function.body.ops, functions, with_rounds=False)
    return functions[plan.program.entry] + sum(Load(program, unknown_trips=UNKNOWN_TRIPS).most.values())


class _Sums:
    """The seconds and bytes of each op, including the ops inside it, and of each function."""

    def __init__(self, program: Program, machine: Machine, became: Mapping[Op, Sequence[Op]]) -> None:
        self.in_loops = in_loops(machine)
        self.became = became
        self.ops: dict[Op, tuple[float, float]] = {}
        self.functions: dict[str, tuple[float, float]] = {}
        for function in callees_first(program):
            self.functions[function.name] = self.total(function.body.ops, machine)

    def total(self, ops: Sequence[Op], machine: Machine) -> tuple[float, float]:
        costs = [self.op(op, machine) for op in ops]
        return sum(seconds for seconds, _ in costs), sum(received for _, received in costs)

    def op(self, op: Op, machine: Machine) -> tuple[float, float]:
        found = self.ops[op] = self._of(op, machine)
        return found

    def _of(self, op: Op, machine: Machine) -> tuple[float, float]:
        if is_call(op):
            return self.functions[callee_of(op) or ""]
        inside = [self.total(region.ops, self.in_loops if is_loop(op) else machine) for region in op.regions]
        if inside:
            seconds, received = zip(*inside, strict=True)
            return cost_of_regions(op, seconds), cost_of_regions(op, received)
        written = self.became[op]
        return seconds_of(machine, written, {}), _received(written, {})


def _received(ops: Sequence[Op], functions: Mapping[str, float], *, with_rounds: bool = True) -> float:
    """The bytes that the worst device receives in ops whose callees' bytes are given, in each op by itself."""
    total = 0.0
    for op in ops:
        if op.name in COLLECTIVES and (with_rounds or not is_round(op)):
            total += collective_bytes(op)
        if op.regions:
            inside = [_received(region.ops, functions, with_rounds=with_rounds) for region in op.regions]
            total += cost_of_regions(op, inside)
        if is_call(op):
            total += functions[callee_of(op) or ""]
    return total
