"""Blocks of a program whose intermediate values a gradient does not keep, but recomputes in the backward pass.

The blocks are what a program repeats: the bodies of loops, and functions that it calls. Each may become the region of a
`checkpoint` op. A loop's counters stay outside of it, because they determine how often the loop runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ir.builder import Names
from ir.closure import reached
from ir.ops import OPS
from ir.ops.control import is_call, is_loop
from ir.program import Function, Op, Program, Region, Value, callee_of, callees_first, functions_with, used_inside, walk
from passes.cost.model import trips_of
from passes.rewrite import with_parts


@dataclass(frozen=True, slots=True)
class Block:
    """The `ops` that run a block: one loop, or all calls of one function. `kept` is the bytes of the floats that the
    block computes in one run of the program, on all devices together, of which a gradient keeps a part."""

    name: str
    ops: tuple[Op, ...]
    kept: int


def blocks_of(program: Program) -> list[Block]:
    """The blocks that are no checkpoints yet, those with the most bytes to keep first. Blocks that call the host are
    left out: the effect of a callback must happen once."""
    made, hosts = _bytes_made(program), functions_with(program, _calls_the_host)
    found: list[Block] = []
    calls: dict[str, list[Op]] = {}
    for op in itertools.chain(*(_outside_checkpoints(f.body) for f in program.functions.values())):
        if any(_calls_the_host(each, hosts) for each in (op, *itertools.chain(*map(walk, op.regions)))):
            continue
        if is_call(op):
            calls.setdefault(callee_of(op) or "", []).append(op)
        elif is_loop(op) and not _is_checkpointed(op):
            found.append(Block(_name_of(op), (op,), _bytes_made_by(op, made)))
    found += [Block(f"{name}(…)", tuple(ops), len(ops) * made[name]) for name, ops in calls.items()]
    return sorted((block for block in found if block.kept), key=lambda block: -block.kept)


def checkpointed(program: Program, ops: Collection[Op]) -> Program:
    """The program with these loops and calls turned into checkpoints."""
    chosen = frozenset(ops)
    functions: dict[str, Function] = {}
    for name, function in program.functions.items():
        names = Names.beside(function)
        functions[name] = with_parts(function, body=_checkpointed(function.body, chosen, names))
    return with_parts(program, functions=functions)


def _checkpointed(region: Region, chosen: Collection[Op], names: Names) -> Region:
    ops: list[Op] = []
    for op in region.ops:
        inside = with_parts(op, regions=tuple([_checkpointed(r, chosen, names) for r in op.regions]))
        if op in chosen and is_call(op):
            results = _renamed(op.results, names)
            inside = _checkpoint((with_parts(inside, results=results),), results, op.results)
        elif op in chosen:
            condition, body = inside.regions
            inside = with_parts(inside, regions=(condition, _body(body, names)))
        ops.append(inside)
    return with_parts(region, ops=tuple(ops))


def _body(body: Region, names: Names) -> Region:
    """The body of a loop with everything but its counters in a checkpoint."""
    counting = _needed_for(filter(_is_a_counter, body.results), body.ops)
    inside = tuple([op for op in body.ops if op not in counting])
    made = {v for op in inside for v in op.results}
    results = tuple(dict.fromkeys(v for v in body.results if v in made))
    if not results:
        return body
    outside = _renamed(results, names)
    new = dict(zip(results, outside, strict=True))
    block = _checkpoint(inside, results, outside)
    apart = [op for op in body.ops if op in counting]
    return Region(body.params, (*apart, block), tuple([new.get(v, v) for v in body.results]))


def _checkpoint(ops: Sequence[Op], inside: Sequence[Value], outside: Sequence[Value]) -> Op:
    """A checkpoint of these ops. It returns the values `inside` as the values `outside`."""
    region = Region((), tuple(ops), tuple(inside))
    return Op("checkpoint", (), tuple(outside), {}, (region,), ops[-1].span)


def _renamed(values: Iterable[Value], names: Names) -> tuple[Value, ...]:
    return tuple([Value(names.fresh(v.name), v.type, v.sharding, v.span) for v in values])


def _needed_for(values: Iterable[Value], ops: Sequence[Op]) -> frozenset[Op]:
    """The ops, among `ops`, that these values depend on."""
    makers = {v: op for op in ops for v in op.results}

    def made(values: Iterable[Value]) -> list[Op]:
        return [makers[v] for v in values if v in makers]

    return frozenset(reached(made(values), lambda op: made((*op.operands, *used_inside(op)))))


def _is_a_counter(value: Value) -> bool:
    return not value.shape and value.dtype.is_integer


def _name_of(loop: Op) -> str:
    name = next((v.name for v in loop.results if not _is_a_counter(v)), loop.name)
    return f"the loop of {name} at line {loop.span.line}" if loop.span is not None else f"the loop of {name}"


def _is_checkpointed(loop: Op) -> bool:
    """Whether all that the loop carries, except its counters, is computed in checkpoints already."""
    body = loop.regions[1]
    made = {v: op.name for op in body.ops for v in op.results}
    return all(made.get(v, "checkpoint") == "checkpoint" for v in body.results if not _is_a_counter(v))


def _outside_checkpoints(region: Region) -> Iterator[Op]:
    for op in region.ops:
        if op.name != "checkpoint":
            yield op
            for inner in op.regions:
                yield from _outside_checkpoints(inner)


def _calls_the_host(op: Op, functions: Collection[str]) -> bool:
    return OPS[op.name].family == "host" or callee_of(op) in functions


def _bytes_made(program: Program) -> Mapping[str, int]:
    """The bytes of the floats that a call of each function computes."""
    made: dict[str, int] = {}
    for function in callees_first(program):
        made[function.name] = sum(_bytes_made_by(op, made) for op in function.body.ops)
    return made


def _bytes_made_by(op: Op, made: Mapping[str, int]) -> int:
    if is_call(op):
        return made[callee_of(op) or ""]
    own = sum(v.type.nbytes for v in op.results if v.dtype.is_float)
    inside = sum(_bytes_made_by(each, made) for region in op.regions for each in region.ops)
    return own + (trips_of(op) if is_loop(op) else 1) * inside
