"""The ops of a program as propagation sees them: tensors that share factors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ir.diagnostics import Span
from ir.mesh import Axes, AxisRef, DimAxes
from ir.ops import FactorKind, FactorRule
from ir.ops.declaration import TensorFactors
from ir.program import Op, Value
from ir.records import quickly_made
from passes.propagation.reasons import Level
from passes.signatures import Signature


@dataclass(slots=True, eq=False)
class State:
    """What is known of a value: the axes of each dim as sub-axes."""

    axes: list[Axes]
    open: list[bool]
    reserved: set[AxisRef]
    later: list[tuple[int, int, Axes]]

    def used(self) -> set[AxisRef]:
        return self.reserved.union(*self.axes)


@quickly_made
@dataclass(frozen=True, slots=True)
class Learned:
    """A reason while values still are objects."""

    value: Value
    dim: int
    axis: AxisRef
    step: int
    how: str
    span: Span | None
    source: Value | None = None
    source_dim: int = 0


class Relation:
    """How tensors that an op relates share factors: the same for all ops of a signature.

    `level` is that on which all of its factors spread, and `batch` are those that spread on the level of batch dims.
    """

    __slots__ = (
        "batch",
        "given",
        "is_plain",
        "level",
        "ranks",
        "replicated",
        "rule",
        "shares_dims",
        "sides",
        "windows",
    )

    def __init__(self, rule: FactorRule, level: Level, batch: frozenset[int]) -> None:
        kinds = [factor.kind for factor in rule.factors]
        self.rule, self.level, self.batch = rule, level, batch
        self.sides: tuple[TensorFactors, ...] = (*rule.operands, *rule.results)
        """The factors of each tensor's dims."""
        self.given = len(rule.operands)
        """How many of the tensors are operands; they come first."""
        self.windows = frozenset([f for f, kind in enumerate(kinds) if kind is FactorKind.WINDOW])
        """The factors along which neighbours' data is needed."""
        self.replicated = frozenset([f for f, kind in enumerate(kinds) if kind is FactorKind.NEED_REPLICATION])
        """The factors along which all data is needed: they pass axes from operands to results only."""
        self.ranks = tuple([2 if f in self.replicated else 0 if f in batch else 1 for f in range(len(kinds))])
        """Which factors' claims go first: those that all tensors share, then others, then those that are replicated."""
        self.shares_dims = any(len(d) > 1 for t in self.sides for d in t)
        """Whether several factors make up a dim of some tensor."""
        each = tuple([(f,) for f in range(len(kinds))])
        self.is_plain = len(self.batch) == len(kinds) and all(side == each for side in self.sides)
        """Whether the tensors have the same dims, and each factor is one of these."""

    def phase(self, level: Level) -> Level:
        """The first level on which a node does what it does on this one, unless it is an annotation."""
        return 0 if self.level == 0 and not self.replicated else 2 if level == 3 else level


def relations_of(signature: Signature) -> tuple[Relation, ...]:
    """How the tensors of ops of that signature share factors: by the op's rule, and last by other views of it."""
    rule, opdef = signature.rule, signature.opdef
    if rule is None:
        return ()
    sides = (*rule.operands, *rule.results)
    counts = Counter(f for side in sides for f in {f for dim in side for f in dim})
    ranked = sum(1 for side in sides if side)
    shared = [f for f, n in counts.items() if n == ranked and rule.factors[f].kind is not FactorKind.WINDOW]
    batch = frozenset[int]() if opdef.has_no_batch else frozenset(shared)
    simple = len(batch) == len(rule.factors) or opdef.family == "elementwise"
    level: Level = 0 if simple else 2 if opdef.spreads_last else 1
    others = [Relation(other, 2, frozenset()) for other in signature.spreading]
    return (Relation(rule, level, batch), *others)


@dataclass(slots=True, eq=False)
class Node:
    """Something that relates the shardings of tensors: an op by its rule, or an identity (loop, call, return)."""

    number: int
    tensors: tuple[Value, ...]
    relation: Relation
    op: Op | None
    what: str
    span: Span | None
    prefix: tuple[DimAxes, ...] = ()
    """For each tensor the axes of each dim that the node does not concern: those that are manual on the other side of
    the boundary of a manual region. They are major to the others."""
    annotates: bool = False
    """Whether the second tensor is the first annotated, which speaks backward on the last level only."""
    passes: str = "both"
    """Which way an annotation lets propagation through: from the first tensor to the second is forward."""
    queued: bool = False
    is_split: bool = False
    """Whether some tensor is split, or was."""
    settled: Level | None = None
    """The level, as far as it matters to the node, on which it has nothing to tell its tensors as they are."""

    def phase(self, level: Level) -> Level:
        """The first level on which the node does what it does on this one."""
        return level if self.annotates else self.relation.phase(level)

    def is_silent(self, position: int, level: Level) -> bool:
        """Whether what a tensor knows is not for the others."""
        if position > 1:
            return False
        if position == 1 and self.annotates and level < 3:
            return True
        return self.passes != "both" and self.passes != ("backward" if position else "forward")

    def axes(self, position: int, state: State) -> Sequence[Axes]:
        """How a tensor's dims are split, as far as it concerns the node."""
        prefix = self.prefix[position] if self.prefix else ()
        return [axes[len(p) :] for axes, p in zip(state.axes, prefix, strict=True)] if prefix else state.axes
