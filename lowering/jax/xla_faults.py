"""Finds where a program could be compiled incorrectly, or rejected, by XLA. docs/jax.md lists the faults, with the
versions that each was seen with.

The emitters use `Guards` to write such ops so that the fault cannot happen; all other ops are written as they are.
`tests/fuzz/op_chains.py` searches for more.
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
"""Types whose bits a `dynamic_update_slice` of shards moves. On whole tensors the op itself is used, because it may be
differentiated."""

ROUNDED_TO_NAN = frozenset({DTYPES["f8e3m4"]})
"""Types whose constants XLA rounds to NaN."""

_VIEWS = frozenset({"reshape", "transpose", "broadcast_in_dim", "slice", "reverse", "shard", "pad", "concatenate"})
"""Ops that XLA may recognise as returning a part of their operand, or all of it, in another form."""

_RENAMING = frozenset({"reshape", "transpose", "broadcast_in_dim", "shard", "bitcast_convert"})
"""Ops whose result may share their operand's memory."""

_FUSED = frozenset({"control", "creation", "elementwise", "indexing", "layout", "reduction", "window"})
"""The op families whose results may be fused into later ops instead of being stored."""

_JOINING = frozenset({"pad", "concatenate", "dynamic_update_slice"})
_BY_PARTS = frozenset({"elementwise", "layout"})
"""The op families that XLA may compute part by part."""

_ANYWHERE = ("", 0)
"""The position of parameters, and of results of ops with regions: it may be before or after any op."""


@dataclass(frozen=True)
class Guards:
    """The ops around which XLA could go wrong. Ops are identified by their first results.

    `clamped` has gathers, dynamic_slices and updates whose indices are clamped beforehand. `apart` has operands that
    get a barrier in the op with this result. `twice` has updates that are written in a loop of two iterations.
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
    updates: list[Op] = []
    for op in all_ops(program):
        if op.name in ("gather", "scatter", "dynamic_slice"):
            _of_boxes(flow, op, clamped, apart)
        if op.name == "dynamic_update_slice":
            updates.append(op)
        if _is_update_of_one_box(op) and _overwrites_what_it_reads(flow, op):
            twice.add(op.result)
        sends = OPS[op.name].communication
        if sends is not None and sends.cut and op.operands[0] in flow.with_parts:
            apart.add(op.result)
        if _changes_width(op) and any(map(_changes_width, flow.makers(op.operands[0], _renames_bits))):
            apart.add(op.result)
    clamped.update(op.result for op in updates if _replaces_what_is_clamped(flow, op, clamped))
    return Guards(frozenset(clamped), frozenset(apart), frozenset(twice))


class _Flow:
    """The dataflow of a program, through calls, loops and choices."""

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
        """The value and what it is computed from by ops that satisfy `through`, nearest first."""
        return dict.fromkeys(self._walk_back(value, through))

    def is_made_of(self, value: Value, roots: Collection[Value], through: Callable[[Op], bool]) -> bool:
        """Whether it is one of `roots`, or computed from them by ops that satisfy `through`. The search does not go
        before the first of the roots in their function, so that a search from one of many updates does not visit all
        earlier ones."""
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
        """The values of `back`, up to those where it `ends`."""

        def before(at: Value) -> Sequence[Value]:
            maker = self.maker.get(at)
            operands = maker.operands if maker is not None and through(maker) else ()
            return () if ends(at) else (*operands, *self.same.get(at, ()))

        return reached([value], before)

    def onward(self, values: Iterable[Value], through: Callable[[Op], bool]) -> set[Value]:
        """The values, and what is computed from them by ops that satisfy `through`."""
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
        """The values whose parts XLA may come to treat as independent tensors."""
        joined = (value for value, maker in self.maker.items() if maker.name in _JOINING)
        shared = (value for value in {**self.uses.users, **self.uses.given} if self.uses.count(value) > 1)
        return self.onward(joined, lambda op: OPS[op.name].family in _BY_PARTS) | self.onward(shared, _is_view)

    def number(self, value: Value) -> object:
        """The number that a scalar equals, or the scalar itself if that is not known."""
        number = constant_value(self.maker.get(value))
        return number if number is not None else value

    def makers(self, value: Value, through: Callable[[Op], bool]) -> list[Op]:
        """The ops that make the values of `back`."""
        return [self.maker[v] for v in self.back(value, through) if v in self.maker]


def _is_view(op: Op) -> bool:
    return op.name in _VIEWS or (op.name == "reduce" and op.operands[0].type.size == op.results[0].type.size)


def _renames_bits(op: Op) -> bool:
    return _is_view(op) or (op.name == "bitcast_convert" and not _changes_width(op))


def _is_fused(op: Op) -> bool:
    return OPS[op.name].family in _FUSED


def _of_boxes(flow: _Flow, op: Op, clamped: set[Value], apart: set[Value]) -> None:
    """Guards a box of a box. A shard that is passed in is such a box too, if the program runs inside a function of
    `jax.jit` that has the tensor whole."""
    boxes = [o for o in flow.makers(op.operands[0], _is_view) if _is_clamping(o)]
    if not boxes and flow.shards.isdisjoint(flow.back(op.operands[0], _is_view)):
        return
    if op.name == "scatter":
        apart.add(op.result)
        return
    clamped.update(o.result for o in (op, *boxes) if _is_clamping(o))


def _replaces_what_is_clamped(flow: _Flow, update: Op, clamped: Collection[Value]) -> bool:
    """Whether the update is of a box that is read too, with its starts clamped: XLA updates a tensor in place only if
    the starts of both are alike."""
    operand, _, *starts = update.operands
    others = flow.uses.users.get(operand, ())
    return any(op.name == "dynamic_slice" and op.result in clamped and [*op.operands[1:]] == starts for op in others)


def _is_clamping(op: Op) -> bool:
    return op.name == "dynamic_slice" or (op.name == "gather" and gather_fill(op) is None)


def _is_update_of_one_box(op: Op) -> bool:
    """Whether XLA turns it into a `dynamic_update_slice`, if it is none: a `scatter` of several boxes stays a
    scatter."""
    if op.name != "scatter":
        return op.name == "dynamic_update_slice"
    vector = int_attr(op.attrs, "index_vector_dim")
    return math.prod(n for dim, n in enumerate(op.operands[1].shape) if dim != vector) <= 1


def _overwrites_what_it_reads(flow: _Flow, op: Op) -> bool:
    """Whether the update may be read from the memory that is updated. It is harmless at the same position."""
    operand, update = op.operands[0], op.operands[2 if op.name == "scatter" else 1]
    roots = {v for v in flow.back(operand, lambda maker: maker.name in _RENAMING) if not _is_made_of_nothing(flow, v)}
    if not roots or not flow.is_made_of(update, roots, _is_fused):
        return False
    return op.name == "scatter" or not _is_read_where_it_is_written(flow, op, roots)


def _is_made_of_nothing(flow: _Flow, value: Value) -> bool:
    maker = flow.maker.get(value)
    return maker is not None and not maker.operands


def _is_read_where_it_is_written(flow: _Flow, op: Op, roots: set[Value]) -> bool:
    """Whether each element of the update is computed from the element that it replaces, and from other values."""
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
