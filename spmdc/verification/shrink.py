"""Shrinks a program that shows a fault, as long as it shows it: fewer ops, results, annotations, axes, elements.

Works on any global program: `spmdc verify` shrinks a user's program by it, and `spmdc.testing.check_equivalence` those
that hypothesis draws. An op's producers are dropped by making its operands parameters, its users by returning its
results.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ir.builder import infer_types
from ir.closure import reached
from ir.diagnostics import SpmdcError
from ir.mesh import AxisRef, Mesh
from ir.ops import OPS
from ir.ops.control import is_choice, is_loop
from ir.program import (
    Attr,
    Function,
    Op,
    Program,
    Region,
    Result,
    Value,
    all_ops,
    callee_of,
    used_around,
    values_within,
    walk,
)
from ir.sharding import DimSharding, Sharding
from ir.types import TensorType, pred
from ir.verify.program import verify as find_problems
from passes.optimize.dce import eliminate_dead_code
from passes.rewrite import map_values

Fails = Callable[[Program], bool]
T = TypeVar("T")

_MOST_TRIES = 1000
_SHAPES = ("shape", "limit", "sizes", "slice_sizes", "length")
"""Attributes that hold sizes of dims."""


def shrink(program: Program, fails: Fails, most_tries: int = _MOST_TRIES) -> Program:
    """The smallest program found for which `fails` holds; it must hold for the given one.

    Only valid programs are tried, and no more than `most_tries`.
    """
    return _Shrinker(fails, most_tries).run(program)


class _Shrinker:
    def __init__(self, fails: Fails, most_tries: int) -> None:
        self.fails = fails
        self.left = most_tries

    def run(self, program: Program) -> Program:
        before = None
        while before is not program:
            before = program
            program = self._fewer(program, lambda p: p.main.body.ops, _with_ops)
            program = self._fewer(program, lambda p: range(len(p.main.results)), _with_results)
            for simpler in _SIMPLER:
                program = self._greedily(program, simpler)
        return program

    def accepts(self, candidate: Program) -> bool:
        if self.left <= 0 or find_problems(candidate):
            return False
        self.left -= 1
        return self.fails(candidate)

    def _fewer(
        self, program: Program, parts: Callable[[Program], Sequence[T]], keep: Callable[[Program, Sequence[T]], Program]
    ) -> Program:
        """Drops runs of parts: halves first, then ever shorter ones (Zeller's delta debugging)."""
        length = len(parts(program)) // 2
        while length:
            at = 0
            while at < len(kept := parts(program)):
                rest = [*kept[:at], *kept[at + length :]]
                candidate = keep(program, rest) if rest else program
                if len(parts(candidate)) < len(kept) and self.accepts(candidate):
                    program = candidate
                else:
                    at += length
            length //= 2
        return program

    def _greedily(self, program: Program, simpler: Callable[[Program], Iterator[Program]]) -> Program:
        """Takes the first simpler program that still fails, and continues from it."""
        found: Program | None = program
        while found is not None:
            program = found
            found = next(filter(self.accepts, simpler(program)), None)
        return program


# Fewer ops and results.


def _with_main(program: Program, main: Function) -> Program:
    """The program with another entry and only the functions that it needs."""
    whole = eliminate_dead_code(replace(program, functions={**program.functions, main.name: main}))
    main = whole.main
    used = {v for op in main.body.ops for v in _uses(op)} | set(main.body.results)
    params = tuple(p for p in main.params if p in used)
    main = replace(main, body=replace(main.body, params=params))
    called = set(reached([main.name], lambda name: _callees(whole.functions[name])))
    functions = {n: main if n == main.name else f for n, f in whole.functions.items() if n in called}
    return replace(whole, functions=functions)


def _with_body(program: Program, function: Function, body: Region) -> Program:
    """The program with another body of a function."""
    functions = {**program.functions, function.name: replace(function, body=body)}
    whole = replace(program, functions=functions)
    return _with_main(whole, whole.main)


def _callees(function: Function) -> set[str]:
    return {name for op in walk(function.body) if (name := callee_of(op)) is not None}


def _uses(op: Op) -> list[Value]:
    """The values from outside that the op and its regions use."""
    return [*op.operands, *used_around(op)]


def _with_ops(program: Program, ops: Sequence[Op]) -> Program:
    """Main with only these of its ops: values that other ops made become parameters, values that others used become
    results.

    Constants stay with their users, and the values that determine how often a loop runs stay with the loop.
    """
    main = program.main
    ops = _with_what_they_need(main.body.ops, ops)
    made = dict.fromkeys(v for op in ops for v in op.results)
    lost = [v for op in main.body.ops for v in op.results if v not in made]
    kept = set(ops)
    wanted = {v for op in main.body.ops if op not in kept for v in _uses(op)}
    values = list(main.body.results)
    signature = list(main.results)
    for v in made:
        if v in wanted and v not in values:
            values.append(v)
            signature.append(Result(f"{v.name}.out", v.type))
    pairs = [(v, r) for v, r in zip(values, signature, strict=True) if v in made]
    body = Region((*main.params, *lost), tuple(ops), tuple(v for v, _ in pairs))
    return _with_main(program, replace(main, body=body, results=tuple(r for _, r in pairs)))


def _with_what_they_need(every: Sequence[Op], ops: Sequence[Op]) -> list[Op]:
    kept = set(ops)
    needed: set[Value] = set()
    anchored: set[Value] = set()
    for op in reversed(every):
        if any(v in anchored for v in op.results):
            kept.add(op)
            anchored.update(_uses(op))
        if not op.operands and not op.regions and any(v in needed for v in op.results):
            kept.add(op)
        if op in kept:
            needed.update(_uses(op))
            anchored.update(_counters(op))
    return [op for op in every if op in kept]


def _counters(op: Op) -> list[Value]:
    """The operands that determine how often a loop runs: for one that counts its trips, only scalar integers."""
    if not is_loop(op):
        return []
    counted = op.attrs["trip_count"] is not None
    return [v for v in op.operands if not counted or _may_count(v)]


def _may_count(value: Value) -> bool:
    return not value.type.rank and (value.dtype.is_integer or value.dtype == pred)


def _with_results(program: Program, numbers: Sequence[int]) -> Program:
    main = program.main
    body = replace(main.body, results=tuple(main.body.results[i] for i in numbers))
    return _with_main(program, replace(main, body=body, results=tuple(main.results[i] for i in numbers)))


def _without_entry(program: Program) -> Iterator[Program]:
    """The program with a function that main calls as the entry."""
    for name in sorted(_callees(program.main)):
        function = replace(program.functions[name], name=program.entry)
        yield _with_main(program, function)


def _without_an_op(program: Program) -> Iterator[Program]:
    """The program with an operand in place of a result of its type, in any region."""
    for function in program.functions.values():
        for op in _replaceable(function.body):
            for by in _replacements(op):
                yield _with_body(program, function, _replaced(function.body, op, by))


def _replaceable(region: Region, *, looping: bool = False) -> Iterator[Op]:
    """The ops, except those that may determine how often a loop runs."""
    for op in region.ops:
        if not looping or not any(_may_count(v) for v in op.results):
            yield op
        if not is_loop(op) or op.attrs["trip_count"] is not None:
            for inner in op.regions:
                yield from _replaceable(inner, looping=looping or is_loop(op))


def _replacements(op: Op) -> Iterator[dict[Value, Value]]:
    if len(op.results) == 1:
        yield from ({op.result: v} for v in dict.fromkeys(op.operands) if v.type == op.result.type)
        return
    types = [v.type for v in op.operands]
    if types == [v.type for v in op.results]:
        yield dict(zip(op.results, op.operands, strict=True))


def _replaced(region: Region, dropped: Op, by: Mapping[Value, Value], instead: Sequence[Op] = ()) -> Region:
    """The region with other ops in place of one, and other values in place of its results."""
    ops = tuple(
        replace(
            op,
            operands=tuple(by.get(v, v) for v in op.operands),
            regions=tuple(_replaced(r, dropped, by, instead) for r in op.regions),
        )
        for kept in region.ops
        for op in (instead if kept is dropped else (kept,))
    )
    return Region(region.params, ops, tuple(by.get(v, v) for v in region.results))


def _without_a_region(program: Program) -> Iterator[Program]:
    """The program with one branch of a choice, or a loop's body once, in place of the whole."""
    for function in program.functions.values():
        for op in walk(function.body):
            for region in op.regions if is_choice(op) else op.regions[1:] if is_loop(op) else ():
                given = dict(zip(region.params, op.operands, strict=True)) if region.params else {}
                results = [given.get(v, v) for v in region.results]
                by = given | dict(zip(op.results, results, strict=True))
                yield _with_body(program, function, _replaced(function.body, op, by, region.ops))


# Fewer annotations and axes.


Place = Value | tuple[str, int]
"""The place of an annotation: a value, or a result of a function, by its number."""


def _annotations(program: Program) -> Iterator[tuple[Place, Sharding]]:
    for function in program.functions.values():
        places: list[tuple[Place, Sharding | None]] = [(v, v.sharding) for v in values_within(function.body)]
        places += [((function.name, i), r.sharding) for i, r in enumerate(function.results)]
        yield from ((place, sharding) for place, sharding in places if sharding is not None)


def _with_shardings(program: Program, new: Mapping[Place, Sharding | None]) -> Program:
    """The program with other annotations in these places."""

    def result(function: Function, i: int) -> Result:
        own = function.results[i]
        return replace(own, sharding=new.get((function.name, i), own.sharding))

    return map_values(program, lambda v: replace(v, sharding=new.get(v, v.sharding)), result)


def _without_an_annotation(program: Program) -> Iterator[Program]:
    for place, sharding in _annotations(program):
        for simpler in (None, *_simpler_shardings(sharding)):
            yield _with_shardings(program, {place: simpler})


def _simpler_shardings(s: Sharding) -> Iterator[Sharding]:
    if s.partial:
        yield replace(s, partial=())
    if s.replicated:
        yield replace(s, replicated=())
    plain = tuple(DimSharding(d.axes) for d in s.dims)
    if plain != s.dims:
        yield replace(s, dims=plain)
    for number, dim in enumerate(s.dims):
        for axis in dim.axes:
            fewer = replace(dim, axes=tuple(a for a in dim.axes if a != axis))
            yield replace(s, dims=tuple(fewer if i == number else d for i, d in enumerate(s.dims)))


def _with_meshes(program: Program, meshes: Mapping[Mesh, Mesh | None], axis: Callable[[AxisRef], AxisRef]) -> Program:
    """The program over other meshes; axes of size 1 after it are left out of shardings."""

    def moved(s: Sharding) -> Sharding | None:
        mesh = meshes[s.mesh]
        if mesh is None:
            return None
        return s.with_axes(lambda axes: tuple(a for a in map(axis, axes) if a.size > 1), mesh)

    kept = tuple(mesh for m in program.meshes if (mesh := meshes[m]) is not None)
    new = {place: moved(sharding) for place, sharding in _annotations(program)}
    return replace(_with_shardings(program, new), meshes=kept)


def _smaller_meshes(program: Program) -> Iterator[Program]:
    same: dict[Mesh, Mesh | None] = {m: m for m in program.meshes}
    for mesh in program.meshes[1:]:
        yield _with_meshes(program, {**same, mesh: None}, lambda a: a)
    for mesh in program.meshes:
        if mesh.devices is not None:
            yield _with_meshes(program, {**same, mesh: replace(mesh, devices=None)}, lambda a: a)
    if len(program.meshes) > 1:
        return
    mesh = program.mesh
    for name, size in mesh.axes:
        for smaller in (1, *(n for n in (2, 3, 4) if n < size)):
            axes = tuple((n, smaller if n == name else s) for n, s in mesh.axes if n != name or smaller > 1)
            resized = Mesh(axes, name=mesh.name)
            yield _with_meshes(program, {mesh: resized}, partial(_resized, name, smaller))


def _resized(name: str, size: int, axis: AxisRef) -> AxisRef:
    """The axis when the one of that name has another size; of a part of it, what is left."""
    if axis.name != name:
        return axis
    return AxisRef(name, min(axis.pre, size), max(1, min(axis.size, size // min(axis.pre, size))))


# Smaller dims.


def _smaller_sizes(program: Program) -> Iterator[Program]:
    sizes = {n for p in program.main.params for n in p.shape}
    sizes |= {n for op in all_ops(program) for v in op.results for n in v.shape}
    for size in sorted(sizes, reverse=True):
        for smaller in dict.fromkeys(n for n in (1, 2, 3, size // 2, size - 1) if 0 < n < size):
            retyped = _retyped(program, {size: smaller})
            if retyped is not None and _elements(retyped) < _elements(program):
                yield retyped


def _elements(program: Program) -> int:
    params = sum(p.type.size for f in program.functions.values() for p in f.params)
    return params + sum(v.type.size for op in all_ops(program) for v in op.results)


def _retyped(program: Program, sizes: Mapping[int, int]) -> Program | None:
    """The program with other sizes in place of these, wherever they occur; types are inferred again. None if one cannot
    be."""
    retyper = _Retyper(sizes)
    functions: dict[str, Function] = {}
    with contextlib.suppress(SpmdcError):
        for function in program.functions.values():
            body = retyper.region(function.body, [retyper.type(p.type) for p in function.params])
            results = tuple(replace(r, type=v.type) for r, v in zip(function.results, body.results, strict=True))
            functions[function.name] = replace(function, body=body, results=results)
        return replace(program, functions=functions)
    return None


class _Retyper:
    """Copies regions with other sizes of dims."""

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self.sizes = sizes
        self.copies: dict[Value, Value] = {}

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.sizes.get(n, n) for n in shape)

    def type(self, type: TensorType) -> TensorType:
        return type.with_shape(self.shape(type.shape))

    def region(self, region: Region, params: Sequence[TensorType]) -> Region:
        for param, type in zip(region.params, params, strict=True):
            self.copies[param] = replace(param, type=type)
        ops = tuple(self._op(op) for op in region.ops)
        copy = self.copies.__getitem__
        return Region(tuple(map(copy, region.params)), ops, tuple(map(copy, region.results)))

    def _op(self, op: Op) -> Op:
        operands = tuple(map(self.copies.__getitem__, op.operands))
        attrs = {name: self._attr(name, value) for name, value in op.attrs.items()}
        regions = tuple(self.region(r, [v.type for v in operands] if r.params else []) for r in op.regions)
        if OPS[op.name].is_typed_by_contents:
            types: Sequence[TensorType] = [self.type(v.type) for v in op.results]
        else:
            types = infer_types(op.name, [v.type for v in operands], dict(attrs))
        results = tuple(replace(v, type=t) for v, t in zip(op.results, types, strict=True))
        self.copies.update(zip(op.results, results, strict=True))
        return replace(op, operands=operands, results=results, attrs=attrs, regions=regions)

    def _attr(self, name: str, value: Attr) -> Attr:
        if isinstance(value, TensorType):
            return self.type(value)
        if name in _SHAPES and isinstance(value, tuple):
            return self.shape([n for n in value if isinstance(n, int)])
        return value


_SIMPLER: tuple[Callable[[Program], Iterator[Program]], ...] = (
    _without_entry,
    _without_a_region,
    _without_an_op,
    _smaller_meshes,
    _without_an_annotation,
    _smaller_sizes,
)
