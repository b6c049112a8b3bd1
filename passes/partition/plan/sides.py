"""Queries for the strategy of an op, and the shardings that the op's tensors have under candidates.

There are many candidates, but each tensor has few different shardings under them. What is known of a tensor in one
sharding, such as how long a reshard to it takes, is found once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ir.mesh import Axes, DimAxes
from ir.ops import OPS, FactorKind, FactorRule
from ir.program import Op, Value
from ir.records import record
from ir.sharding import Partial, ReductionKind
from ir.types import TensorType
from passes.cost.machine import Machine
from passes.cost.model import accessed, arithmetic_seconds, memory_seconds
from passes.factors import dims_of_factors
from passes.partition.closed_sharding import ClosedSharding, bytes_of, local_bytes
from passes.partition.plan.wanted_by_users import AnyWant, Want, WantArranged, WantReduced
from passes.partition.registry import ALONG, cut_of_the_whole, partitioning_of
from passes.partition.strategy import ClosedShardings
from passes.sub_axes import SubAxes


@record
class Origin:
    """A smaller tensor whose elements an operand repeats: its type, for each of its dims the operand's dim along it, or
    -1, and the shardings in which it exists. If it is used in place of the operand, `spared` are the seconds that were
    spent on what is sent for the operand alone."""

    type: TensorType
    dims: tuple[int, ...]
    known: tuple[ClosedSharding, ...]
    spared: float = 0.0

    def below(self, sharding: ClosedSharding) -> ClosedSharding:
        """The sharding from which the operand is computed in that one."""
        return ClosedSharding(tuple([sharding.axes[d] if d >= 0 else () for d in self.dims]))


class OperandAt(NamedTuple):
    """Where an operand exists.

    `known` has the shardings in which it exists, the first the one it was made in. One that is `recomputable` can be
    computed in any sharding without communication. `share` says how often a reshard of it runs for one run of the op:
    in front of a loop it runs once. An operand that has `origins` can be computed from these, wherever they are
    brought. `identity_of` is the kind of the pending reductions of the op's operands that it is the identity of, as
    zeros are of a sum. `alike` has the shardings in which several ops want it, so that one reshard serves them all,
    with their number.
    """

    known: tuple[ClosedSharding, ...]
    recomputable: bool = False
    share: float = 1.0
    origins: tuple[Origin, ...] = ()
    identity_of: ReductionKind | None = None
    alike: tuple[tuple[ClosedSharding, int], ...] = ()


class ResultAt(NamedTuple):
    """Where a result is wanted: in the propagated sharding, and as its users want it, if that is not only the same.
    `joins` is the sharding of what it is added to, if that has a reduction pending, which is then the reduction of
    both."""

    wanted: ClosedSharding
    joins: ClosedSharding | None = None
    wants: Sequence[AnyWant] = ()


class Situation(NamedTuple):
    """Where the operands of an op exist, and where they and its results are wanted by propagation."""

    operands: tuple[OperandAt, ...]
    results: tuple[ResultAt, ...]
    wanted_operands: tuple[ClosedSharding, ...]

    @property
    def known(self) -> Sequence[ClosedSharding]:
        """The shardings in which operands exist."""
        return [sharding for operand in self.operands for sharding in operand.known]

    @property
    def is_pending(self) -> bool:
        """Whether a reduction of an operand may be pending."""
        return any(sharding.partial for operand in self.operands for sharding in operand.known)


class TensorUses(NamedTuple):
    """The other uses of an op's tensors, whatever their shardings.

    An operand that is `shared` serves other ops too, and its gather counts once for all of them. `used` says for each
    result whether it is needed, and `summed` with how many others, itself included, it is reduced at once if its
    reduction stays pending: more if it is converted to fewer bytes before all devices have it. `remains` is the share
    of each result's bytes that is left to be resharded: less than 1 if it is only reduced along dims. If operands are
    the same value, `repeated` has for each operand the first that is the same. `shared` is empty if no loop rotates
    operands, and `used` if no op combines candidates.
    """

    shared: tuple[bool, ...]
    used: tuple[bool, ...]
    summed: tuple[float, ...]
    remains: tuple[float, ...]
    repeated: tuple[int, ...] = ()


@record
class StrategyQuery:
    """Everything that the choice of a strategy depends on: equal queries have equal answers. A result that is `reduced`
    is needed with no reduction pending."""

    op: Op
    rule: FactorRule
    at: Situation
    uses: TensorUses
    reduced: bool = False

    def key(self) -> object:
        """A key that is equal for equal queries, without what makes no difference to the answer."""
        op, opdef, factors, uses = self.op, OPS[self.op.name], self.rule.factors, self.uses
        in_parts = partitioning_of(op).in_parts
        what: object = op.name, tuple(op.attrs.items())
        if not in_parts and not any(f.kind in ALONG for f in factors):
            what = opdef.linearity(op), opdef.flops(op) if opdef.flops is not None else None, opdef.copied
        pending = self.at.is_pending
        return (
            what,
            self.rule,
            tuple([v.type for v in op.operands]),
            tuple([v.type for v in op.results]),
            self.at,
            uses.shared if in_parts else (),
            uses.used if any(f.has_candidates for f in factors) else (),
            self.reduced if pending else False,
            uses.summed if pending or any(f.reduction for f in factors) else (),
            uses.remains,
            uses.repeated,
        )


def plain_query(
    op: Op, rule: FactorRule, operands: Sequence[ClosedSharding], results: Sequence[ClosedSharding]
) -> StrategyQuery:
    """A query of which only the shardings of the operands and the wanted ones of the results are known."""
    n, m = len(operands), len(results)
    at = Situation(tuple([OperandAt((o,)) for o in operands]), tuple(map(ResultAt, results)), tuple(operands))
    return StrategyQuery(op, rule, at, TensorUses((False,) * n, (True,) * m, (1.0,) * m, (1.0,) * m))


def repeated_operands(op: Op) -> tuple[int, ...]:
    """For each operand the first that is the same value; empty if all differ."""
    first: dict[Value, int] = {}
    found = tuple([first.setdefault(value, i) for i, value in enumerate(op.operands)])
    return found if len(first) < len(found) else ()


def _is_added_in_place(sharding: ClosedSharding, pending: ClosedSharding) -> bool:
    """Whether a tensor in that sharding is added to one that has a reduction pending without communication: each
    element by one of the devices that hold parts of the sum, and cut out of what that device has."""
    if sharding.partial or sharding.order != pending.order:
        return sharding == pending
    over = {a for a, _ in pending.partial}
    return all(
        axes == split[: len(axes)] or (axes[: len(split)] == split and over.issuperset(axes[len(split) :]))
        for axes, split in zip(sharding.axes, pending.axes, strict=True)
    )


@dataclass(slots=True, eq=False)
class Move:
    """A reshard that a strategy implies, of an operand or of a result: from one of the shardings to another, or of the
    origins of an operand; or whatever ops send whose operand the tensor is, each `asked` under each of its rules. Of
    ops that are asked together the dearest counts: what is near the edges of shards is exchanged in one message. Its
    least time and its cheapest source are found once for all candidates that need it."""

    shape: tuple[int, ...]
    itemsize: float
    sources: tuple[ClosedSharding, ...]
    target: ClosedSharding
    share: float
    is_operand: bool
    is_done: bool
    """Whether the value already has the sharding."""
    origins: tuple[Origin, ...] = ()
    asked: tuple[Sequence[StrategyQuery], ...] = ()
    least: float | None = None
    cheapest: tuple[float, ClosedSharding] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """A tensor of an op under a candidate: its sharding, its bytes on a device, and the reshards that this implies."""

    sharding: ClosedSharding
    nbytes: int
    moves: tuple[Move, ...]


@record
class _Operand:
    """All that the reshards of an operand depend on: its global shape, the bytes of an element, and where it exists."""

    shape: tuple[int, ...]
    itemsize: float
    at: OperandAt

    def moves(self, sharding: ClosedSharding, sub_axes: SubAxes) -> tuple[Move, ...]:
        """The reshard to that sharding."""
        at = self.at
        if at.recomputable and (sharding.is_plain or self._is_identity(sharding)):
            return ()
        origins = at.origins if at.origins and sharding.is_plain else ()
        share = at.share / next((users for wanted, users in at.alike if wanted == sharding), 1)
        return (Move(self.shape, self.itemsize, at.known, sharding, share, True, sharding in at.known, origins),)

    def _is_identity(self, sharding: ClosedSharding) -> bool:
        """Whether the operand is the identity of the reduction that is pending in that sharding."""
        return sharding.order is None and {kind for _, kind in sharding.partial} == {self.at.identity_of}


@record
class _Result:
    """All that the reshards of a result depend on: its global shape, the bytes of an element, where it is wanted, and
    its uses."""

    shape: tuple[int, ...]
    itemsize: float
    at: ResultAt
    is_used: bool
    summed: float
    remains: float

    def moves(self, sharding: ClosedSharding, sub_axes: SubAxes) -> tuple[Move, ...]:
        """The reshards from that sharding."""
        at = self.at
        if not self.is_used or (at.joins is not None and _is_added_in_place(sharding, at.joins)):
            return ()
        if not at.wants:
            return (self._move((sharding,), at.wanted, self.remains),)
        return tuple(self._moves_for_users(sharding, sub_axes))

    def _moves_for_users(self, sharding: ClosedSharding, sub_axes: SubAxes) -> Iterator[Move]:
        """The reshards for all users: first to the finest shardings, from which the others may be reached."""
        there = [sharding]
        if sharding.partial and not all(_takes_pending(want, sharding) for want in self.at.wants):
            yield self._move((sharding,), self.at.wanted)
            there = [self.at.wanted]
        arranged: dict[WantArranged | None, list[WantArranged]] = {}
        for want in self.at.wants:
            if isinstance(want, WantArranged):
                arranged.setdefault(None if want.moves_along else want, []).append(want)
                continue
            if isinstance(want, Want):
                yield self._move(tuple(there), want.sharding, itemsize=min(self.itemsize, want.itemsize))
                there.append(want.sharding)
                continue
            made = [found for have in there if (found := want.under(have, sub_axes)) is not None]
            if made:
                shape, itemsize, target = want.type.shape, want.type.dtype.nbytes, want.sharding
                yield Move(shape, itemsize, tuple(made), target, 1.0, False, target in made)
        for parts in arranged.values():
            asked = tuple([_asked(part, tuple(there)) for part in parts])
            yield Move(self.shape, self.itemsize, tuple(there), there[0], 1.0, False, False, asked=asked)

    def _move(
        self,
        sources: tuple[ClosedSharding, ...],
        wanted: ClosedSharding,
        remains: float = 1.0,
        itemsize: float | None = None,
    ) -> Move:
        share, partial = 1.0, sources[0].partial
        # Not for a finer sharding than wanted, or sums that are pending: less is computed in it, for one more message.
        if remains != 1 and not partial:
            made, needed = (local_bytes(self.shape, self.itemsize, at) for at in (sources[0], wanted))
            share = remains if made >= needed else 1.0
        at_once = self.summed if partial and not wanted.partial else 1
        size = self.itemsize if itemsize is None else itemsize
        return Move(self.shape, size, sources, wanted, share / at_once, False, wanted in sources)


def _asked(want: WantArranged, there: tuple[ClosedSharding, ...]) -> Sequence[StrategyQuery]:
    """What a user that arranges the elements of a tensor is asked, under each of its rules."""
    result = ResultAt(want.sharding, wants=want.behind)
    operands = [OperandAt((sharding,), is_free) for sharding, is_free in want.operands]
    operands[want.position] = OperandAt(there)
    at = Situation(tuple(operands), (result,), tuple([sharding for sharding, _ in want.operands]))
    rules, uses = (want.signature.rule, *want.signature.other_rules), TensorUses((), (), (1.0,), (1.0,))
    return [StrategyQuery(want.signature.op, rule, at, uses) for rule in rules if rule is not None]


def _takes_pending(want: AnyWant, sharding: ClosedSharding) -> bool:
    """Whether a user may take a value while the reductions are pending that are in that sharding."""
    return want.takes_pending(sharding) if isinstance(want, WantReduced) else isinstance(want, WantArranged)


_Split = tuple[DimAxes, Partial]
"""The axes that split each dim of a tensor, and its pending reductions."""


KnownSides = dict[_Operand | _Result, dict[_Split, Side]]
"""The tensors of all queries in all shardings in which they were looked at: many ops have tensors alike."""


class Sides:
    """The tensors of a query's op under its candidates. Each tensor has few shardings under them, so what is known of a
    tensor in one is found once."""

    def __init__(self, q: StrategyQuery, sub_axes: SubAxes, machine: Machine, known: KnownSides) -> None:
        self.q = q
        self.sub_axes = sub_axes
        self.machine = machine
        self.arithmetic = arithmetic_seconds(machine, q.op)
        """Seconds of the op's arithmetic on one device."""
        self.kept = bytes_of(q.op.results[-1], q.at.results[-1].wanted) if OPS[q.op.name].copied == -1 else math.inf
        """The bytes that are kept of a result that is a part of a tensor: a slice of a slice reads only those."""
        self.given = len(q.op.operands)
        self.values = (*q.op.operands, *q.op.results)
        self.sides = (*q.rule.operands, *q.rule.results)
        self.distinct = tuple(dict.fromkeys(self.sides))
        """The factors of the tensors' dims, each list once."""
        self.which = [self.distinct.index(tensor) for tensor in self.sides]
        """Which of these lists each tensor has."""
        others = [(f, factor) for f, factor in enumerate(q.rule.factors) if factor.kind is not FactorKind.PARALLEL]
        self.reductions = {f: factor.reduction for f, factor in enumerate(q.rule.factors) if factor.reduction}
        self.special = {f for f, factor in others if factor.kind in ALONG or factor.has_candidates}
        """The factors along which the op itself sends something."""
        self.windows = [f for f, factor in others if factor.kind is FactorKind.WINDOW]
        self._tensors: list[_Operand | _Result] = []
        for value, operand in zip(q.op.operands, q.at.operands, strict=True):
            self._tensors.append(_Operand(value.shape, value.dtype.nbytes, operand))
        for i, (value, result) in enumerate(zip(q.op.results, q.at.results, strict=True)):
            is_used = not q.uses.used or q.uses.used[i]
            uses = is_used, q.uses.summed[i], q.uses.remains[i]
            self._tensors.append(_Result(value.shape, value.dtype.nbytes, result, *uses))
        self._known = [known.setdefault(tensor, {}) for tensor in self._tensors]

    def seconds(self, parts: int, sizes: Sequence[float]) -> float:
        """The time of one of `parts` equal parts of the op: its arithmetic, or reading and writing tensors of these
        sizes in bytes, whichever takes longer."""
        nbytes = min(accessed(self.q.op, sizes), 2 * self.kept)
        return max(self.arithmetic / parts, memory_seconds(self.machine, nbytes))

    def under(self, factors: Mapping[int, Axes], group: Sequence[int], pending: Partial) -> list[Side] | None:
        """The tensors if these axes split the factors, as in `shardings_under`; None also if reductions of several
        kinds would be pending."""
        partial = self._partial(factors, pending)
        if len(partial) > 1 and len({kind for _, kind in partial}) > 1:
            return None
        dims: list[DimAxes] = []
        for tensor in self.distinct:
            found = dims_of_factors(self.q.rule, tensor, factors)
            if found is None:
                return None
            dims.append(found)
        splits = [(dims[k], () if i < self.given else partial) for i, k in enumerate(self.which)]
        for i in group:
            splits[i] = dims[self.which[i]], pending
        return [self._side(i, split) for i, split in enumerate(splits)]

    def _partial(self, factors: Mapping[int, Axes], pending: Partial) -> Partial:
        new = [(a, kind) for f, kind in self.reductions.items() for a in factors.get(f, ())]
        if not new and not pending:
            return ()
        return self.sub_axes.in_order((*pending, *new))

    def side(self, i: int, sharding: ClosedSharding) -> Side:
        """The tensor of that number in that sharding, which is on the home mesh."""
        assert sharding.order is None, sharding
        return self._side(i, (sharding.axes, sharding.partial))

    def _side(self, i: int, at: _Split) -> Side:
        found = self._known[i].get(at)
        if found is None:
            tensor, sharding = self._tensors[i], ClosedSharding(*at)
            nbytes = local_bytes(tensor.shape, tensor.itemsize, sharding)
            found = self._known[i][at] = Side(sharding, nbytes, tensor.moves(sharding, self.sub_axes))
        return found

    def each_once(self, placed: Sequence[Side]) -> Sequence[Side]:
        """The tensors, without operands that are the same value in the same sharding as an earlier one."""
        if not self.q.uses.repeated:
            return placed
        found: list[Side] = []
        for i, tensor in enumerate(placed):
            first = self.q.uses.repeated[i] if i < self.given else i
            if first == i or placed[first].sharding != tensor.sharding:
                found.append(tensor)
        return found

    def shardings(self, placed: Sequence[Side]) -> ClosedShardings:
        return tuple([p.sharding for p in placed[: self.given]]), tuple([p.sharding for p in placed[self.given :]])

    def with_what_is_whole(self, factors: Mapping[int, Axes], placed: list[Side]) -> list[Side]:
        """The tensors with operands whole along dims out of which devices then cut what they need, if they exist so."""
        if not self.windows:
            return placed
        q, found = self.q, list(placed)
        for f in self.windows:
            axes = factors.get(f)
            if not axes:
                continue
            for i, dim in cut_of_the_whole(q.op, q.rule, f, axes):
                now = found[i].sharding
                whole = replace(now, axes=(*now.axes[:dim], (), *now.axes[dim + 1 :]))
                at = q.at.operands[i]
                if whole in at.known or (at.recomputable and whole.is_plain):
                    found[i] = self.side(i, whole)
        return placed if all(now is before for now, before in zip(found, placed, strict=True)) else found
