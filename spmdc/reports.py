"""What a partitioned program communicates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from ir.mesh import AxisRef
from ir.ops.collective import COLLECTIVES
from ir.program import DeviceOrder, Op, Program, Region
from passes.cost import collective_bytes


@dataclass(frozen=True, slots=True)
class Collective:
    """One collective of an SPMD program.

    `bytes` are those that the worst device receives in one execution; `count` is how often it runs: the product of the
    trip counts of the loops around it and of the calls of its function, or None if a loop's count is not known; in a
    branch of a case it is how often the case runs, the most that the branch can.
    `source` is the line of the user's program that caused it.
    """

    kind: str
    name: str
    axes: str
    bytes: int
    count: int | None
    source: str
    reason: str

    def to_json(self) -> dict[str, object]:
        """The collective as plain data."""
        return asdict(self)


def collectives_of(program: Program) -> list[Collective]:
    """Every collective of the program that the entry reaches, functions in order of first call."""
    return list(_in_region(program, program.main.body, 1))


def _in_region(program: Program, region: Region, count: int | None) -> Iterator[Collective]:
    for op in region.ops:
        if op.name in COLLECTIVES:
            yield _describe(program, op, count)
        elif op.name == "call":
            yield from _in_region(program, program.functions[str(op.attrs["function"])].body, count)
        elif op.name == "case":
            for branch in op.regions:
                yield from _in_region(program, branch, count)
        elif op.regions:
            trips = op.attrs.get("trip_count")
            inner = count * trips if isinstance(trips, int) and count is not None else None
            for inside in op.regions:
                yield from _in_region(program, inside, inner)


def _describe(program: Program, op: Op, count: int | None) -> Collective:
    source = f"{op.span.source.name}:{op.span.line}" if op.span is not None else ""
    kind = "collective_permute" if op.name == "box_permute" else op.name
    return Collective(kind, op.results[0].name, _axes(program, op), collective_bytes(op), count, source, op.note)


def _axes(program: Program, op: Op) -> str:
    order = op.attrs.get("target")
    if isinstance(order, DeviceOrder):
        return ", ".join(order.mesh.spell(a) for a in order.axes)
    axes = op.attrs["axes"]
    assert isinstance(axes, tuple)
    return ", ".join(program.mesh.spell(a) for a in axes if isinstance(a, AxisRef))
