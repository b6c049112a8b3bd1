"""What a program is: functions of regions of ops over values, in SSA form.

Everything here is immutable; a pass builds a new program. A *global* program has the shapes that the user wrote. A
*plan* has them too, with a sharding for every value, a strategy for every op that is split, and reshards from one
sharding to another. An *SPMD* program has the shapes of one device and explicit collectives; each parameter and result
of its entry has the type and sharding of the global tensor that it is a shard of.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal, TypeAlias

from ir.causes import Cause
from ir.diagnostics import Source, Span
from ir.host import HostFunction
from ir.initializers import Initializer
from ir.mesh import AxisRef, Mesh
from ir.notebooks import Drawn
from ir.records import record
from ir.sharding import Sharding
from ir.types import DType, TensorType

Stage = Literal["global", "plan", "spmd"]


@dataclass(frozen=True, slots=True)
class DeviceOrder:
    """The devices of a mesh, or of each group along some of its axes, in the order of those axes, major first."""

    mesh: Mesh
    axes: tuple[AxisRef, ...]


Attr: TypeAlias = (
    "int | float | complex | bool | str | DType | TensorType | tuple[Attr, ...] | AxisRef | DeviceOrder"
    "| HostFunction | None"
)
"""An attribute's value: hashable, printed and parsed by the language. Nested tuples hold array literals."""

_SHOWN = 4
"""The most operands whose names an op's short form has."""


@record(eq=False)
class Value:
    """One tensor. `sharding` is what was annotated or inferred.

    For a parameter of an SPMD entry, and of a manual region, `type` is one device's part and `of` the global type it is
    a shard of.
    """

    name: str
    type: TensorType
    sharding: Sharding | None = None
    span: Span | None = None
    of: TensorType | None = None

    def __repr__(self) -> str:
        return f"<Value {self.name}: {self.type}>"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype


@record(eq=False, weakref_slot=True)
class Region:
    """A block of ops with parameters, in order of definition, and the values that it returns. `within` caches its ops
    and those of regions inside them (`walk`)."""

    params: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[Value, ...]
    within: tuple[Op, ...] | None = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        return f"<Region of {len(self.ops)} ops>"


@record(eq=False, weakref_slot=True)
class Op:
    """One operation. `cause` says why a pass put it there and, for a reshard of a plan, what needs the value in this
    sharding. `strategy` says in a plan how the op is computed on shards (`passes.partition.spelling`). `signature`
    caches what follows from its name, attributes and types (`passes.signatures`)."""

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict[str, Attr])
    regions: tuple[Region, ...] = ()
    span: Span | None = None
    cause: Cause | None = None
    strategy: str = ""
    signature: object = field(default=None, init=False, repr=False)

    def __repr__(self) -> str:
        names = [v.name for v in self.operands]
        shown = ", ".join([*names[:_SHOWN], *["..."] * (len(names) > _SHOWN)])
        return f"<Op {self.label} = {self.name}({shown})>"

    @property
    def result(self) -> Value:
        """The only result."""
        (result,) = self.results
        return result

    @property
    def label(self) -> str:
        """The name of the first result, or of the op if it has none."""
        return self.results[0].name if self.results else self.name


@dataclass(frozen=True, slots=True)
class Result:
    """A function's result as its signature states it. `of` is set in the entry of an SPMD program, as in Value."""

    name: str
    type: TensorType
    sharding: Sharding | None = None
    of: TensorType | None = None
    span: Span | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A named region with a signature."""

    name: str
    body: Region
    results: tuple[Result, ...]
    span: Span | None = None

    def __repr__(self) -> str:
        return f"<Function {self.name} of {len(self.body.ops)} ops>"

    @property
    def params(self) -> tuple[Value, ...]:
        return self.body.params


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Program(Drawn):
    """A module: meshes, the first of which is the default, and functions in the order they were written.

    Calls do not recurse.
    """

    meshes: tuple[Mesh, ...]
    functions: Mapping[str, Function]
    stage: Stage = "global"
    entry: str = "main"
    source: Source | None = None
    weights: Mapping[str, Initializer] = field(default_factory=dict[str, Initializer])
    """The initial values of the entry's parameters that are trained, by name; its other parameters are inputs."""
    included: tuple[Source, ...] = ()
    """The files of our language that the source includes."""

    def __repr__(self) -> str:
        return f"<Program {self.summary}, {self.stage}>"

    @property
    def summary(self) -> str:
        """A short description: the entry, the number of ops and the mesh."""
        mesh = f" on mesh ({self.meshes[0]})" if self.meshes else ""
        return f"{self.entry} of {sum(1 for _ in all_ops(self)):,} ops{mesh}"

    @property
    def mesh(self) -> Mesh:
        """The mesh that the program is partitioned over."""
        return self.meshes[0]

    @property
    def main(self) -> Function:
        return self.functions[self.entry]


def callee_of(op: Op) -> str | None:
    """The name of the function that the op runs, if any."""
    name = op.attrs.get("function")
    return name if isinstance(name, str) else None


def called_in(region: Region) -> list[str]:
    """The names of the functions that ops of the region call, each once, in the order of their last calls."""
    names = [name for name in map(callee_of, walk(region)) if name is not None]
    return list(dict.fromkeys(reversed(names)))[::-1]


def callees_first(program: Program) -> list[Function]:
    """The functions in an order in which each comes after its callees. Calls must not recurse."""
    if len(program.functions) == 1:
        return list(program.functions.values())
    order: dict[str, None] = {}
    callees = {name: called_in(function.body) for name, function in program.functions.items()}
    stack = list(program.functions)[::-1]
    while stack:
        missing = [name for name in callees[stack[-1]] if name not in order]
        if missing:
            stack.extend(missing)
        else:
            order.setdefault(stack.pop())
    return [program.functions[name] for name in order]


def functions_with(program: Program, has: Callable[[Op, Collection[str]], bool]) -> frozenset[str]:
    """The functions with an op, in whatever region, that `has` accepts. It is given those of them that are known, which
    include all that the op may run."""
    found: set[str] = set()
    for function in callees_first(program):
        if any(has(op, found) for op in walk(function.body)):
            found.add(function.name)
    return frozenset(found)


def walk(region: Region) -> Sequence[Op]:
    """Every op of the region, regions inside ops included, in program order."""
    found = region.within
    if found is None:
        found = _walked(region) if any(op.regions for op in region.ops) else region.ops
        object.__setattr__(region, "within", found)
    return found


def _walked(region: Region) -> tuple[Op, ...]:
    found: list[Op] = []
    stack = [iter(region.ops)]
    while stack:
        for op in stack[-1]:
            found.append(op)
            if op.regions:
                stack.extend(iter(r.ops) for r in reversed(op.regions))
                break
        else:
            stack.pop()
    return tuple(found)


def all_ops(program: Program) -> Iterable[Op]:
    """Every op of every function."""
    bodies = [function.body for function in program.functions.values()]
    return walk(bodies[0]) if len(bodies) == 1 else chain.from_iterable(map(walk, bodies))


def all_regions(program: Program) -> Iterator[Region]:
    """The body of every function, and the regions of its ops."""
    for function in program.functions.values():
        yield function.body
        for op in walk(function.body):
            yield from op.regions


def values_within(region: Region) -> Iterator[Value]:
    """Every value that the region or one inside it defines: parameters, and results of ops."""
    yield from region.params
    for op in walk(region):
        yield from op.results
        for inner in op.regions:
            yield from inner.params


def values_of(op: Op) -> Iterator[Value]:
    """Operands, then results."""
    yield from op.operands
    yield from op.results


def used_around(op: Op) -> list[Value]:
    """The values from outside an op that its regions use, each once."""
    inside = {v for region in op.regions for v in values_within(region)}
    return [v for v in dict.fromkeys(used_inside(op)) if v not in inside]


def used_inside(op: Op) -> list[Value]:
    """The values that the regions of an op use, including parameters and results of ops inside."""
    used = [v for region in op.regions for v in region.results]
    for region in op.regions:
        for inner in walk(region):
            used.extend(inner.operands)
            used.extend(v for nested in inner.regions for v in nested.results)
    return used
