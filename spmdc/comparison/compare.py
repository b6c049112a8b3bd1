"""A program partitioned by spmdc and by XLA, side by side.

XLA gets the same program through JAX: parameters and results placed as annotated, annotations inside as sharding
constraints. What JAX cannot express is noted, and the figures then do not compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec

from ir.diagnostics import error
from ir.mesh import axes_size
from ir.ops.layout import is_annotation, is_hint
from ir.program import Program, Result, Value, all_ops
from ir.sharding import Sharding
from lowering.jax import ensure_devices
from lowering.jax.axes import ProgramAxes
from lowering.jax.module import has_64_bits, write_annotated
from lowering.jax.running import load
from spmdc.api import PartitionedProgram, partition
from spmdc.comparison.xla import XlaCollective, collectives_of_hlo, has_unknown_trips
from spmdc.reports.collectives import Collective, received_bytes

_spec: Any = PartitionSpec
_constrain: Any = jax.lax.with_sharding_constraint
_struct: Any = jax.ShapeDtypeStruct


_ONE_TURN = "how often some loops run shows only when they do: one turn of each loop is counted, on both sides"


@dataclass(frozen=True)
class Comparison:
    """What each partitioner communicates; `bytes` are those that the worst device receives in one run.

    `notes` are what JAX cannot express, so that XLA does not know it. If one of the two does not know how often each
    loop runs, one turn of each is counted, and a note says so.
    """

    collectives: tuple[Collective, ...]
    bytes: int
    xla_collectives: tuple[XlaCollective, ...]
    xla_bytes: int
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
            "xla_bytes": self.xla_bytes,
            "ratio": self.ratio if self.xla_bytes or not self.bytes else None,
            "collectives": [c.to_json() for c in self.collectives],
            "xla_collectives": [asdict(c) for c in self.xla_collectives],
            "notes": list(self.notes),
        }


def compare(program: Program | PartitionedProgram) -> Comparison:
    """Partitions the program and has XLA compile it for as many devices as its mesh has.

    Raises SpmdcError: E502 or E503 if JAX has not as many devices, E301 if annotations are on several meshes.
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
        tuple(theirs),
        sum(c.bytes * c.count for c in theirs),
        notes,
    )


def xla_module(program: Program) -> tuple[str, tuple[str, ...]]:
    """The optimised HLO module that XLA makes of an annotated program, and what it does not know."""
    if len(program.meshes) > 1:
        raise error("E301", "XLA takes one mesh, and the program has several", help="place all values on one mesh")
    annotated = _Annotated(program)
    source, entry, annotations = write_annotated(program)
    names = load(source, program)
    names["annotated"] = lambda x, i: annotated.constrain(x, annotations[i].sharding)
    wide: AbstractContextManager[Any] = jax.enable_x64(True) if has_64_bits(program) else nullcontext()
    main = program.main
    function = names[entry]

    def constrained(*arrays: Any) -> tuple[Any, ...]:
        inside = [annotated.inside(x, p) for x, p in zip(arrays, main.params, strict=True)]
        return tuple(annotated.inside(x, r) for x, r in zip(function(*inside), main.results, strict=True))

    if any(is_annotation(op) and is_hint(op) for op in all_ops(program)):
        annotated.notes.append("XLA cannot express which tensors are to be sharded alike, or where propagation stops")
    with wide:
        jitted = jax.jit(
            constrained,
            in_shardings=tuple(map(annotated.outside, main.params)),
            out_shardings=tuple(map(annotated.outside, main.results)),
            keep_unused=True,
        )
        structs = [_struct(p.shape, p.dtype.numpy) for p in main.params]
        compiled: Any = jitted.lower(*structs).compile()
    return str(compiled.as_text()), tuple(dict.fromkeys(annotated.notes))


class _Annotated:
    """Says a program's annotations in JAX's words."""

    def __init__(self, program: Program) -> None:
        self._axes = ProgramAxes(program)
        mesh = program.mesh
        devices = np.array(ensure_devices(mesh.size), dtype=object)[np.array(mesh.device_ids)]
        own = self._axes.default
        self._mesh = JaxMesh(devices.reshape(tuple(own.sizes.values())), own.names)
        self.notes: list[str] = []

    def outside(self, value: Value | Result) -> NamedSharding | None:
        """How a parameter or result is sharded: replicated without a sharding, as here. None if JAX refuses to put it
        so."""
        sharding = value.sharding
        if sharding is None:
            return NamedSharding(self._mesh, _spec())
        return self._named(sharding, closed=True) if _divides(sharding, value.type.shape) else None

    def inside(self, x: Any, value: Value | Result) -> Any:
        """A constraint in the place of a placement that JAX refuses."""
        sharding = value.sharding
        if sharding is None or _divides(sharding, value.type.shape):
            return x
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
