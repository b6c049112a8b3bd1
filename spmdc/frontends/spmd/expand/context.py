"""What the whole program knows while its functions are expanded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from spmdc.frontends.spmd.expand.sharded_types import Meshes
from spmdc.frontends.spmd.items import Faults, Item, Scope
from spmdc.frontends.spmd.library.emitter import Emitter
from spmdc.frontends.spmd.syntax.nodes import Expr, Location, Statement, Target


@dataclass(frozen=True, slots=True)
class ParamSpec:
    """A parameter as its signature states it."""

    name: str
    type: TensorType
    sharding: Sharding | None
    of: TensorType | None
    span: Span
    initial: Initializer | None = None
    """What a weight holds at first."""
    faulty: bool = False
    """Whether its type has errors, which are reported. Its other fields then say nothing."""


@dataclass(frozen=True, slots=True)
class Signature:
    """A function as its callers see it."""

    name: str
    params: tuple[ParamSpec, ...]
    results: tuple[Result, ...]
    span: Span
    faulty_results: frozenset[int] = frozenset()
    """The places of the results whose types have errors, which are reported."""
    results_known: bool = True
    """Whether there is any telling how many results there are."""

    @property
    def is_faulty(self) -> bool:
        """Whether something of it is not known, for errors that are reported."""
        return not self.gives_values or any(p.faulty for p in self.params)

    @property
    def gives_values(self) -> bool:
        """Whether it is known what a call returns."""
        return self.results_known and not self.faulty_results


@dataclass
class Context:
    """Consts, meshes and signatures. A signature is None if it is not known how to call its function."""

    source: Source
    diagnostics: Diagnostics
    locations: dict[int, Location]
    stage: Stage = "global"
    has_manual: bool = False
    """Whether there are manual regions, so that collectives may be in a global program."""
    meshes: Meshes = field(default_factory=Meshes)
    consts: Scope = field(default_factory=Scope)
    signatures: dict[str, Signature | None] = field(default_factory=dict[str, Signature | None])
    calls: dict[str, dict[str, Span]] = field(default_factory=dict[str, dict[str, Span]])
    """For each function, the functions it calls, and where first."""
    precisions: dict[Source, DType | None] = field(default_factory=dict[Source, DType | None])
    """What the functions of a file compute floats in; None if what the file says of it has errors."""
    sources: dict[str, Source] = field(default_factory=dict[str, Source])
    """The files that trailing comments name; of their texts nothing is known."""

    @contextmanager
    def reporting(self) -> Iterator[Faults]:
        """Reports what is wrong with what is done inside, which ends there; the faults say whether anything was."""
        faults = Faults()
        with faults:
            yield faults
        self.diagnostics.extend(faults.diagnostics)


class Expressions(Protocol):
    """What may be asked of a block about the expressions in it. Ops that they need go to `emitter`."""

    context: Context
    scope: Scope
    emitter: Emitter

    def expr(self, node: Expr) -> Item:
        """What an expression is. Raises SpmdcError, or PoisonedError if it uses a value with an error."""

    def value(self, node: Expr, what: str) -> Value:
        """The tensor that an expression is. Raises SpmdcError (E207) if it is something else than `what`."""


class Statements(Protocol):
    """What a part of a block that has blocks of its own may ask of the block that it is in."""

    context: Context
    claims: NameScope
    scope: Scope
    builder: RegionBuilder

    @property
    def evaluator(self) -> Expressions:
        """The expressions of the block."""

    def inner(self, scope: Scope, builder: RegionBuilder, span: Span) -> Statements:
        """A block inside of this one."""

    def run(self, statements: Sequence[Statement], hints: Sequence[str], span: Span, what: str) -> Returned | None:
        """Expands the statements; None if there were errors, which are reported. `hints` name what is returned."""

    def report(self, problem: SpmdcError) -> None:
        """Reports errors of the block."""

    def declared(self, target: Target) -> tuple[TensorType | None, Sharding | None]:
        """What is written of the type of a name."""

    def settle(self, value: Value, name: str, sharding: Sharding | None, fresh: set[Value]) -> Value:
        """The value under a name and with its annotation."""

    def as_result(self, item: Item, type: TensorType, span: Span) -> Value:
        """What is returned, as a tensor; a number takes the type that is wanted."""

    def results(self, returned: Returned, types: Sequence[TensorType], what: str) -> list[Value]:
        """The tensors that a block returns, called `what` in errors. Raises SpmdcError (E405)."""

    def together(self, items: Sequence[Item]) -> Item:
        """Items as one, those of several as tensors."""
