"""Values that devices recompute where they are needed, instead of receiving them.

A device computes its own part of a constant or an iota, and of the results of elementwise ops, transposes and reshapes
on these; where a reshape cannot be split as requested, it computes more, and cuts its part from that. Any other such
op is recomputed in the requested sharding if its operands exist in it, or take less time to reshard: so a widened value
is sent before it is widened. The same holds for an op that moves elements along a dim, or takes those with some
indices, if devices then have all of that dim, and cut out what they need; and for a scan, if they then have all of the
dim that it is along. What has been sent for the op alone is then not sent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ir.mesh import Axes
from ir.ops import OPS, FactorKind, FactorRule
from ir.ops.creation import constant_value
from ir.ops.declaration import InKernels
from ir.ops.reduction import identity_of
from ir.ops.resharding import is_reshard
from ir.program import Op, Value
from ir.sharding import ReductionKind
from passes.cost.model import accessed, memory_seconds
from passes.factors import dims_of_factors, factors_of_dims
from passes.partition.closed_sharding import ClosedSharding, bytes_of, is_aligned
from passes.partition.options import PartitionOptions
from passes.partition.plan.partitioned_value import NOTHING_SPARED, Leaf, PartitionedValue, Recompute, Spared
from passes.partition.registry import cut_of_the_whole, received_along
from passes.partition.reshard.planner import Resharder
from passes.partition.reshard.steps import ReshardPlan
from passes.partition.strategy import Strategy

_MOST_OPS = 32
"""The most ops that are examined to see whether an op is recomputed."""

_MAX_DEPTH = 16
"""The longest chain of ops that devices compute without communication, to have a part of a value."""

_MOST_LEAVES = 4
"""The most tensors that a value is recomputed from."""

_COPIES = 4
"""How often a value that is computed to be cut is written or read: by the op before it, its own, and the cut."""


class Cost(NamedTuple):
    """Seconds and bytes received, less what is spared; whether what is sent for it is of use to other ops too; the
    bytes received, with nothing subtracted; and whether anything is spared."""

    seconds: float
    received: float
    is_shared: bool
    gross: float
    spares: bool = False


def spared_without(op: Op, rule: FactorRule, strategy: Strategy, moved: Collection[ReshardPlan]) -> Spared:
    """What is spared if neither the op nor these reshards of its operands are needed."""
    own = Spared(strategy.alone, received_along(op, rule, strategy)) if strategy.sends else NOTHING_SPARED
    seconds, received = sum(plan.seconds for plan in moved), sum(plan.received for plan in moved)
    return Spared(own.seconds + seconds, own.received + received)


def made_by(plan: ReshardPlan) -> Collection[ClosedSharding]:
    """The shardings in which a value exists because of a reshard."""
    return [after for _, after in plan.steps if isinstance(after, ClosedSharding)]


def is_identity(op: Op | None, kind: ReductionKind, maker: Callable[[Value], Op | None]) -> bool:
    """Whether every element of the op's result is the identity of that reduction. `maker` is the op that makes a value
    whose parts devices can compute without communication."""
    if op is None:
        return False
    number = constant_value(op)
    if number is not None:
        return number == identity_of(kind, op.result.dtype)
    sources = (0,) if is_reshard(op) else OPS[op.name].sources(op)
    return bool(sources) and all(is_identity(maker(op.operands[i]), kind, maker) for i in sources)


def is_recomputable(op: Op) -> bool:
    """Whether a device can compute its part of the result, in any sharding, from parts of the operands."""
    opdef = OPS[op.name]
    is_made = is_made_of_parts(op) or opdef.keeps_dims or opdef.moves_along or _is_scan(op)
    return len(op.results) == 1 and is_made


def way_to_recompute(
    op: Op, rule: FactorRule, partitioned: Mapping[Value, PartitionedValue], options: PartitionOptions
) -> Recompute | None:
    """How a device computes any part of the op's result without communication; None if it cannot, or should not."""
    opdef = OPS[op.name]
    if not opdef.made_anywhere and (not is_made_of_parts(op) or options.recompute == "never"):
        return None
    if isinstance(constant_value(op), tuple):
        return None
    depth = 1
    for v in op.operands:
        operand = partitioned[v]
        whole = opdef.made_anywhere and ClosedSharding.replicated(v.type.rank) in operand.shardings
        if operand.recompute is None and not whole:
            return None
        depth = max(depth, 1 + (operand.recompute.depth if operand.recompute is not None else 0))
    return Recompute(op, rule, depth) if depth <= _MAX_DEPTH else None


def _is_scan(op: Op) -> bool:
    """Whether the op computes prefixes, which other ops are not computed together with."""
    return OPS[op.name].role is InKernels.SCAN


def _merges_dims(op: Op) -> bool:
    """Whether the op is a reshape or the like, which is computed again only if that sends less."""
    opdef = OPS[op.name]
    return opdef.family == "layout" and not opdef.keeps_dims and not opdef.moves_along


def is_made_of_parts(op: Op) -> bool:
    """Whether parts of the result are made of parts of the operands, and of no elements at other places along a dim."""
    opdef = OPS[op.name]
    return opdef.family == "elementwise" or (opdef.family == "layout" and opdef.has_strategy and not opdef.moves_along)


def finest_for(op: Op, rule: FactorRule, sharding: ClosedSharding) -> ClosedSharding:
    """The sharding of the result in which the op can be split, and out of which devices cut that sharding: a reshape of
    a dim into several is split along the first of these only."""
    for dim in reversed(range(sharding.rank)):
        axes, n = sharding.axes[dim], op.result.shape[dim]
        for keep in reversed(range(len(axes) + 1)):
            found = sharding.with_dim(dim, axes[:keep])
            if is_aligned(n, axes[:keep], axes[keep:]) and strategy_for(op, rule, found) is not None:
                return found
        sharding = sharding.with_dim(dim, ())
    return sharding


def computed_in(op: Op, rule: FactorRule, sharding: ClosedSharding) -> ClosedSharding:
    """The sharding in which the op's result is computed again to have it in that one: that of a reshape or the like may
    be coarser, and devices cut out their parts."""
    return finest_for(op, rule, sharding) if _merges_dims(op) else sharding


def leaves_of(op: Op, rule: FactorRule, partitioned: Mapping[Value, PartitionedValue]) -> tuple[Leaf, ...]:
    """The tensors that the op's result is computed from, elementwise, and in which elements of some are repeated; none
    if they are not smaller than the result. What is concatenated is cut from whole tensors: those that the op joins."""
    opdef = OPS[op.name]
    joins = opdef.moves_along and opdef.operands is None
    repeats = opdef.keeps_dims or joins
    if len(op.results) != 1 or not (opdef.family == "elementwise" or repeats):
        return ()
    given = [partitioned[v] for v in op.operands]
    if not repeats and not any(operand.leaves for operand in given):
        return ()
    places = {
        f: dim if rule.factors[f].kind is FactorKind.PARALLEL else -1
        for dim, factors in enumerate(rule.results[0])
        for f in factors
    }
    found: dict[Leaf, None] = {}
    size = 0
    for operand, tensor in zip(given, rule.operands, strict=True):
        if operand.recompute is not None:
            continue
        dims = tuple([places[factors[0]] if factors else -1 for factors in tensor])
        itself = ((operand.value, tuple(range(operand.value.type.rank))),)
        for leaf, own in itself if joins or not operand.leaves else operand.leaves:
            there = leaf, tuple([dims[d] if d >= 0 else -1 for d in own])
            size += 0 if there in found else leaf.type.nbytes
            found[there] = None
        if size >= op.result.type.nbytes or len(found) > _MOST_LEAVES:
            return ()
    return tuple(found)


def strategy_for(op: Op, rule: FactorRule, sharding: ClosedSharding) -> Strategy | None:
    """How the op is split so that its result has that sharding, and nothing is exchanged: devices have all of the dims
    along which elements move, and cut out what they need. None if that is not possible."""
    factors = factors_of_dims(rule, rule.results[0], sharding.axes)
    if dims_of_factors(rule, rule.results[0], factors) != sharding.axes:
        return None
    along = [f for f in factors if rule.factors[f].kind is not FactorKind.PARALLEL]
    if not all(_is_cut_out(op, rule, f, factors[f]) for f in along):
        return None
    apart = {f: axes for f, axes in factors.items() if f not in along}
    dims = [dims_of_factors(rule, tensor, apart) for tensor in rule.operands]
    shardings = tuple(ClosedSharding(d) for d in dims if d is not None)
    if len(shardings) < len(dims):
        return None
    return Strategy(tuple(sorted(factors.items())), shardings, (sharding,), 0.0)


def _is_cut_out(op: Op, rule: FactorRule, factor: int, axes: Axes) -> bool:
    """Whether devices can cut what they need out of all operands, if these are whole along that factor. Along one that
    no operand has, as where boxes at computed places have only a part of a dim, they cannot."""
    if not OPS[op.name].moves_along or rule.factors[factor].kind is not FactorKind.WINDOW:
        return False
    cut = cut_of_the_whole(op, rule, factor, axes)
    sides = enumerate(rule.operands)
    along = [(i, dim) for i, tensor in sides for dim, factors in enumerate(tensor) if factor in factors]
    return bool(along) and cut.issuperset(along)


@dataclass(eq=False, slots=True)
class Estimate:
    """The cost of bringing values to shardings, in order: each finds what earlier ones have brought there."""

    partitioned: Mapping[Value, PartitionedValue]
    resharder: Resharder
    uses: Counter[Value]
    read_by_products: frozenset[Value]
    _there: set[tuple[Value, ClosedSharding]] = field(default_factory=set[tuple[Value, ClosedSharding]])
    _ops_left: int = _MOST_OPS
    _used: Counter[Value] = field(default_factory=Counter[Value])
    """How often the ops that make the value, and those that make their operands, use each value."""

    def received(self, partitioned: PartitionedValue, sharding: ClosedSharding) -> tuple[int, bool]:
        """The bytes that devices receive to have a value in that sharding, and whether it is computed again for it."""
        value = partitioned.value
        plan, _ = self.resharder.cheapest(value.shape, value.dtype.nbytes, partitioned.shardings, sharding)
        cost = self.again(partitioned, sharding, plan)
        return math.ceil(plan.received if cost is None else cost.gross), cost is not None

    def again(self, partitioned: PartitionedValue, sharding: ClosedSharding, plan: ReshardPlan) -> Cost | None:
        """The cost of recomputing a value in that sharding, if it is less than that of the reshard by `plan`; or equal,
        and what is sent is of use to other ops too, unless the op is a reshape, or the value itself is sent in fewer
        bytes, to products.

        Arithmetic is not counted: consecutive elementwise ops are fused, and take less time than sending an element.
        What devices compute more than they need, to cut out their parts, is, and so are scans.
        Operands with a pending reduction are not reduced for this, because rounding would differ between a reduction
        before the op and one after it.
        """
        if partitioned.maker is None or not plan.received:
            return None
        self._used = self._used_for(partitioned)
        return self._again(partitioned, sharding, plan, is_last=True)

    def _used_for(self, partitioned: PartitionedValue) -> Counter[Value]:
        found: Counter[Value] = Counter()
        seen: set[Op] = set()
        pending = [partitioned]
        while pending and len(seen) < _MOST_OPS:
            maker = pending.pop().maker
            if maker is not None and maker[0] not in seen:
                seen.add(maker[0])
                found.update(maker[0].operands)
                pending += [self.partitioned[v] for v in maker[0].operands]
        return found

    def _again(
        self, partitioned: PartitionedValue, sharding: ClosedSharding, plan: ReshardPlan, *, is_last: bool
    ) -> Cost | None:
        """The cost, less what is spared if this `is_last`: the only use of the value, and of all that is made of it."""
        if partitioned.maker is None or not plan.received or not sharding.is_plain or not self._ops_left:
            return None
        self._ops_left -= 1
        op, rule = partitioned.maker
        source = computed_in(op, rule, sharding)
        strategy = strategy_for(op, rule, source)
        if strategy is None:
            return None
        before = set(self._there)
        is_last = is_last and self.uses[partitioned.value] <= 1
        spared = partitioned.spared if is_last else NOTHING_SPARED
        seconds, received, is_shared, gross = -spared.seconds, -spared.received, False, 0.0
        spares = spared.seconds > 0
        if source != sharding:
            seconds += memory_seconds(self.resharder.machine, _COPIES * bytes_of(op.result, source))
        if _is_scan(op):
            sizes = [bytes_of(v, at) for v, at in zip(op.operands, strategy.operands, strict=True)]
            seconds += memory_seconds(self.resharder.machine, accessed(op, [*sizes, bytes_of(op.result, source)]))
        for value, at in zip(op.operands, strategy.operands, strict=True):
            without = made_by(partitioned.moved[value]) if is_last and value in partitioned.moved else ()
            cost = self._of(value, at, without, is_last=is_last)
            if cost is None or received + cost.received > plan.received:
                self._there = before
                return None
            seconds, received = seconds + cost.seconds, received + cost.received
            is_shared, gross, spares = is_shared or cost.is_shared, gross + cost.gross, spares or cost.spares
        is_less = received < plan.received or spares
        is_alike = is_shared and partitioned.value not in self.read_by_products and not _merges_dims(op)
        as_much = is_alike and (seconds, received) == (plan.seconds, plan.received)
        if not as_much and not (is_less and seconds < plan.seconds):
            self._there = before
            return None
        self._there.add((partitioned.value, sharding))
        return Cost(seconds, received, is_shared, gross, spares)

    def _of(
        self, value: Value, sharding: ClosedSharding, without: Collection[ClosedSharding], *, is_last: bool
    ) -> Cost | None:
        partitioned = self.partitioned[value]
        exists = sharding in partitioned.shardings and sharding not in without
        if exists or (value, sharding) in self._there or partitioned.recompute is not None:
            return Cost(0.0, 0.0, False, 0.0)
        if all(have.partial for have in partitioned.shardings):
            return None
        sources = [have for have in partitioned.shardings if have not in without]
        plan, _ = self.resharder.cheapest(value.shape, value.dtype.nbytes, sources, sharding)
        cost = self._again(partitioned, sharding, plan, is_last=is_last)
        if cost is not None:
            return cost
        self._there.add((value, sharding))
        return Cost(plan.seconds, plan.received, self.uses[value] > self._used[value], plan.received)
