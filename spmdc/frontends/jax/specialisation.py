"""A function of spmdc.jit for arguments of some shapes: traced, imported and partitioned."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.layout import Format
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from ir.diagnostics import SpmdcError
from ir.garbage import uncollected
from lowering.jax.untyped import spec_of, struct_of
from lowering.jax.versions import ShardingTypeError, argument_names, captured, named_axes, uses_named_axes
from passes.cost.machine import Machine
from spmdc.api import PartitionedProgram
from spmdc.frontends.jax.annotations import annotating, current_mesh
from spmdc.frontends.jax.call_primitive import register_rules
from spmdc.frontends.jax.execution import Execution, Signature
from spmdc.frontends.jax.lowering import (
    Lowering,
    Placement,
    entered,
    import_lowered,
    machine_on,
    placements,
    platform_on,
    uses_values_around,
)
from spmdc.frontends.jax.partitioned_call import PartitionedCall, require_nestable
from spmdc.frontends.jax.random_keys import restored, words, words_type
from spmdc.frontends.jax.shardings import MeshLike, in_type, is_explicit, left_to_the_partitioner, mesh_of

register_rules()


@dataclass(frozen=True)
class Chosen:
    """Some arguments of a function, by how a call passes them."""

    positions: frozenset[int]
    names: frozenset[str]

    @staticmethod
    def of(
        function: Callable[..., Any], positions: int | Sequence[int] | None, names: str | Iterable[str] | None
    ) -> Chosen:
        """The arguments with these positions and names. If one of the two is None, it follows from the other, as in
        `jax.jit`."""
        by_position = {positions} if isinstance(positions, int) else set(positions or ())
        by_name = {names} if isinstance(names, str) else set(names or ())
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        by_position = {p % len(positional) if p < 0 and positional else p for p in by_position}
        if names is None:
            by_name = {positional[p] for p in by_position if p < len(positional)}
        if positions is None:
            by_position = {i for i, name in enumerate(positional) if name in by_name}
        return Chosen(frozenset(by_position), frozenset(by_name))


@dataclass(frozen=True)
class Options:
    """The options of `jit`."""

    mesh: MeshLike | None
    in_shardings: Any
    out_shardings: Any
    static: Chosen
    donated: Chosen
    keep_unused: bool
    compiler_options: Mapping[str, Any] | None
    machine: Machine | None


@dataclass(frozen=True)
class Call:
    """The dynamic arguments of a call as leaves, and the key by which its specialisation is looked up."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    tree: Any
    avals: tuple[Any, ...]
    placed: tuple[Placement, ...]
    layouts: tuple[Any, ...]
    """The layouts in memory that the user specifies, of each leaf; None for most."""
    declared: tuple[NamedSharding | None, ...]
    mesh: MeshLike
    key: Hashable

    def donated(self, options: Options) -> tuple[int, ...]:
        """The donated leaves, by position."""
        args, kwargs = self.tree.unflatten(range(self.tree.num_leaves))
        positions = [i for i in range(len(self.args)) if i not in options.static.positions]
        given = [a for i, a in zip(positions, args, strict=True) if i in options.donated.positions]
        given += [a for name, a in kwargs.items() if name in options.donated.names]
        return tuple(sorted(jax.tree.leaves(given)))

    @property
    def is_typed(self) -> bool:
        """Whether types can express the shardings of the arguments."""
        pairs = zip(self.placed, self.declared, strict=True)
        return is_explicit(self.mesh) and all(p is None or d is not None for p, d in pairs)


def type_sharding(leaf: Any) -> NamedSharding | None:
    """The sharding in the type of a value that JAX is tracing."""
    sharding = getattr(jax.typeof(leaf), "sharding", None) if isinstance(leaf, jax.core.Tracer) else None
    return sharding if isinstance(sharding, NamedSharding) and is_explicit(sharding.mesh) else None


def is_on_a_mesh(leaf: Any) -> bool:
    """Whether it is an array on a mesh, or a reference to one, or the type of one."""
    if isinstance(leaf, jax.core.Tracer) or not isinstance(getattr(leaf, "sharding", None), NamedSharding):
        return False
    return isinstance(leaf, jax.ShapeDtypeStruct) or (isinstance(leaf, jax.Array | jax.Ref) and leaf.committed)


def placement(leaf: Any, mesh: MeshLike) -> NamedSharding | None:
    """The sharding of a committed array, or the one in the type of a value that JAX is tracing, if it is on this
    mesh."""
    found: Any = leaf.sharding if is_on_a_mesh(leaf) else type_sharding(leaf)
    if found is None or mesh_of(found.mesh).axes != mesh_of(mesh).axes:
        return None
    return _shortest(found)


def _shortest(sharding: NamedSharding) -> NamedSharding:
    """The same sharding without unsplit dims at its end, which some spell out and others do not."""
    spec: Any = sharding.spec
    entries = spec.partitions
    count = max((d + 1 for d, entry in enumerate(entries) if entry is not None), default=0)
    if count == len(entries):
        return sharding
    return NamedSharding(sharding.mesh, spec_of(*entries[:count], unreduced=spec.unreduced, reduced=spec.reduced))


class FunctionTrace:
    """A function traced by JAX for a call: its `lowering` on `mesh`, with arguments sharded by their types as
    `declared`."""

    def __init__(self, function: Callable[..., Any], static: Chosen, call: Call) -> None:
        self.function = function
        self._tree = call.tree
        self._static_args = tuple(a if i in static.positions else _DYNAMIC for i, a in enumerate(call.args))
        self._static_kwargs = {name: a for name, a in call.kwargs.items() if name in static.names}
        own, around = mesh_of(call.mesh), current_mesh()
        require_nestable(call.mesh, own, around)
        self.lowering, self.mesh, self.declared = self._traced(call, static)
        self.closed_over = captured(self.lowering.traced)
        self.captured = tuple(c for c in self.closed_over if isinstance(c, jax.core.Tracer))
        jaxpr: Any = self.lowering.traced.jaxpr
        self.references = tuple(c for c in (*self.closed_over, *jaxpr.consts) if isinstance(c, jax.Ref))
        """The references that it closes over."""
        self.names = argument_names(jaxpr)[len(self.closed_over) :]
        """The names of its leaves: of parameters, with paths to the leaves."""

    @uncollected()
    def _traced(self, call: Call, static: Chosen) -> tuple[Lowering, MeshLike, Sequence[NamedSharding | None]]:
        """The traced function, its mesh, and the shardings of its arguments by their types on that mesh.

        If types do not determine how an op is split, they leave it to the partitioner; a function that itself uses
        types is reported.
        """

        def traced(mesh: MeshLike, declared: Sequence[NamedSharding | None]) -> Lowering:
            structs = [
                x if isinstance(x, jax.Ref) else struct_of(a.shape, a.dtype, weak_type=a.weak_type, sharding=s)
                for x, a, s in zip(call.leaves, call.avals, declared, strict=True)
            ]
            args, kwargs = self.bound(structs)
            with entered(mesh), annotating(mesh_of(mesh)):
                positions, names = sorted(static.positions), sorted(static.names)
                return Lowering(self.function, args, kwargs, positions, names, platform=platform_on(call.mesh))

        untyped = (None,) * len(call.avals)
        declared = call.declared if call.is_typed else untyped
        try:
            return traced(call.mesh, declared), call.mesh, declared
        except ShardingTypeError as ambiguous:
            mesh = left_to_the_partitioner(call.mesh)
            try:
                return traced(mesh, untyped), mesh, untyped
            except SpmdcError:
                raise
            except (TypeError, ValueError):
                raise ambiguous from None

    def bound(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with these leaves as the dynamic ones."""
        dynamic, keywords = self._tree.unflatten(leaves)
        rest = iter(dynamic)
        return tuple(next(rest) if a is _DYNAMIC else a for a in self._static_args), {**keywords, **self._static_kwargs}


class Specialisation:
    """A function for arguments of some shapes: traced immediately, partitioned and compiled when it is first run.

    `part` takes and returns arrays of numbers: random keys as their words, and Python's numbers without weak types.
    Here they are converted from and to JAX's own.
    """

    def __init__(self, trace: FunctionTrace, options: Options, call: Call) -> None:
        self._trace = trace
        function, lowering, traced_on, own = trace.function, trace.lowering, trace.mesh, mesh_of(call.mesh)
        self.traced = lowering.traced
        jaxpr: Any = lowering.traced.jaxpr
        effects = frozenset(jaxpr.effects)
        self.is_along_axes = uses_named_axes(effects)
        self.captured = trace.captured
        """Values around the function that JAX is tracing: the first parameters of the program."""
        around_types = [type_sharding(c) if call.is_typed and traced_on is call.mesh else None for c in self.captured]
        self.out_info: Any = lowering.traced.out_info
        out_tree: Any
        out_leaves, out_tree = jax.tree.flatten(self.out_info)
        asked = placements(options.out_shardings, self.out_info, "out_shardings")
        returned = [p.sharding if isinstance(p, Format) else p for p in asked]
        if call.is_typed and traced_on is call.mesh:
            pairs = zip(returned, out_leaves, strict=True)
            returned = [p if p is not None else _whole_type(a, call.mesh) for p, a in pairs]
        out_avals = jax.tree.leaves(lowering.traced.out_avals)
        ends = [p if p is not None else getattr(a, "sharding", None) for p, a in zip(returned, out_avals, strict=True)]
        out_declared = [in_type(p, traced_on, a.shape) for p, a in zip(ends, out_avals, strict=True)]
        # Types, which name Explicit axes, have all dims of a sharding.
        placed_by = () if is_explicit(call.mesh) else call.placed
        given = dict.fromkeys(p for p in placed_by if isinstance(p, NamedSharding | PartitionSpec))
        names = trace.names
        self.signature = Signature(
            call.tree, call.avals, out_tree, tuple(out_leaves),
            name=getattr(function, "__name__", "main"),
            names=names,
            donated=call.donated(options),
            keep_unused=options.keep_unused,
            compiler_options=options.compiler_options,
            out_written=tuple((p, *given) for p in returned),
            out_layouts=tuple(p.layout if isinstance(p, Format) else None for p in asked),
            in_layouts=call.layouts if any(call.layouts) else (),
        )  # fmt: skip
        placed = [*[None] * len(self.captured), *call.placed]
        types = (*map(jax.typeof, self.captured), *call.avals)
        fixed = tuple(_DYNAMIC if isinstance(c, jax.core.Tracer) else c for c in trace.closed_over)
        is_bound = bool(self.captured or named_axes())
        self.part = PartitionedCall(
            functools.partial(_as_traced, jaxpr, fixed, types) if is_bound else self._flat,
            _declared_words(types, [*around_types, *trace.declared]),
            call.mesh,
            lambda: (placed, returned),
            imported=None if self.captured else lambda: import_lowered(lowering.lowered, own),
            out_avals=_declared_words(out_leaves, out_declared),
            traced_on=traced_on,
            effects=lambda: effects,
            out_ranks=[len(a.shape) for a in out_leaves],
            machine=options.machine or machine_on(call.mesh),
            names=[*(f"around[{i}]" for i in range(len(self.captured))), *names],
        )

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """The results for leaves that JAX is tracing, or during a trace."""
        given = zip((*self.captured, *leaves), self.part.avals, strict=True)
        arrays = [jnp.asarray(words(x), dtype=type.dtype) for x, type in given]
        results = zip(self.part(*arrays), self.signature.out_avals, strict=True)
        return self.signature.out_tree.unflatten([restored(x, type) for x, type in results])

    @property
    def partitioned(self) -> PartitionedProgram:
        return self.part.partitioned

    @functools.cached_property
    def execution(self) -> Execution:
        """The compiled function for the devices of the mesh. Raises SpmdcError (E711) if it closes over tracers."""
        if self.captured:
            raise uses_values_around(self._trace.function)
        return Execution(self.part.executable, self.part.mesh, self.signature)

    def _flat(self, *arrays: Any) -> tuple[Any, ...]:
        """The function itself, from arrays to arrays."""
        leaves = [restored(x, type) for x, type in zip(arrays, self.signature.avals, strict=True)]
        args, kwargs = self._trace.bound(leaves)
        return tuple(jnp.asarray(words(x)) for x in jax.tree.leaves(self._trace.function(*args, **kwargs)))


def _as_traced(jaxpr: Any, closed_over: Sequence[Any], types: Sequence[Any], *arrays: Any) -> tuple[Any, ...]:
    """A function as traced with named axes and closed-over values, from arrays to arrays.

    The first arrays are the closed-over values that are tracers.
    """
    leaves = iter([restored(x, type) for x, type in zip(arrays, types, strict=True)])
    around = [next(leaves) if c is _DYNAMIC else c for c in closed_over]
    return tuple(jnp.asarray(words(x)) for x in jaxpr_as_fun(jaxpr)(*around, *leaves))


def _declared_words(avals: Sequence[Any], declared: Sequence[NamedSharding | None]) -> list[Any]:
    """The types of the leaves as arrays of numbers, with their shardings."""
    pairs = zip(map(words_type, avals), declared, strict=True)
    return [struct_of(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False), sharding=s) for a, s in pairs]


def _whole_type(aval: Any, mesh: MeshLike) -> NamedSharding | None:
    """The sharding in a value's type, if that determines all: on a mesh with Explicit axes only."""
    types = mesh.axis_types if isinstance(mesh, JaxMesh | AbstractMesh) else ()
    sharding = getattr(aval, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) and set(types) == {AxisType.Explicit} else None


_DYNAMIC = object()
"""Stands for a dynamic argument, and for a closed-over value that JAX is tracing."""
