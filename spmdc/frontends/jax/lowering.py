"""Imports JAX functions: `jax.jit` lowers them to StableHLO, which is imported.

Shardings of arguments and results are read here and not by JAX, which rejects those that do not divide a dim.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.export
import numpy as np
from jax.experimental.layout import Format
from jax.extend.source_info_util import register_exclusion
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir as mlir
from jaxlib.mlir.dialects import stablehlo

from ir.diagnostics import Source, SpmdcError, error
from ir.garbage import uncollected
from ir.mesh import Mesh
from ir.program import Function, Program, Result, Value
from ir.sharding import Sharding, sharding_faults
from ir.types import TensorType
from lowering.jax.running import usual_devices
from lowering.jax.untyped import struct_of
from lowering.jax.versions import (
    NotLowered,
    abstract_mesh,
    host_callbacks,
    is_pure,
    lowered_for,
    not_lowered,
    platform_of,
    register_custom_partitioning,
    register_inspection,
)
from passes.cost.machine import TPU_V3, Machine, machine_called
from passes.partition.even_results import even_sharding, in_whole_axes
from passes.rewrite import map_values
from spmdc.frontends.jax import custom_partitioning
from spmdc.frontends.jax.annotations import annotating
from spmdc.frontends.jax.device_calls import lowered_call
from spmdc.frontends.jax.inspections import lowered_inspection
from spmdc.frontends.jax.shardings import MeshLike, in_type, is_explicit, mesh_of, sharding_of
from spmdc.frontends.stablehlo.annotation_text import STOP_TARGET
from spmdc.frontends.stablehlo.attributes import outermost, text_of
from spmdc.frontends.stablehlo.importer import ENTRY, Settings, import_module
from spmdc.frontends.stablehlo.locations import Locations
from spmdc.frontends.stablehlo.mlir_modules import in_simpler_ops, of_known_shapes

register_custom_partitioning(custom_partitioning.lowered_call)
register_inspection(lowered_inspection)

_ROOT = Path(__file__).parents[3]
for _own in (_ROOT / "lowering", *(path for path in (_ROOT / "spmdc").iterdir() if path.name != "programs")):
    register_exclusion(str(_own))
"""Excludes spmdc's own frames from JAX's tracebacks, so that ops have the locations of the user's calls."""


def from_jax(
    function: Callable[..., Any],
    *args: Any,
    mesh: MeshLike | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    **kwargs: Any,
) -> Program:
    """The program of a JAX function for arguments like these: arrays, or `jax.ShapeDtypeStruct`s.

    Its parameters are the leaves of the arguments, in the order of `jax.tree.leaves((args, kwargs))`, with the
    function's names; its results are the leaves of what the function returns. `in_shardings`, one for each positional
    argument, and `out_shardings` are trees, or prefixes of trees, of `PartitionSpec`s on `mesh`, of `NamedSharding`s,
    and of None where unspecified. They need not divide the dims. `function` may be a `jax.jit` of a function, with
    shardings of its own. Exceptions of the function itself are passed on, and what cannot be imported raises
    SpmdcError. Of the function's derivative rules, the program keeps `jax.lax.stop_gradient`, but not those of
    `jax.custom_jvp` and `jax.custom_vjp`.
    """
    mesh = mesh if mesh is not None else mesh_among((in_shardings, out_shardings))
    own = mesh_of(mesh) if mesh is not None else None
    platform = platform_on(mesh)
    if mesh is not None and is_explicit(mesh) and static_argnames is None:
        args = _typed(args, in_shardings, mesh, static_argnums)
    with entered(mesh), annotating(own):
        lowered = Lowering(
            function, args, kwargs, static_argnums, static_argnames, platform=platform, keeps_stops=True
        ).lowered
    program = import_lowered(lowered, own)
    arguments, keywords = lowered.args_info
    given = placements(in_shardings, arguments, "in_shardings")
    given += [None] * len(jax.tree.leaves(keywords))
    returned = placements(out_shardings, lowered.out_info, "out_shardings")
    return annotate(program, given, returned)


def _typed(
    args: tuple[Any, ...], in_shardings: Any, mesh: MeshLike, static_argnums: int | Sequence[int] | None
) -> tuple[Any, ...]:
    """The arguments with the types that their shardings mean on a mesh with Explicit axes, as `jax.jit` gives to arrays
    that lie so. Without, the types would say that all devices have them."""
    static = (static_argnums,) if isinstance(static_argnums, int) else static_argnums or ()
    fixed = {i % max(len(args), 1) for i in static}
    dynamic = tuple(a for i, a in enumerate(args) if i not in fixed)
    tree: Any
    leaves, tree = jax.tree.flatten(dynamic)
    placed = placements(in_shardings, dynamic, "in_shardings")
    types = [in_type(p, mesh, getattr(x, "shape", ())) for x, p in zip(leaves, placed, strict=True)]
    typed = iter(tree.unflatten(map(_of_type, leaves, types)))
    return tuple(a if i in fixed else next(typed) for i, a in enumerate(args))


def _of_type(leaf: Any, sharding: NamedSharding | None) -> Any:
    is_array = isinstance(leaf, np.ndarray | jax.ShapeDtypeStruct | jax.Array) and not isinstance(leaf, jax.core.Tracer)
    if sharding is None or not is_array or isinstance(getattr(leaf, "sharding", None), NamedSharding):
        return leaf
    return struct_of(leaf.shape, leaf.dtype, sharding=sharding, weak_type=getattr(leaf, "weak_type", False))


def require_referable(function: Any) -> None:
    """Raises TypeError for a function that cannot be referred to weakly: JAX, which does so, ends the process at the
    second use of one. What is no function, JAX refuses itself."""
    if callable(function):
        weakref.ref(function)


class Lowering:
    """A function as traced by JAX and, when it is needed, lowered by JAX for a platform, in the ops of the CPU's
    lowering where there are any.

    Every argument is kept, used or not. With `keeps_stops`, so is `jax.lax.stop_gradient`.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        static_argnums: int | Sequence[int] | None = None,
        static_argnames: str | Sequence[str] | None = None,
        *,
        platform: str = "cpu",
        keeps_stops: bool = False,
    ) -> None:
        self._function = function
        self._platform = platform
        self._keeps_stops = keeps_stops
        require_referable(function)
        jitted: Any = jax.jit(
            function, keep_unused=True, static_argnums=static_argnums, static_argnames=static_argnames
        )
        self._trace: Callable[[], jax.stages.Traced] = functools.partial(jitted.trace, *args, **kwargs)
        if isinstance(function, jax.stages.Wrapped):
            self.traced = function.trace(*args, **kwargs)
        else:
            self.traced = self._trace()
        self._values = [*jax.tree.leaves((args, kwargs)), *self.traced.jaxpr.consts]

    @functools.cached_property
    def lowered(self) -> jax.stages.Lowered:
        """The lowered function. Raises SpmdcError if it has additional arguments: symbolic sizes (E703), or tracers
        that it closes over, or references (E711)."""
        if any(isinstance(x, jax.Ref) for x in self._values):
            raise takes_references(self._function)
        sizes = (size for leaf in jax.tree.leaves(self.traced.args_info) for size in leaf.shape)
        left_open = next(filter(jax.export.is_symbolic_dim, sizes), None)
        if left_open is not None:
            raise _no_such_size(self._function, left_open)
        found = self._lowered(self.traced)
        if _keeps_all_arguments(found):
            return found
        found = self._lowered(self._trace())
        if _keeps_all_arguments(found):
            return found
        raise uses_values_around(self._function)

    def _lowered(self, traced: jax.stages.Traced) -> jax.stages.Lowered:
        """The lowered function. Raises SpmdcError (E712) if JAX has an op for other element types only."""

        def lowered(traced: jax.stages.Traced) -> jax.stages.Lowered:
            return lowered_for(traced, self._platform, lowered_call, _stop if self._keeps_stops else None)

        try:
            return lowered(traced)
        except NotImplementedError as problem:
            op = not_lowered(traced, lowered)
            if op is None:
                raise
            raise _no_such_op(op, self._platform, problem) from problem


def _stop(context: Any, values: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any]:
    """Lowers a stop_gradient to a custom call that the importer reads back."""
    found: Sequence[Any] = stablehlo.CustomCallOp([v.type for v in values], list(values), STOP_TARGET).results
    return found


def _no_such_op(op: NotLowered, platform: str, problem: NotImplementedError) -> SpmdcError:
    """The error for an op that JAX lacks on the platform it is imported from, at the user's line."""
    return error(
        "E712",
        f"JAX does not have {op.name} of {', '.join(op.types)} for {'the CPU' if platform == 'cpu' else platform}",
        Locations(Source("<jax>"), reads_files=True).innermost(op.frames),
        notes=(f"jax.jit says: {problem.args[-1] if problem.args else problem}",),
        help="convert its operands, and its results back: x.astype(jnp.float32); or compute it of other ops",
    )


def _no_such_size(function: Callable[..., Any], size: Any) -> SpmdcError:
    """The error for a dim of an argument with a symbolic size."""
    name = getattr(function, "__name__", "the function")
    message = f"an argument of {name} has a dim of size {size}, which is no number yet"
    help = (
        "give arguments of the shapes that it is to be partitioned for: each has a program of its own; or export the "
        "function under jax.jit, and call what was exported inside of spmdc.jit"
    )
    return error("E703", message, help=help)


def takes_references(function: Callable[..., Any]) -> SpmdcError:
    """The error for a function that takes references, which it may change, and is to be a program by itself."""
    name = getattr(function, "__name__", "the function")
    message = f"{name} takes a reference (jax.new_ref) from the code around it"
    help = "take its value, and return the new one; inside of the function, references may be made and changed"
    return error("E711", message, help=help)


def uses_values_around(function: Callable[..., Any]) -> SpmdcError:
    """The error for a function that closes over tracers, and is to be a program by itself."""
    name = getattr(function, "__name__", "the function")
    message = f"{name} uses values of the function around it, which jax is transforming"
    help = "give them as arguments"
    return error("E711", message, help=help)


def _keeps_all_arguments(lowered: jax.stages.Lowered) -> bool:
    """Whether its tensors are exactly the arguments; ordered effects add tokens."""
    module = lowered.compiler_ir("stablehlo")
    assert module is not None
    main = next(op for op in outermost(module, "func.func") if text_of(op.attributes["sym_name"]) == ENTRY)
    arguments = main.regions[0].blocks[0].arguments
    tensors = [a for a in arguments if isinstance(a.type, mlir.RankedTensorType)]
    return len(tensors) == len(jax.tree.leaves(lowered.args_info))


@uncollected()
def import_lowered(
    lowered: jax.stages.Lowered, mesh: Mesh | None = None, locations: Locations | None = None
) -> Program:
    """The program of a function that JAX has lowered, verified. `mesh` is its default mesh, unless the module names
    another first."""
    module = lowered.compiler_ir("stablehlo")
    assert module is not None
    locations = locations or Locations(Source("<jax>"), reads_files=True)
    with module.context:
        return import_module(of_known_shapes(module), locations, _settings(lowered, mesh))


def _settings(lowered: jax.stages.Lowered, mesh: Mesh | None) -> Settings:
    return Settings(
        mesh=mesh, callbacks=host_callbacks(lowered), is_pure=is_pure(lowered), in_simpler_ops=in_simpler_ops
    )


@contextlib.contextmanager
def entered(mesh: MeshLike | None) -> Iterator[None]:
    """A context in which JAX's mesh is this one, so that `with_sharding_constraint` accepts plain PartitionSpecs.

    Raises SpmdcError (E301) if that context has a mesh of another size.
    """
    if mesh is None:
        yield
        return
    wanted, around = _abstract(mesh), jax.sharding.get_abstract_mesh()
    if not around.empty and around.size != wanted.size:
        message = f"a function is partitioned over ({mesh_of(mesh)}) inside of the mesh ({mesh_of(around)})"
        help = "use one mesh for both, or leave that of jax.set_mesh before"
        raise error("E301", message, help=help)
    with jax.sharding.use_abstract_mesh(wanted):
        yield


def _abstract(mesh: MeshLike) -> AbstractMesh:
    """JAX's mesh without its devices, for the available kind of device, so that it equals that of a mesh with
    devices."""
    if isinstance(mesh, AbstractMesh):
        return mesh
    if isinstance(mesh, jax.sharding.Mesh):
        abstract: AbstractMesh = mesh.abstract_mesh
        return abstract
    own = mesh_of(mesh)
    some = jax.sharding.Mesh(np.array(usual_devices(own.size)[:1]), ("any",))
    return abstract_mesh(own.shape, own.names, some.abstract_mesh.abstract_device)


def platform_on(mesh: MeshLike | None) -> str:
    """The platform of the devices that a program over the mesh runs on, unless it is given others."""
    return platform_of(_device_on(mesh))


def machine_on(mesh: MeshLike) -> Machine:
    """The machine that these devices are; TPU v3 if spmdc knows none that they are called after."""
    return machine_called(_device_on(mesh).device_kind) or TPU_V3


def _device_on(mesh: MeshLike | None) -> jax.Device:
    if isinstance(mesh, jax.sharding.Mesh):
        found: jax.Device = mesh.devices.flat[0]
        return found
    return usual_devices(mesh_of(mesh).size if mesh is not None else 1)[0]


Placement: TypeAlias = "PartitionSpec | NamedSharding | Sharding | str | None"


def placements(given: Any, tree: Any, what: str) -> list[Placement]:
    """The placement of each leaf of `tree`. `given` is a tree, or a prefix of one. Raises SpmdcError (E303)."""

    def is_leaf(x: Any) -> bool:
        return x is None or isinstance(x, PartitionSpec | NamedSharding | Format | Sharding | str)

    if isinstance(given, list) and isinstance(tree, tuple):
        given = tuple(given)
    if is_leaf(given):
        return [given] * len(jax.tree.leaves(tree))
    found: list[Placement] = []

    def repeat(placement: Placement, part: Any) -> None:
        found.extend([placement] * len(jax.tree.leaves(part)))

    try:
        jax.tree.map(repeat, given, tree, is_leaf=is_leaf)
    except ValueError as problem:
        help = "give a tree of PartitionSpecs of that structure, or one for a whole part of it"
        if what == "in_shardings":
            help += "; in_shardings are for what a call passes by position"
        where = str(problem).replace("tree_map tree", what)  # what jax calls any tree
        raise error("E303", f"{what} is no prefix of the tree that it is for: {where}", help=help) from None
    return found


def leaves_of_shardings(tree: Any) -> list[Any]:
    """The shardings in a tree; those of Formats too."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, PartitionSpec | NamedSharding | Format))
    return [x.sharding if isinstance(x, Format) else x for x in leaves]


def mesh_among(given: Any) -> jax.sharding.Mesh | AbstractMesh | None:
    """The mesh of the first NamedSharding in a tree."""
    return next((x.mesh for x in leaves_of_shardings(given) if isinstance(x, NamedSharding)), None)


def annotate(program: Program, given: Sequence[Placement], returned: Sequence[Placement]) -> Program:
    """The program with these placements of its parameters and results; None leaves one unchanged.

    Raises SpmdcError (E301, E302, E303, E306).
    """
    if not any(p is not None for p in (*given, *returned)):
        return program
    if not any(mesh.axes for mesh in program.meshes):
        raise error("E306", "shardings are given, and no mesh", help='mesh={"x": 8}, or NamedShardings')
    main = program.main
    params = dict(zip(main.params, given, strict=True))

    def value(v: Value) -> Value:
        placement = params.get(v)
        if placement is None:
            return v
        return replace(v, sharding=_fitting(placement, program.mesh, v.type, v.name))

    results = tuple(
        r if p is None else replace(r, sharding=_fitting(p, program.mesh, r.type, _name_of_result(r)))
        for r, p in zip(main.results, returned, strict=True)
    )

    def result(function: Function, i: int) -> Result:
        return results[i] if function is main else function.results[i]

    return map_values(program, value, result)


def held_by_jax(program: Program, ranks: Sequence[int]) -> Program:
    """The propagated program with results that JAX's arrays can hold, so that nothing has to be done to them
    afterwards.

    They are on the default mesh, over whole axes of it, and not partial. A dim that its axes do not divide is unsplit,
    and so are the dims of a result after the first `ranks` ones: those of words, which random keys do not have.
    """
    main = program.main

    def held(sharding: Sharding, shape: Sequence[int], rank: int) -> Sharding:
        return in_whole_axes(even_sharding(sharding, program.mesh, shape[:rank]), shape)

    results = tuple(
        r if r.sharding is None else replace(r, sharding=held(r.sharding, r.type.shape, rank))
        for r, rank in zip(main.results, ranks, strict=True)
    )
    return replace(program, functions={**program.functions, main.name: replace(main, results=results)})


def _name_of_result(result: Result) -> str:
    return result.name if result.name.startswith("result") else f"result {result.name}"


def _fitting(placement: Placement, mesh: Mesh, type: TensorType, name: str) -> Sharding:
    sharding = sharding_of(placement, mesh, type.rank, name)
    faults = sharding_faults(sharding, type.shape)
    if faults:
        code, message = faults[0]
        raise error(code, f"{name}: {message}", help=f"the mesh is ({mesh})")
    return sharding
