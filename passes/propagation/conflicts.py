"""Conflicts: tensors of an op require different splits, and a rule settles which is used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from ir.mesh import Axes, AxisRef, axes_size
from ir.program import Value
from passes.factors import factors_of_dims
from passes.propagation.nodes import Node, State
from passes.propagation.reasons import EARLIER, RULES, Conflict, ValueId
from passes.propagation.traffic import local_bytes

Claim = tuple[int, int, Axes]
"""A tensor of a node, by position, a factor, and the axes that the tensor claims for the factor."""

Order = Callable[[Node, Sequence[Claim]], Callable[[Claim], tuple[int, ...]]]
"""Orders the claims of a node by precedence."""


def conflicts_at(
    nodes: Iterable[Node],
    states: Mapping[Value, State],
    order: Order,
    weighed: Mapping[int, Sequence[str]],
    names: Mapping[Value, ValueId],
) -> Iterator[Conflict]:
    """The conflicts at nodes: tensors claim different axes for a factor, or an axis for different factors. `weighed`
    has, by the number of a node, what was compared where tensors were free to follow either side."""
    for node in nodes:
        if node.op is None or node.annotates:
            continue
        claims = _claims(node, states)
        if len({axes for _, _, axes in claims}) > 1 or len({f for _, f, _ in claims}) > 1:
            yield from _settled(node, claims, order, tuple(weighed.get(node.number, ())), names)


def _claims(node: Node, states: Mapping[Value, State]) -> list[Claim]:
    return [
        (position, f, axes)
        for position, (value, tensor) in enumerate(zip(node.tensors, node.relation.sides, strict=True))
        for f, axes in factors_of_dims(node.relation.rule, tensor, states[value].axes).items()
    ]


def _settled(
    node: Node, claims: list[Claim], order: Order, weighed: tuple[str, ...], names: Mapping[Value, ValueId]
) -> Iterator[Conflict]:
    """The claims that lost, each with the one that won and the rule that settled it."""
    assert node.op is not None
    tensors = frozenset(names[value] for value in node.tensors)

    def place(f: int, position: int) -> tuple[ValueId, int]:
        return names[node.tensors[position]], next(
            d for d, factors in enumerate(node.relation.sides[position]) if f in factors
        )

    has = {(f, axes) for position, f, axes in claims if position >= len(node.relation.rule.operands)}
    first_of = order(node, claims)
    ordered = sorted(((f, axes) not in has, first_of((i, f, axes)), f, axes, i) for i, f, axes in claims)
    winners: list[tuple[tuple[int, ...], int, Axes, int]] = []
    for _, first, f, axes, position in ordered:
        won = next((w for w in winners if (w[2] != axes if w[1] == f else not set(axes).isdisjoint(w[2]))), None)
        if won is None:
            winners.append((first, f, axes, position))
            continue
        rules = zip(RULES, won[0], first, strict=True)
        rule = next((rule for rule, mine, other in rules if mine != other), "") if won[0] < first else EARLIER
        chosen, rejected = place(won[1], won[3]), place(f, position)
        yield Conflict(node.op.name, node.op.span, won[2], chosen, axes, rejected, rule, tensors, weighed)


def have_one_factor_each(claims: Iterable[Claim]) -> bool:
    """Whether no axis is claimed by several factors."""
    owner: dict[AxisRef, int] = {}
    return all(owner.setdefault(axis, f) == f for _, f, axes in claims for axis in axes)


def agree(claims: Iterable[Claim]) -> bool:
    """Whether all claims of a factor begin with the same axes. They are in the order of their precedence, in which more
    axes go first."""
    longest: dict[int, Axes] = {}
    return all(longest.setdefault(f, axes)[: len(axes)] == axes for _, f, axes in claims)


def outweighed(
    node: Node, claims: Collection[Claim], states: Mapping[Value, State], repeating: Collection[Value]
) -> Collection[Claim]:
    """The claims of the node that it takes no more bytes to give up than to satisfy: to gather the tensor over the axis
    that is claimed for another factor too, and over those minor to it, instead of moving a tensor that claims it for
    that. One of those `repeating` the elements of smaller ones need not be moved, nor a table in which indices look
    elements up.
    """
    if node.op is None or have_one_factor_each(claims):
        return ()
    moved: dict[AxisRef, list[tuple[int, float]]] = {}
    for position, f, axes in claims:
        value = node.tensors[position]
        if value not in repeating:
            for axis in axes:
                moved.setdefault(axis, []).append((f, local_bytes(value, states[value])))

    def is_outweighed(claim: Claim) -> bool:
        position, f, axes = claim
        if position in node.relation.indices:
            return False
        others = [[nbytes for g, nbytes in moved.get(axis, ()) if g != f] for axis in axes]
        lost = next((i for i, found in enumerate(others) if found), None)
        if lost is None:
            return False
        value = node.tensors[position]
        gathered = min(value.type.nbytes, local_bytes(value, states[value]) * axes_size(axes[lost:]))
        return gathered <= max(nbytes for found in others for nbytes in found)

    return {claim for claim in claims if is_outweighed(claim)}
