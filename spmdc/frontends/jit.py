"""`spmdc.jit`: called as `jax.jit` is, partitioned by spmdc.

A call looks up, by the shapes and static arguments at hand, a specialisation: the function imported, partitioned and
compiled. Differentiated, it runs two further programs, each partitioned as a whole: one that gives the results and what
the gradient needs of the forward pass, and one that turns cotangents into gradients.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax.api_util import shaped_abstractify
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, get_abstract_mesh

from ir.diagnostics import error
from ir.mesh import Mesh
from lowering.jax import compile
from spmdc.api import PartitionedProgram, partition
from spmdc.frontends.annotations import annotating
from spmdc.frontends.jax_functions import Placement, annotate, entered, import_lowered, lower, placements
from spmdc.frontends.keys import from_words, words, words_type
from spmdc.frontends.placements import MeshLike, mesh_of


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
    Gradients may be taken inside and outside. Raises SpmdcError if the function cannot be imported or partitioned;
    errors of the function itself pass.
    """
    if function is None:
        return functools.partial(
            jit, mesh=mesh, in_shardings=in_shardings, out_shardings=out_shardings, static_argnums=static_argnums,
            static_argnames=static_argnames, donate_argnums=donate_argnums, donate_argnames=donate_argnames,
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
        self._mesh = mesh
        self._donated = donated
        self._specialised: dict[Hashable, _Specialisation] = {}
        self._said_of: dict[Any, Sequence[Placement]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self._read(args, kwargs)
        return self._specialisation(call)(call.leaves)

    def partitioned(self, *args: Any, **kwargs: Any) -> PartitionedProgram:
        """The program for arguments like these: its text, its collectives, its reasons. Nothing is run.

        Arguments may be `jax.ShapeDtypeStruct`s.
        """
        return self._specialisation(self._read(args, kwargs)).partitioned

    @property
    def specialisations(self) -> list[_Specialisation]:
        return list(self._specialised.values())

    def _specialisation(self, call: _Call) -> _Specialisation:
        found = self._specialised.get(call.key)
        if found is None:
            found = self._specialised[call.key] = _Specialisation(self, call)
        return found

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
        static = self.static
        dynamic = tuple(a for i, a in enumerate(args) if i not in static.positions)
        keywords = {name: a for name, a in kwargs.items() if name not in static.names}
        leaves, tree = jax.tree.flatten((dynamic, keywords))
        avals = tuple(map(shaped_abstractify, leaves))
        mesh = self._mesh_at_work()
        own = mesh_of(mesh)
        said = self._said(tree)
        placed = tuple(s if s is not None else _placement(leaf, own) for s, leaf in zip(said, leaves, strict=True))
        fixed = tuple((i, a) for i, a in enumerate(args) if i in static.positions)
        named = tuple(sorted((name, a) for name, a in kwargs.items() if name in static.names))
        types = tuple((a.shape, a.dtype, a.weak_type) for a in avals)
        donated = self._donations(args, kwargs)
        key = (tree, types, placed, fixed, named, donated, own)
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

    def _mesh_at_work(self) -> MeshLike:
        if self._mesh is not None:
            return self._mesh
        concrete = jax.sharding.get_mesh()
        ambient = concrete if not concrete.empty else get_abstract_mesh()
        if ambient.empty:
            name = getattr(self.function, "__name__", "the function")
            raise error("E306", f"there is no mesh to partition {name} over", help='spmdc.jit(f, mesh={"x": 8})')
        return ambient


def _placement(leaf: Any, mesh: Mesh) -> NamedSharding | None:
    """Where a committed array lies, if that is on this mesh."""
    if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer) or not leaf.committed:
        return None
    sharding = leaf.sharding
    if not isinstance(sharding, NamedSharding) or mesh_of(sharding.mesh).axes != mesh.axes:
        return None
    return sharding


class _Specialisation:
    """A function imported and partitioned for arguments of some shapes. It is compiled when it is first run."""

    def __init__(self, jitted: Jitted, call: _Call) -> None:
        self._jitted = jitted
        self._given = call.avals
        self._avals = tuple(map(words_type, call.avals))
        self._mesh = call.mesh
        self._donated = call.donated
        struct: Any = jax.ShapeDtypeStruct
        leaves = [struct(a.shape, a.dtype, weak_type=a.weak_type) for a in call.avals]
        self._bind = functools.partial(_bind, call, jitted.static)
        args, kwargs = self._bind(leaves)
        own = mesh_of(call.mesh)
        with entered(call.mesh), annotating(own):
            static = jitted.static
            lowered = lower(jitted.function, args, kwargs, tuple(sorted(static.positions)), tuple(sorted(static.names)))
            program = import_lowered(lowered, own)
        self._out_tree: Any = jax.tree.structure(lowered.out_info)
        self._returns = jax.tree.leaves(lowered.out_info)
        returned = placements(jitted.out_shardings, lowered.out_info, "out_shardings")
        self.partitioned = partition(annotate(program, call.placed, returned))

    def __call__(self, leaves: Sequence[Any]) -> Any:
        arrays = [jnp.asarray(words(x), dtype=a.dtype) for x, a in zip(leaves, self._avals, strict=True)]
        results = zip(self._run(*arrays), self._returns, strict=True)
        return self._out_tree.unflatten(from_words(x, returned) for x, returned in results)

    @functools.cached_property
    def _run(self) -> Callable[..., tuple[Any, ...]]:
        """The results from the leaves, as one that JAX can differentiate."""
        devices = list(self._mesh.devices.flat) if isinstance(self._mesh, JaxMesh) else None
        compiled = compile(self.partitioned.program, devices, donate=self._donated)
        run = jax.custom_vjp(lambda *leaves: compiled(*leaves))
        run.defvjp(lambda *leaves: self._gradient.forward(leaves), lambda *rest: self._gradient.backward(*rest))
        return cast("Callable[..., tuple[Any, ...]]", run)

    @functools.cached_property
    def _gradient(self) -> _Gradient:
        return _Gradient(self)

    def flat(self, *leaves: Any) -> tuple[Any, ...]:
        """The function itself, from leaves to leaves."""
        args, kwargs = self._bind([from_words(x, given) for x, given in zip(leaves, self._given, strict=True)])
        return tuple(map(words, jax.tree.leaves(self._jitted.function(*args, **kwargs))))

    def nested(self, function: Callable[..., Any], in_shardings: Any, out_shardings: Any) -> Jitted:
        """Another function on the same mesh."""
        nothing = _Chosen(frozenset(), frozenset())
        return Jitted(function, self._mesh, in_shardings, out_shardings, nothing, nothing)

    @property
    def avals(self) -> tuple[Any, ...]:
        return self._avals


def _bind(call: _Call, static: _Chosen, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the call, with other leaves in the place of its own."""
    dynamic, keywords = call.tree.unflatten(leaves)
    rest = iter(dynamic)
    args = tuple(a if i in static.positions else next(rest) for i, a in enumerate(call.args))
    return args, {name: keywords.get(name, a) for name, a in call.kwargs.items()}


class _Gradient:
    """The two programs that a gradient runs.

    What the forward pass keeps stays in the layout in which that pass leaves it; the gradient of an argument lies as
    the argument does.
    """

    def __init__(self, primal: _Specialisation) -> None:
        self._primal = primal
        self._moving = [i for i, a in enumerate(primal.avals) if jnp.issubdtype(a.dtype, jnp.inexact)]
        main = primal.partitioned.program.main
        self._params = [p.sharding for p in main.params]
        self._results = [r.sharding for r in main.results]
        self._floats = [i for i, r in enumerate(main.results) if r.type.dtype.is_float or r.type.dtype.is_complex]
        self._pull_back: Any = None
        self._forward = primal.nested(self._keeping, tuple(self._params), (tuple(self._results), None))

    def _keeping(self, *leaves: Any) -> tuple[tuple[Any, ...], list[Any]]:
        """The results, and what the gradient needs of this pass."""

        def of_moving(*moving: Any) -> tuple[list[Any], tuple[Any, ...]]:
            arguments = list(leaves)
            for i, x in zip(self._moving, moving, strict=True):
                arguments[i] = x
            results = self._primal.flat(*arguments)
            return [results[i] for i in self._floats], results

        _, pull_back, results = jax.vjp(of_moving, *(leaves[i] for i in self._moving), has_aux=True)
        kept, tree = jax.tree.flatten(pull_back)
        if self._pull_back is None:
            self._pull_back = tree
        return results, kept

    def forward(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], list[Any]]:
        results, kept = self._forward(*leaves)
        return results, kept

    def backward(self, kept: list[Any], cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
        """The cotangents of all leaves; None for those that are no floats."""
        moved = self._backward(kept, [cotangents[i] for i in self._floats])
        found = dict(zip(self._moving, moved, strict=True))
        return tuple(found.get(i) for i in range(len(self._primal.avals)))

    @functools.cached_property
    def _backward(self) -> Jitted:
        (done,) = self._forward.specialisations
        layouts = [r.sharding for r in done.partitioned.program.main.results][len(self._results) :]
        cotangents = [self._results[i] for i in self._floats]
        gradients = tuple(self._params[i] for i in self._moving)

        def pulled_back(kept: list[Any], floats: list[Any]) -> Any:
            return self._pull_back.unflatten(kept)(floats)

        return self._primal.nested(pulled_back, (layouts, cotangents), gradients)
