"""What a partitioned program costs on a machine, by line, by op or by kind of op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ir.ops.collective import COLLECTIVES, communication_of
from ir.program import Op, Program
from ir.records import as_json
from passes.cost.machine import Machine
from passes.cost.roofline import Executed, roofline

By = Literal["line", "op", "kind"]
BY: tuple[By, ...] = get_args(By)


@dataclass(frozen=True, slots=True)
class CostRow:
    """What ops that belong together take in one run, on the device that it takes longest.

    `compute`, `memory` and `network` are the seconds that the machine needs at least, and `overhead` those that
    compiled kernels take beyond them; the largest says what `bound` the row has. `seconds` are those of its ops, one
    after another; what a kernel of several ops takes is counted for its product, or else the last of them. `flops` are
    operations, `share` is how many of those that the machine could have done in these seconds, `touched` are bytes of
    memory that are read and written, `received` those that others send.
    """

    what: str
    count: int
    seconds: float
    compute: float
    memory: float
    network: float
    overhead: float
    flops: int
    share: float
    touched: int
    received: int

    @property
    def bound(self) -> str:
        """What the ops wait for most."""
        times = {name: getattr(self, name) for name in ("compute", "memory", "network", "overhead")}
        return max(times, key=times.__getitem__) if any(times.values()) else ""

    def to_json(self) -> dict[str, object]:
        """The row as plain data."""
        return as_json(self, *self.__slots__, "bound")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a program takes: in all, and by rows of which those that take longest come first.

    `seconds` are fewer than those of all rows where parts travel while others are multiplied. `critical_path` are the
    ops of the entry that wait for one another longest. `layout` says on which dims of the network each mesh axis lies,
    if the machine has one.
    """

    machine: str
    total: CostRow
    rows: tuple[CostRow, ...]
    seconds: float
    critical_seconds: float
    critical_path: tuple[str, ...]
    peak: int
    layout: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, object]:
        """The cost as plain data."""
        return {
            **as_json(self, "machine", "seconds", "critical_seconds", "critical_path"),
            "peak_bytes": self.peak,
            "layout": dict(self.layout),
            **as_json(self, "total", "rows"),
        }


def cost_of(program: Program, machine: Machine, by: By = "line") -> Cost:
    """The cost of an SPMD program. Raises SpmdcError (E604)."""
    found = roofline(program, machine)
    groups: dict[str, list[Executed]] = {}
    for each in found.executed:
        groups.setdefault(_key(each.op, by), []).append(each)
    rows = [_row(what, group, machine) for what, group in groups.items()]
    rows.sort(key=lambda row: -row.seconds)
    total = _row("total", found.executed, machine)
    names = tuple(op.label for op in found.critical)
    placement = found.machine.placement
    layout = tuple((axis, placement.spell(axis)) for axis in program.mesh.names) if placement is not None else ()
    return Cost(machine.name, total, tuple(rows), found.seconds, found.critical_seconds, names, found.peak, layout)


def _key(op: Op, by: By) -> str:
    if by == "kind":
        return kind_of(op)
    if by == "op":
        return f"{op.label} = {kind_of(op)}"
    return f"{op.span.source.name}:{op.span.line}" if op.span is not None else "(no line)"


def kind_of(op: Op) -> str:
    """What reports call an op."""
    return (communication_of(op.name).kind if op.name in COLLECTIVES else "") or op.name


def _row(what: str, group: Sequence[Executed], machine: Machine) -> CostRow:
    """The sums of some executions."""
    compute = memory = network = overhead = seconds = peak_seconds = 0.0
    count = flops = touched = received = 0
    for each in group:
        time, n = each.time, each.times
        count += n
        seconds += n * time.seconds
        compute += n * time.compute
        memory += n * time.memory
        network += n * time.network
        overhead += n * time.overhead
        flops += n * time.flops
        touched += n * time.touched
        received += n * time.received
        peak_seconds += n * time.compute if time.flops else 0.0
    share = peak_seconds / seconds if seconds else 0.0
    return CostRow(what, count, seconds, compute, memory, network, overhead, flops, share, touched, received)
