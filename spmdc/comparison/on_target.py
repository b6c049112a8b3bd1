"""A program partitioned by spmdc and by XLA, both compiled for the same target: a TPU that need not be there, or the
host's CPU.

XLA gets the program as `spmdc.comparison.compare` gives it, but in its own element types. Of both, the collectives of
the compiled module count, so what the compiler narrows, merges or adds is in them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ir.program import Program
from spmdc.api import PartitionedProgram, partition
from spmdc.comparison.compare import compiled_by_xla
from spmdc.reports.device_memory import DeviceMemory
from spmdc.reports.hlo_collectives import XlaCollective, collectives_in, received_by_the_worst
from spmdc.reports.optimised_module import read_module

_ONE_TURN = "XLA does not say how often some loops run: they count once"


@dataclass(frozen=True)
class Side:
    """What one partitioner's module takes on each device, by the compiler: seconds to compile, memory, cycles of a run
    (0 if the compiler makes no such estimate), and what is communicated."""

    seconds: float
    memory: DeviceMemory
    cycles: int
    collectives: tuple[XlaCollective, ...]

    @property
    def received_bytes(self) -> int:
        """Bytes that the worst device receives in one run."""
        return received_by_the_worst(self.collectives)

    def to_json(self) -> dict[str, object]:
        return {
            "seconds": self.seconds,
            "memory": self.memory.to_json(),
            "cycles": self.cycles,
            "received_bytes": self.received_bytes,
            "collectives": [c.to_json() for c in self.collectives],
        }


@dataclass(frozen=True)
class TargetComparison:
    """Both sides, and what JAX cannot express, so that XLA does not know it."""

    target: str
    ours: Side
    xla: Side
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        sides = {"ours": self.ours.to_json(), "xla": self.xla.to_json()}
        return {"target": self.target, **sides, "notes": list(self.notes)}


def compare_on(program: Program | PartitionedProgram, target: str) -> TargetComparison:
    """Partitions the program, has XLA partition it too, and compiles both for the target, such as tpu-v3:4x4.

    Raises SpmdcError as `PartitionedProgram.compile` and `spmdc.compare` do.
    """
    partitioned = program if isinstance(program, PartitionedProgram) else partition(program)
    ours = partitioned.compile(target)
    theirs, notes = compiled_by_xla(partitioned.source, target)
    module = read_module(theirs.text)
    return TargetComparison(
        target,
        Side(ours.seconds, ours.memory, ours.cycles, ours.collectives),
        Side(
            theirs.seconds,
            theirs.memory,
            sum(i.estimated_cycles * count for _, i, count in module.executed()),
            tuple(collectives_in(module)),
        ),
        (*notes, _ONE_TURN) if module.has_unknown_trips() else notes,
    )
