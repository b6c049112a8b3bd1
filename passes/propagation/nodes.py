"""The ops of a program as propagation sees them: tensors that share factors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import takewhile

from ir.diagnostics import Span
from ir.mesh import Axes, AxisRef, DimAxes
from ir.ops import FactorKind, FactorRule
from ir.ops.declaration import TensorFactors
from ir.program import Op, Value
from ir.records import record
from passes.signatures import Signature


class Level(IntEnum):
    """What propagates: each level adds to those before."""

    SIMPLE = 0
    """Data-movement and elementwise ops, loops, calls and returns."""
    BATCH = 1
    """Factors that all tensors of an op share."""
    ANNOTATIONS = 2
    """Those of the levels before, backward through annotations."""
    ALL = 3
    """All other factors."""

    __hash__ = int.__hash__  # An Enum computes its own, which takes longer.


@dataclass(slots=True, eq=False)
class State:
    """What is known of a value: the sub-axes that split each dim, and which dims are open for more."""

    axes: list[Axes]
    open: list[bool]
    reserved: set[AxisRef]
    """Axes that may split no dim."""
    annotated: list[tuple[int, int, Axes]]
    """The user priority of each annotated dim, the dim, and its axes."""

    def used(self) -> set[AxisRef]:
        return self.reserved.union(*self.axes)

    def missing(self, dim: int, target: Axes) -> Iterable[AxisRef]:
        """The axes that an open dim lacks of its target, up to the first that the value cannot have there."""
        have = self.axes[dim]
        if not self.open[dim] or len(target) <= len(have) or target[: len(have)] != have:
            return ()
        used = self.used()
        return takewhile(lambda axis: axis not in used, target[len(have) :])


@record
class Learned:
    """A reason in terms of values, before these are named."""

    value: Value
    dim: int
    axis: AxisRef
    step: int
    how: str
    span: Span | None
    source: Value | None = None
    source_dim: int = 0


class Relation:
    """How the tensors of an op share factors: the same for all ops of a signature.

    `level` is the one on which all of its factors propagate, and `batch` has those that propagate on the level of batch
    dims.
    """

    __slots__ = (
        "batch",
        "given",
        "indices",
        "is_plain",
        "is_shared",
        "level",
        "looked_up",
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
        """The factors along which data of neighbours is needed."""
        self.replicated = frozenset([f for f, kind in enumerate(kinds) if kind is FactorKind.NEED_REPLICATION])
        """The factors along which all data is needed: axes propagate along them from operands to results only."""
        self.ranks = tuple([2 if f in self.replicated else 0 if f in batch else 1 for f in range(len(kinds))])
        """The precedence of each factor's claims: factors that all tensors share come first, those that need
        replication last."""
        self.looked_up = frozenset([] if self.batch else _looked_up(rule))
        """The factors along which the op looks elements up in an operand; none if there are factors of all tensors."""
        given = enumerate(rule.operands if self.looked_up else ())
        self.indices = frozenset([i for i, side in given if self.looked_up.isdisjoint(f for dim in side for f in dim)])
        """The operands, by position, that say which elements these are."""
        self.shares_dims = any(len(d) > 1 for t in self.sides for d in t)
        """Whether some dim of a tensor consists of several factors."""
        each = tuple([(f,) for f in range(len(kinds))])
        self.is_plain = len(self.batch) == len(kinds) and all(side == each for side in self.sides)
        """Whether all tensors have the same dims, each a factor by itself."""
        self.is_shared = False
        """Whether several nodes have the relation."""

    def phase(self, level: Level) -> Level:
        """The first level on which a node does the same as on this one, unless it is an annotation."""
        if self.level is Level.SIMPLE and not self.replicated:
            return Level.SIMPLE
        return Level.BATCH if level is Level.ANNOTATIONS else level


def _looked_up(rule: FactorRule) -> Iterable[int]:
    """The factors that are reduced, and that only one of several operands has."""
    count = Counter(f for side in rule.operands for f in {f for dim in side for f in dim})
    reduced = (f for f, factor in enumerate(rule.factors) if factor.kind is FactorKind.REDUCTION)
    return (f for f in reduced if count[f] == 1) if len(rule.operands) > 1 else ()


def relations_of(signature: Signature) -> tuple[Relation, ...]:
    """How the tensors of ops of that signature share factors: by the op's rule, and then by other views of it."""
    rule, opdef = signature.rule, signature.opdef
    if rule is None:
        return ()
    sides = (*rule.operands, *rule.results)
    counts = Counter(f for side in sides for f in {f for dim in side for f in dim})
    ranked = sum(1 for side in sides if side)
    shared = [f for f, n in counts.items() if n == ranked and rule.factors[f].kind is not FactorKind.WINDOW]
    batch = frozenset[int]() if opdef.has_no_batch else frozenset(shared)
    simple = len(batch) == len(rule.factors) or opdef.family == "elementwise"
    level = Level.SIMPLE if simple else Level.ALL if opdef.spreads_last else Level.BATCH
    others = [Relation(other, Level.ALL, frozenset()) for other in signature.spreading]
    return (Relation(rule, level, batch), *others)


@dataclass(slots=True, eq=False)
class Node:
    """A relation between the shardings of tensors: an op with its rule, or an identity (loop, call, return)."""

    number: int
    tensors: tuple[Value, ...]
    relation: Relation
    op: Op | None
    what: str
    span: Span | None
    prefix: tuple[DimAxes, ...] = ()
    """For each tensor the axes of each dim that the node does not concern: the manual ones of the region on the other
    side of its boundary. They are major to the others."""
    annotates: bool = False
    """Whether the second tensor is the annotated first one, to which it propagates backward from the level of
    annotations on only."""
    passes: str = "both"
    """The direction in which an annotation lets propagation through: forward is from the first tensor to the second."""
    queued: bool = False
    is_split: bool = False
    """Whether some tensor is split, or has been."""
    settled: Level | None = None
    """The level, as far as it matters to the node, on which nothing can propagate between its tensors in their present
    states."""

    @property
    def is_usual(self) -> bool:
        """Whether what its tensors spread depends only on its relation and on how they are split."""
        return not (self.prefix or self.annotates or self.relation.shares_dims or self.passes != "both")

    def is_even(self, states: Mapping[Value, State]) -> bool:
        """Whether the tensors have the same dims, split in the same way. Then there is nothing to spread."""
        if not self.relation.is_plain or self.prefix:
            return False
        split = states[self.tensors[0]].axes
        return all(states[v].axes == split for v in self.tensors[1:])

    def how(self, value: Value, source: Value) -> str:
        """How the node passes axes on to a tensor, in words."""
        if self.op is None:
            return self.what
        is_backward = value in self.op.operands and source in self.op.results
        return f"{self.what}, {'backward' if is_backward else 'forward'}"

    def phase(self, level: Level) -> Level:
        """The first level on which the node does the same as on this one."""
        return level if self.annotates else self.relation.phase(level)

    def is_silent(self, position: int, level: Level) -> bool:
        """Whether a tensor does not propagate to the others."""
        if position > 1:
            return False
        if position == 1 and self.annotates and level < Level.ANNOTATIONS:
            return True
        return self.passes != "both" and self.passes != ("backward" if position else "forward")

    def axes(self, position: int, state: State) -> Sequence[Axes]:
        """How a tensor's dims are split, without the axes that do not concern the node."""
        prefix = self.prefix[position] if self.prefix else ()
        return [axes[len(p) :] for axes, p in zip(state.axes, prefix, strict=True)] if prefix else state.axes
