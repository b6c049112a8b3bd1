"""The definition of each name in a text: values, consts, functions, meshes and axes.

Names are resolved in everything that can be parsed, with errors or not; in a statement that does not parse, by the
names in scope there.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias, TypeVar

from ir.diagnostics import Span
from ir.initializers import DRAWN
from ir.ops import OPS, AttrDef
from ir.program import Stage
from ir.types import DTYPES
from spmdc.frontends.spmd.expand.annotations import ANNOTATIONS
from spmdc.frontends.spmd.expand.attributes import axis_nodes
from spmdc.frontends.spmd.expand.constants import FUNCTIONS
from spmdc.frontends.spmd.library import COMPOSITIONS
from spmdc.frontends.spmd.syntax import nodes as s

Kind = Literal["value", "parameter", "result", "const", "function", "mesh", "axis"]
Place = tuple[int, int]
_END: Place = (1 << 62, 0)
_UNRESOLVED = frozenset({"word", "text", "dtype", "host"})
"""The kinds of attributes whose words are not names of the text."""


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """The definition of a name: where it is, in which function, and the range of the text in which it is visible.
    `node` is the defining node, and `made` the span of the whole statement."""

    name: str
    kind: Kind
    span: Span
    function: str
    node: s.Node
    made: Span
    visible: tuple[Place, Place]


@dataclass(frozen=True, slots=True)
class Word:
    """A name of the language: an op or a composition, or with `attribute`, an attribute or parameter of it."""

    name: str
    attribute: str = ""


Part = TypeVar("Part")
Target: TypeAlias = Definition | Word


@dataclass(frozen=True, slots=True)
class Occurrence:
    """An occurrence of a name, and what it refers to there."""

    span: Span
    target: Target


@dataclass(frozen=True, eq=False)
class Names:
    """The names of a text, in order of position. The first occurrence of a definition is the definition itself."""

    occurrences: Sequence[Occurrence]

    def at(self, place: Place) -> Occurrence | None:
        """The name at a line and column, or just before it."""
        i = bisect.bisect_right(self.occurrences, place, key=lambda o: (o.span.line, o.span.column)) - 1
        if i < 0:
            return None
        span = self.occurrences[i].span
        return self.occurrences[i] if span.line == place[0] and place[1] <= span.end_column else None

    def of(self, definition: Definition) -> list[Occurrence]:
        """The occurrences of a definition and its uses."""
        return [o for o in self.occurrences if o.target is definition]

    def within(self, span: Span) -> Iterator[Occurrence]:
        """The names in a span of the text."""
        first, last = (span.line, span.column), (span.end_line, span.end_column)
        start = bisect.bisect_left(self.occurrences, first, key=lambda o: (o.span.line, o.span.column))
        for o in self.occurrences[start:]:
            if (o.span.line, o.span.column) >= last:
                return
            yield o

    @cached_property
    def definitions(self) -> Sequence[Definition]:
        """All definitions in the text itself."""
        found = dict.fromkeys(o.target for o in self.occurrences if isinstance(o.target, Definition))
        own = self.occurrences[0].span.source if self.occurrences else None
        return [definition for definition in found if definition.span.source is own]

    def visible_at(self, place: Place) -> Mapping[str, Definition]:
        """The visible definitions at a position, with those of inner blocks in place of outer ones."""
        found = [d for d in self.definitions if d.visible[0] <= place < d.visible[1] and d.kind != "result"]
        return {d.name: d for d in sorted(found, key=lambda d: d.visible[0])}


def names_of(module: s.Module, whole: s.Module | None = None) -> Names:
    """The names of a text, resolved in it and in what it includes, which is in the whole module."""
    return Names(sorted(_Finder(module, whole or module).occurrences, key=lambda o: (o.span.line, o.span.column)))


def _elsewhere(name: str, kind: Kind, span: Span, node: s.Node, function: str = "") -> Definition:
    return Definition(name, kind, _only(span, name), function, node, span, ((0, 0), _END))


@dataclass
class _Scope:
    """The names of a block, which ends at `end`."""

    end: Place
    function: str = ""
    parent: _Scope | None = None
    items: dict[str, Definition] = field(default_factory=dict[str, Definition])

    def find(self, name: str) -> Definition | None:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.items:
                return scope.items[name]
            scope = scope.parent
        return None

    def inner(self, end: Place) -> _Scope:
        return _Scope(end, self.function, self)


class _Finder:
    """Walks the tree of a text as the expansion does, and records what each name refers to."""

    def __init__(self, module: s.Module, whole: s.Module) -> None:
        self.occurrences: list[Occurrence] = []
        self.consts = _Scope(_END)
        self.axes = _Scope(_END)
        self.functions: dict[str, tuple[Definition, Mapping[str, Definition]]] = {}
        self.stage: Stage = next((item.stage for item in module.items if isinstance(item, s.Stage)), "global")
        own = set(map(id, module.items))
        for item in whole.items:
            if id(item) not in own:
                self.include(item)
        for item in module.items:
            self.declare(item)
        items = [item for item in module.items if isinstance(item, s.FunctionItem)]
        for item, end in _until_next(items, [item.name_span for item in items], _END):
            self.function(item, end)

    def define(
        self, scope: _Scope, name: str, kind: Kind, span: Span, node: s.Node, made: Span | None = None
    ) -> Definition:
        """Defines a name, which is visible after its definition."""
        first = _only(span, name)
        start = (first.line, first.end_column) if made is None else (made.end_line, made.end_column)
        definition = Definition(name, kind, first, scope.function, node, made or span, (start, scope.end))
        scope.items.setdefault(name, definition)
        self.occurrences.append(Occurrence(first, definition))
        return definition

    def refer(self, span: Span, name: str, target: Target | None) -> None:
        if target is not None:
            self.occurrences.append(Occurrence(_only(span, name), target))

    # Items.

    def include(self, item: s.Item) -> None:
        """Adds the definitions of another file."""
        if isinstance(item, s.FunctionItem):
            params = (item.header or ((), ()))[0]
            known = {p.name: _elsewhere(p.name, "parameter", p.span, p, item.name) for p in params}
            self.functions[item.name] = _elsewhere(item.name, "function", item.name_span, item), known
        elif isinstance(item, tuple):
            self.consts.items.update({c.name: _elsewhere(c.name, "const", c.span, c) for c in item})

    def declare(self, item: s.Item) -> None:
        if isinstance(item, tuple):
            for const in item:
                self.expr(self.consts, const.value)
                self.define(self.consts, const.name, "const", const.span, const)
        elif isinstance(item, s.MeshItem):
            self.expr(self.consts, item.devices)
            if item.name_span is not None:
                self.define(self.axes, item.name, "mesh", item.name_span, item)
            for axis in item.axes:
                self.expr(self.consts, axis.value)
                self.define(self.axes, axis.name, "axis", axis.span, axis)
        elif isinstance(item, s.DefaultPrecision):
            self.expr(self.consts, item.dtype)
        elif isinstance(item, s.FunctionItem) and item.name not in self.functions:
            function = self.define(_Scope(_END), item.name, "function", item.name_span, item)
            self.functions[item.name] = function, {}

    def function(self, item: s.FunctionItem, end: Place) -> None:
        scope = _Scope(end, item.name, self.consts)
        params, results = item.header or ((), ())
        for param in params:
            self.type(scope, param.type)
            if param.initial is not None:
                self.initial(param.initial)
            if param.name:
                self.define(scope, param.name, "parameter", param.span, param)
        self.functions[item.name] = self.functions[item.name][0], dict(scope.items)
        for result in results or ():
            self.type(scope, result.type)
            if result.name:
                self.define(_Scope((0, 0), item.name), result.name, "result", result.span, result)
        self.statements(scope, item.body or item.unclosed)

    def initial(self, node: s.Expr) -> None:
        """Names in the initial value of a weight: consts, or a distribution, whatever functions the program has."""
        if not isinstance(node, s.Call) or node.name not in DRAWN:
            self.expr(self.consts, node)
            return
        self.refer(node.name_span, node.name, Word(node.name))
        self.exprs(self.consts, node.args)
        for keyword in node.keywords:
            self.refer(keyword.span, keyword.name, Word(node.name, keyword.name))
            self.expr(self.consts, keyword.value)

    # Statements.

    def statements(self, scope: _Scope, statements: Sequence[s.Statement]) -> None:
        for statement, end in _until_next(statements, [each.span for each in statements], scope.end):
            self.statement(scope, statement, end)

    def statement(self, scope: _Scope, statement: s.Statement, end: Place) -> None:
        if isinstance(statement, s.Faulty):
            self.faulty(scope, statement, end)
            return
        statement = statement.build() if isinstance(statement, s.Repeated) else statement
        targets = statement.targets if isinstance(statement, s.Assign) else ()
        for target in targets:
            self.type(scope, target.type)
        for value in s.values_of(statement):
            self.expr(scope, value, end)
        for target in targets:
            self.define(scope, target.name, "value", target.span, target, statement.span)

    def faulty(self, scope: _Scope, statement: s.Faulty, end: Place) -> None:
        targets = [word for word in statement.words if word.id in statement.names]
        first = {word.id: word for word in reversed(targets)}
        for word in statement.words:
            if first.get(word.id) is not word:
                self.refer(word.span, word.id, self.meant(scope, word.id))
        for word in first.values():
            made = Span(word.span.source, word.span.line, word.span.column, *end)
            self.define(scope, word.id, "value", word.span, word, made)

    def meant(self, scope: _Scope, name: str) -> Target | None:
        """The referent of a name whose kind cannot be determined."""
        function = self.functions.get(name)
        found = scope.find(name) or (function[0] if function is not None else None)
        return found or (Word(name) if name in _CALLED else self.axes.find(name))

    # Types.

    def type(self, scope: _Scope, node: s.TypeExpr | None) -> None:
        while node is not None:
            self.refer(node.span, node.dtype, scope.find(node.dtype) if node.dtype not in DTYPES else None)
            for dim in node.dims:
                self.expr(scope, dim.size)
            split = [axis for dim in node.dims for axis in dim.axes or ()]
            for axis in (*split, *(axis for axis, _ in node.partial), *node.replicated):
                self.axis(axis)
            node = node.of

    def axis(self, axis: s.Axis) -> None:
        self.refer(axis.span, axis.name, self.axes.find(axis.name))

    # Expressions.

    def exprs(self, scope: _Scope, nodes: Iterable[s.Expr]) -> None:
        for node in nodes:
            self.expr(scope, node)

    def expr(self, scope: _Scope, node: s.Expr | s.Slice | None, end: Place = _END) -> None:
        """Records the names of an expression. Its blocks, if any, end at `end`."""
        match node:
            case s.Name(span=span, id=name):
                self.refer(span, name, scope.find(name) or self.axes.find(name))
            case s.Axis():
                self.axis(node)
            case s.Call():
                self.call(scope, node)
            case s.Binary():
                self.binary(scope, node)
            case s.Unary():
                self.expr(scope, node.operand)
            case s.Array() | s.Tuple():
                self.exprs(scope, node.items)
            case s.Index():
                self.expr(scope, node.base)
                for part in node.parts:
                    self.expr(scope, part)
            case s.Slice():
                for bound in (node.start, node.stop, node.step):
                    self.expr(scope, bound)
            case s.While() | s.Repeat() | s.Case() | s.Manual() | s.Checkpoint() | s.Precision():
                self.blocks(scope, node, end)

    def binary(self, scope: _Scope, node: s.Binary) -> None:
        """Chains are visited along their left side without recursion, so they may be long."""
        first: s.Expr = node
        while isinstance(first, s.Binary):
            self.expr(scope, first.right)
            first = first.left
        self.expr(scope, first)

    def call(self, scope: _Scope, node: s.Call) -> None:
        function = self.functions.get(node.name)
        opdef = OPS.get(node.name)
        is_op = opdef is not None and self.stage in opdef.stages and node.name not in COMPOSITIONS
        if function is not None and not is_op:
            self.refer(node.name_span, node.name, function[0])
            self.exprs(scope, node.args)
            for keyword in node.keywords:
                self.refer(keyword.span, keyword.name, function[1].get(keyword.name))
                self.expr(scope, keyword.value)
            return
        if node.name in _CALLED:
            self.refer(node.name_span, node.name, Word(node.name))
        attrs = _attributes(node)
        for argument, attr in zip(node.args, attrs, strict=True):
            self.argument(scope, argument, attr)
        for keyword in node.keywords:
            self.refer(keyword.span, keyword.name, Word(node.name, keyword.name))
            self.argument(scope, keyword.value, opdef.attr(keyword.name) if opdef is not None else None)

    def argument(self, scope: _Scope, node: s.Expr, attr: AttrDef | None) -> None:
        """Records the names of an operand or, with `attr`, of an attribute."""
        if attr is not None and attr.kind in _UNRESOLVED:
            return
        if attr is not None and attr.kind == "function":
            function = self.functions.get(node.id) if isinstance(node, s.Name) else None
            self.refer(node.span, node.id if isinstance(node, s.Name) else "", function[0] if function else None)
            return
        if attr is None or attr.kind not in ("axes", "order"):
            self.expr(scope, node)
            return
        named = node
        if isinstance(node, s.Call):
            self.refer(node.name_span, node.name, self.axes.find(node.name))
            named = s.Tuple(node.span, node.args)
        for axis in axis_nodes(named) or ():
            self.axis(axis)

    # Blocks.

    def blocks(self, scope: _Scope, node: s.Block, end: Place) -> None:
        inner = scope.inner(end)
        if isinstance(node, s.While | s.Repeat):
            for entry in node.carried:
                self.type(scope, entry.target.type)
                self.expr(scope, entry.init)
            for entry in node.carried:
                if entry.target.name != "trip_count" or entry.target.type is not None:
                    self.define(inner, entry.target.name, "value", entry.target.span, entry.target)
        if isinstance(node, s.Repeat):
            self.expr(scope, node.bound)
            self.define(inner, node.counter, "value", node.counter_span, node)
        if isinstance(node, s.Case):
            self.expr(scope, node.chooser)
        if isinstance(node, s.Checkpoint) and node.condition is not None:
            self.expr(scope, node.condition)
        if isinstance(node, s.Precision):
            self.expr(scope, node.dtype)
        if isinstance(node, s.Manual):
            self.passed(scope, inner, node)
        blocks = sorted(filter(None, s.blocks_of(node)), key=lambda block: (block[0].span.line, block[0].span.column))
        for block, stop in _until_next(blocks, [block[0].span for block in blocks], end):
            self.statements(inner.inner(stop), block)

    def passed(self, scope: _Scope, inner: _Scope, node: s.Manual) -> None:
        for passed in node.passed:
            is_axes = passed.name == "axes" and passed.local is None and passed.of is None
            self.type(scope, passed.local)
            self.type(scope, passed.of)
            if is_axes:
                for axis in axis_nodes(passed.value) or ():
                    self.axis(axis)
                continue
            self.expr(scope, passed.value)
            self.define(inner, passed.name, "parameter", passed.span, passed)


_CALLED = frozenset({*OPS, *COMPOSITIONS, *ANNOTATIONS, *FUNCTIONS})


def _attributes(node: s.Call) -> list[AttrDef | None]:
    """For each positional argument of a call, its attribute; None for operands."""
    opdef = OPS.get(node.name)
    if opdef is None or opdef.operands is None or node.name in COMPOSITIONS:
        return [None] * len(node.args)
    count = min(opdef.operands, len(node.args))
    rest = len(node.args) - count
    return [None] * count + [*opdef.attrs[:rest], *[None] * (rest - len(opdef.attrs))]


def _until_next(parts: Iterable[Part], spans: Sequence[Span], end: Place) -> Iterator[tuple[Part, Place]]:
    """Each part with the position at which the next one begins, and the last one with `end`."""
    return zip(parts, [*[(span.line, span.column) for span in spans[1:]], end], strict=False)


def _only(span: Span, name: str) -> Span:
    """The span of the name at the beginning of a span."""
    return Span(span.source, span.line, span.column, span.line, span.column + len(name))
