"""Which factor of an op each mesh axis splits: the assignment of least cost.

The proposals are what lies ready: the layouts in which operands are known, and the shardings that propagation gave
operands and results. Each atom goes to a factor that some proposal gives it, stays a reduction owed (where the op is
linear), or splits nothing. An assignment costs the op itself, the reshards of its operands, and that of its results.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ir.mesh import AxisRef, axes_size
from ir.ops import OPS, FactorKind, FactorRule, Linearity
from ir.ops.opdef import TensorFactors
from ir.program import Op
from passes.atoms import Atoms
from passes.cost import compute_seconds
from passes.factors import dims_of_factors, factors_of_dims
from passes.partition.along import can_split_along, seconds_along
from passes.partition.local import Axes, Layout, Partial
from passes.partition.reshard import Resharder
from passes.partition.ring import Ring, ring_cost, rings
from passes.topology import TPU_V3

WindowedEinsum = Literal["auto", "always", "never"]

_SPLITTABLE = (FactorKind.PARALLEL, FactorKind.REDUCTION)
_ALONG = (FactorKind.WINDOW, FactorKind.SCAN)
_MAX_ASSIGNMENTS = 96
_CLOSE = 0.005
"""Assignments that differ by less are as good, and the earlier wins: one that leaves a reduction owed comes before one
that pays it now, for it may be shared later."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The layouts an op is computed in. `factors` says which axes split each factor.

    With a `ring`, the op is computed part by part. `excess` is by how many bytes it goes beyond the memory limit.
    """

    factors: tuple[tuple[int, Axes], ...]
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    seconds: float
    ring: Ring | None = None
    excess: int = 0


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user says about choices.

    `memory_limit` is how many bytes of a device's memory one op may take: for its operands and results, what operands
    are gathered from, and buffers. What goes beyond it is chosen only if there is nothing else. `windowed_einsum` says
    whether einsums are computed part by part: where that costs less, always if it is possible, or never.
    """

    memory_limit: int = TPU_V3.memory
    windowed_einsum: WindowedEinsum = "auto"


@dataclass(frozen=True, slots=True)
class Question:
    """All that the choice depends on: equal questions have equal answers.

    `known` are the layouts in which each operand exists, the first the one it was made in; `wanted` the
    propagated layouts of operands and of results. An operand that is `anywhere` can be made in any layout where it is
    needed. `shares` are how often a reshard of each operand runs for one run of the op: what stands in front of a loop
    runs once. One that is `shared` serves other ops too, and need be gathered only once for them.
    """

    op: Op
    rule: FactorRule
    known: tuple[tuple[Layout, ...], ...]
    anywhere: tuple[bool, ...]
    shares: tuple[float, ...]
    wanted_operands: tuple[Layout, ...]
    wanted_results: tuple[Layout, ...]
    shared: tuple[bool, ...]

    def key(self) -> object:
        op = self.op
        return (
            op.name,
            self.rule,
            tuple(op.attrs.items()),
            tuple(v.type for v in op.operands),
            tuple(v.type for v in op.results),
            self.known,
            self.anywhere,
            self.shares,
            self.wanted_operands,
            self.wanted_results,
            self.shared,
        )


def can_be_made(layout: Layout) -> bool:
    """Whether a device that can make any part of a value has what the layout asks of it."""
    return not layout.partial and layout.order is None


def can_be_split(op: Op, rule: FactorRule, factor: int) -> bool:
    """Whether the op has a way to be split along that factor of one of its rules."""
    kind = rule.factors[factor].kind
    return kind in _SPLITTABLE or (kind in _ALONG and can_split_along(op, rule, factor))


def can_stay_split(op: Op, rule: FactorRule, operand: int, split: Sequence[Axes], dim: int) -> bool:
    """Whether by that rule the axes of an operand's dim can stay there, or move to a dim that takes their place."""
    tensor = rule.operands[operand]
    if any(rule.factors[f].heir is not None for f in tensor[dim]):
        return True
    if not all(can_be_split(op, rule, f) for f in tensor[dim]):
        return False
    usable = dims_of_factors(rule, tensor, factors_of_dims(rule, tensor, split))
    return usable is not None and usable[dim][: len(split[dim])] == split[dim]


class Chooser:
    """Answers questions, each once."""

    def __init__(self, resharder: Resharder, policy: Policy) -> None:
        self.resharder = resharder
        self.policy = policy
        self.atoms: Atoms = resharder.atoms
        self.answers: dict[object, Assignment] = {}

    def choose(self, question: Question) -> Assignment:
        """The cheapest assignment."""
        key = question.key()
        found = self.answers.get(key)
        if found is None:
            found = self.answers[key] = self._search(question)
        return found

    def _search(self, q: Question) -> Assignment:
        best: Assignment | None = None
        for factors, through in self._candidates(q):
            for assignment in self._assess(q, factors, through):
                if best is None or self._is_better(assignment, best):
                    best = assignment
        assert best is not None, "computing an op whole on every device is always possible"
        return best

    def _is_better(self, new: Assignment, old: Assignment) -> bool:
        if self.policy.windowed_einsum == "always" and (new.ring is None) != (old.ring is None):
            return new.ring is not None
        if new.excess != old.excess:
            return new.excess < old.excess
        return new.seconds < old.seconds * (1 - _CLOSE)

    # Candidates.

    def _candidates(self, q: Question) -> Iterator[tuple[dict[int, Axes], tuple[AxisRef, ...]]]:
        """Assignments of axes to factors, and the axes left partial; best guesses first."""
        proposals = list(self._proposals(q))
        options: dict[AxisRef, list[int | str | None]] = {}
        for proposal in proposals:
            for f, axes in proposal.items():
                for axis in axes:
                    chosen = options.setdefault(axis, [])
                    if f not in chosen:
                        chosen.append(f)
        for axis in self._partial_axes(q):
            options.setdefault(axis, []).append("partial")
        atoms = sorted(options, key=lambda a: self.atoms.rank[a])
        if math.prod(len(options[a]) + 1 for a in atoms) > _MAX_ASSIGNMENTS:
            partial = tuple(a for a in atoms if "partial" in options[a])
            nothing: dict[int, Axes] = {}
            for proposal in (*proposals, nothing):
                yield proposal, ()
                taken = {a for dim in proposal.values() for a in dim}
                yield proposal, tuple(a for a in partial if a not in taken)
            return
        for choice in itertools.product(*((*options[a], None) for a in atoms)):
            factors: dict[int, set[AxisRef]] = {}
            for axis, where in zip(atoms, choice, strict=True):
                if isinstance(where, int):
                    factors.setdefault(where, set()).add(axis)
            through = tuple(a for a, where in zip(atoms, choice, strict=True) if where == "partial")
            ordered = {f: self._in_order(f, chosen, proposals) for f, chosen in factors.items()}
            yield ordered, through

    def _in_order(self, f: int, chosen: set[AxisRef], proposals: Sequence[Mapping[int, Axes]]) -> Axes:
        """The axes in the order in which a proposal has them."""
        for proposal in proposals:
            axes = tuple(a for a in proposal.get(f, ()) if a in chosen)
            if len(axes) == len(chosen):
                return axes
        return tuple(sorted(chosen, key=lambda a: self.atoms.rank[a]))

    def _proposals(self, q: Question) -> Iterator[dict[int, Axes]]:
        """What layouts say of factors; last, the same with axes of dims that must be whole on others."""
        sides = (*q.rule.operands, *q.rule.results)
        layouts: list[tuple[int, Layout]] = [(i, k) for i, known in enumerate(q.known) for k in known]
        layouts += list(enumerate((*q.wanted_operands, *q.wanted_results)))
        said = [factors_of_dims(q.rule, sides[position], layout.axes) for position, layout in layouts]
        usable = [{f: a for f, a in found.items() if can_be_split(q.op, q.rule, f)} for found in said]
        moved = [
            self._moved(q.rule, sides[position], found, fitting)
            for (position, _), found, fitting in zip(layouts, said, usable, strict=True)
        ]
        seen: list[dict[int, Axes]] = []
        for proposal in (*usable, *moved):
            if proposal and proposal not in seen:
                seen.append(proposal)
                yield proposal

    @staticmethod
    def _moved(
        rule: FactorRule, tensor: TensorFactors, found: Mapping[int, Axes], fitting: Mapping[int, Axes]
    ) -> dict[int, Axes]:
        """With the axes of factors that cannot be split on the tensor's largest parallel dim, if that has room.

        An all_to_all brings them there, and another one back: a pencil decomposition.
        """
        stuck = tuple(a for f, axes in found.items() if f not in fitting for a in axes)
        free = [d[0] for d in tensor if len(d) == 1 and rule.factors[d[0]].kind is FactorKind.PARALLEL]
        if not stuck or not free:
            return {}
        largest = max(free, key=lambda f: rule.factors[f].size)
        axes = (*fitting.get(largest, ()), *stuck)
        return {**fitting, largest: axes} if rule.factors[largest].size >= axes_size(axes) else {}

    def _partial_axes(self, q: Question) -> list[AxisRef]:
        """The axes over which some operand is partial in a way that the op commutes with."""
        found: dict[AxisRef, None] = {}
        for linearity in OPS[q.op.name].linearity(q.op):
            for position in linearity.group:
                for layout in q.known[position]:
                    found.update({a: None for a, kind in layout.partial if kind in linearity.kinds})
        return list(found)

    # Costs.

    def _assess(self, q: Question, factors: dict[int, Axes], through: tuple[AxisRef, ...]) -> Iterator[Assignment]:
        """The assignment with its cost, and loops that do the same; none if the shards would be no boxes or the
        reductions would not commute."""
        groups: list[tuple[Linearity, Partial]] = [(Linearity((), ()), ())]
        if through:
            groups = list(self._groups(q, through))
        for linearity, owed in groups:
            layouts = self._layouts(q, factors, linearity, owed)
            if layouts is None:
                continue
            whole = self._assignment(q, factors, layouts)
            yield whole
            if self.policy.windowed_einsum == "never":
                continue
            ready = [(*known, wanted) for known, wanted in zip(q.known, q.wanted_operands, strict=True)]
            for ring, split in rings(q.op, q.rule, layouts, ready, q.wanted_results[0]):
                if self._is_worth_trying(q, ring, whole):
                    yield self._assignment(q, factors, split, ring)

    def _is_worth_trying(self, q: Question, ring: Ring, whole: Assignment) -> bool:
        """Parts of what is shared would travel again for each use, so they do only for lack of memory."""
        if self.policy.windowed_einsum == "always" or whole.excess or ring.moving is None:
            return True
        return not q.shared[ring.moving]

    @staticmethod
    def _groups(q: Question, through: tuple[AxisRef, ...]) -> Iterator[tuple[Linearity, Partial]]:
        for linearity in OPS[q.op.name].linearity(q.op):
            kinds = {
                a: kind
                for position in linearity.group
                for layout in q.known[position]
                for a, kind in layout.partial
                if kind in linearity.kinds
            }
            if all(a in kinds for a in through):
                yield linearity, tuple((a, kinds[a]) for a in through)

    def _layouts(
        self, q: Question, factors: dict[int, Axes], linearity: Linearity, owed: Partial
    ) -> tuple[tuple[Layout, ...], tuple[Layout, ...]] | None:
        operands: list[Layout] = []
        for position, tensor in enumerate(q.rule.operands):
            dims = dims_of_factors(q.rule, tensor, factors)
            if dims is None:
                return None
            operands.append(Layout(dims, owed if position in linearity.group else ()))
        new: Partial = tuple(
            (a, reduction)
            for f, axes in factors.items()
            if (reduction := q.rule.factors[f].reduction) is not None
            for a in axes
        )
        partial = tuple(sorted((*owed, *new), key=lambda p: self.atoms.rank[p[0]]))
        if len({kind for _, kind in partial}) > 1:
            return None
        results: list[Layout] = []
        for tensor in q.rule.results:
            dims = dims_of_factors(q.rule, tensor, factors)
            if dims is None:
                return None
            results.append(Layout(dims, partial))
        return tuple(operands), tuple(results)

    def _assignment(
        self,
        q: Question,
        factors: dict[int, Axes],
        layouts: tuple[tuple[Layout, ...], tuple[Layout, ...]],
        ring: Ring | None = None,
    ) -> Assignment:
        operands, results = layouts
        seconds, memory = 0.0, 0
        local_bytes: list[int] = []
        given = zip(q.op.operands, q.known, q.anywhere, q.shares, operands, strict=True)
        for value, known, anywhere, share, layout in given:
            item = value.dtype.nbytes
            local_bytes.append(math.prod(layout.local_shape(value.shape)) * item)
            if anywhere and can_be_made(layout):
                continue
            plans = [(self.resharder.plan(value.shape, item, k, layout).seconds, k) for k in known]
            cheapest, source = min(plans, key=lambda p: p[0])
            seconds += share * cheapest
            if source != layout:
                memory += math.prod(source.local_shape(value.shape)) * item
        for value, layout, wanted in zip(q.op.results, results, q.wanted_results, strict=True):
            item = value.dtype.nbytes
            seconds += self.resharder.plan(value.shape, item, layout, wanted).seconds
            local_bytes.append(math.prod(layout.local_shape(value.shape)) * item)
        for f, axes in factors.items():
            if axes and q.rule.factors[f].kind in _ALONG:
                seconds += seconds_along(q.op, q.rule, f, axes, operands)
        parts = math.prod(axes_size(axes) for axes in factors.values())
        memory += sum(local_bytes)
        if ring is None:
            seconds += compute_seconds(q.op, parts, local_bytes)
        else:
            cost = ring_cost(q.op, q.rule, ring, parts, layouts)
            seconds += cost.seconds
            memory += cost.buffers
        excess = max(0, memory - self.policy.memory_limit)
        return Assignment(tuple(sorted(factors.items())), operands, results, seconds, ring, excess)
