"""The ways to split an op's factors over mesh axes.

They come from existing shardings: those of the operands, and the propagated shardings of operands and results. Each
sub-axis splits a factor that it splits in some of these shardings, stays with a pending reduction (where the op is
linear), or splits nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ir.mesh import Axes, AxisRef, axes_size
from ir.ops import OPS, FactorKind, FactorRule
from ir.ops.declaration import TensorFactors
from ir.program import Op
from ir.sharding import Partial, ReductionKind
from passes.factors import dims_of_factors, factors_of_dims
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan.sides import StrategyQuery
from passes.partition.registry import ALONG, can_split_along, is_worth_writing

_SPLITTABLE = (FactorKind.PARALLEL, FactorKind.REDUCTION)
_MAX_ASSIGNMENTS = 96

Way = tuple[dict[int, Axes], Axes]
"""The axes that split each factor, and those over which reductions stay pending."""

Options = Mapping[AxisRef, Sequence[int | str]]
"""What each axis can do: split one of several factors, or stay "partial"."""


def can_be_split(op: Op, rule: FactorRule, factor: int, axes: Mapping[int, Axes]) -> bool:
    """Whether the op can be split along that factor of one of its rules, if `axes` split its factors.

    It cannot if that takes an exchange with more devices than is worth writing.
    """
    kind = rule.factors[factor].kind
    if kind not in ALONG or not can_split_along(op, rule, factor):
        return kind in _SPLITTABLE
    dims = [dims_of_factors(rule, tensor, axes) for tensor in rule.operands]
    shardings = [ClosedSharding(d) for d in dims if d is not None]
    known = len(shardings) == len(dims) and factor in axes
    return not known or is_worth_writing(op, rule, factor, axes[factor], shardings)


def can_stay_split(op: Op, rule: FactorRule, operand: int, split: Sequence[Axes], dim: int) -> bool:
    """Whether under that rule the axes of an operand's dim can stay, or move to a dim that takes them over."""
    tensor = rule.operands[operand]
    if any(rule.factors[f].moves_to is not None for f in tensor[dim]):
        return True
    found = factors_of_dims(rule, tensor, split)
    if not all(can_be_split(op, rule, f, found) for f in tensor[dim]):
        return False
    usable = dims_of_factors(rule, tensor, found)
    return usable is not None and usable[dim][: len(split[dim])] == split[dim]


def proposals_of(q: StrategyQuery) -> Iterator[dict[int, Axes]]:
    """What the shardings mean for factors: those of operands that cost something elsewhere come first. The last
    proposals are the same with axes of dims that need replication moved to others."""
    sides, at = (*q.rule.operands, *q.rule.results), q.at
    operands = zip(q.rule.operands, at.operands, strict=True)
    costly_first = sorted(operands, key=lambda operand: operand[1].recomputable or bool(operand[1].origins))
    known = [(tensor, sharding.axes) for tensor, operand in costly_first for sharding in operand.known]
    shardings = (*at.wanted_operands, *[result.wanted for result in at.results])
    wanted = zip(sides, [sharding.axes for sharding in shardings], strict=True)
    results = zip(q.rule.results, at.results, strict=True)
    by_users = [(tensor, split) for tensor, result in results for want in result.wants if (split := want.split)]
    tensors = list(dict.fromkeys([*known, *wanted, *by_users]))
    said = [factors_of_dims(q.rule, tensor, axes) for tensor, axes in tensors]
    fitting: dict[tuple[tuple[int, Axes], ...], dict[int, Axes]] = {}
    for key, found in {tuple(found.items()): found for found in said}.items():
        fitting[key] = {f: a for f, a in found.items() if can_be_split(q.op, q.rule, f, found)}
    usable = [fitting[tuple(found.items())] for found in said]
    moved = [
        _moved(q.rule, tensor, found, fit)
        for (tensor, _), found, fit in zip(tensors, said, usable, strict=True)
        if len(fit) < len(found)
    ]
    seen: list[dict[int, Axes]] = []
    for proposal in (*usable, *moved):
        if proposal and proposal not in seen:
            seen.append(proposal)
            yield proposal


def _moved(
    rule: FactorRule, tensor: TensorFactors, found: Mapping[int, Axes], fitting: Mapping[int, Axes]
) -> dict[int, Axes]:
    """The axes with those of factors that cannot be split moved to the tensor's largest parallel dim, if it can
    take them.

    An all_to_all moves them there, and another one back: a pencil decomposition.
    """
    stuck = tuple(a for f, axes in found.items() if f not in fitting for a in axes)
    free = [d[0] for d in tensor if len(d) == 1 and rule.factors[d[0]].kind is FactorKind.PARALLEL]
    if not stuck or not free:
        return {}
    largest = max(free, key=lambda f: rule.factors[f].size)
    axes = (*fitting.get(largest, ()), *stuck)
    return {**fitting, largest: axes} if rule.factors[largest].size >= axes_size(axes) else {}


def options_of(q: StrategyQuery, proposals: Iterable[Mapping[int, Axes]]) -> Options:
    """The factors that each axis splits in some proposal, and whether a reduction over it can stay pending."""
    found: dict[AxisRef, dict[int | str, None]] = {}
    for proposal in proposals:
        for f, axes in proposal.items():
            for axis in axes:
                found.setdefault(axis, {})[f] = None
    for _, kinds in _pending(q):
        for axis in kinds:
            found.setdefault(axis, {})["partial"] = None
    return {axis: tuple(chosen) for axis, chosen in found.items()}


def ways_to_split(proposals: Sequence[dict[int, Axes]], options: Options, rank: Mapping[AxisRef, int]) -> Iterator[Way]:
    """The ways to split factors, the most likely first. Axes of one factor are in the order of some proposal, or of
    their rank."""
    sub_axes = sorted(options, key=lambda a: rank[a])
    if math.prod(len(options[a]) + 1 for a in sub_axes) > _MAX_ASSIGNMENTS:
        partial = tuple(a for a in sub_axes if "partial" in options[a])
        nothing: dict[int, Axes] = {}
        for proposal in (*proposals, nothing):
            yield proposal, ()
            taken = {a for dim in proposal.values() for a in dim}
            yield proposal, tuple(a for a in partial if a not in taken)
        return
    in_order: dict[tuple[int, Axes], Sequence[Axes]] = {}
    for factors, through in _assignments(sub_axes, options):
        if max(map(len, factors.values()), default=0) < 2:
            yield factors, through
            continue
        orders: list[Sequence[Axes]] = []
        for f, chosen in factors.items():
            found = in_order.get((f, chosen))
            if found is None:
                found = in_order[f, chosen] = _orders(f, chosen, proposals, rank)
            orders.append(found)
        for ordered in itertools.product(*orders):
            yield dict(zip(factors, ordered, strict=True)), through


def _orders(
    f: int, chosen: Axes, proposals: Sequence[Mapping[int, Axes]], rank: Mapping[AxisRef, int]
) -> Sequence[Axes]:
    """The axes in each order in which a proposal has them."""
    if len(chosen) == 1:
        return (chosen,)
    orders = (tuple([a for a in proposal.get(f, ()) if a in chosen]) for proposal in proposals)
    found = dict.fromkeys(axes for axes in orders if len(axes) == len(chosen))
    return tuple(found) or (tuple(sorted(chosen, key=lambda a: rank[a])),)


def _assignments(sub_axes: Sequence[AxisRef], options: Options) -> Iterator[Way]:
    """What these axes can do together. Several ways may share one mapping of factors."""
    if not sub_axes:
        yield {}, ()
        return
    *others, last = sub_axes
    for factors, through in _assignments(others, options):
        for where in options[last]:
            if isinstance(where, int):
                yield {**factors, where: (*factors.get(where, ()), last)}, through
            else:
                yield factors, (*through, last)
        yield factors, through


def _pending(q: StrategyQuery) -> Iterator[tuple[Sequence[int], dict[AxisRef, ReductionKind]]]:
    """The operands with whose reductions the op commutes, in groups, and those reductions that some of them has
    pending."""
    for linearity in OPS[q.op.name].linearity(q.op):
        known = (sharding for position in linearity.group for sharding in q.at.operands[position].known)
        parts = (part for sharding in known for part in sharding.partial)
        yield linearity.group, {a: kind for a, kind in parts if kind in linearity.kinds}


def pending_groups(q: StrategyQuery, through: Axes) -> Iterator[tuple[Sequence[int], Partial]]:
    """The groups of operands whose reductions can stay pending over these axes, and those reductions."""
    if not through:
        yield (), ()
        return
    for group, kinds in _pending(q):
        if all(a in kinds for a in through):
            yield group, tuple((a, kinds[a]) for a in through)
