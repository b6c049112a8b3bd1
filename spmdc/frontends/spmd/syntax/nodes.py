"""What the parser makes of a text: a tree of frozen nodes, each with the stretch of source it came from.

Nothing is evaluated here: dims are expressions, sharding axes are names. `spmdc.frontends.spmd.expand`
gives them meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ir.diagnostics import Span
from ir.program import Stage as ProgramStage
from ir.records import quickly_made


@quickly_made
@dataclass(frozen=True, slots=True)
class Node:
    """Anything in the text."""

    span: Span


@quickly_made
@dataclass(frozen=True, slots=True)
class Number(Node):
    """An integer or a float."""

    value: int | float


@quickly_made
@dataclass(frozen=True, slots=True)
class Text(Node):
    """A string, its escapes resolved."""

    value: str


@quickly_made
@dataclass(frozen=True, slots=True)
class Name(Node):
    """A value, a const, an element type, a mesh axis or a word: its place shows which."""

    id: str


@quickly_made
@dataclass(frozen=True, slots=True)
class Literal(Node):
    """A nested list of plain numbers, read at once because it can be long."""

    value: tuple[object, ...]


@quickly_made
@dataclass(frozen=True, slots=True)
class Array(Node):
    """`[a, b, …]`."""

    items: tuple[Expr, ...]


@quickly_made
@dataclass(frozen=True, slots=True)
class Axis(Node):
    """A mesh axis, or `name:(pre)size`, a part of one. `part` is (pre, size)."""

    name: str
    part: tuple[int, int] | None = None


@quickly_made
@dataclass(frozen=True, slots=True)
class Tuple(Node):
    """`(a, b, …)` where it is no parenthesised expression: mesh axes."""

    items: tuple[Expr, ...]


@quickly_made
@dataclass(frozen=True, slots=True)
class Unary(Node):
    """`-a` or `~a`. A `grouped` one is in parentheses, so that `**` behind it does not bind tighter."""

    op: str
    operand: Expr
    grouped: bool = False


@quickly_made
@dataclass(frozen=True, slots=True)
class Binary(Node):
    """`a op b`. Left operands nest as deep as the chain is long."""

    op: str
    left: Expr
    right: Expr


@quickly_made
@dataclass(frozen=True, slots=True)
class Keyword(Node):
    """`name=value` among arguments."""

    name: str
    value: Expr


@quickly_made
@dataclass(frozen=True, slots=True)
class Call(Node):
    """`name(args, keywords)`: an op, a function or a composition; as an attribute, axes of a named mesh."""

    name: str
    name_span: Span
    args: tuple[Expr, ...]
    keywords: tuple[Keyword, ...]


@quickly_made
@dataclass(frozen=True, slots=True)
class Slice(Node):
    """`start:stop:step` in a subscript."""

    start: Expr | None
    stop: Expr | None
    step: Expr | None


@quickly_made
@dataclass(frozen=True, slots=True)
class Index(Node):
    """`base[parts]`; as an attribute, a tensor type."""

    base: Expr
    parts: tuple[Expr | Slice, ...]


@quickly_made
@dataclass(frozen=True, slots=True)
class Carried(Node):
    """`name: type = init` in the head of a loop."""

    target: Target
    init: Expr


@quickly_made
@dataclass(frozen=True, slots=True)
class While(Node):
    """A loop as an expression of as many results as it carries values. `head` ends behind the `)` of the values."""

    head: Span
    carried: tuple[Carried, ...]
    cond: tuple[Statement, ...]
    body: tuple[Statement, ...]


@quickly_made
@dataclass(frozen=True, slots=True)
class Repeat(Node):
    """`counter` runs from 0 to `bound` - 1: in the expansion if it is `unrolled`, and else when the program runs.
    `head` ends behind the `)` of the values."""

    head: Span
    counter: str
    counter_span: Span
    bound: Expr
    carried: tuple[Carried, ...]
    body: tuple[Statement, ...]
    unrolled: bool = True


@quickly_made
@dataclass(frozen=True, slots=True)
class Case(Node):
    """One of several blocks, chosen by an index; or, `by_truth`, of two, the first of `branches` behind `else`. `head`
    ends behind the `)`."""

    head: Span
    chooser: Expr
    branches: tuple[tuple[Statement, ...], ...]
    by_truth: bool = False


@quickly_made
@dataclass(frozen=True, slots=True)
class Passed(Node):
    """`name: local of type = value` in the head of a manual region, of which only the value need be there."""

    name: str
    local: TypeExpr | None
    of: TypeExpr | None
    value: Expr


@quickly_made
@dataclass(frozen=True, slots=True)
class Manual(Node):
    """A block that each device runs on its shards. `head` ends behind the `)`."""

    head: Span
    passed: tuple[Passed, ...]
    body: tuple[Statement, ...]


@quickly_made
@dataclass(frozen=True, slots=True)
class Checkpoint(Node):
    """A block of which a gradient keeps nothing, if a condition that may be there holds. `head` ends in front of the
    block."""

    head: Span
    condition: Expr | None
    body: tuple[Statement, ...]


@quickly_made
@dataclass(frozen=True, slots=True)
class Precision(Node):
    """A block whose floats are computed in an element type. `head` ends behind the `)`."""

    head: Span
    dtype: Expr
    body: tuple[Statement, ...]


Block = While | Repeat | Case | Manual | Checkpoint | Precision
Expr = Number | Text | Name | Literal | Array | Axis | Tuple | Unary | Binary | Call | Index | Block


@quickly_made
@dataclass(frozen=True, slots=True)
class DimExpr(Node):
    """A dim's size, and the axes that split it. `axes` is None if nothing is said of them."""

    size: Expr
    axes: tuple[Axis, ...] | None = None
    open: bool = False
    priority: int = 0


@quickly_made
@dataclass(frozen=True, slots=True)
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
        """Whether it says anything about placement."""
        return self.braces or any(d.axes is not None for d in self.dims)


@quickly_made
@dataclass(frozen=True, slots=True)
class Target(Node):
    """What a statement or a loop binds: a name, and its type if one is written."""

    name: str
    type: TypeExpr | None = None


@quickly_made
@dataclass(frozen=True, slots=True)
class Assign(Node):
    """`targets = value`. There are no targets where an op without results is alone."""

    targets: tuple[Target, ...]
    value: Expr


@quickly_made
@dataclass(frozen=True, slots=True)
class Return(Node):
    """`return values`."""

    values: tuple[Expr, ...]


@quickly_made
@dataclass(frozen=True, slots=True)
class Faulty(Node):
    """A statement that does not parse. The names it would have bound are known, to keep follow-up errors quiet."""

    names: tuple[str, ...]
    returns: bool = False
    words: tuple[Name, ...] = ()
    """All names in it, whatever they are."""


Statement = Assign | Return | Faulty


def blocks_of(value: Expr) -> tuple[tuple[Statement, ...], ...]:
    """The blocks that an expression consists of, if it does."""
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
    """What a statement evaluates."""
    match statement:
        case Assign():
            return (statement.value,)
        case Return():
            return statement.values
        case Faulty():
            return ()


def holds_manual(statements: Iterable[Statement]) -> bool:
    """Whether there is a manual region among the statements, or in their blocks."""
    values = [v for statement in statements for v in values_of(statement)]
    return any(isinstance(v, Manual) or any(map(holds_manual, blocks_of(v))) for v in values)


@quickly_made
@dataclass(frozen=True, slots=True)
class Const(Node):
    """`name = value` of a const item."""

    name: str
    value: Expr | None


@quickly_made
@dataclass(frozen=True, slots=True)
class MeshItem(Node):
    """`mesh name (x=4, y=2) devices=[…]`."""

    name: str
    axes: tuple[Const, ...]
    devices: Expr | None
    name_span: Span | None = None


@quickly_made
@dataclass(frozen=True, slots=True)
class Include(Node):
    """`include "gating.spmd"`."""

    path: str


@quickly_made
@dataclass(frozen=True, slots=True)
class DefaultPrecision(Node):
    """`precision (bf16)`: what the functions of a file compute floats in. `dtype` is None if it does not parse."""

    dtype: Expr | None


@quickly_made
@dataclass(frozen=True, slots=True)
class Stage(Node):
    """The line `spmd`, or `plan`."""

    stage: ProgramStage


@quickly_made
@dataclass(frozen=True, slots=True)
class Param(Node):
    """A parameter or a result of a function. A result may be without a name; `type` is None if it does not parse."""

    name: str
    type: TypeExpr | None
    initial: Expr | None = None
    """What a weight holds at first."""


@quickly_made
@dataclass(frozen=True, slots=True)
class FunctionItem(Node):
    """A function. `header` is None if its signature does not parse, and its results are if they are not found;
    `body` is None if its braces do not match; `unclosed` are then the statements behind the first of them.
    """

    name: str
    name_span: Span
    header: tuple[tuple[Param, ...], tuple[Param, ...] | None] | None
    body: tuple[Statement, ...] | None
    unclosed: tuple[Statement, ...] = ()


Item = tuple[Const, ...] | MeshItem | Include | DefaultPrecision | Stage | FunctionItem


@quickly_made
@dataclass(frozen=True, slots=True)
class Location:
    """What a trailing comment of the printed form says: where an op came from, and why it is there."""

    file: str
    line: int
    column: int
    reason: str


@quickly_made
@dataclass(frozen=True, slots=True)
class Module:
    """A whole text. `locations` are the trailing comments that have the form of one, by line. It `is_incomplete` where
    what it includes has errors."""

    items: tuple[Item, ...]
    locations: dict[int, Location]
    is_incomplete: bool = False
