"""The communication of a partitioned program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ir.causes import Cause
from ir.executions import executions, in_all_regions
from ir.mesh import Axes, Mesh
from ir.ops.boxes import Round, row_of_rounds
from ir.ops.collective import COLLECTIVES, axes_attr, communication_of
from ir.ops.rows import Positions
from ir.program import DeviceOrder, Op, Program
from passes.cost.model import collective_bytes


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of an SPMD program.

    `bytes` are those that the worst device receives in one execution; `count` is how often it runs: the product of the
    trip counts of the loops around it and of the calls of its function, or None if a loop's count is not known, which
    `at_least` counts once; in a loop's condition it runs once more than in its body; in a branch of a case it is how
    often the case runs, the most that the branch can.
    `source` is the line of the user's program that caused it, and `cause` says what for.
    """

    kind: str
    name: str
    axes: str
    bytes: int
    count: int | None
    at_least: int
    source: str
    line: int | None
    cause: Cause

    @property
    def reason(self) -> str:
        """The cause in a sentence."""
        return str(self.cause)

    def to_json(self) -> dict[str, object]:
        """The collective as plain data."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**found, "reason": self.reason, "cause": self.cause.to_json()}


@dataclass(frozen=True, slots=True)
class Runs:
    """How often something runs: None where a loop's trip count is not known, `at_least` with such loops counted once,
    and `each_once` with all loops."""

    count: int | None
    at_least: int
    each_once: int

    def __add__(self, other: Runs) -> Runs:
        count = None if self.count is None or other.count is None else self.count + other.count
        return Runs(count, self.at_least + other.at_least, self.each_once + other.each_once)

    def once(self) -> Runs:
        """The same with one turn of each loop."""
        return Runs(self.each_once, self.each_once, self.each_once)

    def around(self, trips: int | None) -> Runs:
        """How often a region runs that this runs so often for each time."""
        if trips is None:
            return replace(self, count=None)
        return Runs(None if self.count is None else self.count * trips, self.at_least * trips, self.each_once)


_ONCE = Runs(1, 1, 1)


def collectives_of(program: Program, *, each_once: bool = False) -> list[Collective]:
    """All collectives of the program that the entry reaches, with functions in the order of their first call. With
    `each_once`, one turn of each loop counts, even if it has others."""
    executions = ((op, runs.once() if each_once else runs) for op, runs in executions_of(program))
    return [_describe(program, op, runs) for op, runs in executions]


def executions_of(program: Program) -> Iterator[tuple[Op, Runs]]:
    """The ops of `collectives_of`, each with how often it runs. One in a function is one, for all calls."""
    found = executions(program, _ONCE, in_all_regions(Runs.around))
    return ((op, runs) for op, runs in found if op.name in COLLECTIVES)


def lock_step_bytes(collectives: Iterable[Collective]) -> int:
    """The sum over all collectives of the bytes that each brings to the device that receives most in it: devices in
    step wait for these. Loops of unknown trip count count once."""
    return sum(c.bytes * c.at_least for c in collectives)


def received_bytes(program: Program, *, each_once: bool = False) -> int:
    """Bytes that the worst device receives in one run. Loops of unknown trip count count once; with `each_once`, all
    loops do.

    This is not the sum over `collectives_of`: in a round of a box exchange not every device receives.
    """
    everyone = 0
    rounds: dict[Axes, list[tuple[Round, int]]] = {}
    for op, runs in executions_of(program):
        nbytes = collective_bytes(op) * (runs.each_once if each_once else runs.at_least)
        rounds_of = communication_of(op.name).rounds
        if rounds_of is None:
            everyone += nbytes
        else:
            rounds.setdefault(axes_attr(op.attrs), []).extend((each, nbytes) for each in rounds_of(op.attrs))
    return everyone + _worst(program.mesh, {axes: _Received(along) for axes, along in rounds.items()})


class _Received:
    """The bytes that each position along some axes receives in rounds of box exchanges."""

    def __init__(self, rounds: Sequence[tuple[Round, int]]) -> None:
        self.row = row_of_rounds({each for each, _ in rounds})
        self.bytes = np.zeros(len(self.row.chosen), np.int64)
        for each, nbytes in rounds:
            self.bytes += nbytes * (each.sources(self.row.chosen) >= 0)


def _worst(mesh: Mesh, received: dict[Axes, _Received]) -> int:
    """The most that one device receives: the sum of the maxima along sets of axes, where these are disjoint."""
    worst = 0
    while received:
        (axes, one), *rest = received.items()
        sharing = {axes: one}
        while more := {a: r for a, r in rest if a not in sharing and _meet(a, sharing)}:
            sharing |= more
        worst += _worst_together(mesh, sharing)
        received = {a: r for a, r in rest if a not in sharing}
    return worst


def _meet(axes: Axes, others: Iterable[Axes]) -> bool:
    return bool({a.name for a in axes} & {b.name for other in others for b in other})


def _worst_together(mesh: Mesh, received: dict[Axes, _Received]) -> int:
    """The most that one device receives along all of these axes, computed for every device."""
    if len(received) == 1:
        return max(int(each.bytes.max(initial=0)) for each in received.values())
    names = {a.name for axes in received for a in axes}
    sizes = [size if name in names else 1 for name, size in mesh.axes]
    coordinates = dict(zip(mesh.names, np.indices(sizes, sparse=True), strict=True))
    sums = np.zeros(sizes, np.int64)
    for axes, each in received.items():
        position: Positions = np.zeros((1,) * len(sizes), np.int64)
        for axis in axes:
            inner = mesh.axis(axis.name).size // axis.end
            position = position * axis.size + coordinates[axis.name] // inner % axis.size
        sums += each.bytes[each.row.like(position)]
    return int(np.max(sums))


def _describe(program: Program, op: Op, runs: Runs) -> Collective:
    line = op.span.line if op.span is not None else None
    kind = communication_of(op.name).kind or op.name
    cause = op.cause or Cause("written")
    axes, nbytes = axes_text(program, op), collective_bytes(op)
    return Collective(kind, op.label, axes, nbytes, runs.count, runs.at_least, line_of(op), line, cause)


def line_of(op: Op) -> str:
    """The file and line of the user's program that an op comes from; empty if there is none."""
    return f"{op.span.source.name}:{op.span.line}" if op.span is not None else ""


def axes_text(program: Program, op: Op) -> str:
    """The mesh axes that a collective runs over, as programs spell them."""
    order = op.attrs.get("target")
    if isinstance(order, DeviceOrder):
        return ", ".join(order.mesh.spell(a) for a in order.axes)
    mesh_of = {name: mesh for mesh in program.meshes for name in mesh.names}
    return ", ".join(mesh_of[a.name].spell(a) for a in axes_attr(op.attrs))
