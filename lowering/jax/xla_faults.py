"""Where a program could meet what XLA compiles wrongly or refuses, as listed in docs/jax.md with the versions that each
was seen with.

The emitters ask `Guards` where an op has to be written so that it cannot happen; everywhere else it is written as it
is. `tests/fuzz/op_chains.py` looks for more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from ir.closure import reached
from ir.dataflow import uses_of
from ir.ops import OPS
from ir.ops.control import links
from ir.ops.creation import constant_value
from ir.ops.indexing import gather_fill
from ir.ops.rule_helpers import int_attr
from ir.program import Op, Program, Value, all_ops, walk
from ir.types import DTYPES

MOVED_AS_BITS = frozenset({DTYPES["f8e5m2fnuz"]})
"""Types of which a `dynamic_update_slice` of shards moves the bits. Of whole tensors it is differentiated."""

_VIEWS = frozenset({"reshape", "transpose", "broadcast_in_dim", "slice", "reverse", "shard", "pad", "concatenate"})
"""Ops of which XLA may see that they return a part of their operand, or all of it, in another form."""

_RENAMING = frozenset({"reshape", "transpose", "broadcast_in_dim", "shard", "bitcast_convert"})
"""Ops whose result may be their operand's memory."""

_FUSED = frozenset({"control", "creation", "elementwise", "indexing", "layout", "reduction", "window"})
"""The families of ops whose results are not stored before what is behind them is computed."""

_JOINING = frozenset({"pad", "concatenate", "dynamic_update_slice"})
_BY_PARTS = frozenset({"elementwise", "layout"})
"""The families of ops that XLA computes part by part if that is simpler."""

_ANYWHERE = ("", 0)
"""The place of parameters, and of results of ops with regions: behind some ops, and before others."""


@dataclass(frozen=True)
class Guards:
    """Where the ops around one would let XLA go wrong. Ops are named by their first results.

    `clamped`: gathers and dynamic_slices whose places are clamped beforehand. `apart`: operands that are behind a
    barrier in the op that has this result. `twice`: updates in a loop of two iterations.
    """

    clamped: frozenset[Value] = frozenset()
    apart: frozenset[Value] = frozenset()
    twice: frozenset[Value] = frozenset()


def guards_of(program: Program) -> Guards:
    """The guards that the program needs."""
    flow = _Flow(program)
    clamped: set[Value] = set()
    apart: set[Value] = set()
    twice: set[Value] = set()
    for op in all_ops(program):
        if op.name in ("gather", "scatter", "dynamic_slice"):
            _of_boxes(flow, op, clamped, apart)
        if _is_update_of_one_box(op) and _overwrites_what_it_reads(flow, op):
            twice.add(op.result)
        sends = OPS[op.name].communication
        if sends is not None and sends.cut and op.operands[0] in flow.with_parts:
            apart.add(op.result)
        if _changes_width(op) and any(map(_changes_width, flow.makers(op.operands[0], _renames_bits))):
            apart.add(op.result)
    return Guards(frozenset(clamped), frozenset(apart), frozenset(twice))


class _Flow:
    """Where values come from, through calls, into loops and out of choices."""

    def __init__(self, program: Program) -> None:
        self.maker: dict[Value, Op] = {}
        self.uses = uses_of(program)
        self.same: dict[Value, list[Value]] = {}
        params = program.main.params if program.stage == "spmd" else ()
        self.shards = {p for p in params if p.sharding is not None and any(p.sharding.axes)}
        self.place: dict[Value, tuple[str, int]] = {}
        for name, function in program.functions.items():
            for i, op in enumerate(walk(function.body)):
                self._enter(program, op)
                if not op.regions:
                    self.place.update(dict.fromkeys(op.results, (name, i)))

    def _enter(self, program: Program, op: Op) -> None:
        passed_on = list(links(program, op))
        for link in passed_on:
            if not link.next_turn:
                self._join(link.targets, link.sources)
        if not passed_on:
            self.maker.update(dict.fromkeys(op.results, op))

    def _join(self, targets: Iterable[Value], sources: Iterable[Value]) -> None:
        for target, source in zip(targets, sources, strict=True):
            self.same.setdefault(target, []).append(source)

    def back(self, value: Value, through: Callable[[Op], bool]) -> dict[Value, None]:
        """The value, and what it is made of by ops that are walked `through`, nearest first."""
        return dict.fromkeys(self._walk_back(value, through))

    def is_made_of(self, value: Value, roots: Collection[Value], through: Callable[[Op], bool]) -> bool:
        """Whether it is one of `roots`, or made of them by ops that are walked `through`. What their function computes
        before the first of them is not, so that a walk from one of many updates does not go through all before it."""
        places = [self.place.get(root, _ANYWHERE) for root in roots]
        function, first = min(places)
        one = function if all(name == function for name, _ in places) else None

        def is_before(v: Value) -> bool:
            name, i = self.place.get(v, _ANYWHERE)
            return name == one and i < first

        return any(v in roots for v in self._walk_back(value, through, is_before))

    def _walk_back(
        self, value: Value, through: Callable[[Op], bool], ends: Callable[[Value], bool] = lambda _: False
    ) -> Iterator[Value]:
        """What `back` says, no further than where it `ends`."""

        def before(at: Value) -> Sequence[Value]:
            maker = self.maker.get(at)
            operands = maker.operands if maker is not None and through(maker) else ()
            return () if ends(at) else (*operands, *self.same.get(at, ()))

        return reached([value], before)

    def onward(self, values: Iterable[Value], through: Callable[[Op], bool]) -> set[Value]:
        """The values, and what is made of them by ops that are walked `through`."""
        becomes: dict[Value, list[Value]] = {}
        for target, sources in self.same.items():
            for source in sources:
                becomes.setdefault(source, []).append(target)

        def behind(at: Value) -> Sequence[Value]:
            made = [v for op in self.uses.users.get(at, ()) if through(op) for v in op.results if v in self.maker]
            return (*made, *becomes.get(at, ()))

        return set(reached(values, behind))

    @cached_property
    def with_parts(self) -> set[Value]:
        """The values of which XLA may come to see the parts as tensors that have nothing to do with each other."""
        joined = (value for value, maker in self.maker.items() if maker.name in _JOINING)
        shared = (value for value in {**self.uses.users, **self.uses.given} if self.uses.count(value) > 1)
        return self.onward(joined, lambda op: OPS[op.name].family in _BY_PARTS) | self.onward(shared, _is_view)

    def number(self, value: Value) -> object:
        """The number that a scalar is, or the scalar itself where that is not known."""
        number = constant_value(self.maker.get(value))
        return number if number is not None else value

    def makers(self, value: Value, through: Callable[[Op], bool]) -> list[Op]:
        """The ops that made these."""
        return [self.maker[v] for v in self.back(value, through) if v in self.maker]


def _is_view(op: Op) -> bool:
    return op.name in _VIEWS or (op.name == "reduce" and op.operands[0].type.size == op.results[0].type.size)


def _renames_bits(op: Op) -> bool:
    return _is_view(op) or (op.name == "bitcast_convert" and not _changes_width(op))


def _is_fused(op: Op) -> bool:
    return OPS[op.name].family in _FUSED


def _of_boxes(flow: _Flow, op: Op, clamped: set[Value], apart: set[Value]) -> None:
    """A box of a box. A shard that comes in is one too, where the program runs inside of a function of `jax.jit` that
    has it whole."""
    boxes = [o for o in flow.makers(op.operands[0], _is_view) if _is_clamping(o)]
    if not boxes and flow.shards.isdisjoint(flow.back(op.operands[0], _is_view)):
        return
    if op.name == "scatter":
        apart.add(op.result)
        return
    clamped.update(o.result for o in (op, *boxes) if _is_clamping(o))


def _is_clamping(op: Op) -> bool:
    return op.name == "dynamic_slice" or (op.name == "gather" and gather_fill(op) is None)


def _is_update_of_one_box(op: Op) -> bool:
    """Whether XLA makes a `dynamic_update_slice` of it, if it is none: a `scatter` of more boxes stays one."""
    if op.name != "scatter":
        return op.name == "dynamic_update_slice"
    vector = int_attr(op.attrs, "index_vector_dim")
    return math.prod(n for dim, n in enumerate(op.operands[1].shape) if dim != vector) <= 1


def _overwrites_what_it_reads(flow: _Flow, op: Op) -> bool:
    """Whether what is updated may be the memory that the update is read from; at the same place, that is as well."""
    operand, update = op.operands[0], op.operands[2 if op.name == "scatter" else 1]
    roots = {v for v in flow.back(operand, lambda maker: maker.name in _RENAMING) if not _is_made_of_nothing(flow, v)}
    if not roots or not flow.is_made_of(update, roots, _is_fused):
        return False
    return op.name == "scatter" or not _is_read_where_it_is_written(flow, op, roots)


def _is_made_of_nothing(flow: _Flow, value: Value) -> bool:
    maker = flow.maker.get(value)
    return maker is not None and not maker.operands


def _is_read_where_it_is_written(flow: _Flow, op: Op, roots: set[Value]) -> bool:
    """Whether each element of the update is computed of the element that it replaces, and of other values."""
    operand, update, *starts = op.operands
    box = [operand, *map(flow.number, starts)]

    def through(maker: Op) -> bool:
        return OPS[maker.name].family == "elementwise" and maker.name != "bitcast_convert"

    for value in flow.back(update, through):
        maker = flow.maker.get(value)
        if maker is not None and through(maker):
            continue
        if maker is not None and maker.name == "dynamic_slice":
            read, *places = maker.operands
            if [read, *map(flow.number, places)] == box:
                continue
        if flow.is_made_of(value, roots, _is_fused):
            return False
    return True


def _changes_width(op: Op) -> bool:
    return op.name == "bitcast_convert" and op.operands[0].dtype.bits != op.result.dtype.bits
