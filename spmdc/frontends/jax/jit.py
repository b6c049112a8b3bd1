"""`spmdc.jit`: called as `jax.jit` is, partitioned by spmdc.

A call looks up, by the types of the arguments and where they lie, what JAX is to run. What is not found is made, by the
shapes and static arguments at hand, of a specialisation: the function traced, imported, partitioned and compiled. What
JAX's transformations make of it is partitioned too (`spmdc.frontends.jax.call_primitive`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.api_util import shaped_abstractify as _abstractify
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, get_abstract_mesh
from jax.sharding import Mesh as JaxMesh

from ir.diagnostics import error
from ir.garbage import uncollected
from ir.mesh import Mesh
from lowering.jax.versions import (
    InvalidNumberError,
    ShardingTypeError,
    captured,
    is_tracing,
    named_axes,
    trace_settings,
    uses_named_axes,
)
from spmdc.api import PartitionedProgram
from spmdc.frontends.jax.annotations import annotating, current_mesh
from spmdc.frontends.jax.aot import Lowered, Traced
from spmdc.frontends.jax.call_primitive import Part, nested_meshes
from spmdc.frontends.jax.execution import Execution, Signature, lying, where_invalid
from spmdc.frontends.jax.lowering import (
    Lowering,
    Placement,
    entered,
    import_lowered,
    mesh_among,
    placements,
    uses_values_around,
)
from spmdc.frontends.jax.random_keys import is_key, restored, words, words_type
from spmdc.frontends.jax.shardings import MeshLike, in_type, is_explicit, left_to_the_partitioner, mesh_of

_struct: Any = jax.ShapeDtypeStruct
_type_of: Any = _abstractify
_spec: Any = PartitionSpec
_config: Any = jax.config


def jit(
    function: Callable[..., Any] | None = None,
    *,
    mesh: MeshLike | None = None,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Iterable[str] = (),
    keep_unused: bool = False,
    inline: bool = False,
    compiler_options: Mapping[str, Any] | None = None,
) -> Any:
    """A function that computes what `function` does, partitioned over `mesh` by spmdc. Called as `jax.jit`.

    `mesh` is JAX's, whose devices run the program, or sizes by name; without it, that of `jax.set_mesh`. `in_shardings`
    and `out_shardings` are trees, or prefixes of trees, of `PartitionSpec`s, `NamedSharding`s or anything that
    `spmdc.shard` takes. None leaves the choice to propagation, or to the sharding that a committed argument has. The
    mesh need not divide the shapes. Arguments are arrays and numbers in any pytree, and hashable values where static.
    JAX's transformations apply inside and outside; called inside of another `spmdc.jit`, the function is part of that
    one's program, inlined or not. Where each device already works for itself, as in `shard_map`, and where the function
    has collectives along an axis that a transformation outside names, it is part of what is around it, as one of
    `jax.jit` is. The other options are those of `jax.jit`. Raises SpmdcError if the function cannot be imported or
    partitioned; errors of the function itself, and what `jax.jit` says of its options, pass.
    """
    options: dict[str, Any] = {
        "static_argnums": static_argnums, "static_argnames": static_argnames, "donate_argnums": donate_argnums,
        "donate_argnames": donate_argnames, "keep_unused": keep_unused, "inline": inline,
        "compiler_options": compiler_options,
    }  # fmt: skip
    if function is None:
        return functools.partial(
            jit, mesh=mesh, in_shardings=in_shardings, out_shardings=out_shardings, **options
        )  # fmt: skip
    # Made for what it says of options that do not fit the function.
    jax.jit(function, **{**options, "compiler_options": dict(compiler_options) if compiler_options else None})
    chosen = _Chosen.of(function, static_argnums, static_argnames)
    donated = _Chosen.of(function, donate_argnums, donate_argnames)
    return Jitted(function, _Options(mesh, in_shardings, out_shardings, chosen, donated, keep_unused, compiler_options))


@dataclass(frozen=True)
class _Chosen:
    """Some arguments of a function, however a call passes them."""

    positions: frozenset[int]
    names: frozenset[str]

    @staticmethod
    def of(function: Callable[..., Any], positions: int | Sequence[int], names: str | Iterable[str]) -> _Chosen:
        by_position = {positions} if isinstance(positions, int) else set(positions)
        by_name = {names} if isinstance(names, str) else set(names)
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            parameters = []
        positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        by_position = {p % len(positional) if p < 0 and positional else p for p in by_position}
        named = {positional[p] for p in by_position if p < len(positional)}
        placed = {i for i, name in enumerate(positional) if name in by_name}
        return _Chosen(frozenset(by_position | placed), frozenset(by_name | named))


@dataclass(frozen=True)
class _Options:
    """What `jit` is given besides the function."""

    mesh: MeshLike | None
    in_shardings: Any
    out_shardings: Any
    static: _Chosen
    donated: _Chosen
    keep_unused: bool
    compiler_options: Mapping[str, Any] | None


@dataclass(frozen=True)
class _Call:
    """What one call gives: the dynamic arguments as leaves, and all that a specialisation is looked up by."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    tree: Any
    avals: tuple[Any, ...]
    placed: tuple[Placement, ...]
    declared: tuple[NamedSharding | None, ...]
    mesh: MeshLike
    key: Hashable

    @property
    def is_typed(self) -> bool:
        """Whether types can say where the arguments lie."""
        pairs = zip(self.placed, self.declared, strict=True)
        return is_explicit(self.mesh) and all(p is None or d is not None for p, d in pairs)


class Jitted:
    """A function that is partitioned when it is called, once for all arguments of the same shapes."""

    def __init__(self, function: Callable[..., Any], options: _Options) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options
        given = options.in_shardings, options.out_shardings
        self._mesh = options.mesh if options.mesh is not None else mesh_among(given)
        self._has_static = bool(options.static.positions or options.static.names)
        self._specialised: dict[Hashable, Specialisation] = {}
        self._routes: dict[Hashable, _Route] = {}
        self._said_of: dict[Any, Sequence[Placement]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        dynamic, keywords, fixed = self._split(args, kwargs) if self._has_static else (args, kwargs, None)
        leaves, tree = jax.tree.flatten((dynamic, keywords))
        if is_tracing():
            return self._traced(args, kwargs)
        around = _ambient_mesh() if self._mesh is None else None
        key = (tree, fixed, trace_settings(), around, *lying(leaves))
        route = self._routes.get(key)
        if route is None:
            if _config.jax_disable_jit:
                return self.function(*args, **kwargs)
            specialisation = self._specialisation(self._read(args, kwargs))
            with uncollected():
                route = self._routes[key] = _Route.of(specialisation.execution, leaves)
        try:
            if route.run is None:
                return route.execution.run(leaves, route.misplaced)
            if route.donates:
                route.execution.check_donated(leaves)
            return route.run(*dynamic, **keywords)
        except jax.errors.JaxRuntimeError as problem:
            raise route.execution.explained(problem) from None
        except InvalidNumberError as invalid:
            raise where_invalid(invalid, self.function, args, kwargs) from None

    def _traced(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The results of a call that JAX traces."""
        if _config.jax_disable_jit:
            return self.function(*args, **kwargs)
        if get_abstract_mesh().manual_axes:
            return self._of_jax(*args, **kwargs)
        call = self._read(args, kwargs)
        specialisation = self._specialisation(call)
        return self._of_jax(*args, **kwargs) if specialisation.is_along_axes else specialisation(call.leaves)

    @functools.cached_property
    def _of_jax(self) -> Any:
        """The function as `jax.jit` has it, for calls that are no program of their own."""
        static = self.options.static
        return jax.jit(self.function, static_argnums=sorted(static.positions), static_argnames=sorted(static.names))

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method, the function gets the instance first."""
        return self if instance is None else MethodType(self, instance)

    def __deepcopy__(self, memo: dict[int, Any]) -> Jitted:
        """A function, as others of Python's, is its own copy."""
        return self

    def __repr__(self) -> str:
        return f"<spmdc.jit of {self.function!r}>"

    def partitioned(self, *args: Any, **kwargs: Any) -> PartitionedProgram:
        """The program for arguments like these: its text, its collectives, its reasons. Nothing is run.

        Arguments may be `jax.ShapeDtypeStruct`s.
        """
        return self._specialisation(self._read(args, kwargs)).part.partitioned

    def trace(self, *args: Any, **kwargs: Any) -> Traced:
        """The function traced for arguments like these, which may be `jax.ShapeDtypeStruct`s."""
        return Traced(self._specialisation(self._read(args, kwargs)))

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The function partitioned for arguments like these, which may be `jax.ShapeDtypeStruct`s.

        `compile()` of it, as of `jax.jit`'s, is a callable for exactly these.
        """
        return self.trace(*args, **kwargs).lower()

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and types of what the function returns, in its tree. Nothing is partitioned or run."""
        if get_abstract_mesh().manual_axes:
            return self._of_jax.eval_shape(*args, **kwargs)
        return self._specialisation(self._read(args, kwargs)).out_info

    def clear_cache(self) -> None:
        """Forgets all that was partitioned."""
        self._specialised.clear()
        self._routes.clear()

    @property
    def specialisations(self) -> list[Specialisation]:
        return list(self._specialised.values())

    def _specialisation(self, call: _Call) -> Specialisation:
        found = self._specialised.get(call.key)
        if found is None:
            found = Specialisation(self.function, self.options, call)
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

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        dynamic, keywords, fixed = self._split(args, kwargs)
        leaves, tree = jax.tree.flatten((dynamic, keywords))
        avals = tuple(_with_the_bits_that_jax_has(_type_of(leaf)) for leaf in leaves)
        mesh = self._mesh_at_work(leaves)
        own = mesh_of(mesh)
        said = self._said(tree)
        placed = tuple(s if s is not None else _placement(leaf, own) for s, leaf in zip(said, leaves, strict=True))
        declared = tuple(
            None if is_key(a) else in_type(_type_sharding(leaf) or p, mesh, a.shape)
            for leaf, p, a in zip(leaves, placed, avals, strict=True)
        )
        types = tuple((a.shape, a.dtype, a.weak_type) for a in avals)
        devices = mesh if isinstance(mesh, JaxMesh | AbstractMesh) else None
        key = (tree, types, placed, declared, fixed, own, devices, _settings())
        return _Call(args, kwargs, leaves, tree, avals, placed, declared, mesh, key)

    def _said(self, tree: Any) -> Sequence[Placement]:
        """What `in_shardings` says of each leaf."""
        found = self._said_of.get(tree)
        if found is None:
            dynamic, keywords = tree.unflatten(range(tree.num_leaves))
            by_position = placements(self.options.in_shardings, dynamic, "in_shardings")
            found = self._said_of[tree] = [*by_position, *[None] * len(jax.tree.leaves(keywords))]
        return found

    def _mesh_at_work(self, leaves: Sequence[Any]) -> MeshLike:
        """The mesh that was given, that of `jax.set_mesh`, or the one on which arguments lie."""
        if self._mesh is not None:
            return self._mesh
        ambient = _ambient_mesh()
        if not ambient.empty:
            return ambient
        found = next((leaf.sharding.mesh for leaf in leaves if _lies_on_a_mesh(leaf)), None)
        if found is None:
            name = getattr(self.function, "__name__", "the function")
            raise error("E306", f"there is no mesh to partition {name} over", help='spmdc.jit(f, mesh={"x": 8})')
        return cast("MeshLike", found)


def _ambient_mesh() -> JaxMesh | AbstractMesh:
    """The mesh of JAX's context, without its devices where JAX does not tell them: while it traces."""
    try:
        concrete = jax.sharding.get_mesh()
    except ValueError:
        return get_abstract_mesh()
    return concrete if not concrete.empty else get_abstract_mesh()


def _settings() -> Hashable:
    """The settings of JAX that change what a function is traced to."""
    return (
        _config.jax_enable_x64, _config.jax_default_matmul_precision, _config.jax_numpy_dtype_promotion,
        _config.jax_numpy_rank_promotion, _config.jax_default_prng_impl, _config.jax_threefry_partitionable,
        named_axes(),
    )  # fmt: skip


def _lies_on_a_mesh(leaf: Any) -> bool:
    """Whether it is an array that was put somewhere on a mesh."""
    return (
        isinstance(leaf, jax.Array)
        and not isinstance(leaf, jax.core.Tracer)
        and leaf.committed
        and isinstance(leaf.sharding, NamedSharding)
    )


def _placement(leaf: Any, mesh: Mesh) -> NamedSharding | None:
    """Where a committed array lies, or by its type a value that JAX is tracing, if that is on this mesh."""
    found = leaf.sharding if _lies_on_a_mesh(leaf) else _type_sharding(leaf)
    if found is None or mesh_of(found.mesh).axes != mesh.axes:
        return None
    return _shortest(cast("NamedSharding", found))


def _shortest(sharding: NamedSharding) -> NamedSharding:
    """The same sharding without the dims at its end that are whole, which some spell out and others do not."""
    spec = sharding.spec
    entries = spec.partitions
    count = max((d + 1 for d, entry in enumerate(entries) if entry is not None), default=0)
    if count == len(entries):
        return sharding
    return NamedSharding(sharding.mesh, _spec(*entries[:count], unreduced=spec.unreduced, reduced=spec.reduced))


def _with_the_bits_that_jax_has(aval: Any) -> Any:
    """The type of an argument as a function sees it: JAX without 64 bits makes 32 of them."""
    dtype = aval.dtype if is_key(aval) else jax.dtypes.canonicalize_dtype(aval.dtype)
    return aval if dtype == aval.dtype else aval.update(dtype=dtype)


def _type_sharding(leaf: Any) -> NamedSharding | None:
    """Where a value lies that JAX is tracing, by its type."""
    sharding = getattr(jax.typeof(leaf), "sharding", None) if isinstance(leaf, jax.core.Tracer) else None
    return sharding if isinstance(sharding, NamedSharding) and is_explicit(sharding.mesh) else None


@dataclass(frozen=True)
class _Route:
    """What runs a call whose leaves have certain types and lie in certain places: `run`, called with the arguments as
    they are, or where there is something to do besides, `execution`."""

    execution: Execution
    misplaced: tuple[int, ...]
    run: Callable[..., Any] | None
    donates: bool

    @staticmethod
    def of(execution: Execution, leaves: Sequence[Any]) -> _Route:
        misplaced = execution.misplaced(leaves)
        is_direct = execution.is_plain and not misplaced
        return _Route(execution, misplaced, execution.runs if is_direct else None, bool(execution.signature.donated))


class Specialisation:
    """A function for arguments of some shapes: traced at once, partitioned and compiled when it is first run.

    `part` takes and gives arrays of numbers: keys of random numbers as their words, Python's numbers not as weakly
    typed. Here they become what JAX has for them.
    """

    def __init__(self, function: Callable[..., Any], options: _Options, call: _Call) -> None:
        static, donated = options.static, options.donated
        self._function = function
        self._avals = call.avals
        self._tree = call.tree
        self._static_args = tuple(a if i in static.positions else _DYNAMIC for i, a in enumerate(call.args))
        self._static_kwargs = {name: a for name, a in call.kwargs.items() if name in static.names}
        own, around = mesh_of(call.mesh), current_mesh()
        if around is not None and around.axes != own.axes:
            raise nested_meshes(own, around)
        lowering, traced_on, declared = self._lowering(call, static)
        self.traced = lowering.traced
        jaxpr: Any = lowering.traced.jaxpr
        effects = frozenset(jaxpr.effects)
        self.is_along_axes = uses_named_axes(effects)
        closed_over = captured(lowering.traced)
        self.captured = tuple(c for c in closed_over if isinstance(c, jax.core.Tracer))
        """Values that JAX is tracing around the function: to the program, its first parameters."""
        around_types = [_type_sharding(c) if call.is_typed and traced_on is call.mesh else None for c in self.captured]
        self.out_info: Any = lowering.traced.out_info
        out_tree: Any
        out_leaves, out_tree = jax.tree.flatten(self.out_info)
        returned = placements(options.out_shardings, self.out_info, "out_shardings")
        if call.is_typed and traced_on is call.mesh:
            given = zip(returned, out_leaves, strict=True)
            returned = [p if p is not None else _whole_type(a, call.mesh) for p, a in given]
        out_avals = jax.tree.leaves(lowering.traced.out_avals)
        ends = [p if p is not None else getattr(a, "sharding", None) for p, a in zip(returned, out_avals, strict=True)]
        out_declared = [in_type(p, traced_on, a.shape) for p, a in zip(ends, out_avals, strict=True)]
        by_position = [i for i in range(len(call.args)) if i not in static.positions]
        self._signature = Signature(
            call.tree, call.avals, out_tree, tuple(out_leaves),
            name=getattr(function, "__name__", "main"),
            donate_argnums=tuple(n for n, i in enumerate(by_position) if i in donated.positions),
            donate_argnames=tuple(n for n in call.kwargs if n in donated.names and n not in static.names),
            keep_unused=options.keep_unused,
            compiler_options=options.compiler_options,
        )  # fmt: skip
        placed = [*[None] * len(self.captured), *call.placed]
        types = (*map(jax.typeof, self.captured), *call.avals)
        fixed = tuple(_DYNAMIC if isinstance(c, jax.core.Tracer) else c for c in closed_over)
        is_bound = bool(self.captured or named_axes())
        self.part = Part(
            functools.partial(_as_traced, jaxpr, fixed, types) if is_bound else self._flat,
            _declared_words(types, [*around_types, *declared]),
            call.mesh,
            lambda: (placed, returned),
            imported=None if self.captured else lambda: import_lowered(lowering.lowered, own),
            out_avals=_declared_words(out_leaves, out_declared),
            traced_on=traced_on,
            effects=lambda: effects,
            out_ranks=[len(a.shape) for a in out_leaves],
        )

    def _lowering(self, call: _Call, static: _Chosen) -> tuple[Lowering, MeshLike, Sequence[NamedSharding | None]]:
        """The function traced, on which mesh, and where its arguments lie by their types there.

        Where types do not say how an op is to be split, they leave it to the partitioner; but a function that itself
        speaks of types is told.
        """

        def traced(mesh: MeshLike, declared: Sequence[NamedSharding | None]) -> Lowering:
            structs = [
                _struct(a.shape, a.dtype, weak_type=a.weak_type, sharding=s)
                for a, s in zip(call.avals, declared, strict=True)
            ]
            args, kwargs = self._bound(structs)
            with entered(mesh), annotating(mesh_of(mesh)):
                return Lowering(self._function, args, kwargs, sorted(static.positions), sorted(static.names))

        untyped = (None,) * len(call.avals)
        declared = call.declared if call.is_typed else untyped
        try:
            return traced(call.mesh, declared), call.mesh, declared
        except ShardingTypeError as ambiguous:
            mesh = left_to_the_partitioner(call.mesh)
            try:
                return traced(mesh, untyped), mesh, untyped
            except ValueError:
                raise ambiguous from None

    def __call__(self, leaves: Sequence[Any]) -> Any:
        """The results for leaves that JAX is tracing, or while it traces something."""
        given = zip((*self.captured, *leaves), self.part.avals, strict=True)
        arrays = [jnp.asarray(words(x), dtype=type.dtype) for x, type in given]
        results = zip(self.part(*arrays), self._signature.out_avals, strict=True)
        return self._signature.out_tree.unflatten([restored(x, type) for x, type in results])

    @functools.cached_property
    def execution(self) -> Execution:
        """The function compiled for the devices of the mesh. Raises SpmdcError (E711) if it closes over tracers."""
        if self.captured:
            raise uses_values_around(self._function)
        return Execution(self.part.executable, self.part.mesh, self._signature)

    @property
    def donated(self) -> tuple[int, ...]:
        """The leaves of donated arguments, by position among all leaves."""
        return self._signature.donated

    @property
    def trees(self) -> tuple[Any, Any]:
        """The structures of the dynamic arguments, positional and by name, and of what the function returns."""
        return self._tree, self._signature.out_tree

    @property
    def avals(self) -> tuple[Any, ...]:
        """The types of the leaves of the dynamic arguments."""
        return self._avals

    def _bound(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with these leaves where they are dynamic."""
        dynamic, keywords = self._tree.unflatten(leaves)
        rest = iter(dynamic)
        return tuple(next(rest) if a is _DYNAMIC else a for a in self._static_args), {**keywords, **self._static_kwargs}

    def _flat(self, *arrays: Any) -> tuple[Any, ...]:
        """The function itself, from arrays to arrays."""
        leaves = [restored(x, type) for x, type in zip(arrays, self._avals, strict=True)]
        args, kwargs = self._bound(leaves)
        return tuple(jnp.asarray(words(x)) for x in jax.tree.leaves(self._function(*args, **kwargs)))


def _as_traced(jaxpr: Any, closed_over: Sequence[Any], types: Sequence[Any], *arrays: Any) -> tuple[Any, ...]:
    """A function as it was traced among named axes and values that it closes over, from arrays to arrays.

    The first arrays are the values that stand open among those that it closes over.
    """
    leaves = iter([restored(x, type) for x, type in zip(arrays, types, strict=True)])
    around = [next(leaves) if c is _DYNAMIC else c for c in closed_over]
    return tuple(jnp.asarray(words(x)) for x in jaxpr_as_fun(jaxpr)(*around, *leaves))


def _declared_words(avals: Sequence[Any], declared: Sequence[NamedSharding | None]) -> list[Any]:
    """The types of the leaves as arrays of numbers, where they lie included."""
    return [
        a if s is None else _struct(a.shape, a.dtype, sharding=s)
        for a, s in zip(map(words_type, avals), declared, strict=True)
    ]


def _whole_type(aval: Any, mesh: MeshLike) -> NamedSharding | None:
    """Where a value lies by its type, if that says all: of a mesh with Explicit axes only."""
    types = mesh.axis_types if isinstance(mesh, JaxMesh | AbstractMesh) else ()
    sharding = getattr(aval, "sharding", None)
    return sharding if isinstance(sharding, NamedSharding) and set(types) == {AxisType.Explicit} else None


_DYNAMIC = object()
"""Stands for an argument that is no static one, and for a value that JAX is tracing around the function."""
