"""One step of propagation, at one node: its tensors claim axes for its factors, and the others should be split so too.

Nothing is changed here. `find_step` is a function of the node, the shardings so far, and the level.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ir.mesh import Axes, AxisRef, DimAxes, axes_size
from ir.records import record
from passes.factors import cuts_between_factors, dims_of_factors, factors_of_dims
from passes.propagation.conflicts import Claim, have_one_factor_each, outweighed, precedence
from passes.propagation.graph import PropagationGraph
from passes.propagation.nodes import Level, Node

FactorAxes = Mapping[int, tuple[Axes, int]]
"""For each factor of a node the axes that it should be split over, with the position of the tensor that claims them."""


class Target(NamedTuple):
    """A tensor of a node, by position, the split that it should have, and what that follows from."""

    position: int
    split: DimAxes
    wanted: FactorAxes


@record
class Step:
    """What the tensors of a node want from each other."""

    targets: Sequence[Target]
    is_contested: bool
    """Whether several factors claim an axis."""
    yields: bool
    """Whether a batch dim may not take an axis because its tensor is gathered for less than others would be moved
    for."""
    is_undisputed: bool
    """Whether no other claim for an axis, or for a factor, was made. Then only the node's relation matters, and how its
    tensors are split."""


def find_step(graph: PropagationGraph, node: Node, level: Level) -> Step:
    """What the node's tensors want from each other on this level. Tensors that cannot be split so are left out.

    A result lacks the factors along which elements are looked up. Unless all tensors share a factor that could take the
    axis, it follows the others as if these were not claimed: with tokens and a vocabulary split over the same axes,
    embeddings are split as the tokens are.
    """
    claims, yields = claims_at(graph, node, level), False
    if level < Level.ALL and node.relation.level > Level.SIMPLE:
        claims, yields = _of_batch(graph, node, claims)
    ordered = in_order(graph, node, claims)
    of_operands, is_contested = settle(ordered)
    of_results = of_operands
    looked_up = node.relation.looked_up
    if looked_up and of_operands:
        of_results, others_contested = settle(in_order(graph, node, [c for c in ordered if c.factor not in looked_up]))
        is_contested = is_contested or others_contested
    targets = list(_targets(node, of_operands, of_results)) if of_operands else ()
    is_undisputed = have_one_factor_each(claims) and _agree(ordered)
    return Step(targets, is_contested, yields, is_undisputed)


def claims_at(graph: PropagationGraph, node: Node, level: Level) -> list[Claim]:
    """The axes over which each of the node's tensors splits a factor. Along factors that need replication, only those
    of operands count, and on the last level only."""
    relation, claims = node.relation, list[Claim]()
    for position, split in _shardings(graph, node, level):
        left_out = () if level is Level.ALL and position < relation.given else relation.replicated
        found = factors_of_dims(relation.rule, relation.sides[position], split)
        claims.extend([Claim(position, f, axes) for f, axes in found.items() if f not in left_out])
    return claims


def cuts_at(graph: PropagationGraph, node: Node, level: Level) -> Iterator[tuple[str, int]]:
    """Where axes would have to be cut so that each of the factors that share a dim of the node's tensors could take a
    part (name, and product of the parts before)."""
    for position, split in _shardings(graph, node, level):
        yield from cuts_between_factors(node.relation.rule, node.relation.sides[position], split)


def _shardings(graph: PropagationGraph, node: Node, level: Level) -> Iterator[tuple[int, Sequence[Axes]]]:
    """The tensors of the node that are split and propagate on this level, and how their dims are split."""
    for position, value in enumerate(node.tensors):
        state = graph.states[value]
        if any(state.axes) and not node.is_silent(position, level):
            yield position, node.axes(position, state)


def _of_batch(graph: PropagationGraph, node: Node, claims: list[Claim]) -> tuple[list[Claim], bool]:
    """The claims for batch dims, without those that yield to others, and whether any claim yields."""
    batch = [claim for claim in claims if claim.factor in node.relation.batch]
    lighter = outweighed(graph, node, claims) if 0 < len(batch) < len(claims) else ()
    return [claim for claim in batch if claim not in lighter], bool(lighter)


def in_order(graph: PropagationGraph, node: Node, claims: list[Claim]) -> list[Claim]:
    """The claims by their precedence."""
    return sorted(claims, key=precedence(graph, node, claims)) if len(claims) > 1 else claims


def settle(claims: Sequence[Claim]) -> tuple[FactorAxes, bool]:
    """For each claimed factor the axes that it should be split over, and whether another factor has some that a claim
    is for. The claims are in the order of their precedence: an axis splits the factor that is the first to claim it."""
    wanted: dict[int, tuple[Axes, int]] = {}
    owner: dict[AxisRef, int] = {}
    is_contested = False
    for position, f, axes in claims:
        current = wanted.get(f, ((), position))[0]
        if len(axes) <= len(current) or axes[: len(current)] != current:
            continue
        taken = next((i for i, axis in enumerate(axes) if owner.get(axis, f) != f), None)
        is_contested = is_contested or taken is not None
        free = axes[:taken]
        if len(free) > len(current):
            wanted[f] = free, position
            owner.update(dict.fromkeys(free, f))
    return wanted, is_contested


def _agree(claims: Sequence[Claim]) -> bool:
    """Whether all claims of a factor begin with the same axes. They are in the order of their precedence, in which more
    axes go first."""
    longest: dict[int, Axes] = {}
    return all(longest.setdefault(f, axes)[: len(axes)] == axes for _, f, axes in claims)


def _targets(node: Node, of_operands: FactorAxes, of_results: FactorAxes) -> Iterator[Target]:
    for position in range(len(node.tensors)):
        wanted = of_operands if position < node.relation.given else of_results
        target = target_of(node, position, wanted)
        if target is not None:
            yield Target(position, target, wanted)


def target_of(node: Node, position: int, wanted: FactorAxes) -> DimAxes | None:
    """The split that one of the node's tensors should have; None if it cannot have it."""
    relation = node.relation
    tensor, windows = relation.sides[position], relation.windows
    is_result = position >= relation.given
    mine = {f: axes for f, (axes, _) in wanted.items() if is_result or f not in relation.replicated}
    target = dims_of_factors(relation.rule, tensor, mine)
    if target is None:  # Without factors that share a dim with others, it may be possible.
        shared = {f for dim in tensor if len(dim) > 1 for f in dim}
        target = dims_of_factors(relation.rule, tensor, {f: axes for f, axes in mine.items() if f not in shared})
    if target is not None and windows:  # Dims with fewer elements than shards are not split along these.
        target = tuple(
            () if n < axes_size(axes) and not windows.isdisjoint(factors) else axes
            for factors, n, axes in zip(tensor, node.tensors[position].shape, target, strict=True)
        )
    if target is not None and node.prefix and node.prefix[position]:
        target = tuple((*p, *axes) for p, axes in zip(node.prefix[position], target, strict=True))
    return target
