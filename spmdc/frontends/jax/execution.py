"""A partitioned function, compiled for the devices of a mesh: once, ahead of time, and called as cheaply as JAX can.

The devices run one function of JAX's: it converts the leaves of the arguments to arrays of numbers, runs the program,
and converts back to the leaves of the result. JAX's dispatch calls it. It takes leaves and not trees, because arguments
are flattened in any case, to look at the leaves, and flattening some trees (those of Equinox) takes longer than the
rest of a call.

Arrays that are sharded as the program takes them are passed on as they are; others are resharded first. Arrays that JAX
cannot shard as the program has them (above all, uneven dims) are padded before. Results have shardings that JAX can
express.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.sharding import Mesh as JaxMesh

from ir.diagnostics import error
from ir.ops.host import callbacks_of
from ir.program import walk
from lowering.jax.module import Entry, has_64_bits
from lowering.jax.running import Executable, check_memory, explained
from lowering.jax.untyped import spec_of, struct_of, type_of
from lowering.jax.versions import compiled_takes, layout_of, name_arguments
from spmdc.frontends.jax.random_keys import is_key, restored, words, words_type
from spmdc.frontends.jax.shardings import MeshLike, is_explicit, mesh_of

NO_MESH: Any = AbstractMesh((), ())
"""The mesh of JAX's context if there is none."""


@dataclass(frozen=True)
class Signature:
    """The signature of a function: trees of leaves with these types; some arguments may be donated. `names` are the
    names of the arguments' leaves, such as `params['w']`, in messages and in what JAX lowers. `out_written` has, for
    each result, the ways in which the user may have written its sharding: that of the result, or None, and then those
    of arguments."""

    tree: Any
    avals: tuple[Any, ...]
    out_tree: Any
    out_avals: tuple[Any, ...]
    name: str = "main"
    names: Sequence[str] = ()
    donated: tuple[int, ...] = ()
    """The leaves of donated arguments, by position among all leaves."""
    keep_unused: bool = False
    compiler_options: Mapping[str, Any] | None = None
    out_written: tuple[Sequence[Any], ...] = ()
    out_layouts: tuple[Any, ...] = ()
    in_layouts: tuple[Any, ...] = ()
    """The layouts in memory that the user asks for, for each result, and those of arguments; None for the usual one.
    They are empty if all are."""


@dataclass(frozen=True)
class _Places:
    """The shardings of a program's arrays, on the caller's mesh wherever that can express them. The program is mapped
    over the mesh `running`. `results` are the final shardings of results; None for those that stay as they are."""

    running: JaxMesh
    inputs: tuple[NamedSharding, ...]
    outputs: tuple[NamedSharding, ...]
    results: tuple[NamedSharding | None, ...]

    def written_as(self, signature: Signature) -> _Places:
        """The same with results on shardings that are equal, for JAX, to those that users have written."""
        if not signature.out_written:
            return self
        pairs = list(zip(signature.out_written, signature.out_avals, strict=True))

        def written(found: Sequence[NamedSharding | None]) -> tuple[Any, ...]:
            return tuple(s and _written_as(s, w, len(a.shape)) for s, (w, a) in zip(found, pairs, strict=True))

        return replace(self, outputs=written(self.outputs), results=written(self.results))


class Execution:
    """A partitioned function, lowered and compiled by JAX on demand. `mesh` is the caller's, and `executable` is the
    program as a module."""

    def __init__(self, executable: Executable, mesh: MeshLike, signature: Signature) -> None:
        assert executable.entry is not None
        self.signature = signature
        assert not any(executable.entry.undivided)
        self._executable = executable
        self._mesh = mesh
        self._of_layouts: dict[tuple[Any, ...], Execution] = {}
        self._entry: Entry = executable.entry
        self._wide = has_64_bits(executable.program)
        self._places = _places(executable, mesh).written_as(signature)
        passes = self._places
        self._bare = tuple(
            divided or _splits_words(a, s)
            for divided, a, s in zip(self._entry.divided, signature.avals, passes.inputs, strict=True)
        )
        self.is_plain = not any((*self._bare, *passes.results))
        """Whether JAX's dispatch needs nothing but leaves that are sharded as taken, and returns the final results."""

    @property
    def in_shardings(self) -> Any:
        """The shardings of the arguments, in their tree."""
        return self.signature.tree.unflatten(self._places.inputs)

    @property
    def out_shardings(self) -> Any:
        """The shardings of the results, in their tree."""
        pairs = zip(self._places.outputs, self._places.results, strict=True)
        return self.signature.out_tree.unflatten([end or given for given, end in pairs])

    def lower(self, **options: Any) -> jax.stages.Lowered:
        """The function as lowered by JAX, for its own devices, or with these options of JAX's."""
        with self._context():
            traced = self._jitted.trace(*self._types())
            lowered: jax.stages.Lowered = traced.lower(**options)
            return lowered

    @functools.cached_property
    def _jitted(self) -> Any:
        s = self.signature
        return jax.jit(
            self._function(),
            out_shardings=s.out_tree.unflatten(_laid_out(self._places.outputs, s.out_layouts)),
            donate_argnums=s.donated,
            keep_unused=s.keep_unused,
            compiler_options=dict(s.compiler_options) if s.compiler_options else None,
        )

    @functools.cached_property
    def lowered(self) -> jax.stages.Lowered:
        return self.lower()

    @functools.cached_property
    def runs(self) -> Callable[..., Any]:
        """The function that every call runs, on leaves: the compiled one, or JAX's own if JAX cannot call that here."""
        if compiled_takes(words_type(a).dtype for a in self.signature.avals):
            self.check_memory()
            return self.compiled
        return self._in_context

    def _in_context(self, *leaves: Any) -> Any:
        with self._context():
            return self._jitted(*leaves)

    @functools.cached_property
    def compiled(self) -> jax.stages.Compiled:
        """The function, compiled ahead of time."""
        try:
            with self._context():
                return self.lowered.compile()
        except jax.errors.JaxRuntimeError as problem:
            raise self.explained(problem) from None

    def check_memory(self) -> None:
        """Raises SpmdcError (E505) if the compiled function takes more memory than the host has that is to run it."""
        check_memory(self._executable.program, self.compiled, self._places.running)

    def explained(self, problem: Exception) -> Exception:
        """The error to raise for an error of JAX in a call."""
        return explained(self._executable.program, problem)

    def misplaced(self, leaves: Sequence[Any]) -> tuple[int, ...]:
        """The leaves to be resharded to what the program takes, by position, except for bare ones. JAX itself moves
        arrays from the host, unless types name axes of the mesh."""
        host = () if is_explicit(self._places.running) else (np.ndarray, np.generic, bool, int, float, complex)
        places = zip(leaves, self._places.inputs, self.signature.avals, self._bare, strict=True)
        return tuple(
            i for i, (x, s, a, bare) in enumerate(places) if not (bare or isinstance(x, host) or _placed(x, s, a.dtype))
        )

    def check_donated(self, leaves: Sequence[Any], misplaced: Sequence[int] = ()) -> None:
        """Raises SpmdcError (E514) if the devices would use up the memory of an array that is also passed elsewhere,
        since JAX 0.10 would end the process."""
        given = ((i, leaves[i]) for i in self._used_up if i not in misplaced)
        used_up = {id(x): i for i, x in given if isinstance(x, jax.Array)}
        if not used_up:
            return
        for other, x in enumerate(leaves):
            first = used_up.get(id(x), other)
            if first != other and other in self._taken and other not in misplaced:
                names = self.signature.names[first], self.signature.names[other]
                message = f"{names[0]} is donated, and the same array is given as {names[1]}"
                help = "give a copy in one of the two places (jnp.copy), or do not donate it"
                raise error("E514", message, help=help)

    @functools.cached_property
    def _taken(self) -> frozenset[int]:
        """The leaves that the devices take as they are given: JAX does not drop them, and they need no adjustment."""
        main = self._executable.program.main
        ops = list(walk(main.body))
        ends = [main.body, *(region for op in ops for region in op.regions)]
        used = {v for op in ops for v in op.operands} | {v for region in ends for v in region.results}
        return frozenset(
            i for i, p in enumerate(main.params) if not self._bare[i] and (self.signature.keep_unused or p in used)
        )

    @functools.cached_property
    def _used_up(self) -> tuple[int, ...]:
        return tuple(i for i in self.signature.donated if i in self._taken)

    def run(self, leaves: Sequence[Any], misplaced: Sequence[int], compiled: Callable[..., Any] | None = None) -> Any:
        """The results, in their tree, for leaves of which some are not yet sharded as taken. `compiled`, by default the
        function that every call runs, is called with the leaves."""
        self.check_donated(leaves, misplaced)
        arrays = self._divided(leaves) if any(self._bare) else list(leaves)
        moved = [*misplaced, *(i for i, bare in enumerate(self._bare) if bare)]
        if moved:
            types, inputs = self.signature.avals, _laid_out(self._places.inputs, self.signature.in_layouts)
            given = [arrays[i] if self._bare[i] else _array(arrays[i], types[i].dtype) for i in moved]
            put = jax.device_put(given, [inputs[i] for i in moved])
            for i, x in zip(moved, put, strict=True):
                arrays[i] = x
        results = self.called(compiled or self.runs, arrays)
        return self._moved(results) if any(self._places.results) else results

    def for_layouts_of(self, leaves: Sequence[Any], misplaced: Sequence[int]) -> Execution:
        """The function compiled for arrays in the layouts in memory that these have, except for leaves that are moved
        before."""
        moved = {*misplaced, *(i for i, bare in enumerate(self._bare) if bare)}
        layouts = tuple(
            layout_of(x) if isinstance(x, jax.Array) and i not in moved else None for i, x in enumerate(leaves)
        )
        found = self._of_layouts.get(layouts)
        if found is None:
            signature = replace(self.signature, in_layouts=layouts)
            found = self._of_layouts[layouts] = Execution(self._executable, self._mesh, signature)
        return found

    def called(self, compiled: Callable[..., Any], leaves: Sequence[Any]) -> Any:
        """The results for leaves that are sharded as taken. An error of the devices is explained."""
        try:
            return compiled(*leaves)
        except jax.errors.JaxRuntimeError as problem:
            raise self.explained(problem) from None

    def _divided(self, leaves: Sequence[Any]) -> list[Any]:
        """The leaves, with bare ones as the devices take them."""
        arrays = [
            words(x if isinstance(x, jax.Array | np.ndarray) else jnp.asarray(x)) if bare else x
            for x, bare in zip(leaves, self._bare, strict=True)
        ]
        if not any(self._entry.divided):
            return arrays
        with self._context():
            found = self._executable.module["divided"](*arrays)
        return [new if bare else old for new, old, bare in zip(found, arrays, self._bare, strict=True)]

    def _moved(self, results: Any) -> Any:
        """The results in their final shardings."""
        layouts = [a if isinstance(a, Layout) else None for a in self.signature.out_layouts]  # Layout.AUTO is none.
        pairs = zip(jax.tree.leaves(results), _laid_out(self._places.results, layouts), strict=True)
        return self.signature.out_tree.unflatten([x if end is None else jax.device_put(x, end) for x, end in pairs])

    def _types(self) -> list[Any]:
        """The types of the arrays that the function on the devices takes, with their shardings."""
        s = self.signature
        plain = [words_type(a) if bare else a for a, bare in zip(s.avals, self._bare, strict=True)]
        if any(self._entry.divided):
            with self._context():
                divided = jax.eval_shape(self._executable.module["divided"], *map(words_type, s.avals))
            plain = [new if bare else old for new, old, bare in zip(divided, plain, self._bare, strict=True)]
        return [
            struct_of(a.shape, a.dtype, weak_type=getattr(a, "weak_type", False), sharding=place)
            for a, place in zip(plain, _laid_out(self._places.inputs, s.in_layouts), strict=True)
        ]

    def _function(self) -> Callable[..., Any]:
        s, entry, running = self.signature, self._entry, self._places.running
        mapped: Callable[..., Any] = self._executable.module["mapped"]

        def function(*leaves: Any) -> Any:
            given = zip(leaves, s.avals, self._bare, strict=True)
            arrays = [x if bare else _numbers(x, aval) for x, aval, bare in given]
            results = mapped(running, check_vma=False)(*(arrays if entry.passed else ()))
            returned = zip(results, s.out_avals, strict=True)
            return s.out_tree.unflatten([restored(x, aval) for x, aval in returned])

        function.__name__ = s.name
        name_arguments(function, s.names)
        return function

    @contextlib.contextmanager
    def _context(self) -> Iterator[None]:
        """The context in which JAX runs the program: without the caller's mesh, and with 64 bits if the program has
        them."""
        with jax.sharding.use_abstract_mesh(NO_MESH), contextlib.ExitStack() as stack:
            if self._wide:
                stack.enter_context(jax.enable_x64(True))
            yield


def are_arrays(leaves: Sequence[Any]) -> bool:
    """Whether all leaves are arrays of JAX's, none of them donated."""
    try:
        return True not in [x.is_deleted() for x in leaves]
    except AttributeError:
        return False


def types_and_shardings(leaves: Sequence[Any]) -> tuple[Any, ...]:
    """The types and shardings of leaves. Raises RuntimeError for an array that was donated, since JAX 0.10 would end
    the process."""
    try:
        gone = True in [x.is_deleted() for x in leaves]
        found = (*[x.aval for x in leaves], *[x.sharding for x in leaves], *[x.committed for x in leaves])
    except AttributeError:
        arrays = [x for x in leaves if isinstance(x, jax.Array)]
        gone = True in [x.is_deleted() for x in arrays]
        found = tuple([(x.aval, x.sharding, x.committed) if isinstance(x, jax.Array) else type_of(x) for x in leaves])
    if gone:
        i, x = next((i, x) for i, x in enumerate(leaves) if isinstance(x, jax.Array) and x.is_deleted())
        raise RuntimeError(f"argument {i} has been deleted or donated: {x.dtype}{list(x.shape)}")
    return found


def where_invalid(
    found: Exception, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Exception:
    """The error that JAX's checks found an invalid number, at the op that made it. As with `jax.jit`, the function is
    run op by op to find it, unless one of its arguments was used up."""
    called, number = found.args
    if not any(isinstance(x, jax.Array) and x.is_deleted() for x in jax.tree.leaves((args, kwargs))):
        try:
            function(*args, **kwargs)
        except FloatingPointError as at:
            return at
    return FloatingPointError(f"invalid value ({number}) encountered in {called}, and in none of its ops alone")


def _laid_out(shardings: Sequence[NamedSharding | None], layouts: Sequence[Any]) -> list[Any]:
    """The shardings of arrays, with their layouts in memory where they have one."""
    pairs = zip(shardings, layouts or (None,) * len(shardings), strict=True)
    return [s if s is None or layout is None else Format(layout, s) for s, layout in pairs]


def _numbers(x: Any, aval: Any) -> Any:
    """A leaf as the array of numbers that the program takes, without a weak type."""
    return jnp.asarray(words(x), dtype=words_type(aval).dtype)


def _array(x: Any, dtype: Any) -> Any:
    """The leaf as an array, if it is not one but can be converted. An array that was made while JAX had 64 bits, and no
    longer has, keeps its bits."""
    if isinstance(x, jax.Array):
        return x if x.dtype == dtype else x.astype(dtype)
    known = isinstance(x, np.ndarray | np.generic | bool | int | float | complex)
    return x if known else jnp.asarray(x)


def _placed(x: Any, sharding: NamedSharding, dtype: Any) -> bool:
    return isinstance(x, jax.Array) and x.dtype == dtype and x.sharding.is_equivalent_to(sharding, x.ndim)


def _splits_words(aval: Any, sharding: NamedSharding) -> bool:
    """Whether keys are split within their words, which JAX cannot express."""
    return is_key(aval) and len(sharding.spec) > len(aval.shape)


# Places.


def _places(executable: Executable, mesh: MeshLike) -> _Places:
    running = executable.mesh
    entry = executable.entry
    assert running is not None
    assert entry is not None
    specs: tuple[Any, ...] = executable.module["IN_SPECS"] if entry.passed else (spec_of(),) * len(entry.divided)
    out_specs: tuple[Any, ...] = executable.module.get("KEPT_SPECS") or executable.module["OUT_SPECS"]
    given = _given(mesh, running)
    is_explicit = AxisType.Explicit in given.axis_types
    is_same = given.devices.tolist() == running.devices.tolist() and given.axis_names == running.axis_names
    if is_same and not (is_explicit and any(entry.divided)):
        return _Places(given, _on(given, specs), _on(given, out_specs), (None,) * len(out_specs))
    own_mesh = JaxMesh(given.devices, given.axis_names) if is_explicit else given
    names = _axes_of(own_mesh, running)
    inputs = tuple(_named(s, own_mesh, running, names) for s in specs)
    outputs = tuple(_named(s, own_mesh, running, names) for s in out_specs)
    ends: Sequence[NamedSharding | None] = (None,) * len(out_specs)
    if is_explicit:
        ends = tuple(NamedSharding(given, s.spec if s.mesh is own_mesh else spec_of()) for s in outputs)
    if not callbacks_of(executable.program):
        return _Places(running, inputs, outputs, tuple(ends))
    # JAX lowers what calls the host only where all shardings are on one mesh.
    ends = tuple(end or own for end, own in zip(ends, outputs, strict=True))
    return _Places(running, _on(running, specs), _on(running, out_specs), ends)


def _given(mesh: MeshLike, running: JaxMesh) -> JaxMesh:
    """The mesh with the axes as the caller named them, over the running devices."""
    if isinstance(mesh, JaxMesh):
        return mesh
    own = mesh_of(mesh)
    names = mesh.axis_names if isinstance(mesh, AbstractMesh) else own.names
    types = mesh.axis_types if isinstance(mesh, AbstractMesh) else None
    return JaxMesh(running.devices.reshape(own.shape), names, axis_types=types)


def _on(mesh: JaxMesh, specs: Sequence[Any]) -> tuple[NamedSharding, ...]:
    return tuple(NamedSharding(mesh, spec) for spec in specs)


def _written_as(sharding: NamedSharding, written: Sequence[Any], rank: int) -> NamedSharding:
    """The sharding as written by the first of these that is equivalent, or as types write it if it names Explicit axes:
    JAX distinguishes P("x") from P("x", None). It is in the memory of the first one, the sharding of the result."""
    specs = (w.spec if isinstance(w, NamedSharding) else w for w in written)
    fitting = (s for s in specs if isinstance(s, PartitionSpec) and len(s.partitions) <= rank)
    plain = sharding.spec
    if is_explicit(sharding.mesh):
        whole = (None,) * (rank - len(plain.partitions))
        plain = spec_of(*plain.partitions, *whole, unreduced=plain.unreduced, reduced=plain.reduced)
    axes = _axes_by_dim(sharding.mesh, plain)
    found = next((s for s in fitting if _axes_by_dim(sharding.mesh, s) == axes), plain)
    memory = written[0].memory_kind if isinstance(written[0], NamedSharding) else None
    return NamedSharding(sharding.mesh, found, memory_kind=memory)


def _axes_by_dim(mesh: Any, spec: Any) -> tuple[Any, ...]:
    """The axes of each dim, without those of size 1 and without whole dims at the end; and the pending reductions."""
    sizes: Mapping[Any, int] = mesh.shape
    dims = [entry if isinstance(entry, tuple) else (entry,) for entry in spec.partitions]
    dims = [tuple(axis for axis in dim if axis is not None and sizes.get(axis) != 1) for dim in dims]
    while dims and not dims[-1]:
        dims.pop()
    return (*dims, spec.unreduced, spec.reduced)


def _axes_of(given: JaxMesh, running: JaxMesh) -> Mapping[tuple[str, ...], str]:
    """For each axis of the caller's mesh, the axes of the module's mesh that it is cut into, without those of size
    1."""
    if list(given.devices.flat) != list(running.devices.flat):
        return {}
    rest = iter(running.shape.items())
    found: dict[tuple[str, ...], str] = {}
    for name, size in given.shape.items():
        parts: list[str] = []
        reached = 1
        while reached < size:
            part, n = next(rest)
            parts += [part] if n > 1 else []
            reached *= n
        if reached != size:
            return {}
        if parts:
            found[tuple(parts)] = name
    return found


def _named(spec: Any, given: JaxMesh, running: JaxMesh, axes: Mapping[tuple[str, ...], str]) -> NamedSharding:
    """The sharding on the caller's mesh, or on the module's if it uses a part of an axis."""
    dims: list[Any] = []
    for entry in spec:
        names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
        whole = _whole(names, axes)
        if whole is None:
            return NamedSharding(running, spec)
        dims.append(whole if len(whole) > 1 else whole[0] if whole else None)
    return NamedSharding(given, spec_of(*dims))


def _whole(names: tuple[str, ...], axes: Mapping[tuple[str, ...], str]) -> tuple[str, ...] | None:
    found: list[str] = []
    while names:
        parts = next((p for p in axes if names[: len(p)] == p), None)
        if parts is None:
            return None
        found.append(axes[parts])
        names = names[len(parts) :]
    return tuple(found)
