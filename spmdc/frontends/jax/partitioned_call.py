"""Partitioned functions of arrays, and what JAX's transformations make of them: functions of arrays again.

Differentiation makes two functions of one: the first returns the results and the residuals of the derivative, the
second is linear in the tangents. Reverse mode transposes the second, so its program is only made where tangents are
pushed forward.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.jet import jet
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding

from ir.diagnostics import Source, error
from ir.mesh import Mesh
from ir.program import Program, all_ops
from lowering.jax.running import Executable, compile_program, ensure_devices
from lowering.jax.untyped import constrained, settings, spec_of, struct_of, type_of
from lowering.jax.versions import (
    derivative_transpose,
    frames_of,
    is_batched,
    linear_transpose,
    name_arguments,
    unordered_effects,
)
from passes.cost.machine import TPU_V3, Machine
from passes.manager import require_valid
from spmdc.api import PartitionedProgram, partition, propagate
from spmdc.frontends.jax.annotations import annotating, current_mesh, inlining, is_importing, outermost_mesh, shard
from spmdc.frontends.jax.execution import Execution, Signature
from spmdc.frontends.jax.inspections import tell_inspections
from spmdc.frontends.jax.jaxprs import uses
from spmdc.frontends.jax.lowering import (
    Lowering,
    Placement,
    annotate,
    entered,
    held_by_jax,
    import_lowered,
    platform_on,
)
from spmdc.frontends.jax.meshes import is_cut_like
from spmdc.frontends.jax.random_keys import from_words, words
from spmdc.frontends.jax.shardings import MeshLike, in_type, is_explicit, mesh_of, names_explicit, sharding_of
from spmdc.frontends.stablehlo.locations import Locations

Placed = tuple[list[Placement], list[Placement]]
"""The shardings of parameters and results; None if unspecified."""

Dims = tuple[int | None, ...]
"""For each of several arrays the dim that a batch adds, or None."""

_jet: Any = jet

CALL: Any = Primitive("spmdc_call")
CALL.multiple_results = True
"""The primitive of calls. Its rules are in `call_primitive`."""


class PartitionedCall:
    """A function of arrays that is partitioned as one program, when it is first needed.

    `placed` returns the specified shardings of parameters and results. If `settled`, these are final, and the program
    need not be asked. `imported` makes the unpartitioned program, if that is not just the imported function.
    `traced_on` is the mesh in JAX's context during tracing, if that is not the one that runs the function. `out_ranks`
    has for each result how many of its first dims may be split, if not all. `machine` is what costs are estimated for.
    `names` has paths to the arguments, from which parameters get their names. `transpose` makes the transpose of a
    linear function.
    """

    def __init__(
        self,
        function: Callable[..., tuple[Any, ...]],
        avals: Sequence[Any],
        mesh: MeshLike,
        placed: Callable[[], Placed],
        *,
        settled: bool = False,
        donate: tuple[int, ...] = (),
        imported: Callable[[], Program] | None = None,
        out_avals: Sequence[Any] | None = None,
        traced_on: MeshLike | None = None,
        effects: Callable[[], Iterable[Any]] | None = None,
        out_ranks: Sequence[int] | None = None,
        machine: Machine = TPU_V3,
        names: Sequence[str] = (),
        transpose: Callable[..., Callable[[list[Any]], Sequence[Any]]] = linear_transpose,
    ) -> None:
        self.function = function
        self._names = names
        self.avals = tuple(map(_strong, avals))
        self._traced_on = mesh if traced_on is None else traced_on
        self.mesh = mesh
        self.own_mesh = mesh_of(mesh)
        self._placed = placed
        self._settled = settled
        self._donate = donate
        self._imported = imported or self._import
        self._effects = effects
        self._ranks = out_ranks
        self._machine = machine
        self._transpose_of = transpose
        self._wide: bool = settings.jax_enable_x64
        self.linearised = functools.cache(self._linearise)
        self.transposed = functools.cache(self._transpose)
        self.batched = functools.cache(self._batch)
        self.expanded = functools.cache(self._expand)
        self._checked: dict[int, tuple[Any, PartitionedCall]] = {}
        if out_avals is not None:
            self.out_avals = tuple(map(_strong, out_avals))

    def __call__(self, *leaves: Any) -> tuple[Any, ...]:
        return tuple(CALL.bind(*leaves, part=self, devices=None if is_importing() else self._devices))

    @functools.cached_property
    def out_avals(self) -> tuple[Any, ...]:
        return tuple(map(_strong, self._traced.out_avals))

    @functools.cached_property
    def effects(self) -> frozenset[Any]:
        """The effects of the function, for which JAX keeps calls with unused results."""
        return unordered_effects(self._effects() if self._effects is not None else self._traced.effects)

    @functools.cached_property
    def _traced(self) -> Any:
        """The function as a jaxpr."""
        with self.context():
            traced: Any = jax.make_jaxpr(self.function)(*self.avals)
        return traced

    @functools.cached_property
    def partitioned(self) -> PartitionedProgram:
        with self.context():
            program = self._imported()
        given, returned = self._placed()
        source = annotate(program, given, returned)
        propagated = propagate(source, weigh=False)
        held = propagated.propagated.changed(lambda program: held_by_jax(program, self._out_ranks))
        partitioned = partition(replace(propagated, propagated=held), verify=False, machine=self._machine)
        found = replace(partitioned, source=source)
        require_valid(found.program, "partitioning")
        tell_inspections(partitioned.propagated.program, self.mesh)
        return found

    @property
    def _out_ranks(self) -> Sequence[int]:
        return self._ranks if self._ranks is not None else [len(a.shape) for a in self.out_avals]

    @functools.cached_property
    def executable(self) -> Executable:
        """The program as a module, which JAX can trace."""
        devices = list(self.mesh.devices.flat) if isinstance(self.mesh, JaxMesh) else None
        return compile_program(self.partitioned.program, devices, self._donate, is_sealed=True)

    @functools.cached_property
    def is_of_scalars(self) -> bool:
        """Whether there is nothing to partition: JAX may call the function on single elements, in the body of a
        reduction, which has no devices."""
        if any(a.shape for a in (*self.avals, *self.out_avals)):
            return False
        return not any(v.type.shape for op in all_ops(self.partitioned.program) for v in op.results)

    @functools.cached_property
    def execution(self) -> Execution:
        """The compiled program, for concrete arrays."""
        tree, out_tree = (jax.tree.structure(t) for t in ((self.avals, {}), self.out_avals))
        types = [tuple(type_of(struct_of(a.shape, a.dtype)) for a in avals) for avals in (self.avals, self.out_avals)]
        written = tuple((getattr(a, "sharding", None),) for a in self.out_avals)
        signature = Signature(
            tree, types[0], out_tree, types[1], names=self._names, donated=self._donate, out_written=written
        )
        return Execution(self.executable, self.mesh, signature)

    @contextlib.contextmanager
    def context(self) -> Iterator[None]:
        """The context in which the function is traced and imported: JAX's settings at the time of its call."""
        with jax.enable_x64(self._wide), entered(self._traced_on), annotating(self.own_mesh):
            yield

    def _import(self) -> Program:
        named = functools.partial(self.function)
        name_arguments(named, self._names)
        lowering = Lowering(named, self.avals, {}, platform=platform_on(self.mesh))
        return import_lowered(lowering.lowered, self.own_mesh)

    @functools.cached_property
    def _devices(self) -> Any:
        """A jaxpr that names the devices, from which `jax.jit` infers the devices to run on."""
        own = self.own_mesh
        found = list(self.mesh.devices.flat) if isinstance(self.mesh, JaxMesh) else ensure_devices(own.size)
        chosen = np.array(found, dtype=object)[np.array(own.device_ids)].reshape(own.shape)
        whole: Any = NamedSharding(JaxMesh(chosen, own.names), spec_of())
        return jax.make_jaxpr(lambda x: constrained(x, whole))(0.0)

    @property
    def final_shardings(self) -> Placed:
        """The final shardings of parameters and results."""
        if self._settled:
            return self._placed()
        main = self.partitioned.program.main
        return [p.sharding for p in main.params], [r.sharding for r in main.results]

    def inlined(self, *leaves: Any) -> tuple[Any, ...]:
        """The function inside another one that is being imported. The specified shardings become annotations."""
        if self._settled or current_mesh() is None:
            return self.function(*leaves)
        given, returned = self._placed()
        results = self.function(*map(_annotated, leaves, given))
        return tuple(map(_annotated, results, returned))

    @contextlib.contextmanager
    def inlining(self) -> Iterator[None]:
        """A context in which `inlined` is traced and lowered: that of the function around it, unless its own mesh cuts
        the devices in other axes."""
        self._require_no_shard_map()
        around = current_mesh()
        if around is None or around.axes == self.own_mesh.axes:
            yield
            return
        require_nestable(self._traced_on, self.own_mesh, around)
        with entered(self._traced_on), inlining(self.own_mesh):
            yield

    def _require_no_shard_map(self) -> None:
        """Raises SpmdcError (E301) if the function has code for single devices along axes that the mesh of the imported
        function, whose part it is, does not have."""
        outermost = outermost_mesh()
        if outermost is None or outermost.axes == self.own_mesh.axes:
            return
        is_by_hand = (e for _, e in uses(self._traced) if e is not None and e.primitive.name == "shard_map")
        equation = next(is_by_hand, None)
        if equation is not None:
            raise error(
                "E301",
                f"a shard_map is over the mesh ({self.own_mesh}), and the call around it is over ({outermost})",
                Locations(Source("<jax>"), reads_files=True).innermost(frames_of(equation)),
                help="partition both over one mesh: a function with a shard_map is no part of one over another mesh",
            )

    # Transformations of JAX.

    def _derived(
        self, function: Callable[..., Any], avals: Sequence[Any], placed: Callable[[], Placed], **options: Any
    ) -> PartitionedCall:
        """A transformed function, which is traced and runs in the same context."""
        around: dict[str, Any] = {"traced_on": self._traced_on, "machine": self._machine}
        return PartitionedCall(function, avals, self.mesh, placed, **around, **options)

    def _linearise(self, moving: tuple[int, ...]) -> tuple[PartitionedCall, PartitionedCall]:
        """The function that also returns the residuals of its derivative by some leaves, and that derivative.

        The derivative takes the residuals and then the tangents, and returns the tangents of the float results.
        """
        count = len(self.out_avals)
        floats = self.floats
        derivatives: list[_Derivative] = []

        def forward(*leaves: Any) -> tuple[Any, ...]:
            def of_moving(*moved: Any) -> tuple[list[Any], tuple[Any, ...]]:
                arguments = list(leaves)
                for i, x in zip(moving, moved, strict=True):
                    arguments[i] = x
                results = self.function(*arguments)
                return [results[i] for i in floats], results

            _, linear, results = jax.linearize(of_moving, *(leaves[i] for i in moving), has_aux=True)
            kept, derivative = _Derivative.taken_apart(linear)
            derivatives.append(derivative)
            return (*results, *kept)

        def placed() -> Placed:
            given, returned = self._placed()
            return given, [*returned, *[None] * (len(first.out_avals) - count)]

        def pushed(*operands: Any) -> tuple[Any, ...]:
            return derivatives[0](operands[: -len(moving)], operands[-len(moving) :])

        def placed_tangents() -> Placed:
            params, results = first.final_shardings
            return results[count:] + [params[i] for i in moving], [results[i] for i in floats]

        first = self._derived(forward, self.avals, placed, names=self._names)
        taken = [*first.out_avals[count:], *(self.avals[i] for i in moving)]
        out_avals = [self.out_avals[i] for i in floats]
        names = [
            *(f"kept[{i}]" for i in range(len(taken) - len(moving))),
            *(f"tangents.{self._names[i]}" for i in moving),
        ]
        options: dict[str, Any] = {"effects": tuple, "names": names, "transpose": derivative_transpose}
        second = self._derived(pushed, taken, placed_tangents, settled=True, out_avals=out_avals, **options)
        return first, second

    @property
    def floats(self) -> tuple[int, ...]:
        """The results that have tangents."""
        return tuple(i for i, a in enumerate(self.out_avals) if jnp.issubdtype(a.dtype, jnp.inexact))

    def _transpose(self, linear: tuple[int, ...], used: tuple[int, ...]) -> PartitionedCall:
        """For a function that is linear in some leaves: the function from the other leaves and the cotangents of some
        results to the cotangents of those leaves."""
        fixed = tuple(i for i in range(len(self.avals)) if i not in linear)

        def pulled_back(*operands: Any) -> tuple[Any, ...]:
            def of_linear(*moved: Any) -> list[Any]:
                by_place = dict(zip((*fixed, *linear), (*operands[: len(fixed)], *moved), strict=True))
                results = self.function(*(by_place[i] for i in range(len(self.avals))))
                return [results[i] for i in used]

            pull = self._transpose_of(of_linear, *(self.avals[i] for i in linear))
            return tuple(pull(list(operands[len(fixed) :])))

        def placed() -> Placed:
            params, results = self.final_shardings
            return [params[i] for i in fixed] + [results[i] for i in used], [params[i] for i in linear]

        avals = [self.avals[i] for i in fixed] + [self.out_avals[i] for i in used]
        out_avals = [self.avals[i] for i in linear]
        names = [*(self._names[i] for i in fixed), *(f"cotangents[{i}]" for i in used)]
        return self._derived(pulled_back, avals, placed, settled=True, out_avals=out_avals, names=names)

    def _expand(self, order: int) -> PartitionedCall:
        """The function that also takes the terms of each leaf's series, and returns as many terms for its results."""
        count = len(self.avals)

        def expanded(*leaves: Any) -> tuple[Any, ...]:
            terms = iter(leaves[count:])
            series = [[next(terms) for _ in range(order)] for _ in range(count)]
            results, found = _jet(self.function, leaves[:count], series, factorial_scaled=False)
            return (*results, *(term for each in found for term in each))

        def with_terms(each: Sequence[Any]) -> list[Any]:
            return [*each, *(one for one in each for _ in range(order))]

        def placed() -> Placed:
            given, returned = self._placed()
            return with_terms(given), with_terms(returned)

        names = [*self._names, *(f"series.{name}[{i}]" for name in self._names for i in range(order))]
        out_avals = with_terms(self.out_avals)
        effects = {"effects": lambda: self.effects}
        return self._derived(expanded, with_terms(self.avals), placed, out_avals=out_avals, names=names, **effects)

    def checked(self, with_errors: Callable[..., Any], tree: Any, errors: Sequence[Any]) -> tuple[PartitionedCall, Any]:
        """The function with checkify's errors as further leaves of these types, in a tree, and the tree of the errors
        and results that it returns."""
        with self.context():
            jaxpr, out_tree = with_errors(self._traced, tree, [*errors, *map(type_of, self.avals)])
        if id(jaxpr) not in self._checked:
            self._checked[id(jaxpr)] = jaxpr, self._check(jaxpr, errors)
        return self._checked[id(jaxpr)][1], out_tree

    def _check(self, jaxpr: Any, errors: Sequence[Any]) -> PartitionedCall:
        own = len(jaxpr.out_avals) - len(self.out_avals)

        def carrying(*leaves: Any) -> tuple[Any, ...]:
            return tuple(jaxpr_as_fun(jaxpr)(*leaves))

        def placed() -> Placed:
            given, returned = self._placed()
            return [*[None] * len(errors), *given], [*[None] * own, *returned]

        taken = [*errors, *self.avals]
        names = [*(f"errors[{i}]" for i in range(len(errors))), *self._names]
        return self._derived(
            carrying, taken, placed, out_avals=jaxpr.out_avals, effects=lambda: self.effects, names=names
        )

    def _batch(self, size: int, dims: Dims, axes: Any, named: Any) -> tuple[PartitionedCall, Dims]:
        """The function on batches, and the batch dims of its results. `dims` has those of the leaves; results that
        depend on batched leaves get a first one. By its type, the batch is split over `axes`, or None; wherever the
        function names a sharding, also over the axes `named` by `jax.vmap`, unless types name them."""
        avals = [_with_dim(a, d, size, axes) for a, d in zip(self.avals, dims, strict=True)]
        out_dims = self._dims_of_results(avals, dims)

        def mapped(*leaves: Any) -> tuple[Any, ...]:
            return jax.vmap(self.function, in_axes=dims, out_axes=out_dims, spmd_axis_name=named)(*leaves)

        def placed() -> Placed:
            given, returned = self._placed()
            over = axes if named is None or names_explicit(named, self._traced_on) else named
            params = [self._with_open_dim(p, a, d, over) for p, a, d in zip(given, self.avals, dims, strict=True)]
            results = zip(returned, self.out_avals, out_dims, strict=True)
            return params, [self._with_open_dim(p, a, d, over) for p, a, d in results]

        out_avals = [_with_dim(a, d, size, axes) for a, d in zip(self.out_avals, out_dims, strict=True)]
        batched = self._derived(
            mapped, avals, placed, out_avals=out_avals, effects=lambda: self.effects, names=self._names
        )
        return batched, out_dims

    def axes_of_batch(self, many: Sequence[tuple[Any, int]]) -> Any:
        """The axes over which the types of batched values split the batch, which is at these dims."""
        typed = [(in_type(type.sharding, self._traced_on, type.shape), d) for type, d in many]
        return next((s.spec[d] for s, d in typed if s is not None and s.spec[d] is not None), None)

    def _dims_of_results(self, avals: Sequence[Any], dims: Dims) -> Dims:
        """0 for the results that depend on batched values, None for the others."""
        found: list[int | None] = []

        def looked_at(*leaves: Any) -> tuple[Any, ...]:
            results = self.function(*leaves)
            found[:] = [0 if is_batched(x) else None for x in results]
            return results

        with self.context():
            jax.eval_shape(jax.vmap(looked_at, in_axes=dims), *avals)
        return tuple(found)

    def _with_open_dim(self, placement: Placement, aval: Any, dim: int | None, axes: Any) -> Placement:
        if placement is None or dim is None:
            return placement
        sharding = sharding_of(placement, self.own_mesh, len(aval.shape), "a batched value")
        (split,) = sharding_of(spec_of(axes), self.own_mesh, 1, "a batch").dims
        return replace(sharding, dims=(*sharding.dims[:dim], replace(split, open=True), *sharding.dims[dim:]))


def require_nestable(mesh: MeshLike, inner: Mesh, around: Mesh | None) -> None:
    """Raises SpmdcError (E301) if a function over `mesh`, which is `inner`, cannot be a part of one over the mesh
    `around`. Over one that cuts the same devices elsewhere it can, unless types name its axes."""
    if around is None or inner.axes == around.axes or (is_cut_like(inner, around) and not is_explicit(mesh)):
        return
    message = f"a function is partitioned over the mesh ({inner}) inside of one over ({around})"
    help = "partition both over one mesh, or call them one after the other"
    if inner.size == around.size:
        help = (
            "partition both over one mesh, or over meshes whose axes, not Explicit, cut the devices in the same places"
        )
    raise error("E301", message, help=help)


def _with_dim(aval: Any, dim: int | None, size: int, axes: Any) -> Any:
    if dim is None:
        return aval
    shape, sharding = aval.shape, aval.sharding
    if sharding is not None:
        dims = list(sharding.spec) + [None] * (len(shape) - len(sharding.spec))
        sharding = NamedSharding(sharding.mesh, spec_of(*dims[:dim], axes, *dims[dim:]))
    return struct_of((*shape[:dim], size, *shape[dim:]), aval.dtype, sharding=sharding)


def _strong(aval: Any) -> Any:
    """The type of an array that is not weakly typed; with its sharding, if types have one."""
    sharding = getattr(aval, "sharding", None)
    is_typed = isinstance(sharding, NamedSharding) and is_explicit(sharding.mesh)
    return struct_of(aval.shape, aval.dtype, sharding=sharding if is_typed else None)


def _annotated(x: Any, placement: Placement) -> Any:
    return x if placement is None else shard(x, placement)


@dataclass(frozen=True)
class _Derivative:
    """A linear function without the arrays that it keeps as residuals."""

    tree: Any
    types: tuple[Any, ...]

    @staticmethod
    def taken_apart(linear: Any) -> tuple[list[Any], _Derivative]:
        """The result of `jax.linearize`, which is a tree of residuals, separated."""
        leaves, tree = jax.tree.flatten(linear)
        return [words(x) for x in leaves], _Derivative(tree, tuple(struct_of(x.shape, x.dtype) for x in leaves))

    def __call__(self, kept: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, ...]:
        leaves = [from_words(x, type) for x, type in zip(kept, self.types, strict=True)]
        return tuple(self.tree.unflatten(leaves)(*tangents))
