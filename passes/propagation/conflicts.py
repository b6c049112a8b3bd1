"""Conflicts: tensors of an op claim different axes for a factor, or an axis for different factors.

Claims are ordered by `precedence`, and an axis splits the factor that is the first to claim it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ir.mesh import Axes, AxisRef, axes_size
from ir.ops import FactorKind
from ir.program import Value
from passes.factors import factors_of_dims
from passes.propagation.graph import PropagationGraph
from passes.propagation.nodes import Node
from passes.propagation.reasons import Conflict, ValueId
from passes.propagation.survival import made_along
from passes.propagation.traffic import local_bytes


class Claim(NamedTuple):
    """A tensor of a node, by position, a factor, and the axes that the tensor claims for the factor."""

    position: int
    factor: int
    axes: Axes


RULES = (
    "a tensor goes before one that is gathered for no more bytes than the first is moved for",
    "a dim that all tensors of the op share goes first",
    "a tensor that does not repeat the elements of smaller ones goes first",
    "more axes go first",
    "the indices of a lookup go before the table",
    "of tensors that repeat elements, the one that repeats more goes first",
    "the larger tensor goes first",
    "a dim that is not reduced later goes first",
    "of tensors that repeat elements, the one whose dim is later reduced to fewer goes first",
    "the earlier operand goes first",
)
"""The rules that settle conflicts, in order of precedence."""

EARLIER = "it was settled before, by priorities, simpler ops or annotations"
"""The explanation of conflicts that the rules would settle otherwise."""


def precedence(graph: PropagationGraph, node: Node, claims: Collection[Claim]) -> Callable[[Claim], tuple[int, ...]]:
    """The key by which a node's claims are ordered; `RULES` describes it in words.

    The size of a tensor that a loop computes anew in each iteration is that of all iterations, since it would be sent
    in each, unless the axis would only cause a reduction of its users in each iteration.
    """
    ending, relation = _ending(graph, node, claims), node.relation
    lighter = outweighed(graph, node, claims)
    is_disputed = node.op is not None and not have_one_factor_each(claims)

    def key(claim: Claim) -> tuple[int, ...]:
        position, f, axes = claim
        value = node.tensors[position]
        repeats, times = value in graph.repeating, 1 if f in ending else graph.iterations.get(value, 1)
        finds = position in relation.indices
        repeated = graph.repeating[value] * times if repeats else 0
        later = graph.reductions.elements(node, f) if repeats and is_disputed else 0
        first = claim in lighter, relation.ranks[f], repeats, -len(axes), not finds
        return *first, -repeated, -value.type.size * times, f in ending, later, position

    return key


def _ending(graph: PropagationGraph, node: Node, claims: Iterable[Claim]) -> Collection[int]:
    """The claimed factors that are reduced here or by all users of the results, unless all claimed factors are: what an
    axis saves on one of them here is sent when it is reduced, in each iteration of the loops around. If there are none,
    the factors over which a maximum or another extreme is taken on the way."""
    if node.op is None or have_one_factor_each(claims):
        return ()
    factors = {f for _, f, _ in claims}
    here = {f for f in factors if node.relation.rule.factors[f].kind is not FactorKind.PARALLEL}
    made = {f: made_along(node, f) for f in factors}
    ending = here.union(f for f in factors if made[f] and graph.surviving.isdisjoint(made[f]))
    if not ending:
        ending = {f for f in factors if not graph.extreme.isdisjoint(made[f])}
    return ending if ending != factors else here


def outweighed(graph: PropagationGraph, node: Node, claims: Collection[Claim]) -> Collection[Claim]:
    """The claims of the node that it takes no more bytes to give up than to satisfy: to gather the tensor over the axis
    that is claimed for another factor too, and over those minor to it, instead of moving a tensor that claims it for
    that. One of those `repeating` the elements of smaller ones need not be moved, nor a table in which indices look
    elements up.
    """
    if node.op is None or have_one_factor_each(claims):
        return ()
    moved: dict[AxisRef, dict[int, float]] = {}
    for f, axis, value in [(f, axis, node.tensors[i]) for i, f, axes in claims for axis in axes]:
        if value not in graph.repeating:
            largest = moved.setdefault(axis, {})
            largest[f] = max(largest.get(f, 0.0), local_bytes(value, graph.states[value]))

    def is_outweighed(claim: Claim) -> bool:
        position, f, axes = claim
        if position in node.relation.indices:
            return False
        others = [[nbytes for g, nbytes in moved.get(axis, {}).items() if g != f] for axis in axes]
        lost = next((i for i, found in enumerate(others) if found), None)
        if lost is None:
            return False
        value = node.tensors[position]
        gathered = min(value.type.nbytes, local_bytes(value, graph.states[value]) * axes_size(axes[lost:]))
        return gathered <= max(nbytes for found in others for nbytes in found)

    return {claim for claim in claims if is_outweighed(claim)}


def have_one_factor_each(claims: Iterable[Claim]) -> bool:
    """Whether no axis is claimed by several factors."""
    owner: dict[AxisRef, int] = {}
    return all(owner.setdefault(axis, f) == f for _, f, axes in claims for axis in axes)


def conflicts_at(
    graph: PropagationGraph, compared: Mapping[int, Sequence[str]], names: Mapping[Value, ValueId]
) -> Iterator[Conflict]:
    """The conflicts at the nodes of a propagated graph. `compared` has, by the number of a node, what was compared
    where tensors were free to follow either side."""
    for node in graph.nodes:
        if node.op is not None and not node.annotates:
            yield from _lost(graph, node, tuple(compared.get(node.number, ())), names)


def _lost(
    graph: PropagationGraph, node: Node, compared: tuple[str, ...], names: Mapping[Value, ValueId]
) -> Iterator[Conflict]:
    """A conflict for each claim that lost, with the claim that won and the rule that settled it. What the results have
    has won, whatever the rules."""
    assert node.op is not None
    sides = [
        (value, side, graph.states[value].axes) for value, side in zip(node.tensors, node.relation.sides, strict=True)
    ]
    claims = [
        Claim(i, f, axes)
        for i, (_, side, split) in enumerate(sides)
        for f, axes in factors_of_dims(node.relation.rule, side, split).items()
    ]
    if len({axes for _, _, axes in claims}) < 2 and len({f for _, f, _ in claims}) < 2:
        return
    key = precedence(graph, node, claims)
    held = {(f, axes) for position, f, axes in claims if position >= node.relation.given}

    def named(claim: Claim) -> tuple[ValueId, int]:
        value, side, _ = sides[claim.position]
        return names[value], next(dim for dim, factors in enumerate(side) if claim.factor in factors)

    tensors = frozenset(names[value] for value in node.tensors)
    winners: list[Claim] = []
    for claim in sorted(claims, key=lambda claim: (claim[1:] not in held, key(claim), claim.factor)):
        winner = next((other for other in winners if _clash(other, claim)), None)
        if winner is None:
            winners.append(claim)
        else:
            both = winner.axes, named(winner), claim.axes, named(claim)
            yield Conflict(node.op.name, node.op.span, *both, _rule(key(winner), key(claim)), tensors, compared)


def _clash(a: Claim, b: Claim) -> bool:
    """Whether two claims are for other axes of one factor, or for one axis on two factors."""
    return a.axes != b.axes if a.factor == b.factor else not set(a.axes).isdisjoint(b.axes)


def _rule(first: tuple[int, ...], second: tuple[int, ...]) -> str:
    """The first rule by which the one that won goes before the other."""
    rules = zip(RULES, first, second, strict=True)
    return next((rule for rule, mine, other in rules if mine != other), "") if first < second else EARLIER
