"""A program partitioned by spmdc and by XLA, side by side.

XLA gets the same program through JAX: parameters and results are sharded as annotated, annotations inside become
sharding constraints. A parameter or result without an annotation is free for both partitioners, or replicated for both
if it is pinned. XLA's CPU backend sends bf16 as f32, which other backends do not: it gets f16 instead, which has as
many bytes. What JAX cannot express is noted, and the figures then do not compare.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ir.diagnostics import InternalError, error
from ir.manual import has_manual
from ir.mesh import axes_size
from ir.ops.layout import is_annotation, is_hint
from ir.program import Function, Program, Result, Value, all_ops, values_within
from ir.records import as_json
from ir.sharding import Sharding
from ir.types import bf16, f16
from lowering.jax.axes import ProgramAxes
from lowering.jax.module import has_64_bits, write_annotated
from lowering.jax.running import MOST_CPU_DEVICES
from lowering.jax.topologies import NO_TPU_HERE, order_of, parse_target
from passes.rewrite import map_values
from spmdc.api import PartitionedProgram, partition
from spmdc.comparison.called_functions import with_functions
from spmdc.comparison.job import Compiled, Job, Spec
from spmdc.isolation.process import IsolatedProcess, last_words
from spmdc.isolation.server import DONE, ENDED, FAILED, REFUSED, STOPPED
from spmdc.pictures import pages
from spmdc.reports.collectives import Collective, collectives_of, lock_step_bytes, received_bytes
from spmdc.reports.hlo_collectives import XlaCollective, collectives_in, received_by_the_worst
from spmdc.reports.optimised_module import read_module

MOST_SECONDS = 600.0
"""The processor time that XLA may take for a program."""

_VARIABLES = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2", **NO_TPU_HERE}
_XLA_PROCESS = IsolatedProcess("spmdc.comparison.xla_child", variables=_VARIABLES)
_OUR_SIDE = "`spmdc partition --stats` has our side"
_ENDS = {REFUSED: "does not compile", ENDED: "ends its process over", STOPPED: "was stopped over"}
_WHOLE_ENDS = "XLA would split a parameter or result unevenly that is not annotated, which JAX refuses: those are whole"

_SHORT = "XLA's CPU backend sends floats of 8 bits as f16: they are counted as that"
_SENT_AS = {bf16: f16}
_ONE_TURN = "how often some loops run shows only when they do: one turn of each loop is counted, on both sides"


@dataclass(frozen=True)
class Comparison:
    """The communication of both partitioners' programs.

    `bytes` is what the worst device receives in one run. `lock_step_bytes` is the sum over all collectives of the most
    that each brings to a device, for which devices in step wait. `notes` lists what JAX cannot express, so that XLA
    does not get it. If the trip count of some loop is not known to one of the two, one iteration of each loop is
    counted, and a note says so.
    """

    collectives: tuple[Collective, ...]
    bytes: int
    lock_step_bytes: int
    xla_collectives: tuple[XlaCollective, ...]
    xla_bytes: int
    xla_lock_step_bytes: int
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<Comparison: {self.bytes:,} bytes received, {self.xla_bytes:,} by XLA>"

    def _repr_html_(self) -> str:
        sides = (self.collectives, self.bytes), (self.xla_collectives, self.xla_bytes)
        return pages.comparison(("spmdc", "XLA"), sides, self.notes)

    @property
    def ratio(self) -> float:
        """Our bytes divided by XLA's; 1 if neither communicates."""
        if self.xla_bytes == 0:
            return 1.0 if self.bytes == 0 else float("inf")
        return self.bytes / self.xla_bytes

    def to_json(self) -> dict[str, object]:
        return {
            **as_json(self, "bytes", "lock_step_bytes", "xla_bytes", "xla_lock_step_bytes"),
            "ratio": self.ratio if self.xla_bytes or not self.bytes else None,
            **as_json(self, "collectives", "xla_collectives", "notes"),
        }


def compare(program: Program | PartitionedProgram) -> Comparison:
    """Partitions the program and has XLA compile it for as many devices as its mesh has.

    Both may choose the sharding of parameters and results without an annotation; `pinned` gives them one. XLA runs in a
    separate process, and gets JAX functions that the program calls inlined. Raises SpmdcError: E502 if a host's CPU
    cannot be as many devices, E301 if annotations are on several meshes, E412 if it has manual regions, E515 if XLA
    does not compile the program, and as `spmdc.from_jax` does for such functions.
    """
    partitioned = program if isinstance(program, PartitionedProgram) else partition(program)
    text, notes = xla_module(partitioned.source)
    module = read_module(text)
    ours, theirs = partitioned.collectives(), collectives_in(module)
    each_once = any(c.count is None for c in ours) or module.has_unknown_trips()
    if each_once:
        ours = collectives_of(partitioned.program, each_once=True)
        theirs = [replace(c, count=1) for c in theirs]
        notes = (*notes, _ONE_TURN)
    return Comparison(
        tuple(ours),
        received_bytes(partitioned.program, each_once=each_once),
        lock_step_bytes(ours),
        tuple(theirs),
        received_by_the_worst(theirs),
        sum(c.bytes * c.count for c in theirs),
        notes,
    )


def pinned(program: Program) -> Program:
    """The program with every parameter and result that is not annotated replicated."""
    if not program.meshes:
        return program
    main, whole = program.main, {v: replace(v, sharding=_whole(program, v)) for v in program.main.params}

    def value(old: Value) -> Value:
        return whole.get(old) or replace(old)

    def result(function: Function, i: int) -> Result:
        declared = function.results[i]
        return replace(declared, sharding=_whole(program, declared)) if function is main else declared

    return map_values(program, value, result)


def _whole(program: Program, value: Value | Result) -> Sharding:
    return value.sharding if value.sharding is not None else Sharding.replicate(program.mesh, value.type.rank)


def xla_module(program: Program) -> tuple[str, tuple[str, ...]]:
    """The optimised HLO module of an annotated program, compiled by XLA, and what JAX cannot express of it."""
    compiled, notes = compiled_by_xla(program)
    return compiled.text, notes


def compiled_by_xla(
    program: Program, target: str = "cpu", placed: Sequence[int] | None = None
) -> tuple[Compiled, tuple[str, ...]]:
    """An annotated program compiled by XLA for a target (`lowering.jax.topologies`), on which its mesh is laid out as
    `placed` (`order_of`), and what JAX cannot express of it."""
    _XLA_PROCESS.start()  # While it starts, the job is written.
    job, notes = xla_job(with_functions(program), target, placed)
    compiled = compile_with_xla(job)
    if compiled.has_whole_ends:
        notes.append(_WHOLE_ENDS)
    if target == "cpu" and any(
        v.dtype.is_float and v.dtype.bits < 16
        for v in (v for f in program.functions.values() for v in values_within(f.body))
    ):
        notes.append(_SHORT)
    return compiled, tuple(dict.fromkeys(notes))


def compile_with_xla(job: Job) -> Compiled:
    """A job compiled by XLA, in a separate process. Raises SpmdcError (E515) with XLA's message if that fails."""
    outcome, made = _XLA_PROCESS.ask(pickle.dumps(job))
    if outcome == DONE:
        compiled: Compiled = pickle.loads(made)
        return compiled
    if outcome == FAILED:
        raise InternalError(made.decode())
    raise error("E515", f"XLA {_ENDS[outcome]} the program: {last_words(made)}", help=_OUR_SIDE)


def xla_job(
    program: Program, target: str = "cpu", placed: Sequence[int] | None = None, *, keeps_bf16: bool = False
) -> tuple[Job, list[str]]:
    """The job of compiling a program with XLA, and what JAX cannot express of it. The host's CPU cannot multiply bf16,
    and gets f16 unless the job `keeps_bf16`. Raises SpmdcError (E301, E412, E502, and for the target E516, E517)."""
    if has_manual(program):
        message = "the program has manual regions, and XLA's partitioner gets programs for one device"
        raise error("E412", message, help=f"compare it without its regions: {_OUR_SIDE}, with them")
    if len(program.meshes) > 1:
        raise error("E301", "XLA takes one mesh, and the program has several", help="place all values on one mesh")
    tpus = parse_target(target)
    if tpus is None and program.mesh.size > MOST_CPU_DEVICES:
        raise error(
            "E502",
            f"the program needs {program.mesh.size} devices, and XLA takes a host's CPU for up to {MOST_CPU_DEVICES}",
            help=f"choose a smaller mesh: {_OUR_SIDE}",
        )
    annotated = _Annotated(program)
    if any(is_annotation(op) and is_hint(op) for op in all_ops(program)):
        annotated.notes.append("XLA cannot express which tensors are to be sharded alike, or where propagation stops")
    written, entry, annotations = write_annotated(program)
    source = written.text
    params: tuple[Value | Result, ...] = program.main.params
    ends, ids = (*params, *program.main.results), program.mesh.device_ids
    is_changed = tpus is None and not keeps_bf16
    sent_as = _SENT_AS if is_changed else {}
    order = range(program.mesh.size) if tpus is None else order_of(tpus, program.mesh, placed)
    outside = tuple(map(annotated.outside, ends))
    before = tuple(map(annotated.inside, params))
    within = tuple(annotated.spec(annotation.sharding, closed=False) for annotation in annotations)
    behind = tuple(map(annotated.inside, program.main.results))
    job = Job(
        source=source.replace("jnp.bfloat16", "jnp.float16") if is_changed else source,
        entry=entry,
        has_64_bits=has_64_bits(program),
        axes=tuple(annotated.axes.sizes.items()),
        devices=tuple(order[i] for i in ids),
        params=tuple((p.type.shape, sent_as.get(p.type.dtype, p.type.dtype).numpy) for p in params),
        ends=outside,
        inside=(*before, *behind),
        annotations=within,
        most_seconds=MOST_SECONDS,
        target=target,
    )
    return job, annotated.notes


class _Annotated:
    """Writes a program's annotations as JAX's."""

    def __init__(self, program: Program) -> None:
        self._axes = ProgramAxes(program)
        self.axes = self._axes.default
        self.notes: list[str] = []

    def outside(self, value: Value | Result) -> Spec | None:
        """The sharding of a parameter or result; None if XLA may choose it, or if JAX rejects it."""
        sharding = value.sharding
        if sharding is None or any(d.open for d in sharding.dims) or not _divides(sharding, value.type.shape):
            return None
        return self.spec(sharding, closed=True)

    def inside(self, value: Value | Result) -> Spec | None:
        """A constraint in place of a sharding with open dims, or of one that JAX rejects for parameters and results."""
        sharding = value.sharding
        if sharding is None:
            return None
        if _divides(sharding, value.type.shape):
            return self.spec(sharding, closed=False) if any(d.open for d in sharding.dims) else None
        self.notes.append(
            f"{value.name} is split unevenly, which JAX refuses at the ends of a program: XLA has it whole"
        )
        return self.spec(sharding, closed=False)

    def spec(self, sharding: Sharding, *, closed: bool) -> Spec:
        """The axes of each dim; None for an open dim without axes, unless it is `closed`."""
        if sharding.partial:
            self.notes.append("XLA takes no annotation that leaves a result partial")
        return tuple(
            None if d.open and not d.axes and not closed else self._axes.axis_names(d.axes) for d in sharding.dims
        )


def _divides(sharding: Sharding, shape: Sequence[int]) -> bool:
    return all(n % axes_size(axes) == 0 for n, axes in zip(shape, sharding.axes, strict=True))
