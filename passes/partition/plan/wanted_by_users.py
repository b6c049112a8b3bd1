"""Values whose users want them in several shardings.

Propagation gives each value one sharding. Where that is a compromise, some users reshard the value, or what they make
of it. What they send depends on how the value is computed, so this is chosen with all of their reshards in mind; and
where several want it in the same sharding, each counts its part of the one reshard that they need. What a user has to
send in each case may only be known by choosing a strategy for it, as for a reshape whose result is split in minor parts
of the value's dims, or for a concatenation along a split dim.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from ir.dataflow import uses_of
from ir.mesh import DimAxes
from ir.ops import OPS, FactorKind, FactorRule
from ir.ops.layout import is_annotation
from ir.program import Op, Program, Value, all_ops
from ir.records import record
from ir.types import TensorType
from passes.factors import dims_of_factors, factors_of_dims
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan.recompute import finest_for, is_made_of_parts, strategy_for
from passes.signatures import Signature, signature_of
from passes.sub_axes import SubAxes

ShardingOf = Callable[[Value], ClosedSharding]

_MOST_WANTS, _MOST_MOVED = 6, 24
"""The most wants of one value: with more, only its propagated sharding counts. Those of ops that move its elements are
one, as the dearest counts, but they are not more than so many."""

_MOST_ARRANGED = 4
"""The most ops after one another that arrange a value for a want."""


@record
class Want:
    """A sharding in which users want a value. They read its elements in `itemsize` bytes, or in as many as it has."""

    sharding: ClosedSharding
    itemsize: float = math.inf

    @property
    def split(self) -> DimAxes | None:
        """The axes that split each dim of the value if it is as wanted."""
        return self.sharding.axes


@record
class WantReduced:
    """A sharding in which a user wants what it reduces a value to along dims: of that type, by that factor rule."""

    sharding: ClosedSharding
    type: TensorType
    rule: FactorRule

    @property
    def split(self) -> DimAxes | None:
        """The axes that split each dim of the value if it is reduced where it is."""
        rule = self.rule
        return dims_of_factors(rule, rule.operands[0], factors_of_dims(rule, rule.results[0], self.sharding.axes))

    def under(self, sharding: ClosedSharding, sub_axes: SubAxes) -> ClosedSharding | None:
        """The sharding of the reduced value if the value has that one: partial over the axes that split reduced dims,
        and over those over which the value is. None if its shards would not be boxes."""
        factors = factors_of_dims(self.rule, self.rule.operands[0], sharding.axes)
        dims = dims_of_factors(self.rule, self.rule.results[0], factors)
        kinds = ((f, factor.reduction) for f, factor in enumerate(self.rule.factors))
        split = [(a, kind) for f, kind in kinds if kind is not None for a in factors.get(f, ())]
        partial = sub_axes.in_order((*sharding.partial, *split))
        return None if dims is None else ClosedSharding(dims, partial, sharding.order)

    def takes_pending(self, sharding: ClosedSharding) -> bool:
        """Whether the value may be reduced while the reductions are pending that are in that sharding: these are the
        same."""
        kinds = {factor.reduction for factor in self.rule.factors if factor.reduction is not None}
        return kinds.issuperset(kind for _, kind in sharding.partial)


@record
class WantArranged:
    """A sharding in which a user wants what it makes of a value by arranging its elements, and what is wanted of that,
    if this is more. It costs what the user's own strategy sends. That may be nothing if the value is `split` so.

    `operands` has for each of the user's operands, of which the value is the one at `position`, the propagated sharding
    and whether it can be computed anywhere. A user that `moves_along` a split dim exchanges parts of the value.
    """

    sharding: ClosedSharding
    signature: Signature
    split: DimAxes | None
    operands: Sequence[tuple[ClosedSharding, bool]]
    position: int = 0
    behind: Sequence[AnyWant] = ()
    moves_along: bool = False


AnyWant = Want | WantReduced | WantArranged
"""What is wanted of a value."""


def wanted_by_users(program: Program, sharding_of: ShardingOf) -> Mapping[Value, Sequence[AnyWant]]:
    """What users of a value want, the finest shardings first, for those values that are not only wanted in the
    propagated sharding, by `sharding_of`. Ops on the elements of one tensor want of it what is wanted of their
    result."""
    uses, free = uses_of(program), _made_of_nothing(program)
    found: dict[Value, Sequence[AnyWant]] = {}
    for value, users in reversed(list(uses.users.items())):
        own = sharding_of(value)
        wants: dict[AnyWant, None] = dict.fromkeys([Want(own)] if value in uses.given else [])
        for user in users:
            is_passed_on = OPS[user.name].family == "elementwise" and free.issuperset({*user.operands} - {value})
            behind = found.get(user.result, ()) if is_passed_on else ()
            moved = None if behind else _moved(user, value, sharding_of, found, free)
            arranged = None if behind else moved or _arranged(user, sharding_of, found)
            wants.update(dict.fromkeys(behind or [arranged or _want_of(user, value, own, sharding_of, free)]))
        if _are_too_many(wants) or all(isinstance(want, Want) and want.sharding == own for want in wants):
            continue
        found[value] = tuple(sorted(wants, key=_in_order))
    return found


def _arranged(user: Op, sharding_of: ShardingOf, found: Mapping[Value, Sequence[AnyWant]]) -> WantArranged | None:
    """What an op wants of a value whose elements it arranges, if it cannot be split as its result is wanted, or if what
    is behind it cannot; None if it can, or is another op."""
    if len(user.operands) != 1 or OPS[user.name].family != "layout" or not is_made_of_parts(user):
        return None
    signature, wanted = signature_of(user), sharding_of(user.result)
    if signature.rule is None or not wanted.is_plain:
        return None
    behind = found.get(user.result, ())
    arranged = [want for want in behind if isinstance(want, WantArranged)]
    if _depth(arranged) >= _MOST_ARRANGED:
        return None
    split = arranged[0].split if arranged else wanted.axes
    if split is None or (not arranged and strategy_for(user, signature.rule, wanted) is not None):
        return None
    strategy = strategy_for(user, signature.rule, finest_for(user, signature.rule, ClosedSharding(split)))
    read = None if strategy is None else strategy.operands[0].axes
    operands = ((sharding_of(user.operands[0]), False),)
    return WantArranged(wanted, signature, read, operands, behind=behind if arranged else ())


def _moved(
    user: Op,
    value: Value,
    sharding_of: ShardingOf,
    found: Mapping[Value, Sequence[AnyWant]],
    free: Collection[Value],
) -> WantArranged | None:
    """What an op wants of a value whose elements it moves along a split dim, as a concatenation does or a reverse: they
    are exchanged, or sent elsewhere before. None if it is another op."""
    if not OPS[user.name].moves_along or user.operands.count(value) != 1:
        return None
    signature, wanted = signature_of(user), sharding_of(user.result)
    rule, position, behind = signature.rule, user.operands.index(value), found.get(user.result, ())
    if rule is None or not wanted.is_plain or _depth(behind) >= _MOST_ARRANGED:
        return None
    factors = factors_of_dims(rule, rule.results[0], wanted.axes)
    apart = {f: axes for f, axes in factors.items() if rule.factors[f].kind is FactorKind.PARALLEL}
    if len(apart) == len(factors):
        return None
    whole = dims_of_factors(rule, rule.operands[position], apart)
    operands = tuple([(sharding_of(v), v in free) for v in user.operands])
    return WantArranged(wanted, signature, whole, operands, position, behind, moves_along=True)


def _are_too_many(wants: Collection[AnyWant]) -> bool:
    moved = sum(isinstance(want, WantArranged) and want.moves_along for want in wants)
    return len(wants) - max(0, moved - 1) > _MOST_WANTS or moved > _MOST_MOVED


def _depth(wants: Sequence[AnyWant]) -> int:
    """How many ops after one another arrange what is wanted."""
    return max((1 + _depth(want.behind) for want in wants if isinstance(want, WantArranged)), default=0)


def _in_order(want: AnyWant) -> tuple[bool, int, float]:
    """The values before what they are reduced to, and the finest shardings of each first."""
    parts = want.sharding.parts
    return (False, -parts, -want.itemsize) if isinstance(want, Want) else (True, -parts, 0)


def _made_of_nothing(program: Program) -> set[Value]:
    """Values of which devices can compute any part without having anything."""
    found: set[Value] = set()
    for op in all_ops(program):
        if OPS[op.name].made_anywhere and found.issuperset(op.operands):
            found.update(op.results)
    return found


def _want_of(
    user: Op, value: Value, own: ClosedSharding, sharding_of: ShardingOf, free: Collection[Value] = ()
) -> Want | WantReduced:
    """What an op wants of a value that has that sharding of its own, to have its result as wanted. Products, and ops
    that read elements at other places than they write, can be split in many ways: they want the value as it is; and so
    do ops on several tensors, other than those that are `free` to be computed anywhere, whose result is split in fewer
    parts: it is gathered rather than each of these."""
    if is_annotation(user):
        return Want(sharding_of(user.result))
    rule = signature_of(user).rule
    if rule is None or len(user.results) != 1:
        return Want(own)
    wanted = sharding_of(user.result)
    if user.name == "reduce":
        return WantReduced(wanted, user.result.type, rule)
    if not is_made_of_parts(user) or own.order is not None or wanted.order is not None:
        return Want(own)
    itemsize = user.result.dtype.nbytes if user.result.shape == value.shape else math.inf
    read = read_for(wanted, rule, user.operands.index(value), own)
    is_one = all(v is value or v in free for v in user.operands)
    return Want(read, itemsize) if is_one or read.parts >= own.parts else Want(own)


def read_for(wanted: ClosedSharding, rule: FactorRule, position: int, own: ClosedSharding) -> ClosedSharding:
    """The sharding of an operand with which an op's result is as wanted; along what the result does not have, its own
    sharding."""
    if rule.operands[position] == rule.results[0]:
        return wanted
    made = {f for dim in rule.results[0] for f in dim}
    factors = factors_of_dims(rule, rule.results[0], wanted.axes)
    used = {a for axes in factors.values() for a in axes}
    for f, axes in factors_of_dims(rule, rule.operands[position], own.axes).items():
        if f not in made and used.isdisjoint(axes):
            factors[f] = axes
    dims = dims_of_factors(rule, rule.operands[position], factors)
    return own if dims is None else ClosedSharding(dims)


def wanted_alike(program: Program, sharding_of: ShardingOf) -> Mapping[Value, Mapping[ClosedSharding, int]]:
    """The shardings other than the propagated one in which several users of a value want it, and how many: one reshard
    serves them all."""
    uses = uses_of(program)
    found: dict[Value, Mapping[ClosedSharding, int]] = {}
    for value, users in uses.users.items():
        if len(users) < 2:
            continue
        own = sharding_of(value)
        arranging = (op for op in dict.fromkeys(users) if is_annotation(op) or is_made_of_parts(op))
        wants = Counter(_want_of(op, value, own, sharding_of).sharding for op in arranging)
        shared = {sharding: count for sharding, count in wants.items() if count > 1 and sharding != own}
        if shared:
            found[value] = shared
    return found
