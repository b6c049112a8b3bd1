"""A program partitioned by spmdc and by XLA, side by side.

XLA gets the same program through JAX: parameters and results sharded as annotated, annotations inside as sharding
constraints. An end that is not annotated is free for both, or whole for both where they are pinned. XLA's CPU backend
sends bf16 as f32, which other backends do not: it is given f16 instead, which is as long. What JAX cannot express
is noted, and the figures then do not compare.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec

from ir.diagnostics import error
from ir.mesh import axes_size
from ir.ops.layout import is_annotation, is_hint
from ir.program import Function, Program, Result, Value, all_ops, values_within
from ir.sharding import Sharding
from ir.types import bf16, f16
from lowering.jax import ensure_devices
from lowering.jax.axes import ProgramAxes
from lowering.jax.module import has_64_bits, write_annotated
from lowering.jax.running import load
from passes.rewrite import map_values
from spmdc.api import PartitionedProgram, partition
from spmdc.reports.collectives import Collective, lock_step_bytes, received_bytes
from spmdc.reports.hlo_collectives import XlaCollective, collectives_of_hlo, has_unknown_trips, received_by_the_worst

_spec: Any = PartitionSpec
_constrain: Any = jax.lax.with_sharding_constraint
_struct: Any = jax.ShapeDtypeStruct


_SHORT = "XLA's CPU backend sends floats of 8 bits as f16: they are counted as that"
_SENT_AS = {bf16: f16}
_ONE_TURN = "how often some loops run shows only when they do: one turn of each loop is counted, on both sides"


@dataclass(frozen=True)
class Comparison:
    """What each partitioner communicates.

    `bytes` are those that the worst device receives in one run, `lock_step_bytes` the sum over all collectives of the
    most that each brings to a device, for which devices wait that run in step. `notes` are what JAX cannot express, so
    that XLA does not know it. If one of the two does not know how often each loop runs, one iteration of each is
    counted, and a note says so.
    """

    collectives: tuple[Collective, ...]
    bytes: int
    lock_step_bytes: int
    xla_collectives: tuple[XlaCollective, ...]
    xla_bytes: int
    xla_lock_step_bytes: int
    notes: tuple[str, ...]

    @property
    def ratio(self) -> float:
        """Our bytes over XLA's: 1 where neither communicates."""
        if self.xla_bytes == 0:
            return 1.0 if self.bytes == 0 else float("inf")
        return self.bytes / self.xla_bytes

    def to_json(self) -> dict[str, object]:
        return {
            "bytes": self.bytes,
            "lock_step_bytes": self.lock_step_bytes,
            "xla_bytes": self.xla_bytes,
            "xla_lock_step_bytes": self.xla_lock_step_bytes,
            "ratio": self.ratio if self.xla_bytes or not self.bytes else None,
            "collectives": [c.to_json() for c in self.collectives],
            "xla_collectives": [c.to_json() for c in self.xla_collectives],
            "notes": list(self.notes),
        }


def compare(program: Program | PartitionedProgram) -> Comparison:
    """Partitions the program and has XLA compile it for as many devices as its mesh has.

    Each is free to shard parameters and results without an annotation as it likes; `pinned` gives them one. Raises
    SpmdcError: E502 or E503 if JAX has not as many devices, E301 if annotations are on several meshes, E515 if XLA does
    not compile the program.
    """
    partitioned = program if isinstance(program, PartitionedProgram) else partition(program)
    text, notes = xla_module(partitioned.source)
    ours, theirs = partitioned.collectives(), collectives_of_hlo(text)
    each_once = any(c.count is None for c in ours) or has_unknown_trips(text)
    if each_once:
        ours, theirs = [replace(c, count=1) for c in ours], [replace(c, count=1) for c in theirs]
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
    """The program with every parameter and result that is not annotated whole on every device."""
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
    """The optimised HLO module that XLA makes of an annotated program, and what it does not know."""
    if len(program.meshes) > 1:
        raise error("E301", "XLA takes one mesh, and the program has several", help="place all values on one mesh")
    annotated = _Annotated(program)
    source, entry, annotations = write_annotated(program)
    names = load(source.replace("jnp.bfloat16", "jnp.float16"), program)
    names["annotated"] = lambda x, i: annotated.constrain(x, annotations[i].sharding)
    wide: AbstractContextManager[Any] = jax.enable_x64(True) if has_64_bits(program) else nullcontext()
    main = program.main
    function = names[entry]

    def constrained(*arrays: Any) -> tuple[Any, ...]:
        inside = [annotated.inside(x, p) for x, p in zip(arrays, main.params, strict=True)]
        return tuple(annotated.inside(x, r) for x, r in zip(function(*inside), main.results, strict=True))

    if any(is_annotation(op) and is_hint(op) for op in all_ops(program)):
        annotated.notes.append("XLA cannot express which tensors are to be sharded alike, or where propagation stops")
    with wide, np.errstate(over="ignore"):
        structs = [_struct(p.shape, _SENT_AS.get(p.dtype, p.dtype).numpy) for p in main.params]

        def compiled(ends: Sequence[NamedSharding | None]) -> str:
            ins, outs = tuple(ends[: len(main.params)]), tuple(ends[len(main.params) :])
            jitted = jax.jit(constrained, in_shardings=ins, out_shardings=outs, keep_unused=True)
            return str(jitted.lower(*structs).compile().as_text())

        try:
            text = _with_even_ends(compiled, annotated, (*main.params, *main.results))
        except (jax.errors.JaxRuntimeError, NotImplementedError) as problem:
            raise error(
                "E515", f"XLA does not compile the program: {problem}", help="`spmdc partition --stats` has our side"
            ) from None
    if any(
        v.dtype.is_float and v.dtype.bits < 16
        for v in (v for f in program.functions.values() for v in values_within(f.body))
    ):
        annotated.notes.append(_SHORT)
    return text, tuple(dict.fromkeys(annotated.notes))


def _with_even_ends(
    compiled: Callable[[Sequence[NamedSharding | None]], str], annotated: _Annotated, ends: Sequence[Value | Result]
) -> str:
    """The module. If XLA shards an end unevenly that it is free to shard, free ends are whole."""
    wanted = [annotated.outside(end) for end in ends]
    try:
        return compiled(wanted)
    except ValueError:
        if None not in wanted:
            raise
    annotated.notes.append(
        "XLA would split a parameter or result unevenly that is not annotated, which JAX refuses: those are whole"
    )
    return compiled([annotated.whole if sharding is None else sharding for sharding in wanted])


class _Annotated:
    """Says a program's annotations in JAX's words."""

    def __init__(self, program: Program) -> None:
        self._axes = ProgramAxes(program)
        mesh = program.mesh
        devices = np.array(ensure_devices(mesh.size), dtype=object)[np.array(mesh.device_ids)]
        own = self._axes.default
        self._mesh = JaxMesh(devices.reshape(tuple(own.sizes.values())), own.names)
        self.whole = NamedSharding(self._mesh, _spec())
        self.notes: list[str] = []

    def outside(self, value: Value | Result) -> NamedSharding | None:
        """How a parameter or result is sharded; None if XLA may say, or if JAX refuses to put it so."""
        sharding = value.sharding
        if sharding is None or any(d.open for d in sharding.dims) or not _divides(sharding, value.type.shape):
            return None
        return self._named(sharding, closed=True)

    def inside(self, x: Any, value: Value | Result) -> Any:
        """A constraint in the place of a sharding with open dims, or of one that JAX refuses at the ends."""
        sharding = value.sharding
        if sharding is None:
            return x
        if _divides(sharding, value.type.shape):
            return self.constrain(x, sharding) if any(d.open for d in sharding.dims) else x
        self.notes.append(
            f"{value.name} is split unevenly, which JAX refuses at the ends of a program: XLA has it whole"
        )
        return self.constrain(x, sharding)

    def constrain(self, x: Any, sharding: Sharding) -> Any:
        return _constrain(x, self._named(sharding, closed=False))

    def _named(self, sharding: Sharding, *, closed: bool) -> NamedSharding:
        if sharding.partial:
            self.notes.append("XLA takes no annotation that leaves a result partial")
        dims = [
            PartitionSpec.UNCONSTRAINED
            if d.open and not d.axes and not closed
            else self._axes.axis_names(d.axes) or None
            for d in sharding.dims
        ]
        return NamedSharding(self._mesh, _spec(*dims))


def _divides(sharding: Sharding, shape: Sequence[int]) -> bool:
    return all(n % axes_size(axes) == 0 for n, axes in zip(shape, sharding.axes, strict=True))
