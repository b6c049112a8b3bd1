"""The ops of a program as propagation sees them: tensors that share factors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ir.diagnostics import Span
from ir.mesh import Axes, AxisRef, DimAxes
from ir.ops import FactorKind, FactorRule
from ir.ops.declaration import TensorFactors
from ir.program import Op, Value
from ir.records import quickly_made
from passes.propagation.reasons import Level


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


@dataclass(slots=True, eq=False)
class Node:
    """Something that relates the shardings of tensors: an op by its rule, or an identity (loop, call, return)."""

    tensors: tuple[Value, ...]
    rule: FactorRule
    op: Op | None
    what: str
    span: Span | None
    level: Level
    batch: frozenset[int]
    prefix: tuple[DimAxes, ...] = ()
    """For each tensor the axes of each dim that the node does not concern: those that are manual on the other side of
    the boundary of a manual region. They are major to the others."""
    annotates: bool = False
    """Whether the second tensor is the first annotated, which speaks backward on the last level only."""
    passes: str = "both"
    """Which way an annotation lets propagation through: from the first tensor to the second is forward."""
    queued: bool = False
    settled: Level | None = None
    """The level, as far as it matters to the node, on which it has nothing to tell its tensors as they are."""
    number: int = 0
    sides: tuple[TensorFactors, ...] = field(init=False)
    """The factors of each tensor's dims."""
    windows: frozenset[int] = field(init=False)
    """The factors along which neighbours' data is needed."""
    replicated: frozenset[int] = field(init=False)
    """The factors along which all data is needed: they pass axes from operands to results only."""
    ranks: tuple[int, ...] = field(init=False)
    """Which factors' claims go first: those that all tensors share, then others, then those that are replicated."""
    shares_dims: bool = field(init=False)
    """Whether several factors make up a dim of some tensor."""

    def __post_init__(self) -> None:
        self.sides = (*self.rule.operands, *self.rule.results)
        kinds = [factor.kind for factor in self.rule.factors]
        self.windows = frozenset([f for f, kind in enumerate(kinds) if kind is FactorKind.WINDOW])
        self.replicated = frozenset([f for f, kind in enumerate(kinds) if kind is FactorKind.NEED_REPLICATION])
        self.ranks = tuple([2 if f in self.replicated else 0 if f in self.batch else 1 for f in range(len(kinds))])
        self.shares_dims = any(len(d) > 1 for t in self.sides for d in t)

    def phase(self, level: Level) -> Level:
        """The first level on which the node does what it does on this one."""
        if self.annotates:
            return level
        return 0 if self.level == 0 and not self.replicated else 2 if level == 3 else level

    def is_silent(self, position: int, level: Level) -> bool:
        """Whether what a tensor knows is not for the others."""
        if position > 1:
            return False
        if position == 1 and self.annotates and level < 3:
            return True
        return self.passes not in ("both", "backward" if position else "forward")

    def axes(self, position: int, state: State) -> Sequence[Axes]:
        """How a tensor's dims are split, as far as it concerns the node."""
        prefix = self.prefix[position] if self.prefix else ()
        return [axes[len(p) :] for axes, p in zip(state.axes, prefix, strict=True)] if prefix else state.axes
