"""GShard's annotations inside JAX functions: `split`, `replicate` and `shard` (section 3.2 of the paper).

An annotation is a JAX primitive that returns its operand. A gradient applies it to the cotangent, `vmap` adds a dim
that is open or split over its `spmd_axis_name`, and the importer reads it back from the custom call that it is lowered
to. The mesh is not known before that, because JAX caches the trace of a function for later calls: the primitive has the
user's arguments as parameters. Outside of spmdc, annotations have no effect.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxlib.mlir.dialects import stablehlo
from jaxlib.mlir.ir import StringAttr

from ir.diagnostics import error
from ir.mesh import AxisRef, Mesh
from ir.sharding import DimSharding, Sharding, sharding_faults
from ir.spelling.shardings import split_sharding
from lowering.jax.writer import Annotation
from spmdc.frontends.jax.meshes import on_mesh
from spmdc.frontends.jax.shardings import axis_name, sharding_of
from spmdc.frontends.stablehlo.annotation_text import CALL_TARGET, encode

_current_mesh: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("mesh", default=None)
_written_on: contextvars.ContextVar[Mesh | None] = contextvars.ContextVar("written_on", default=None)
_importing: contextvars.ContextVar[bool] = contextvars.ContextVar("importing", default=False)


@contextlib.contextmanager
def annotating(mesh: Mesh | None) -> Iterator[None]:
    """A context in which a function is imported, and annotations refer to this mesh."""
    token, written, importing = _current_mesh.set(mesh), _written_on.set(mesh), _importing.set(True)
    try:
        yield
    finally:
        _current_mesh.reset(token)
        _written_on.reset(written)
        _importing.reset(importing)


@contextlib.contextmanager
def inlining(mesh: Mesh) -> Iterator[None]:
    """A context in which a function over another mesh of the same devices is a part of the one that is imported:
    annotations refer to this mesh, and are written in the axes of that function's."""
    token = _current_mesh.set(mesh)
    try:
        yield
    finally:
        _current_mesh.reset(token)


def current_mesh() -> Mesh | None:
    """The mesh that annotations refer to."""
    return _current_mesh.get()


def outermost_mesh() -> Mesh | None:
    """The mesh of the function that is imported, whose part a function over the current mesh may be."""
    return _written_on.get()


def is_importing() -> bool:
    """Whether a function is being imported."""
    return _importing.get()


def replicate(x: Any) -> Any:
    """`x`, annotated as replicated."""
    return _annotated(x, _Replicated())


def split(x: Any, dim: int, *over: int | str) -> Any:
    """`x`, annotated to be split along `dim`: into that many partitions, or over the named mesh axes, major first.

    Negative dims count from the end. A number of partitions finds its axes as in the .spmd language. Raises SpmdcError
    (E203, E301, E302, E303, E305) if the dim or the axes do not fit.
    """
    rank = jax.numpy.ndim(x)
    if not isinstance(dim, int) or not -rank <= dim < rank:
        raise error("E303", f"dim {dim!r} is out of range for an array of {rank} dims", help="dims count from 0")
    is_number = len(over) == 1 and type(over[0]) is int
    if not over or not (is_number or all(isinstance(name, str) for name in over)):
        raise error("E203", "split takes one number of partitions, or names of axes", help='split(x, 0, "x", "y")')
    return _annotated(x, _Split(dim % rank, over))


def shard(x: Any, placement: Any) -> Any:
    """`x`, annotated with `placement`.

    The placement is a `jax.sharding.PartitionSpec` or `NamedSharding`, HLO's or Shardy's spelling as a string, or
    GShard's device assignment: nested lists, as deep as `x` has dims, of the device of each part. Raises SpmdcError
    (E301 to E309) if it does not fit.
    """
    return _annotated(x, _Placed(_frozen(placement)))


def annotated(x: Any, annotation: Annotation) -> Any:
    """`x` with any annotation that a program can have."""
    said = _Placed(annotation.sharding)
    return _shard_p.bind(x, said=said, batched=(), group=annotation.group, passes=annotation.passes)


def _frozen(placement: Any) -> Any:
    return tuple(_frozen(p) for p in placement) if isinstance(placement, list | tuple) else placement


# The user's arguments.


@dataclass(frozen=True, slots=True)
class _Replicated:
    def on(self, mesh: Mesh, rank: int) -> Sharding:
        return Sharding.replicate(mesh, rank)


@dataclass(frozen=True, slots=True)
class _Split:
    dim: int
    over: tuple[int | str, ...]

    def on(self, mesh: Mesh, rank: int) -> Sharding:
        if isinstance(self.over[0], int):
            return split_sharding(mesh, rank, self.dim, self.over[0])
        axes = tuple(_axis(mesh, axis_name(str(name))) for name in self.over)
        return Sharding(mesh, tuple(DimSharding(axes if d == self.dim else ()) for d in range(rank)))


@dataclass(frozen=True, slots=True)
class _Placed:
    placement: Any

    @property
    def mesh(self) -> Any:
        """The mesh of the placement, if it has one."""
        return getattr(self.placement, "mesh", None)

    def on(self, mesh: Mesh, rank: int) -> Sharding:
        return sharding_of(self.placement, mesh, rank, "the annotated value")


_Said = _Replicated | _Split | _Placed
_Batched = tuple[tuple[int, tuple[str, ...]], ...]
"""The dims that `jax.vmap` has inserted, one after the other, each with the axes (`spmd_axis_name`) that split it."""

_NAMED_BY_BOTH = "the spmd_axis_name of jax.vmap splits the batch: the function cannot name its axes too"


def is_annotation(x: Any) -> bool:
    """Whether it is what an annotation in a jaxpr has as its parameter."""
    return isinstance(x, _Said)


def _axis(mesh: Mesh, name: str) -> AxisRef:
    try:
        return mesh.axis(name)
    except KeyError:
        message = f"axis {name!r} is not in the mesh ({mesh})"
        raise error("E301", message, help=f"name some of {', '.join(mesh.names)}") from None


# The primitive.

_shard_p: Any = Primitive(CALL_TARGET)
_differentiation: Any = ad
_batching: Any = batching
_shard_p.def_impl(lambda x, **_: x)
_shard_p.def_abstract_eval(lambda x, **_: x)
_BACK = {"forward": "backward", "backward": "forward"}


def _transposed(cotangent: Any, _: Any, *, passes: str, **said: Any) -> list[Any]:
    """The cotangent has the value's sharding and group. A barrier between two values is one between their
    cotangents."""
    return [_shard_p.bind(cotangent, passes=_BACK.get(passes, passes), **said)]


_differentiation.deflinear2(_shard_p, _transposed)


def _annotated(x: Any, said: _Said) -> Any:
    """`x` through the primitive. Raises an error at once if the annotation does not fit the current mesh."""
    mesh = _current_mesh.get()
    if mesh is not None:
        _sharding(said, (), mesh, jax.numpy.shape(x))
    return _shard_p.bind(jax.numpy.asarray(x), said=said, batched=(), group=None, passes="both")


def _sharding(said: _Said, batched: _Batched, mesh: Mesh, shape: tuple[int, ...]) -> Sharding:
    """The sharding that an annotation specifies for a value whose dims `batched` were inserted later, one after the
    other. One that is not said to be split over axes is open."""
    sharding = said.on(mesh, len(shape) - len(batched))
    for dim, over in batched:
        split = DimSharding(tuple(_axis(mesh, axis_name(str(name))) for name in over), open=not over)
        sharding = replace(sharding, dims=(*sharding.dims[:dim], split, *sharding.dims[dim:]))
    faults = sharding_faults(sharding, shape)
    if faults:
        (code, message), is_mapped = faults[0], any(over for _, over in batched)
        raise error(code, message, help=_NAMED_BY_BOTH if is_mapped and code == "E302" else "")
    return sharding


def _of_batches(
    axis: Any, operands: Sequence[Any], dims: Sequence[int | None], *, batched: _Batched, **said: Any
) -> tuple[Any, int | None]:
    (operand,), (dim,) = operands, dims
    if dim is not None:
        batched = (*batched, (dim, axis.spmd_name or ()))
    return _shard_p.bind(operand, batched=batched, **said), dim


_batching.fancy_primitive_batchers[_shard_p] = _of_batches


def _lowered(context: Any, operand: Any, *, said: _Said, batched: _Batched, group: int | None, passes: str) -> Any:
    mesh = _current_mesh.get()
    if mesh is None:
        return [operand]
    sharding = _sharding(said, batched, mesh, context.avals_in[0].shape)
    written_on = outermost_mesh()
    if written_on is not None and written_on.axes != mesh.axes:
        sharding = on_mesh(sharding, mesh, written_on)
    call = stablehlo.CustomCallOp(
        [operand.type],
        [operand],
        CALL_TARGET,
        backend_config=StringAttr.get(encode(Annotation(sharding, group, passes))),
    )
    return call.results


mlir.register_lowering(_shard_p, _lowered)
