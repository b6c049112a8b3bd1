"""What propagation finds out: a sharding of every value, and why each axis is where it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from ir.diagnostics import Span
from ir.mesh import Axes, AxisRef
from ir.program import Program
from ir.records import quickly_made

Level = Literal[0, 1, 2, 3]

LEVELS: tuple[tuple[Level, str], ...] = (
    (0, "elementwise and layout ops"),
    (1, "batch dims"),
    (2, "all factors"),
    (3, "backward through annotations"),
)

ValueId = tuple[str, str]
"""A value by the names of its function and of itself; a function's results are `-> name`."""


def name_outside(param: str) -> str:
    """How reasons name the tensor of which a manual region's parameter is a shard."""
    return f"{param} outside"


@quickly_made
@dataclass(frozen=True, slots=True)
class Reason:
    """Why an axis splits a dim of a value: an annotation (`source` None), or an op that carried it from `source`."""

    value: ValueId
    dim: int
    axis: AxisRef
    step: int
    how: str
    span: Span | None
    source: ValueId | None = None
    source_dim: int = 0


@dataclass(frozen=True, slots=True)
class Conflict:
    """An op of which tensors split a factor over different axes, or different factors over one axis.

    Both are named with their dims; one is resharded there. `rule` settled which, for all `tensors` of the op. `weighed`
    says of each tensor that was free there what it took to split it and not to, with the bytes that parameters take
    to arrive.
    """

    op: str
    span: Span | None
    chosen: Axes
    chosen_from: tuple[ValueId, int]
    rejected: Axes
    rejected_from: tuple[ValueId, int]
    rule: str
    tensors: frozenset[ValueId]
    weighed: tuple[str, ...] = ()


RULES = (
    "a dim that all tensors of the op share goes first",
    "more axes go first",
    "the larger tensor goes first",
    "a dim that is not reduced later goes first",
    "the earlier operand goes first",
)
"""What settles conflicts, in this order."""

EARLIER = "it was settled before, by priorities, simpler ops or annotations"
"""What is said of conflicts that the rules would settle otherwise."""


@dataclass(frozen=True, eq=False)
class Provenance:
    """`reasons` maps a value and a dim of it to reasons, in the order of the dim's axes."""

    reasons: Mapping[tuple[ValueId, int], tuple[Reason, ...]]
    conflicts: tuple[Conflict, ...]


def _of_nothing() -> Provenance:
    return Provenance({}, ())


@dataclass(frozen=True, eq=False)
class Propagated:
    """A program with a closed sharding on every value, and the reasons: these are put together, by `explained`, when
    somebody asks."""

    program: Program
    explained: Callable[[], Provenance] = _of_nothing
    steps: int = 0

    @cached_property
    def _provenance(self) -> Provenance:
        return self.explained()

    @property
    def reasons(self) -> Mapping[tuple[ValueId, int], tuple[Reason, ...]]:
        """Of a value and a dim of it, in the order of the dim's axes."""
        return self._provenance.reasons

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Where tensors of an op disagreed."""
        return self._provenance.conflicts
