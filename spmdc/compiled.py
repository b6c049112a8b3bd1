"""A partitioned program as compiled by a backend: its memory, its time on the chip, and the outcome of each
collective."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

import jax

from ir.diagnostics import error
from ir.mesh import Axes, Mesh, group_along
from ir.ops.collective import collective_axes, communication_of
from ir.program import Op, Program
from ir.records import as_json
from lowering.jax.running import compile_donating
from lowering.jax.topologies import Target, devices_of, libtpu_version, parse_target, places_of
from passes.cost.machine import Machine, machine
from passes.cost.model import sent_bytes
from passes.cost.network import NetworkDim, Place, Reach, neighbour_seconds, network_seconds, reaches_among
from spmdc.reports.collectives import executions_of
from spmdc.reports.device_memory import DeviceMemory
from spmdc.reports.hlo_collectives import XlaCollective, collectives_in, is_asynchronous, received_by_the_worst
from spmdc.reports.optimised_module import Instruction, bits_of, read_module
from spmdc.reports.origins import Origins

_LONGEST = 500
"""The most characters of a compiler's error message, which may list all buffers."""
_WAY_OUT = "if it takes too much memory: more devices, smaller consts (-D), or more annotations"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a collective of the program, which one run executes `count` times (None: unknown).

    `compiled` has the module's collectives that come from it, none if it was merged into another or is not needed;
    `elements` are the element types that they send.
    """

    op: Op
    count: int | None
    compiled: tuple[XlaCollective, ...]
    elements: tuple[str, ...]
    is_asynchronous: bool

    @property
    def kind(self) -> str:
        return communication_of(self.op.name).kind or self.op.name

    @property
    def is_narrowed(self) -> bool:
        """Whether elements are sent in fewer bits than they have."""
        bits = self.op.operands[0].dtype.bits
        return any(bits_of(element) < bits for element in self.elements)

    def to_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "name": self.op.label,
            "line": self.op.span.line if self.op.span is not None else None,
            **as_json(self, "count", "compiled", "elements", "is_narrowed", "is_asynchronous"),
        }


@dataclass(frozen=True, eq=False)
class CompiledProgram:
    """A partitioned program as compiled for a target.

    `text` is the optimised HLO module, `seconds` the time of compiling. `cycles` is the compiler's estimate of one run
    on one device, without the network: collectives have none. `cycles_of` has the cycles of each op of the program, and
    for None those of instructions that come from no single op. Only the TPU compiler makes such an estimate. `outcomes`
    has the outcome of each collective, and `added` the collectives that the compiler added. Loops whose trip count
    neither the compiler nor spmdc knows count once. `placed` is the layout of the mesh on the target: the number of the
    device at each position, row-major in x, y, z and the core of a chip, or None for JAX's.
    """

    target: str
    compiler: str
    devices: int
    text: str
    seconds: float
    memory: DeviceMemory
    cycles_of: Mapping[Op | None, int]
    outcomes: tuple[Outcome, ...]
    added: tuple[XlaCollective, ...]
    placed: tuple[int, ...] | None

    def __repr__(self) -> str:
        return f"<CompiledProgram for {self.devices} devices of {self.target}>"

    @property
    def cycles(self) -> int:
        return sum(self.cycles_of.values())

    @property
    def collectives(self) -> tuple[XlaCollective, ...]:
        """The collectives of the compiled module."""
        return (*(c for outcome in self.outcomes for c in outcome.compiled), *self.added)

    @property
    def received_bytes(self) -> int:
        """Bytes that the worst device receives in one run, according to the compiled module."""
        return received_by_the_worst(self.collectives)

    def to_json(self) -> dict[str, object]:
        return {
            **as_json(self, "target", "compiler", "devices", "seconds", "memory", "cycles"),
            "cycles_of_lines": self.cycles_of_lines(),
            **as_json(self, "received_bytes", "outcomes", "added"),
        }

    def cycles_of_lines(self) -> dict[str, int]:
        """The cycles of each line of the user's program with any, the most first; "" stands for instructions without a
        line."""
        found: Counter[str] = Counter()
        for op, cycles in self.cycles_of.items():
            span = op.span if op is not None else None
            found[f"{span.source.name}:{span.line}" if span is not None else ""] += cycles
        return dict(found.most_common())


def placed_on(target: str, program: Program, planned_for: Machine) -> tuple[int, ...] | None:
    """The layout on the target that the plan of an SPMD program counts on (`placed` of `order_of`). None for JAX's, if
    the program's collectives take no longer in that, or it was planned for another machine."""
    tpus = parse_target(target)
    if tpus is None or planned_for != machine(str(tpus)) or len(program.meshes) > 1:
        return None
    placement = planned_for.laid_out(program.meshes).placement
    if placement is None:
        return None
    placed = placement.device_order(program.mesh)
    planned, usual = (
        _network_seconds(program, planned_for.network, network_places(tpus, program.mesh, way))
        for way in (placed, None)
    )
    return placed if planned < usual else None


def network_places(target: Target, mesh: Mesh, placed: Sequence[int] | None) -> list[Place]:
    """Where on the target's network the device at each position of the mesh is, with the mesh laid out as `placed`."""
    coordinates = [("x", "y", "z", "core").index(dim.name) for dim in machine(str(target)).network]
    return [tuple(place[i] for i in coordinates) for place in places_of(target, mesh, placed)]


def _network_seconds(program: Program, dims: Sequence[NetworkDim], places: Sequence[Place]) -> float:
    """The time of an SPMD program's collectives with the devices of its mesh at these places of a network."""

    @functools.cache
    def reaches(axes: Axes) -> tuple[Reach, ...]:
        return reaches_among(dims, [places[i] for i in group_along(program.mesh, axes)])

    total = 0.0
    for op, runs in executions_of(program):
        among, sent = reaches(collective_axes(op)), sent_bytes(op)
        is_permute = communication_of(op.name).kind == "collective_permute"
        once = neighbour_seconds(among, sent) if is_permute else network_seconds(op.name, among, sent)
        total += once * runs.at_least
    return total


def compile_for(
    program: Program, target: str, donate: Sequence[int], placed: tuple[int, ...] | None
) -> CompiledProgram:
    """The SPMD program as compiled for a target: TPUs, which need not exist, as tpu-v3:4x4, or the host's "cpu".
    Results reuse the memory of the arguments at positions `donate`. The mesh is laid out as `placed` (`order_of`).

    Raises SpmdcError: E517 without libtpu, E516 if there is no such target, or it has fewer devices than the mesh, E518
    if its compiler does not compile the program, such as one that takes more memory than there is.
    """
    tpus = parse_target(target)
    devices = None if tpus is None else devices_of(tpus, program.mesh, placed)
    executable = compile_donating(program, devices, donate)
    compiler = f"jaxlib {metadata.version('jaxlib')}" if tpus is None else f"libtpu {libtpu_version()}"
    start = time.perf_counter()
    try:
        compiled = executable.ahead()
    except jax.errors.JaxRuntimeError as problem:
        reason = " ".join(str(problem).split())
        shown = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}…"
        raise error("E518", f"the compiler of {target} does not compile the program: {shown}", help=_WAY_OUT) from None
    seconds = time.perf_counter() - start
    text = str(compiled.as_text())
    module = read_module(text)
    origins = Origins(executable, text, module)
    executed: dict[str, Instruction] = {}
    cycles: Counter[Op | None] = Counter()
    for _, instruction, count in module.executed(origins.trips):
        executed[instruction.name] = instruction
        if instruction.estimated_cycles:
            cycles[origins.of(instruction)] += instruction.estimated_cycles * count
    collectives = [(executed[c.name], c) for c in collectives_in(module, trips=origins.trips)]
    outcomes = tuple(_outcomes(program, collectives, origins))
    ours = {c.name for outcome in outcomes for c in outcome.compiled}
    return CompiledProgram(
        target=target,
        compiler=compiler,
        devices=program.mesh.size,
        text=text,
        seconds=seconds,
        memory=DeviceMemory.of(compiled),
        cycles_of=cycles,
        outcomes=outcomes,
        added=tuple(c for _, c in collectives if c.name not in ours),
        placed=placed,
    )


def _outcomes(
    program: Program, collectives: list[tuple[Instruction, XlaCollective]], origins: Origins
) -> Iterator[Outcome]:
    for op, runs in executions_of(program):
        own = [(i, c) for i, c in collectives if origins.of(i) is op]
        elements = dict.fromkeys(element for i, _ in own for element, _ in i.tensors)
        in_the_background = any(is_asynchronous(i) for i, _ in own)
        yield Outcome(op, runs.count, tuple(c for _, c in own), tuple(elements), in_the_background)
