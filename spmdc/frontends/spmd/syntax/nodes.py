"""The syntax tree: frozen nodes, each with its span in the source. That of an expression with blocks ends before the
first of them.

Nothing is evaluated here: dims are expressions, sharding axes are names. `spmdc.frontends.spmd.expand`
gives them meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ir.diagnostics import Source, Span
from ir.program import Stage as ProgramStage
from ir.records import record


@record
class Node:
    """Anything in the text."""

    span: Span


@record
class Number(Node):
    """An integer or a float."""

    value: int | float


@record
class Text(Node):
    """A string, its escapes resolved."""

    value: str


@record
class Name(Node):
    """A value, a const, an element type, a mesh axis or a word, depending on its position."""

    id: str


@record
class Literal(Node):
    """A nested list of plain numbers, read at once because it can be long."""

    value: tuple[object, ...]


@record
class Array(Node):
    """`[a, b, …]`."""

    items: tuple[Expr, ...]


@record
class Axis(Node):
    """A mesh axis, or `name:(pre)size`, a part of one. `part` is (pre, size)."""

    name: str
    part: tuple[int, int] | None = None


@record
class Tuple(Node):
    """`(a, b, …)` that is not a parenthesised expression: mesh axes."""

    items: tuple[Expr, ...]


@record
class Unary(Node):
    """`-a` or `~a`. A `grouped` one is in parentheses, so that a following `**` does not bind tighter."""

    op: str
    operand: Expr
    grouped: bool = False


@record
class Binary(Node):
    """`a op b`. Left operands nest as deep as the chain is long."""

    op: str
    left: Expr
    right: Expr


@record
class Keyword(Node):
    """`name=value` among arguments."""

    name: str
    value: Expr


@record
class Call(Node):
    """`name(args, keywords)`: an op, a function or a composition; as an attribute, axes of a named mesh."""

    name: str
    name_span: Span
    args: tuple[Expr, ...]
    keywords: tuple[Keyword, ...]


@record
class Slice(Node):
    """`start:stop:step` in a subscript."""

    start: Expr | None
    stop: Expr | None
    step: Expr | None


@record
class Index(Node):
    """`base[parts]`; as an attribute, a tensor type."""

    base: Expr
    parts: tuple[Expr | Slice, ...]


@record
class Carried(Node):
    """`name: type = init` in the head of a loop."""

    target: Target
    init: Expr


@record
class While(Node):
    """A loop as an expression with as many results as it carries values."""

    carried: tuple[Carried, ...]
    cond: tuple[Statement, ...]
    body: tuple[Statement, ...]


@record
class Repeat(Node):
    """`counter` runs from 0 to `bound` - 1: during expansion if it is `unrolled`, otherwise at run time."""

    counter: str
    counter_span: Span
    bound: Expr
    carried: tuple[Carried, ...]
    body: tuple[Statement, ...]
    unrolled: bool = True


@record
class Case(Node):
    """One of several blocks, chosen by an index; or, `by_truth`, one of two, the first of `branches` being the one
    after `else`."""

    chooser: Expr
    branches: tuple[tuple[Statement, ...], ...]
    by_truth: bool = False


@record
class Passed(Node):
    """`name: local of type = value` in the head of a manual region. Only the value is required."""

    name: str
    local: TypeExpr | None
    of: TypeExpr | None
    value: Expr


@record
class Manual(Node):
    """A block that each device runs on its shards."""

    passed: tuple[Passed, ...]
    body: tuple[Statement, ...]


@record
class Checkpoint(Node):
    """A block whose intermediate values a gradient does not keep, if its optional condition holds."""

    condition: Expr | None
    body: tuple[Statement, ...]


@record
class Precision(Node):
    """A block whose floats are computed in an element type."""

    dtype: Expr
    body: tuple[Statement, ...]


Block = While | Repeat | Case | Manual | Checkpoint | Precision
Expr = Number | Text | Name | Literal | Array | Axis | Tuple | Unary | Binary | Call | Index | Block


@record
class DimExpr(Node):
    """A dim's size, and the axes that split it. `axes` is None if they are not specified."""

    size: Expr
    axes: tuple[Axis, ...] | None = None
    open: bool = False
    priority: int = 0


@record
class TypeExpr(Node):
    """`f32[8@x, 4]{partial: y}`. `braces` says whether there were braces, `of` is the global type of a shard."""

    dtype: str
    dims: tuple[DimExpr, ...]
    partial: tuple[tuple[Axis, str], ...] = ()
    replicated: tuple[Axis, ...] = ()
    braces: bool = False
    of: TypeExpr | None = None

    @property
    def annotated(self) -> bool:
        """Whether it specifies any part of a sharding."""
        return self.braces or any(d.axes is not None for d in self.dims)


@record
class Target(Node):
    """A name that a statement or a loop binds, and its type if one is written."""

    name: str
    type: TypeExpr | None = None


@record
class Assign(Node):
    """`targets = value`. Without targets it is an op without results."""

    targets: tuple[Target, ...]
    value: Expr


@record
class Return(Node):
    """`return values`."""

    values: tuple[Expr, ...]


@record
class Faulty(Node):
    """A statement that does not parse. The names that it would have bound are known, to avoid follow-up errors."""

    names: tuple[str, ...]
    returns: bool = False
    is_block: bool = False
    """Whether it is a block that is neither named nor returned."""
    words: tuple[Name, ...] = ()
    """All names in it, whatever they are."""


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """What assignments with the same tokens have in common: all but the names of the target and of arguments. `first`
    is the first of them; `others` are the other names in them, without those of keywords and of what is called."""

    first: Assign
    others: tuple[str, ...]


@record(eq=False)
class Repeated:
    """An assignment like the first of its pattern, with its own names of the target and of the arguments, which is not
    built yet. `value_span` is that of the call after the `=`."""

    pattern: Pattern
    name: str
    name_span: Span
    arguments: tuple[str, ...]
    value_span: Span
    build: Callable[[], Assign]

    def __eq__(self, other: object) -> bool:
        return self.build() == (other.build() if isinstance(other, Repeated) else other)

    def __hash__(self) -> int:
        return hash(self.build())

    @property
    def span(self) -> Span:
        first, last = self.name_span, self.value_span
        return Span(first.source, first.line, first.column, last.end_line, last.end_column)


Statement = Assign | Return | Faulty | Repeated


def blocks_of(value: Expr) -> tuple[tuple[Statement, ...], ...]:
    """The blocks of an expression, if it has any."""
    match value:
        case While():
            return (value.cond, value.body)
        case Repeat() | Manual() | Checkpoint() | Precision():
            return (value.body,)
        case Case():
            return value.branches
        case _:
            return ()


def values_of(statement: Statement) -> tuple[Expr, ...]:
    """The expressions of a statement."""
    match statement:
        case Assign():
            return (statement.value,)
        case Repeated():
            return (statement.build().value,)
        case Return():
            return statement.values
        case Faulty():
            return ()


def holds_manual(statements: Iterable[Statement]) -> bool:
    """Whether the statements, or their blocks, contain a manual region."""
    values = [v for statement in statements if not isinstance(statement, Repeated) for v in values_of(statement)]
    return any(isinstance(v, Manual) or any(map(holds_manual, blocks_of(v))) for v in values)


@record
class Const(Node):
    """`name = value` of a const item."""

    name: str
    value: Expr | None


@record
class MeshItem(Node):
    """`mesh name (x=4, y=2) devices=[…]`."""

    name: str
    axes: tuple[Const, ...]
    devices: Expr | None
    name_span: Span | None = None


@record
class Include(Node):
    """`include "gating.spmd"`."""

    path: str


@record
class DefaultPrecision(Node):
    """`precision (bf16)`: the precision of floats in a file's functions. `dtype` is None if it does not parse."""

    dtype: Expr | None


@record
class Stage(Node):
    """The line `spmd`, or `plan`."""

    stage: ProgramStage


@record
class Param(Node):
    """A parameter or a result of a function. A result may have no name; `type` is None if it does not parse."""

    name: str
    type: TypeExpr | None
    initial: Expr | None = None
    """The initial value of a weight."""


@record
class FunctionItem(Node):
    """A function. `header` is None if its signature does not parse, and `results` if they are not found; `body` is None
    if its braces do not match; `unclosed` then has the statements after the first of them."""

    name: str
    name_span: Span
    header: tuple[tuple[Param, ...], tuple[Param, ...] | None] | None
    body: tuple[Statement, ...] | None
    unclosed: tuple[Statement, ...] = ()


Item = tuple[Const, ...] | MeshItem | Include | DefaultPrecision | Stage | FunctionItem


@record
class Location:
    """The contents of a trailing comment of the printed form: where an op came from, and why it is there."""

    file: str
    line: int
    column: int
    reason: str


@record
class Module:
    """A whole text. `locations` has the trailing comments in the form of a location, by line. It `is_incomplete` if an
    included file has errors. `included` are the files that are in its items."""

    items: tuple[Item, ...]
    locations: dict[int, Location]
    is_incomplete: bool = False
    included: tuple[Source, ...] = ()
