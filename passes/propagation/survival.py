"""Which dims of a program's values outlive the ops that use them, which are only ever reduced, over which a maximum or
another extreme is taken on the way, and what is sent if they are split and reduced later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from ir.ops import FactorKind, FactorRule
from ir.program import Value
from ir.records import record
from passes.propagation.nodes import Node


def surviving_dims(nodes: Sequence[Node]) -> frozenset[tuple[Value, int]]:
    """The dims of values from which elements of a result, of what a loop carries, or of an argument come, one by one.
    All others are reduced first, whatever is computed of them on the way. The nodes are in the order of the program."""
    passed_on = {value for node in nodes if node.op is None for value in node.tensors}
    surviving = {(value, dim) for value in passed_on for dim in range(value.type.rank)}
    return _spread_back(nodes, surviving, _needed)


def extreme_dims(nodes: Sequence[Node]) -> frozenset[tuple[Value, int]]:
    """The dims of values that ops reduce, other than by a sum, before a loop or a return passes on the results. If such
    a dim is split, the reduction is done at once, whereas a sum can stay pending. The nodes are in program order."""
    return _spread_back(nodes, set(), _extreme)


def _spread_back(
    nodes: Sequence[Node], found: set[tuple[Value, int]], own: Callable[[FactorRule], Iterable[int]]
) -> frozenset[tuple[Value, int]]:
    """`found`, and the dims of operands along each op's `own` factors, or along factors of results whose dims are
    found."""
    for node in reversed(nodes):
        given, rule = node.relation.given, node.relation.rule
        if node.op is None:
            continue
        factors = set(own(rule))
        for value, side in zip(node.tensors[given:], rule.results, strict=True):
            factors.update(f for dim, at in enumerate(side) if (value, dim) in found for f in at)
        for value, side in zip(node.tensors[:given], rule.operands, strict=True):
            found.update((value, dim) for dim, at in enumerate(side) if not factors.isdisjoint(at))
    return frozenset(found)


@record
class LaterReductions:
    """What is reduced along the dims of values, before a loop or a return passes on what is computed of these."""

    reached: Mapping[tuple[Value, int], int]
    """The reductions that end each dim, each a bit: one that is reached in several ways counts once."""
    sizes: Sequence[int]
    """The elements of what each of them makes, in all iterations of the loops around."""

    def elements(self, node: Node, f: int) -> int:
        """How many elements are reduced over devices later if a parallel factor of the node is split."""
        found = 0
        for made in made_along(node, f):
            found |= self.reached.get(made, 0)
        return sum(size for i, size in enumerate(self.sizes) if found >> i & 1)


def later_reductions(nodes: Sequence[Node], iterations: Mapping[Value, int]) -> LaterReductions:
    """The reductions that end each dim. The nodes are in program order; `iterations` is how often values are made, if
    more than once."""
    reached: dict[tuple[Value, int], int] = {}
    sizes: list[int] = []
    for node in reversed(nodes):
        given, rule = node.relation.given, node.relation.rule
        if node.op is None:
            continue
        along = dict.fromkeys(_reduced(rule), 1 << len(sizes))
        if along:
            sizes.append(sum(v.type.size * iterations.get(v, 1) for v in node.tensors[given:]))
        for value, side in zip(node.tensors[given:], rule.results, strict=True):
            for dim, f in [(dim, f) for dim, at in enumerate(side) for f in at]:
                along[f] = along.get(f, 0) | reached.get((value, dim), 0)
        for value, side in zip(node.tensors[:given], rule.operands, strict=True):
            for dim, f in [(dim, f) for dim, at in enumerate(side) for f in at]:
                reached[value, dim] = reached.get((value, dim), 0) | along.get(f, 0)
    return LaterReductions(reached, sizes)


@lru_cache(maxsize=1024)
def _reduced(rule: FactorRule) -> tuple[int, ...]:
    return tuple(f for f, factor in enumerate(rule.factors) if factor.kind is FactorKind.REDUCTION)


def made_along(node: Node, f: int) -> list[tuple[Value, int]]:
    """The dims of a node's results that have that factor."""
    given = node.relation.given
    results = zip(node.tensors[given:], node.relation.sides[given:], strict=True)
    return [(value, dim) for value, side in results for dim, factors in enumerate(side) if f in factors]


@lru_cache(maxsize=1024)
def _extreme(rule: FactorRule) -> tuple[int, ...]:
    return tuple(
        f for f, factor in enumerate(rule.factors) if factor.has_candidates or factor.reduction not in (None, "sum")
    )


@lru_cache(maxsize=1024)
def _needed(rule: FactorRule) -> tuple[int, ...]:
    """The factors that are needed whatever becomes of the results: those that cannot be split without communication,
    and those that are contracted, over which another operand may be split, so that they are summed in any case."""
    return tuple(
        f
        for f, factor in enumerate(rule.factors)
        if factor.kind not in (FactorKind.PARALLEL, FactorKind.REDUCTION)
        or (
            factor.kind is FactorKind.REDUCTION
            and len({side for side in rule.operands if any(f in dim for dim in side)}) > 1
        )
    )
