"""The state of an emitter: the names of values, the axes of the mesh, and the lines of the current function.

An emitter turns one op into the text of one expression. The files of the op families register theirs by op name in
`EMITTERS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import PurePath

from ir.diagnostics import InternalError
from ir.mesh import AxisRef, Mesh
from ir.ops.control import is_manual
from ir.ops.creation import constant_value
from ir.ops.layout import is_annotation, is_hint
from ir.program import Attr, Op, Program, Region, Value, callee_of, walk
from ir.registry import Registry, unregistered
from ir.sharding import Sharding
from ir.types import DType
from lowering.jax.assemblies import Assemblies, assemblies_of
from lowering.jax.axes import ProgramAxes
from lowering.jax.kernels import slices_alike
from lowering.jax.names import Identifiers, quoted, tuple_text
from lowering.jax.numbers import numbers_of
from lowering.jax.places import Places, indices_of, of_all_devices, places_of
from lowering.jax.varying import Version, Versions
from lowering.jax.xla_faults import Guards, guards_of

_SHORT = 8
"""Functions with at most so many ops are traced and lowered in less time than a call of them."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """The sharding of a value, its sharding group, and the direction in which propagation passes."""

    sharding: Sharding
    group: int | None = None
    passes: str = "both"


@dataclass
class ModuleWriter:
    """The state that the functions of one module share.

    `axes` is None in a global program, which has no devices. `functions` has the names of the functions that run,
    `mapped` those that are applied elementwise. `annotations`, unless None, collects the annotations that are written
    as calls of `annotated`. If the module `is_portable`, no op is written for one backend only. Unless it `is_for_cpu`,
    nothing is written for the sake of XLA's CPU backend, and unless it `is_for_others`, nothing for that of others. If
    it `is_differentiated`, ops are written with functions that JAX has derivatives of; if it `is_sealed`, JAX never
    differentiates it.
    """

    program: Program
    axes: ProgramAxes | None
    versions: Versions
    names: Identifiers
    functions: Mapping[Version, str]
    mapped: frozenset[str] = frozenset()
    helpers: set[str] = field(default_factory=set[str])
    annotations: list[Annotation] | None = None
    is_differentiated: bool = False
    is_sealed: bool = False
    meshes: dict[Mesh, tuple[str, str]] = field(default_factory=dict[Mesh, tuple[str, str]])
    is_portable: bool = False
    is_for_cpu: bool = True
    is_for_others: bool = True
    positions: dict[tuple[str, ...], str] = field(default_factory=dict[tuple[str, ...], str])
    """The name, in the entry, of the position of the device along each tuple of axes."""
    origins: dict[str, Mapping[int, Op]] = field(default_factory=dict[str, Mapping[int, Op]])
    """For each function of the module, the op of each line, counted from the function's first line, which is 0."""

    def helper(self, name: str) -> str:
        """The name of a helper, which the module then contains."""
        self.helpers.add(name)
        return name

    def mesh_constants(self, mesh: Mesh) -> tuple[str, str]:
        """The names of the constants for a mesh's axes and device ids."""
        if mesh == self.program.mesh:
            return "MESH_AXES", "DEVICE_IDS"
        if mesh not in self.meshes:
            stem = mesh.name.upper() or "MESH"
            self.meshes[mesh] = (self.names.fresh(f"{stem}_AXES"), self.names.fresh(f"{stem}_DEVICE_IDS"))
        return self.meshes[mesh]

    @cached_property
    def guards(self) -> Guards:
        """The ops for which XLA needs a workaround. A module that is handed on with its annotations has none."""
        return Guards() if self.annotations is not None else guards_of(self.program)

    @cached_property
    def numbers(self) -> Mapping[Value, Attr]:
        """Constants that are written as numbers in the ops that use them, and not as arrays. A module that is handed on
        with its annotations has arrays, since each may be annotated."""
        return numbers_of(self.program) if self.annotations is None else {}

    @cached_property
    def slices_alike(self) -> frozenset[Value]:
        """Slices that XLA's CPU backend is to compile once for each size. Other backends are faster with plain
        slices."""
        return slices_alike(self.program) if self.compiles_on_cpu else frozenset()

    @property
    def compiles_on_cpu(self) -> bool:
        """Whether the module may run on CPU devices of a host."""
        return self.program.stage == "spmd" and self.is_for_cpu and self.runs_on_cpu

    @cached_property
    def places(self) -> Places:
        """The integers that are known for all devices before the program runs."""
        return places_of(self.program, self._indices, self.assemblies.updates)

    @cached_property
    def _indices(self) -> Mapping[Value, Value]:
        is_spmd = self.annotations is None and self.program.stage == "spmd"
        return indices_of(self.program, self.spmd_axes) if is_spmd else {}

    @cached_property
    def assemblies(self) -> Assemblies:
        """The boxes that are assembled by gathers on CPUs. Other backends are faster with one update for each piece."""
        return assemblies_of(self.program, self._indices) if self.compiles_on_cpu else Assemblies()

    @property
    def runs_on_cpu(self) -> bool:
        """Whether XLA's CPU backend may have to compile the module."""
        return self.annotations is None and not self.is_portable

    @property
    def runs_on_gpu(self) -> bool:
        """Whether XLA's GPU backend may have to compile the module."""
        return self.runs_on_cpu and self.is_for_others

    def held(self, dtype: DType) -> DType:
        """The element type in which tensors of that one are cut and written over. XLA's GPU backend does so wrongly, or
        ends the process, where several elements share a byte (jaxlib 0.11.2)."""
        return dtype.computed if dtype.bits < 8 and self.runs_on_gpu else dtype

    @cached_property
    def traced_once(self) -> frozenset[Version]:
        """Elementwise functions that JAX is to trace and lower once for all calls: those with several calls that are
        long enough for it to pay. Modules that are handed on or differentiated have them inline."""
        if not self.runs_on_cpu:
            return frozenset()
        reached = self.versions.reached()
        calls = Counter(
            self.versions.called(op, v) for v in reached for op in walk(v.function.body) if callee_of(op) is not None
        )
        return frozenset(
            v
            for v, times in calls.items()
            if times > 1 and v.function.name in self.mapped and len(v.function.body.ops) > _SHORT
        )

    @property
    def spmd_axes(self) -> ProgramAxes:
        if self.axes is None:
            raise InternalError("a global program has no mesh axes")
        return self.axes


class FunctionWriter:
    """Writes the lines of one Python function and of the functions nested in it."""

    def __init__(self, module: ModuleWriter, version: Version, taken: Iterable[str]) -> None:
        self.module = module
        self.version = version
        self.is_mapped = version.function.name in module.mapped
        self.lines: list[str] = []
        self.ops_of_lines: dict[int, Op] = {}
        self.instead: dict[Op, str] = {}
        """The expressions of ops that are written differently from what their name says."""
        self._names = Identifiers(taken)
        self._of: dict[Value, str] = {}
        self._makers: dict[Value, Op] = {}
        self._same: dict[Value, Value] = {}
        self._depth = 0
        self._loops = 0
        self._tables: dict[Value, str] = {}

    def define(self, value: Value) -> str:
        """Gives a value its Python name."""
        name = self._names.fresh(value.name)
        self._of[value] = name
        return name

    def fresh(self, hint: str) -> str:
        return self._names.fresh(hint)

    def __getitem__(self, value: Value) -> str:
        return self._of[value]

    def names(self, values: Iterable[Value]) -> list[str]:
        return [self._of[v] for v in values]

    def maker(self, value: Value) -> Op | None:
        """The op that the value is a result of, if it is written in this function; None for parameters."""
        return self._makers.get(value)

    def assign(self, value: Value, same: Value) -> None:
        """Records that `value` always equals `same`."""
        self._same[value] = same

    def number(self, value: Value) -> Attr:
        """The number that every element equals, if the value is a constant; None otherwise."""
        return constant_value(self._makers.get(self._same.get(value, value)))

    def varying(self, value: Value) -> frozenset[str]:
        return self.version.varying.get(value, frozenset())

    def callee(self, op: Op) -> str:
        """The name of the function that an op calls, for arguments that vary as those of the op do."""
        return self.module.functions[self.module.versions.called(op, self.version)]

    def vary(self, value: Value, axes: Iterable[str]) -> str:
        """The value as one that JAX takes to vary over `axes` too."""
        return self.cast(self._of[value], set(axes) - self.varying(value))

    def cast(self, text: str, missing: set[str]) -> str:
        """`text` as varying over the axes `missing`, over which it does not vary yet."""
        if not missing:
            return text
        names = [n for n in self.module.spmd_axes.default.names if n in missing]
        return f'lax.pcast({text}, {quoted(names)}, to="varying")'

    def apart(self, value: Value, op: Op) -> str:
        """The operand of an op, behind a barrier if XLA would miscompile the op together with those before."""
        text = self._of[value]
        return f"lax.optimization_barrier({text})" if op.result in self.module.guards.apart else text

    def axis_names(self, refs: tuple[AxisRef, ...]) -> tuple[str, ...]:
        return self.module.spmd_axes.axis_names(refs)

    def position(self, names: tuple[str, ...]) -> str:
        """The position of the device along axes of these names."""
        given = self.module.positions.get(names) if self.version is self.module.versions.entry else None
        return f"lax.axis_index({quoted(names)})" if given is None else f"lax.squeeze({given}, (0,))"

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text if text else "")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines indented under `head`."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    @contextmanager
    def loop(self) -> Iterator[None]:
        """Lines that run in each iteration of a loop."""
        self._loops += 1
        yield
        self._loops -= 1

    def ops(self, region: Region) -> None:
        """A line for each op of the region."""
        for param in region.params:
            self.annotate(param, param.sharding)
        around = dict(self._tables)
        for op in region.ops:
            first = len(self.lines)
            self._op(op)
            for line in range(first, len(self.lines)):
                self.ops_of_lines.setdefault(line, op)
        self._tables = around

    def _op(self, op: Op) -> None:
        emitter = EMITTERS.get(op.name)
        if emitter is None:
            raise unregistered(op, "emits", "lowering/jax/ops")
        self._makers.update(dict.fromkeys(op.results, op))
        if not self.module.numbers.keys().isdisjoint(op.results) or op in self.module.assemblies.updates:
            return
        if (self._loops or self.module.compiles_on_cpu) and self._looks_up(op):
            return
        expression = self.instead.get(op) or emitter(self, op)
        targets = ", ".join([self.define(v) for v in op.results])
        assignment = f"{targets} = " if targets else ""
        comment = location(op)
        self.line(f"{assignment}{expression}{'  ' if comment else ''}{comment}")
        if self.module.annotations is None:
            return
        for value in op.results:
            sharding = value.sharding
            if is_manual(op) and sharding is not None:
                sharding = replace(sharding, partial=())
            module = self.module
            if is_annotation(op) and is_hint(op) and module.is_differentiated and module.program.meshes:
                sharding = sharding or Sharding.unknown(module.program.mesh, value.type.rank)
                group, passes = op.attrs["group"], str(op.attrs["passes"])
                assert group is None or isinstance(group, int)
                self._annotate(value, Annotation(sharding, group, passes), comment)
            else:
                self.annotate(value, sharding, comment)

    def _looks_up(self, op: Op) -> bool:
        """Writes, before the ops that use it, the value that a number known for all devices has on this device, if the
        value is such a number. In front of loops, a number that a single op computes from the position is left to that
        op, if its other operands are written."""
        places = self.module.places
        index = places.index_of.get(op.result) if len(op.results) == 1 else None
        if index is None or index is op.result:
            return False
        if op.result not in places.looked_up:
            return True
        others = (v for v in op.operands if v is not index and v in places.index_of)
        if not self._loops and index in op.operands and places.looked_up.issuperset(others):
            return False
        at, table = self.module.helper("at"), self.table(op.result)
        self.line(f"{self.define(op.result)} = {at}({table}, {self._of[index]})  {location(op)}".rstrip())
        return True

    def table(self, value: Value) -> str:
        """The name of a number that depends on the device; the name of a constant if it is the same on all."""
        if value not in self.module.places.index_of:
            return self._of[value]
        if value not in self._tables:
            op = self._makers[value]
            text = of_all_devices(op, [self.table(v) for v in op.operands])
            self._tables[value] = self._names.fresh(f"{value.name}.each")
            self.line(f"{self._tables[value]} = {text}")
        return self._tables[value]

    def annotate(self, value: Value, sharding: Sharding | None, comment: str = "") -> None:
        """Writes the sharding of a value, in a module that is to be differentiated. Nothing is written if all dims are
        open."""
        if sharding is None or value in self.module.program.main.params:
            return
        if any(sharding.used_axes()) or not all(d.open for d in sharding.dims):
            self._annotate(value, Annotation(sharding), comment)

    def _annotate(self, value: Value, annotation: Annotation, comment: str) -> None:
        annotations, name = self.module.annotations, self._of[value]
        if annotations is not None:
            self.line(f"{name} = annotated({name}, {len(annotations)})  {comment}".rstrip())
            annotations.append(annotation)

    def returned(self, values: Sequence[str]) -> str:
        """The expression that a function with these results returns: a tuple unless there is exactly one."""
        return values[0] if len(values) == 1 else tuple_text(values)


def location(op: Op) -> str:
    """The comment behind an op: its source line, without the folder, and why a pass inserted the op."""
    place = f"# {_file_name(op.span.source.name)}:{op.span.line}" if op.span is not None else ""
    cause = one_line(str(op.cause)) if op.cause is not None else ""
    return f"{place}  {cause}" if place and cause else f"# {cause}" if cause else place


@lru_cache
def _file_name(path: str) -> str:
    return one_line(PurePath(path).name)


@lru_cache(maxsize=1024)
def one_line(text: str) -> str:
    """`text` without characters that would end a comment."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def in_docstring(text: str) -> str:
    """`text` on one line and without characters that would end a docstring."""
    return one_line(text).replace("\\", "/").replace('"', "'")


Emitter = Callable[[FunctionWriter, Op], str]

EMITTERS: Registry[Emitter] = Registry()
"""The emitter of each op: it returns the text of an expression for the op's result, or for the tuple of its results."""

emits = EMITTERS.of
"""Registers an emitter for ops of these names."""


def dtype_text(dtype: DType) -> str:
    """The element type's name in jax.numpy."""
    return f"jnp.{dtype.numpy.name}" if dtype.name != "pred" else "jnp.bool_"
