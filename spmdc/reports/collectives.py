"""The communication of a partitioned program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from ir.causes import Cause
from ir.mesh import Axes, Mesh
from ir.ops.boxes import Round, row_of_rounds
from ir.ops.collective import COLLECTIVES, axes_attr, communication_of
from ir.ops.control import is_call, runs_of_region
from ir.ops.rows import Positions
from ir.program import DeviceOrder, Op, Program, Region, callee_of
from passes.cost.model import collective_bytes


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of an SPMD program.

    `bytes` are those that the worst device receives in one execution; `count` is how often it runs: the product of the
    trip counts of the loops around it and of the calls of its function, or None if a loop's count is not known; in a
    loop's condition it runs once more than in its body; in a branch of a case it is how often the case runs, the most
    that the branch can.
    `source` is the line of the user's program that caused it, and `cause` says what for.
    """

    kind: str
    name: str
    axes: str
    bytes: int
    count: int | None
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


def collectives_of(program: Program) -> list[Collective]:
    """All collectives of the program that the entry reaches, with functions in the order of their first call."""
    return [_describe(program, op, count) for op, count in executions_of(program)]


def executions_of(program: Program) -> Iterator[tuple[Op, int | None]]:
    """The ops of `collectives_of`, each with how often it runs."""
    return _executions(program, program.main.body, 1)


def lock_step_bytes(collectives: Iterable[Collective]) -> int:
    """The sum over all collectives of the bytes that each brings to the device that receives most in it: devices in
    step wait for these. Loops of unknown trip count count once."""
    return sum(c.bytes * (1 if c.count is None else c.count) for c in collectives)


def received_bytes(program: Program, *, each_once: bool = False) -> int:
    """Bytes that the worst device receives in one run. Loops of unknown trip count count once; with `each_once`, all
    loops do.

    This is not the sum over `collectives_of`: in a round of a box exchange not every device receives.
    """
    everyone = 0
    rounds: dict[Axes, list[tuple[Round, int]]] = {}
    for op, count in executions_of(program):
        nbytes = collective_bytes(op) * (1 if count is None or each_once else count)
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


def _executions(program: Program, region: Region, count: int | None) -> Iterator[tuple[Op, int | None]]:
    """All collectives, with how often each runs; for a case, those of every branch."""
    for op in region.ops:
        if op.name in COLLECTIVES:
            yield op, count
        elif is_call(op):
            yield from _executions(program, program.functions[callee_of(op) or ""].body, count)
        for i, inside in enumerate(op.regions):
            runs = runs_of_region(op, i)
            inner = count * runs if runs is not None and count is not None else None
            yield from _executions(program, inside, inner)


def _describe(program: Program, op: Op, count: int | None) -> Collective:
    line = op.span.line if op.span is not None else None
    kind = communication_of(op.name).kind or op.name
    cause = op.cause or Cause("written")
    return Collective(kind, op.label, axes_text(program, op), collective_bytes(op), count, line_of(op), line, cause)


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
