"""`spmdc.jit`: the interface of `jax.jit`, with spmdc's partitioner.

A call looks up, by the types and shardings of its arguments, what JAX runs (`_Route`). If nothing is found, it is made:

    Call              the arguments as leaves, their types and shardings, and the mesh
    Specialisation    the function traced for such arguments, in the trees that callers know
    PartitionedCall   its `part`, from arrays to arrays: imported and partitioned when that is first needed
    Executable        `part.executable`, the partitioned program as a JAX module
    Execution         `specialisation.execution`, compiled: puts leaves in place, runs the module, gives results back

Where JAX traces the call, `part` is bound as a primitive instead of being run; what JAX's transformations make of that
is a `PartitionedCall` of its own (`spmdc.frontends.jax.partitioned_call`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import jax
from jax.experimental.layout import Format, Layout
from jax.sharding import AbstractMesh, get_abstract_mesh
from jax.sharding import Mesh as JaxMesh

from ir.garbage import uncollected
from lowering.jax.untyped import settings, type_of
from lowering.jax.versions import (
    ClearedWithJax,
    InvalidNumberError,
    is_for_lack_of_a_mesh,
    is_of_layouts,
    is_tracing,
    legacy_mesh,
    named_axes,
    trace_settings,
)
from passes.cost.machine import Machine
from spmdc.api import PartitionedProgram
from spmdc.frontends.jax.aot import Lowered, Traced
from spmdc.frontends.jax.execution import Execution, types_and_shardings, where_invalid
from spmdc.frontends.jax.lowering import Placement, mesh_among, placements, require_referable, takes_references
from spmdc.frontends.jax.random_keys import is_key
from spmdc.frontends.jax.references import ReferringFunction
from spmdc.frontends.jax.shardings import MeshLike, in_type, mesh_of
from spmdc.frontends.jax.specialisation import (
    Call,
    Chosen,
    FunctionTrace,
    Options,
    Specialisation,
    is_on_a_mesh,
    placement,
    type_sharding,
)
from spmdc.frontends.jax.used_meshes import mesh_used, no_mesh, require_devices, require_one_device


def jit(
    function: Callable[..., Any] | None = None,
    *,
    mesh: MeshLike | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Iterable[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Iterable[str] | None = None,
    keep_unused: bool = False,
    inline: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
    machine: Machine | str | None = None,
) -> Any:
    """A function that computes the same as `function`, partitioned over `mesh` by spmdc. It is called like that of
    `jax.jit`.

    `mesh` is JAX's, whose devices run the program, or sizes by name. Without it, the mesh is that of the shardings, of
    `jax.set_mesh`, of the arguments, of JAX's context `with mesh:`, or the first that the function itself uses; without
    any, JAX runs the function as under `jax.jit`. `in_shardings` and `out_shardings` are trees, or prefixes of trees,
    of `PartitionSpec`s, `NamedSharding`s, `Format`s or anything that `spmdc.shard` takes. None leaves the choice to
    propagation, or to the sharding of a committed argument. The mesh need not divide the shapes. Arguments are arrays
    and numbers in any pytree, and hashable values where static. JAX's transformations work inside and outside; inside
    another `spmdc.jit`, the function is a part of the outer program, inlined or not. In code that runs on each device
    separately, as in `shard_map`, and if the function has collectives along an axis of an enclosing transformation, it
    is a part of the enclosing function, as one of `jax.jit` is. `machine` is what costs are estimated for, as for
    `spmdc.partition`; by default the GPUs of the mesh if spmdc knows their kind, otherwise TPU v3. The other options
    are those of `jax.jit`. Raises SpmdcError if the function cannot be imported or partitioned; exceptions of the
    function itself, and those of `jax.jit` for its options, are passed on.
    """
    options: dict[str, Any] = {
        "static_argnums": static_argnums, "static_argnames": static_argnames, "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames, "keep_unused": keep_unused, "inline": inline,
        "compiler_options": compiler_options,
    }  # fmt: skip
    if function is None:
        return functools.partial(
            jit, mesh=mesh, in_shardings=in_shardings, out_shardings=out_shardings, machine=machine, **options
        )  # fmt: skip
    require_referable(function)
    # Made for its errors about options that do not fit the function.
    jax.jit(function, **{**options, "compiler_options": dict(compiler_options) if compiler_options else None})
    chosen = Chosen.of(function, static_argnums, static_argnames)
    donated = Chosen.of(function, donate_argnums, donate_argnames)
    found = Machine.of(machine) if machine is not None else None
    given = Options(mesh, in_shardings, out_shardings, chosen, donated, keep_unused, compiler_options, found)
    return Jitted(function, given)


class Jitted:
    """A function that is partitioned when it is called, once for all arguments of the same shapes."""

    def __init__(self, function: Callable[..., Any], options: Options) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options
        given = options.in_shardings, options.out_shardings
        self._mesh = options.mesh if options.mesh is not None else mesh_among(given)
        self._has_static = bool(options.static.positions or options.static.names)
        self._specialised: dict[Hashable, Specialisation | ReferringFunction] = {}
        self._routes: dict[Hashable, _Route | None] = {}
        self._caches = ClearedWithJax(self._specialised, self._routes)
        self._said_of: dict[Any, Sequence[Placement]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        dynamic, keywords, fixed = self._split(args, kwargs) if self._has_static else (args, kwargs, None)
        leaves, tree = jax.tree.flatten((dynamic, keywords))
        if is_tracing():
            return self._traced(args, kwargs)
        around = _ambient_mesh() if self._mesh is None else None
        try:
            key = (tree, fixed, trace_settings(), around, *types_and_shardings(leaves))
        except (TypeError, OverflowError) as problem:
            raise self._naming_the_argument(problem, args, kwargs) from None
        route = self._routes.get(key)
        if route is None:
            if settings.jax_disable_jit:
                return self.function(*args, **kwargs)
            call = self._read(args, kwargs) if key not in self._routes else None
            if call is None:
                self._routes[key] = None
                return self._unpartitioned(*args, **kwargs)
            specialisation = self._specialisation(call)
            if isinstance(specialisation, ReferringFunction):
                return specialisation(leaves)
            with uncollected():
                route = self._routes[key] = _Route.of(specialisation.execution, leaves)
        try:
            if route.run is None:
                return route.execution.run(leaves, route.misplaced)
            if route.donates:
                route.execution.check_donated(leaves)
            return route.run(*leaves)
        except jax.errors.JaxRuntimeError as problem:
            raise route.execution.explained(problem) from None
        except InvalidNumberError as invalid:
            raise where_invalid(invalid, self.function, args, kwargs) from None
        except ValueError as problem:
            if not is_of_layouts(problem):
                raise
            return route.execution.for_layouts_of(leaves, route.misplaced).run(leaves, route.misplaced)

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of a call that JAX traces."""
        if settings.jax_disable_jit:
            return self.function(*args, **kwargs)
        if get_abstract_mesh().manual_axes:
            return self._of_jax(*args, **kwargs)
        call = self._read(args, kwargs)
        if call is None:
            return self._unpartitioned(*args, **kwargs)
        specialisation = self._specialisation(call)
        return self._of_jax(*args, **kwargs) if specialisation.is_along_axes else specialisation(call.leaves)

    @functools.cached_property
    def _of_jax(self) -> Any:
        """The function under `jax.jit`, for calls that are no separate program."""
        static = self.options.static
        return jax.jit(self.function, static_argnums=sorted(static.positions), static_argnames=sorted(static.names))

    @functools.cached_property
    def _unpartitioned(self) -> Any:
        """The function under `jax.jit` with the same options, for calls without a mesh."""
        static, donated = self.options.static, self.options.donated
        shardings = {option: tree for option, tree in self._shardings.items() if tree is not None}
        return jax.jit(
            self.function,
            static_argnums=sorted(static.positions), static_argnames=sorted(static.names),
            donate_argnums=sorted(donated.positions), donate_argnames=sorted(donated.names),
            keep_unused=self.options.keep_unused,
            compiler_options=dict(self.options.compiler_options) if self.options.compiler_options else None,
            **shardings,
        )  # fmt: skip

    @property
    def _shardings(self) -> dict[str, Any]:
        return {"in_shardings": self.options.in_shardings, "out_shardings": self.options.out_shardings}

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method, the function gets the instance first."""
        return self if instance is None else MethodType(self, instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> Jitted:
        """A function is its own copy, like other Python functions."""
        return self

    def __repr__(self) -> str:
        return f"<spmdc.jit of {self.function!r}>"

    def partitioned(self, *args: Any, **kwargs: Any) -> PartitionedProgram:
        """The program for arguments like these: its text, its collectives, its reasons. Nothing is run.

        Arguments may be `jax.ShapeDtypeStruct`s. Raises SpmdcError (E306) if there is no mesh.
        """
        call = self._read(args, kwargs)
        if call is None:
            raise no_mesh(f"there is no mesh to partition {self._name} over")
        return self._specialisation(call).partitioned

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """The function traced for arguments like these, which may be `jax.ShapeDtypeStruct`s. Without a mesh, it is as
        traced by `jax.jit`.

        Raises SpmdcError (E711) if it takes references: functions compiled ahead of time take and return arrays.
        """
        call = self._read(args, kwargs)
        if call is None:
            return cast("Traced", self._unpartitioned.trace(*args, **kwargs))
        found = self._specialisation(call)
        if isinstance(found, ReferringFunction):
            raise takes_references(self.function)
        return Traced(found)

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The function partitioned for arguments like these, which may be `jax.ShapeDtypeStruct`s.

        Its `compile()`, like that of `jax.jit`, returns a callable for exactly these arguments.
        """
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and types of the function's results, in their tree. Nothing is partitioned or run."""
        if get_abstract_mesh().manual_axes:
            return self._of_jax.eval_shape(*args, **kwargs)
        call = self._read(args, kwargs)
        return self._of_jax.eval_shape(*args, **kwargs) if call is None else self._specialisation(call).out_info

    def clear_cache(self) -> None:
        """Clears the caches of partitioned programs and of JAX's traces of the function, which is traced again."""
        self._caches.cache_clear()
        self._of_jax.clear_cache()
        if "_unpartitioned" in vars(self):
            self._unpartitioned.clear_cache()

    def _cache_size(self) -> int:
        """How many kinds of arguments calls have been compiled for. JAX's functions have it too, under this name, and
        people's tests ask it whether something was compiled again."""
        return len(self._routes)

    @property
    def specialisations(self) -> list[Specialisation | ReferringFunction]:
        return list(self._specialised.values())

    def _specialisation(self, call: Call) -> Specialisation | ReferringFunction:
        found = self._specialised.get(call.key)
        if found is None:
            require_devices(call.mesh, self._name, self._shardings)
            trace = FunctionTrace(self.function, self.options.static, call)
            require_devices(call.mesh, self._name, {}, trace.lowering.traced)
            if trace.references or any(isinstance(leaf, jax.Ref) for leaf in call.leaves):
                found = ReferringFunction(trace, self.options, call, Jitted)
            else:
                found = Specialisation(trace, self.options, call)
            if not found.captured:
                self._specialised[call.key] = found
        return found

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Hashable]:
        """The dynamic arguments by position and by name, and the static ones."""
        static = self.options.static
        dynamic = tuple(a for i, a in enumerate(args) if i not in static.positions)
        keywords = {name: a for name, a in kwargs.items() if name not in static.names}
        fixed = tuple((i, type(a), a) for i, a in enumerate(args) if i in static.positions)
        named = tuple((name, type(kwargs[name]), kwargs[name]) for name in sorted(kwargs) if name in static.names)
        try:
            hash((fixed, named))
        except TypeError as problem:
            raise ValueError(f"static arguments must be hashable: {problem}") from None
        return dynamic, keywords, (fixed, named)

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """The call with these arguments; None if there is no mesh."""
        dynamic, keywords, fixed = self._split(args, kwargs)
        leaves, tree = jax.tree.flatten((dynamic, keywords))
        try:
            avals = tuple(_with_the_bits_that_jax_has(type_of(leaf)) for leaf in leaves)
        except (TypeError, OverflowError) as problem:
            raise self._naming_the_argument(problem, args, kwargs) from None
        mesh = self._mesh_around(leaves)
        if mesh is None:
            mesh = self._mesh_inside(args, kwargs, leaves)
        if mesh is None:
            return None
        own = mesh_of(mesh)
        said = self._said(tree)
        layouts = tuple(s.layout if isinstance(s, Format) and isinstance(s.layout, Layout) else None for s in said)
        said = [s.sharding if isinstance(s, Format) else s for s in said]
        placed = tuple(s if s is not None else placement(leaf, mesh) for s, leaf in zip(said, leaves, strict=True))
        declared = tuple(
            in_type(type_sharding(leaf) or p, mesh, a.shape) for leaf, p, a in zip(leaves, placed, avals, strict=True)
        )
        types = tuple((a.shape, a.dtype, a.weak_type, type(a)) for a in avals)
        devices = mesh if isinstance(mesh, JaxMesh | AbstractMesh) else None
        key = (tree, types, placed, layouts, declared, fixed, own, devices, _settings())
        return Call(args, kwargs, leaves, tree, avals, placed, layouts, declared, mesh, key)

    def _naming_the_argument(self, problem: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception:
        """The exception of `jax.jit` for an argument without a type in JAX."""
        try:
            self._of_jax.eval_shape(*args, **kwargs)
        except (TypeError, OverflowError) as named:
            return named
        return problem

    def _said(self, tree: Any) -> Sequence[Placement]:
        """The entry of `in_shardings` for each leaf."""
        found = self._said_of.get(tree)
        if found is None:
            dynamic, keywords = tree.unflatten(range(tree.num_leaves))
            by_position = placements(self.options.in_shardings, dynamic, "in_shardings")
            found = self._said_of[tree] = [*by_position, *[None] * len(jax.tree.leaves(keywords))]
        return found

    def _mesh_around(self, leaves: Sequence[Any]) -> MeshLike | None:
        """The mesh that was passed, that of `jax.set_mesh`, the one that arguments are on, or that of `with mesh:`."""
        if self._mesh is not None:
            return self._mesh
        ambient = _ambient_mesh()
        if not ambient.empty:
            return ambient
        found = next((leaf.sharding.mesh for leaf in leaves if is_on_a_mesh(leaf)), None)
        if found is not None:
            return cast("MeshLike", found)
        legacy = legacy_mesh()
        return legacy if not legacy.empty else None

    def _mesh_inside(self, args: tuple[Any, ...], kwargs: dict[str, Any], leaves: Sequence[Any]) -> MeshLike | None:
        """The mesh that the function itself uses. Raises SpmdcError (E306) if there is none, but axes are named."""
        try:
            traced = self._of_jax.trace(*args, **kwargs)
        except (RuntimeError, ValueError) as problem:
            if not is_for_lack_of_a_mesh(problem):
                raise
            raise no_mesh(f"{self._name} names axes, and there is no mesh", f"jax.jit says: {problem}") from None
        found = mesh_used(traced, leaves)
        if found is None:
            require_one_device(self._shardings)
        return found

    @property
    def _name(self) -> str:
        return getattr(self.function, "__name__", "the function")


def _ambient_mesh() -> JaxMesh | AbstractMesh:
    """The mesh of JAX's context; during tracing JAX has it without its devices."""
    try:
        concrete = jax.sharding.get_mesh()
    except ValueError:
        return get_abstract_mesh()
    return concrete if not concrete.empty else get_abstract_mesh()


def _settings() -> Hashable:
    """The JAX settings that affect tracing."""
    return (
        settings.jax_enable_x64, settings.jax_default_matmul_precision, settings.jax_numpy_dtype_promotion,
        settings.jax_numpy_rank_promotion, settings.jax_default_prng_impl, settings.jax_threefry_partitionable,
        named_axes(),
    )  # fmt: skip


def _with_the_bits_that_jax_has(aval: Any) -> Any:
    """The type of an argument inside a function: without 64-bit types, JAX converts it to 32 bits."""
    dtype = aval.dtype if is_key(aval) else jax.dtypes.canonicalize_dtype(aval.dtype)
    return aval if dtype == aval.dtype else aval.update(dtype=dtype)


@dataclass(frozen=True)
class _Route:
    """What runs a call whose leaves have certain types and shardings: `run`, called with the leaves as they are, or, if
    more has to be done, `execution`."""

    execution: Execution
    misplaced: tuple[int, ...]
    run: Callable[..., Any] | None
    donates: bool

    @staticmethod
    def of(execution: Execution, leaves: Sequence[Any]) -> _Route:
        misplaced = execution.misplaced(leaves)
        is_direct = execution.is_plain and not misplaced
        return _Route(execution, misplaced, execution.runs if is_direct else None, bool(execution.signature.donated))
