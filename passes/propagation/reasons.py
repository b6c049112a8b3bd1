"""The results of propagation: a sharding of every value, and the reason for each axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ir.diagnostics import Span
from ir.mesh import Axes, AxisRef
from ir.program import Program
from ir.records import record

ValueId = tuple[str, str]
"""A value, by the names of its function and of itself. A function's results are named `-> name`."""


def name_outside(param: str) -> str:
    """The name in reasons of the tensor that a manual region's parameter is a shard of."""
    return f"{param} outside"


@record
class Reason:
    """Why an axis splits a dim of a value: an annotation (`source` is None), or an op that propagated it from
    `source`."""

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
    """A conflict at an op: its tensors split a factor over different axes, or different factors over one axis.

    Both tensors are named with their dims; one is resharded at the op. `rule` settled which, for all `tensors` of the
    op. `weighed` says for each tensor that was free to follow either side what splitting it takes and what not
    splitting it takes, with the bytes that parameters take to arrive.
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


@dataclass(frozen=True, eq=False)
class Provenance:
    """`reasons` maps a value and one of its dims to reasons, in the order of the dim's axes."""

    reasons: Mapping[tuple[ValueId, int], tuple[Reason, ...]]
    conflicts: tuple[Conflict, ...]


@dataclass(frozen=True, eq=False)
class Propagated:
    """A program with a closed sharding on every value, and the reasons, which `explained` finds when they are first
    requested."""

    program: Program
    explained: Callable[[], Provenance] = lambda: Provenance({}, ())
    steps: int = 0
    annotated: frozenset[str] = frozenset()
    """The names of the values that are annotated in the program's text."""
    otherwise: Callable[[], Propagated] | None = None
    """The same without splits that, by an estimate only, save bytes; None if there are none."""

    def changed(self, change: Callable[[Program], Program]) -> Propagated:
        """The same with the program changed in this way, and so without the splits that may not pay."""
        other = self.otherwise
        return replace(
            self, program=change(self.program), otherwise=None if other is None else lambda: other().changed(change)
        )

    def __reduce__(self) -> tuple[object, ...]:
        """What is only found on request is found before it is pickled or copied."""
        other = self.otherwise
        found = None if other is None else other()
        return _already_found, (self.program, self._provenance, self.steps, self.annotated, found)

    @cached_property
    def _provenance(self) -> Provenance:
        return self.explained()

    @property
    def reasons(self) -> Mapping[tuple[ValueId, int], tuple[Reason, ...]]:
        """The reasons for a value and one of its dims, in the order of the dim's axes."""
        return self._provenance.reasons

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Where tensors of an op disagreed."""
        return self._provenance.conflicts


def _already_found(
    program: Program, provenance: Provenance, steps: int, annotated: frozenset[str], otherwise: Propagated | None
) -> Propagated:
    return Propagated(program, lambda: provenance, steps, annotated, None if otherwise is None else lambda: otherwise)
