"""Expands loops: `repeat` is unrolled, `while` and `loop` become the op `while`.

A `loop` has a counter and a trip count that is known at compile time; so it has a gradient, which is a loop again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ir.builder import RegionBuilder
from ir.diagnostics import Span, SpmdcError, error
from ir.program import Attr, Region, Value
from ir.sharding import Sharding
from ir.types import TensorType, pred, s32
from spmdc.frontends.spmd.expand.context import Statements
from spmdc.frontends.spmd.expand.sharded_types import to_become
from spmdc.frontends.spmd.items import Item, PoisonedError, Scope, describe, expect_int, one_or_several
from spmdc.frontends.spmd.syntax import nodes as s

_MAX_UNROLLED = 4096
_MAX_ROUNDS = 2**31 - 1
_MAX_OPS = 200_000
_BODY = "the body of the loop"


@dataclass(frozen=True, slots=True)
class _Carried:
    """A carried value: its name, its initial value, and its written type."""

    target: s.Target
    item: Item
    declared: TensorType | None = None
    sharding: Sharding | None = None


def expand_loop(block: Statements, node: s.While | s.Repeat) -> Item:
    """The results of a loop. Its blocks see the values around it.

    Raises SpmdcError (E201, E202, E405, and errors of types), or PoisonedError.
    """
    if isinstance(node, s.While):
        return _while(block, node)
    rounds = expect_int(block.evaluator.expr(node.bound), node.bound.span, "the number of rounds")
    most = _MAX_UNROLLED if node.unrolled else _MAX_ROUNDS
    if not 0 <= rounds <= most:
        message = f"{'repeat unrolls' if node.unrolled else 'loop has'} 0 to {most:,} rounds, and is asked for {rounds}"
        help = "loop k < n (…) {…} loops when the program runs" if node.unrolled else ""
        raise error("E201", message, node.bound.span, help=help)
    carried = [_begun(block, entry) for entry in node.carried]
    return _unrolled(block, node, rounds, carried) if node.unrolled else _counted(block, node, rounds, carried)


def _begun(block: Statements, entry: s.Carried) -> _Carried:
    declared, sharding = block.declared(entry.target)
    item = block.evaluator.expr(entry.init)
    if declared is not None and not isinstance(item, Value):
        item = block.evaluator.emitter.tensor(item, declared)
    elif declared is not None and isinstance(item, Value):
        item = block.evaluator.emitter.as_declared(item, declared)
    if declared is not None and isinstance(item, Value) and item.type != declared:
        message = f"{entry.target.name!r} is declared {declared}, and begins as {item.type}"
        raise error("E202", message, entry.init.span, help=to_become(declared, item.type))
    return _Carried(entry.target, item, declared, sharding)


def _rule(names: Sequence[str]) -> str:
    return f"it returns the next {', '.join(names)}, in this order and of the types with which the loop begins"


# Loops at run time.


class _Loop:
    """A `while` under construction: its initial tensors, and the parameters of both regions."""

    def __init__(self, block: Statements, head: Span, carried: Sequence[_Carried]) -> None:
        self.block = block
        self.head = head
        self.carried = carried
        block.evaluator.emitter.span = head
        self.inits: list[Value] = []
        self.names: list[str] = []
        for entry in carried:
            self.inits.append(block.evaluator.emitter.tensor(entry.item))
            self.names.append(block.claims.claim(entry.target.name))

    def region(self, write: Callable[[Statements], list[Value] | None]) -> Region | None:
        """A region whose results are those that `write` returns for its block; None if that has errors."""
        inner = self.block.inner(Scope(self.block.scope), RegionBuilder(self.block.claims.names), self.head)
        for entry, name, init in zip(self.carried, self.names, self.inits, strict=True):
            param = Value(name, init.type, entry.sharding, entry.target.span)
            if isinstance(entry.item, int | float) and entry.declared is None:
                self.block.context.begun[param] = entry.target.name, entry.item
            inner.builder.params.append(param)
            inner.scope.bind(entry.target.name, param, entry.target.span)
        results = write(inner)
        return inner.builder.region(*results) if results is not None else None

    def returned(
        self, inner: Statements, statements: Sequence[s.Statement], hints: Sequence[str], types: Sequence[TensorType],
        what: str, rule: str, carried: Sequence[Value] = (),
    ) -> list[Value] | None:  # fmt: skip
        """The tensors that the statements return; None if there are errors, which are reported."""
        given = inner.run(statements, hints, self.head, what)
        if given is None:
            return None
        try:
            return inner.results(given, types, what, rule, carried)
        except SpmdcError as problem:
            self.block.report(problem)
            return None

    def returned_body(
        self, inner: Statements, statements: Sequence[s.Statement], carried: Sequence[Value]
    ) -> list[Value] | None:
        """The tensors that the body returns for the next round; `carried` are its parameters for them."""
        names = [entry.target.name for entry in self.carried[len(self.carried) - len(carried) :]]
        return self.returned(inner, statements, names, [v.type for v in carried], _BODY, _rule(names), carried)

    def op(self, cond: Region | None, body: Region | None, attrs: dict[str, Attr]) -> tuple[Value, ...]:
        if cond is None or body is None:
            raise PoisonedError
        return self.block.evaluator.emitter.ops("while", self.inits, attrs, span=self.head, regions=(cond, body))


def _while(block: Statements, node: s.While) -> Item:
    attrs: dict[str, Attr] = {}
    carried: list[_Carried] = []
    for entry in node.carried:
        if entry.target.name == "trip_count" and entry.target.type is None:
            attrs["trip_count"] = expect_int(block.evaluator.expr(entry.init), entry.init.span, "trip_count")
        else:
            carried.append(_begun(block, entry))
    loop = _Loop(block, node.span, carried)
    go = [TensorType((), pred)]
    what, rule = "the condition of the loop", "it is a truth value, as in return i < 3"
    cond = loop.region(lambda inner: loop.returned(inner, node.cond, ["go"], go, what, rule))
    body = loop.region(lambda inner: loop.returned_body(inner, node.body, inner.builder.params))
    return one_or_several(loop.op(cond, body, attrs))


def _counted(block: Statements, node: s.Repeat, rounds: int, carried: Sequence[_Carried]) -> Item:
    """A `while` that carries its counter, an s32[], in front of the other values. The final counter is not a result."""
    counter = _Carried(s.Target(node.counter_span, node.counter), 0, TensorType((), s32))
    loop = _Loop(block, node.span, [counter, *carried])

    def go(inner: Statements) -> list[Value]:
        return [inner.evaluator.emitter.infix("<", inner.builder.params[0], rounds)]

    def body(inner: Statements) -> list[Value] | None:
        results = loop.returned_body(inner, node.body, inner.builder.params[1:])
        if results is None:
            return None
        return [inner.evaluator.emitter.infix("+", inner.builder.params[0], 1), *results]

    _, *results = loop.op(loop.region(go), loop.region(body), {"trip_count": rounds})
    return one_or_several(tuple(results))


# Unrolled loops.


def _unrolled(block: Statements, node: s.Repeat, rounds: int, carried: Sequence[_Carried]) -> Item:
    """The iterations in sequence: the counter is a number in each."""
    items = tuple(c.item for c in carried)
    for counter in range(rounds):
        items = _round(block, node, counter, carried, items)
        if len(block.builder.ops) > _MAX_OPS:
            raise error(
                "E201",
                f"unrolled, the loop has more than {_MAX_OPS:,} ops",
                node.span,
                help="write `loop` instead of `repeat`: it stays a loop, and its counter is a tensor",
            )
    return block.together(items)


def _round(
    block: Statements, node: s.Repeat, counter: int, carried: Sequence[_Carried], items: tuple[Item, ...]
) -> tuple[Item, ...]:
    """One iteration of an unrolled loop: the items that the next one begins with."""
    inner = block.inner(Scope(block.scope), block.builder, node.span)
    inner.scope.bind(node.counter, counter, node.counter_span)
    for entry, item in zip(carried, items, strict=True):
        target, placed = entry.target, item
        if entry.sharding is not None and isinstance(item, Value) and item.sharding != entry.sharding:
            block.evaluator.emitter.hint = target.name
            placed = block.settle(item, target.name, entry.sharding, set())
        inner.scope.bind(target.name, placed, target.span)
    returned = inner.run(node.body, [c.target.name for c in carried], node.span, _BODY)
    if returned is None:
        raise PoisonedError
    if len(returned.items) != len(carried):
        message = f"the body returns {len(returned.items)} values, and the loop carries {len(carried)}"
        raise error("E405", message, returned.span, help=_rule([c.target.name for c in carried]))
    for entry, (item, span) in zip(carried, returned.items, strict=True):
        if entry.declared is not None and not (isinstance(item, Value) and item.type == entry.declared):
            message = f"{entry.target.name!r} is declared {entry.declared}, and the body returns {describe(item)}"
            raise error("E405", message, span, help="what repeat carries may change its type if none is written")
    return tuple(item for item, _ in returned.items)
