"""`spmdc.jit`: called as `jax.jit` is, partitioned by spmdc.

A call looks up, by the shapes and static arguments at hand, a specialisation: the function imported, partitioned and
compiled. What JAX's transformations make of it is partitioned too (`spmdc.frontends.calls`).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.api_util import shaped_abstractify
from jax.extend.core.primitives import convert_element_type_p
from jax.sharding import AbstractMesh, NamedSharding, get_abstract_mesh
from jax.sharding import Mesh as JaxMesh

from ir.diagnostics import error
from ir.mesh import Mesh
from spmdc.api import PartitionedProgram
from spmdc.frontends.annotations import annotating, current_mesh
from spmdc.frontends.aot import Lowered
from spmdc.frontends.calls import Part, nested_meshes
from spmdc.frontends.jax_functions import Placement, entered, import_lowered, lower, mesh_among, placements
from spmdc.frontends.keys import from_words, words, words_type
from spmdc.frontends.placements import MeshLike, mesh_of

_struct: Any = jax.ShapeDtypeStruct


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
) -> Any:
    """A function that computes what `function` does, partitioned over `mesh` by spmdc. Called as `jax.jit`.

    `mesh` is JAX's, whose devices run the program, or sizes by name; without it, that of `jax.set_mesh`. `in_shardings`
    and `out_shardings` are trees, or prefixes of trees, of `PartitionSpec`s, `NamedSharding`s or anything that
    `spmdc.shard` takes. None leaves the choice to propagation, or to the sharding that a committed argument has. The
    mesh need not divide the shapes. Arguments are arrays and numbers in any pytree, and hashable values where static.
    All of JAX's transformations apply inside and outside; called inside of another `spmdc.jit`, the function is part of
    that one's program. Raises SpmdcError if the function cannot be imported or partitioned; errors of the function
    itself, and what `jax.jit` says of its options, pass.
    """
    if function is None:
        return functools.partial(
            jit, mesh=mesh, in_shardings=in_shardings, out_shardings=out_shardings, static_argnums=static_argnums,
            static_argnames=static_argnames, donate_argnums=donate_argnums, donate_argnames=donate_argnames,
        )  # fmt: skip
    # Made for what it says of options that do not fit the function.
    jax.jit(
        function, static_argnums=static_argnums, static_argnames=static_argnames,
        donate_argnums=donate_argnums, donate_argnames=donate_argnames,
    )  # fmt: skip
    chosen = _Chosen.of(function, static_argnums, static_argnames)
    donated = _Chosen.of(function, donate_argnums, donate_argnames)
    return Jitted(function, mesh, in_shardings, out_shardings, chosen, donated)


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
class _Call:
    """What one call gives: the dynamic arguments as leaves, and all that a specialisation is looked up by."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: list[Any]
    tree: Any
    avals: tuple[Any, ...]
    placed: tuple[Placement, ...]
    donated: tuple[int, ...]
    mesh: MeshLike
    key: Hashable


class Jitted:
    """A function that is partitioned when it is called, once for all arguments of the same shapes."""

    def __init__(
        self,
        function: Callable[..., Any],
        mesh: MeshLike | None,
        in_shardings: Any,
        out_shardings: Any,
        static: _Chosen,
        donated: _Chosen,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.in_shardings = in_shardings
        self.out_shardings = out_shardings
        self.static = static
        self._mesh = mesh if mesh is not None else mesh_among((in_shardings, out_shardings))
        self._donated = donated
        self._specialised: dict[Hashable, Specialisation] = {}
        self._said_of: dict[Any, Sequence[Placement]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self._read(args, kwargs)
        return self._specialisation(call)(call.leaves)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """As a method, the function gets the instance first."""
        return self if instance is None else MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<spmdc.jit of {self.function!r}>"

    def partitioned(self, *args: Any, **kwargs: Any) -> PartitionedProgram:
        """The program for arguments like these: its text, its collectives, its reasons. Nothing is run.

        Arguments may be `jax.ShapeDtypeStruct`s.
        """
        return self._specialisation(self._read(args, kwargs)).part.partitioned

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """The function for arguments like these, which may be `jax.ShapeDtypeStruct`s; `compile()` of it, as of
        `jax.jit`'s, is a callable for exactly these."""
        return Lowered(self._specialisation(self._read(args, kwargs)))

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """The shapes and types of what the function returns, in its tree. Nothing is partitioned or run."""
        return self._specialisation(self._read(args, kwargs)).out_info

    def clear_cache(self) -> None:
        """Forgets all that was partitioned."""
        self._specialised.clear()

    @property
    def specialisations(self) -> list[Specialisation]:
        return list(self._specialised.values())

    def _specialisation(self, call: _Call) -> Specialisation:
        found = self._specialised.get(call.key)
        if found is None:
            found = self._specialised[call.key] = Specialisation(self, call)
        return found

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        static = self.static
        dynamic = tuple(a for i, a in enumerate(args) if i not in static.positions)
        keywords = {name: a for name, a in kwargs.items() if name not in static.names}
        leaves, tree = jax.tree.flatten((dynamic, keywords))
        avals = tuple(map(shaped_abstractify, leaves))
        mesh = self._mesh_at_work(leaves)
        own = mesh_of(mesh)
        said = self._said(tree)
        placed = tuple(s if s is not None else _placement(leaf, own) for s, leaf in zip(said, leaves, strict=True))
        fixed = tuple((i, type(a), a) for i, a in enumerate(args) if i in static.positions)
        named = tuple(sorted((name, type(a), a) for name, a in kwargs.items() if name in static.names))
        types = tuple((a.shape, a.dtype, a.weak_type) for a in avals)
        donated = self._donations(args, kwargs)
        key = (tree, types, placed, fixed, named, donated, own, _settings())
        return _Call(args, kwargs, leaves, tree, avals, placed, donated, mesh, key)

    def _said(self, tree: Any) -> Sequence[Placement]:
        """What `in_shardings` says of each leaf."""
        found = self._said_of.get(tree)
        if found is None:
            dynamic, keywords = tree.unflatten(range(tree.num_leaves))
            by_position = placements(self.in_shardings, dynamic, "in_shardings")
            found = self._said_of[tree] = [*by_position, *[None] * len(jax.tree.leaves(keywords))]
        return found

    def _donations(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
        """The leaves of donated arguments, by position among all leaves."""
        static, donated = self.static, self._donated
        flags: list[bool] = []
        for i, a in enumerate(args):
            if i not in static.positions:
                flags += [i in donated.positions] * len(jax.tree.leaves(a))
        for name, a in sorted(kwargs.items()):
            if name not in static.names:
                flags += [name in donated.names] * len(jax.tree.leaves(a))
        return tuple(i for i, flag in enumerate(flags) if flag)

    def _mesh_at_work(self, leaves: Sequence[Any]) -> MeshLike:
        """The mesh that was given, that of `jax.set_mesh`, or the one on which arguments lie."""
        if self._mesh is not None:
            return self._mesh
        ambient = _ambient_mesh()
        if not ambient.empty:
            return ambient
        lying = next((leaf.sharding.mesh for leaf in leaves if _lies_on_a_mesh(leaf)), None)
        if lying is None:
            name = getattr(self.function, "__name__", "the function")
            raise error("E306", f"there is no mesh to partition {name} over", help='spmdc.jit(f, mesh={"x": 8})')
        return cast("MeshLike", lying)


def _ambient_mesh() -> JaxMesh | AbstractMesh:
    """The mesh of JAX's context, without its devices where JAX does not tell them: while it traces."""
    try:
        concrete = jax.sharding.get_mesh()
    except ValueError:
        return get_abstract_mesh()
    return concrete if not concrete.empty else get_abstract_mesh()


def _settings() -> Hashable:
    """The settings of JAX that change what a function is traced to."""
    config: Any = jax.config
    return (
        config.jax_enable_x64, config.jax_default_matmul_precision, config.jax_numpy_dtype_promotion,
        config.jax_numpy_rank_promotion, config.jax_default_prng_impl, config.jax_threefry_partitionable,
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
    """Where a committed array lies, if that is on this mesh."""
    if not _lies_on_a_mesh(leaf) or mesh_of(leaf.sharding.mesh).axes != mesh.axes:
        return None
    return cast("NamedSharding", leaf.sharding)


class Specialisation:
    """A function for arguments of some shapes: imported at once, partitioned and compiled when it is first run.

    `part` takes and gives arrays of numbers: keys of random numbers as their words, Python's numbers not as weakly
    typed. Here they become what JAX has for them.
    """

    def __init__(self, jitted: Jitted, call: _Call) -> None:
        static = jitted.static
        self._function = jitted.function
        self._avals = call.avals
        self._tree = call.tree
        self._static_args = tuple(a if i in static.positions else _DYNAMIC for i, a in enumerate(call.args))
        self._static_kwargs = {name: a for name, a in call.kwargs.items() if name in static.names}
        args, kwargs = self._bound([_struct(a.shape, a.dtype, weak_type=a.weak_type) for a in call.avals])
        own, around = mesh_of(call.mesh), current_mesh()
        if around is not None and around.axes != own.axes:
            raise nested_meshes(own, around)
        with entered(call.mesh), annotating(own):
            lowering = lower(self._function, args, kwargs, sorted(static.positions), sorted(static.names))
        self.out_info: Any = lowering.traced.out_info
        out_tree: Any
        out_leaves, out_tree = jax.tree.flatten(self.out_info)
        self._out_tree = out_tree
        self._returns = out_leaves
        returned = placements(jitted.out_shardings, self.out_info, "out_shardings")
        self.part = Part(
            self._flat,
            list(map(words_type, call.avals)),
            call.mesh,
            lambda: (list(call.placed), returned),
            donate=call.donated,
            imported=lambda: import_lowered(lowering.lowered, own),
            out_avals=list(map(words_type, out_leaves)),
        )

    def __call__(self, leaves: Sequence[Any]) -> Any:
        arrays = [jnp.asarray(words(x), dtype=type.dtype) for x, type in zip(leaves, self.part.avals, strict=True)]
        results = zip(self.part(*arrays), self._returns, strict=True)
        return self._out_tree.unflatten([_restored(x, type) for x, type in results])

    @property
    def trees(self) -> tuple[Any, Any]:
        """The structures of the dynamic arguments, positional and by name, and of what the function returns."""
        return self._tree, self._out_tree

    @property
    def args_info(self) -> Any:
        """The shapes and types of the dynamic arguments, positional and by name."""
        return self._tree.unflatten([_struct(a.shape, a.dtype, weak_type=a.weak_type) for a in self._avals])

    def _bound(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with these leaves where they are dynamic."""
        dynamic, keywords = self._tree.unflatten(leaves)
        rest = iter(dynamic)
        return tuple(next(rest) if a is _DYNAMIC else a for a in self._static_args), {**keywords, **self._static_kwargs}

    def _flat(self, *arrays: Any) -> tuple[Any, ...]:
        """The function itself, from arrays to arrays."""
        leaves = [_restored(x, type) for x, type in zip(arrays, self._avals, strict=True)]
        args, kwargs = self._bound(leaves)
        return tuple(jnp.asarray(words(x)) for x in jax.tree.leaves(self._function(*args, **kwargs)))


_DYNAMIC = object()
"""Stands for an argument that is no static one."""


def _restored(x: Any, type: Any) -> Any:
    """An array of numbers as what has the type: keys, or numbers that are weakly typed, as Python's are."""
    weak = convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None) if type.weak_type else x
    return from_words(weak, type)
