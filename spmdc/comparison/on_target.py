"""A program partitioned by spmdc and by XLA, both compiled for the same target: TPUs that need not exist, or the host's
CPU.

XLA gets the program as in `spmdc.comparison.compare`, but in its own element types. For both, the collectives of the
compiled module count, so anything that the compiler narrows, merges or adds is included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ir.mesh import Mesh
from ir.program import Program
from ir.records import as_json
from lowering.jax.topologies import Target, parse_target
from passes.cost.machine import machine
from passes.cost.network import NetworkDim, Place, network_seconds, permute_seconds, reaches_among
from spmdc.api import PartitionedProgram, partition
from spmdc.comparison.compare import compiled_by_xla
from spmdc.compiled import network_places
from spmdc.reports.device_memory import DeviceMemory
from spmdc.reports.hlo_collectives import XlaCollective, collectives_in, received_by_the_worst
from spmdc.reports.optimised_module import read_module

_ONE_TURN = "XLA does not say how often some loops run: they count once"


@dataclass(frozen=True)
class Side:
    """The cost of one partitioner's module on each device, according to the compiler: seconds to compile, memory,
    cycles of a run (0 if the compiler does not estimate them), and what is communicated. `network` is the time of that
    communication by the model of the target's network, one collective after the other, 0 on a host's CPU; `time` is the
    sum of it and of the cycles in seconds, if the clock is known."""

    seconds: float
    memory: DeviceMemory
    cycles: int
    collectives: tuple[XlaCollective, ...]
    network: float
    time: float

    @property
    def received_bytes(self) -> int:
        """Bytes that the worst device receives in one run."""
        return received_by_the_worst(self.collectives)

    def to_json(self) -> dict[str, object]:
        names = ("seconds", "memory", "cycles", "received_bytes", "network", "time", "collectives")
        return as_json(self, *names)


@dataclass(frozen=True)
class TargetComparison:
    """Both sides, and what JAX cannot express, so that XLA does not get it."""

    target: str
    ours: Side
    xla: Side
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return as_json(self)


def compare_on(program: Program | PartitionedProgram, target: str) -> TargetComparison:
    """Partitions the program, has XLA partition it too, and compiles both for the target, such as tpu-v3:4x4.

    Raises SpmdcError as `PartitionedProgram.compile` and `spmdc.compare` do.
    """
    partitioned = program if isinstance(program, PartitionedProgram) else partition(program)
    ours = partitioned.compile(target)
    theirs, notes = compiled_by_xla(partitioned.source, target, ours.placed)
    module = read_module(theirs.text)
    timed = _timed(parse_target(target), partitioned.program.mesh, ours.placed)
    cycles = sum(i.estimated_cycles * count for _, i, count in module.executed())
    return TargetComparison(
        target,
        timed(ours.seconds, ours.memory, ours.cycles, ours.collectives),
        timed(theirs.seconds, theirs.memory, cycles, tuple(collectives_in(module))),
        (*notes, _ONE_TURN) if module.has_unknown_trips() else notes,
    )


def _timed(
    target: Target | None, mesh: Mesh, placed: Sequence[int] | None
) -> Callable[[float, DeviceMemory, int, tuple[XlaCollective, ...]], Side]:
    """A function that makes a side from the figures of the target's compiler."""
    if target is None:
        return lambda seconds, memory, cycles, collectives: Side(seconds, memory, cycles, collectives, 0.0, 0.0)
    reckoned = machine(str(target))
    dims = reckoned.network
    places = network_places(target, mesh, placed)

    def side(seconds: float, memory: DeviceMemory, cycles: int, collectives: tuple[XlaCollective, ...]) -> Side:
        network = sum(c.count * seconds_on_network(c, dims, places) for c in collectives)
        time = network + cycles / reckoned.clock if reckoned.clock else network
        return Side(seconds, memory, cycles, collectives, network, time)

    return side


def seconds_on_network(collective: XlaCollective, dims: Sequence[NetworkDim], places: Sequence[Place]) -> float:
    """Time of one execution on the network, with the partitions at these places."""
    if collective.kind == "collective_permute":
        pairs = ((places[a], places[b]) for a, b in collective.pairs)
        return permute_seconds(dims, pairs, collective.operand)
    reaches = reaches_among(dims, [places[i] for i in collective.group])
    return network_seconds(collective.kind, reaches, collective.operand)
