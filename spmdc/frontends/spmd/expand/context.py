"""The state of a program while its functions are expanded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from ir.builder import RegionBuilder
from ir.diagnostics import Diagnostics, Source, Span, SpmdcError
from ir.initializers import Initializer
from ir.program import Result, Stage, Value
from ir.sharding import Sharding
from ir.types import DType, TensorType
from spmdc.frontends.spmd.expand.name_scope import NameScope, Returned
from spmdc.frontends.spmd.expand.repetition import Expansion
from spmdc.frontends.spmd.expand.sharded_types import Meshes
from spmdc.frontends.spmd.items import Faults, Item, Number, Scope
from spmdc.frontends.spmd.library.emitter import Emitter, literal_problem
from spmdc.frontends.spmd.syntax.nodes import Expr, Location, Pattern, Statement, Target


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """A parameter as declared in its signature."""

    name: str
    type: TensorType
    sharding: Sharding | None
    of: TensorType | None
    span: Span
    initial: Initializer | None = None
    """The initial value of a weight."""
    faulty: bool = False
    """Whether its type has errors, which are reported. Its other fields are then meaningless."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A function's signature, as calls use it."""

    name: str
    params: tuple[ParamSpec, ...]
    results: tuple[Result, ...]
    faulty_results: frozenset[int] = frozenset()
    """The positions of the results whose types have errors, which are reported."""
    results_known: bool = True
    """Whether the number of results is known."""

    @property
    def is_faulty(self) -> bool:
        """Whether some part is unknown, because of errors that are reported."""
        return not self.gives_values or any(p.faulty for p in self.params)

    @property
    def gives_values(self) -> bool:
        """Whether the results of a call are known."""
        return self.results_known and not self.faulty_results


@dataclass
class Context:
    """Consts, meshes and signatures. A signature is None if its parameters are unknown."""

    source: Source
    diagnostics: Diagnostics
    locations: dict[int, Location]
    stage: Stage = "global"
    has_manual: bool = False
    """Whether there are manual regions, so that a global program may have collectives."""
    meshes: Meshes = field(default_factory=Meshes)
    consts: Scope = field(default_factory=Scope)
    signatures: dict[str, Signature | None] = field(default_factory=dict[str, Signature | None])
    calls: dict[str, dict[str, Span]] = field(default_factory=dict[str, dict[str, Span]])
    """For each function, the functions that it calls, each with its first call."""
    precisions: dict[Source, DType | None] = field(default_factory=dict[Source, DType | None])
    """The element type of the floats that a file's functions compute with; None if its declaration in the file has
    errors."""
    sources: dict[str, Source] = field(default_factory=dict[str, Source])
    """The files that trailing comments name. Their texts are not known."""
    begun: dict[Value, tuple[str, Number]] = field(default_factory=dict[Value, tuple[str, Number]])
    """The values that a loop carries, and begins with numbers of no written type: their names and these."""
    expansions: dict[Pattern, Expansion] = field(default_factory=dict[Pattern, Expansion])
    """What assignments of a pattern became."""

    def to_begin(self, value: Item, type: TensorType) -> str:
        """How a loop begins with a number of that type, as help for an error, if the value is one that a loop carries
        and that begins with a number; empty for others."""
        if not isinstance(value, Value) or value not in self.begun:
            return ""
        name, number = self.begun[value]
        shown = f"{name}: {type} = {str(number).lower()}"
        return "" if literal_problem(number, type.dtype) else f"its type may be written where the loop begins: {shown}"

    @contextmanager
    def reporting(self) -> Iterator[Faults]:
        """A context that reports the errors of its body, which ends at them. The yielded faults say whether there were
        any."""
        faults = Faults()
        with faults:
            yield faults
        self.diagnostics.extend(faults.diagnostics)


class Expressions(Protocol):
    """What a block's expressions offer to their parts. Ops are emitted to `emitter`. `function` is the name of
    the one that has the block."""

    context: Context
    function: str
    scope: Scope
    emitter: Emitter

    def expr(self, node: Expr) -> Item:
        """The item that an expression evaluates to. Raises SpmdcError, or PoisonedError if it uses a value with an
        error."""

    def exprs(self, nodes: Iterable[Expr]) -> list[Item]:
        """The items that several expressions evaluate to. Raises SpmdcError with the errors of all, or
        PoisonedError."""

    def value(self, node: Expr, what: str) -> Value:
        """The tensor that an expression evaluates to. Raises SpmdcError (E207) if it is something other than `what`."""


class Statements(Protocol):
    """What a block offers to its parts that have blocks of their own."""

    context: Context
    claims: NameScope
    scope: Scope
    builder: RegionBuilder

    @property
    def evaluator(self) -> Expressions:
        """The expressions of the block."""

    def inner(self, scope: Scope, builder: RegionBuilder, span: Span) -> Statements:
        """A block inside this one."""

    def run(self, statements: Sequence[Statement], hints: Sequence[str], span: Span, what: str) -> Returned | None:
        """Expands the statements; None if there were errors, which are reported. `hints` are names for the results."""

    def report(self, problem: SpmdcError) -> None:
        """Reports errors of the block."""

    def declared(self, target: Target) -> tuple[TensorType | None, Sharding | None]:
        """The type and sharding that are written for a name."""

    def settle(self, value: Value, name: str, sharding: Sharding | None, fresh: set[Value]) -> Value:
        """The value under a name and with its annotation."""

    def as_result(self, item: Item, type: TensorType, span: Span) -> Value:
        """A returned item as a tensor; a number takes the wanted type."""

    def results(
        self, returned: Returned, types: Sequence[TensorType], what: str, rule: str, carried: Sequence[Value] = ()
    ) -> list[Value]:
        """The tensors that a block returns, called `what` in errors, with the `rule` for its results as their help.
        `carried` are the parameters that they become in the next round. Raises SpmdcError (E405)."""

    def together(self, items: Sequence[Item]) -> Item:
        """Several items as one; tensors if there are several."""
