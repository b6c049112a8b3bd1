"""The cost of a partitioned program on a machine: by line, by op, by mesh axis, …"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ir.program import Op, Program
from ir.records import as_json
from passes.cost.machine import Machine
from passes.cost.roofline import Executed, Roofline, roofline
from spmdc.reports.groups import By, grouping


@dataclass(frozen=True, slots=True)
class CostRow:
    """The cost of a group of ops in one run, on the device for which it takes longest.

    `compute`, `memory` and `network` are the least seconds that the machine needs, and `overhead` is what compiled
    kernels take beyond them; the largest is the `bound` of the row. `seconds` is the time of its ops, one after
    another; the time of a kernel of several ops is that of its product, or else of the last of them. `flops` are
    operations, `share` is the fraction of what the machine could have done in that time, `touched` is the bytes of
    memory read and written, `received` those from other devices.
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
        """The resource that limits the ops."""
        times = {name: getattr(self, name) for name in ("compute", "memory", "network", "overhead")}
        return max(times, key=times.__getitem__) if any(times.values()) else ""

    def to_json(self) -> dict[str, object]:
        """The row as plain data."""
        return as_json(self, *self.__slots__, "bound")


@dataclass(frozen=True, slots=True)
class Alive:
    """A value that a device has at the peak of memory."""

    value: str
    type: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a program: in total, and by rows, the slowest first.

    `seconds` is less than that of all rows if parts are sent while others are multiplied. `critical_path` has the ops
    on the entry's longest path, and `beside` its collectives that are not on it, with their seconds: devices can
    compute meanwhile. `alive` has the values at the peak of memory, the largest first. `layout` has the dims of the
    network that each mesh axis is laid out on, if the machine has a network.
    """

    machine: str
    total: CostRow
    rows: tuple[CostRow, ...]
    seconds: float
    critical_seconds: float
    critical_path: tuple[str, ...]
    beside: tuple[tuple[str, float], ...]
    peak: int
    alive: tuple[Alive, ...]
    layout: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, object]:
        """The cost as plain data."""
        return {
            **as_json(self, "machine", "seconds", "critical_seconds", "critical_path"),
            "beside_it": [{"value": value, "seconds": seconds} for value, seconds in self.beside],
            "peak_bytes": self.peak,
            **as_json(self, "alive"),
            "layout": dict(self.layout),
            **as_json(self, "total", "rows"),
        }


def cost_of(program: Program, machine: Machine, by: By = "line", source: Program | None = None) -> Cost:
    """The cost of an SPMD program, partitioned from a `source`. Raises SpmdcError (E604)."""
    return costs_of(program, machine, (by,), source)[by]


def costs_of(program: Program, machine: Machine, bys: Sequence[By], source: Program | None) -> dict[By, Cost]:
    """The cost, grouped in each of these ways."""
    found = roofline(program, machine)
    return {by: _cost(found, program, machine, grouping(program, by, source or program)) for by in bys}


def _cost(found: Roofline, program: Program, machine: Machine, group_of: Callable[[Op], str]) -> Cost:
    groups: dict[str, list[Executed]] = {}
    for each in found.executed:
        groups.setdefault(group_of(each.op), []).append(each)
    rows = [_row(what, group) for what, group in groups.items()]
    rows.sort(key=lambda row: -row.seconds)
    total = _row("total", found.executed)
    names = tuple(op.label for op in found.critical)
    placement = found.machine.placement
    layout = tuple((axis, placement.spell(axis)) for axis in program.mesh.names) if placement is not None else ()
    beside = tuple((op.label, seconds) for op, seconds in found.beside)
    alive = tuple(Alive(value.name, str(value.type), nbytes) for value, nbytes in found.peak.alive)
    seconds = found.seconds, found.critical_seconds
    return Cost(machine.name, total, tuple(rows), *seconds, names, beside, found.peak.nbytes, alive, layout)


def _row(what: str, group: Sequence[Executed]) -> CostRow:
    """The totals of some executions."""
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
