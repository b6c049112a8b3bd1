"""Candidates: the partial results of a search that only the op itself can combine (argmax, top_k). Devices exchange
them, and search again in what they get."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ir.builder import RegionBuilder
from ir.mesh import Axes, axes_in_groups, axes_size, merge_axes
from ir.ops import FactorKind, FactorRule
from ir.program import Value
from ir.sharding import shard_size
from passes.cost.machine import Machine
from passes.cost.model import communication_seconds
from passes.partition.exchange.halo import GATHER_FANOUT
from passes.partition.strategy import Strategy, candidate_axes


def groups_of_candidates(strategy: Strategy, axes: Axes) -> Sequence[Axes]:
    """The axes over which candidates are exchanged, one group after another. All devices get the candidates of a few
    devices at a time; if each compares those of a part of the result, it gets them at once."""
    return axes_in_groups(axes, GATHER_FANOUT) if strategy.candidates_to is None else (merge_axes(axes),)


def exchanged_candidates(
    b: RegionBuilder, rule: FactorRule, strategy: Strategy, candidates: Sequence[Value], group: Axes, dim: int
) -> list[Value]:
    """The candidates of the devices of a group, in the order of their shards along `dim`: a new first dim, or the dim
    that is searched. With `candidates_to`, those of this device's part of that factor."""
    to = strategy.candidates_to
    if to is None:
        return [b.op("all_gather", v, name=v.name, axes=group, dim=dim) for v in candidates]
    part = rule.results[0].index((to,)) + candidates[0].type.rank - len(rule.results[0])
    return [b.op("all_to_all", v, name=v.name, axes=group, split=part, concat=dim) for v in candidates]


def candidates_seconds(machine: Machine, rule: FactorRule, factor: int, axes: Axes, sizes: Sequence[float]) -> float:
    """Time of exchanging candidates, of which each device has that many bytes for each result, if `axes` split a factor
    whose partial results only the op itself can combine. The candidates of all results are sent together."""
    seconds = 0.0
    kept, held = _kept(rule), shard_size(rule.factors[factor].size, axes)
    for group in axes_in_groups(axes, GATHER_FANOUT):
        have = min(kept, held)
        sent = math.ceil(sum(sizes) * have / max(1, kept))
        seconds += communication_seconds(machine, "all_gather", group, sent)
        held = have * axes_size(group)
    return seconds


def scattered_seconds(machine: Machine, rule: FactorRule, factors: Mapping[int, Axes], sizes: Sequence[float]) -> float:
    """Time of exchanging candidates if each device compares those of a part, and has that many bytes of each result."""
    axes, kept = candidate_axes(rule, factors), _kept(rule)
    held = math.prod(shard_size(f.size, factors.get(i, ())) for i, f in enumerate(rule.factors) if f.has_candidates)
    sent = math.ceil(axes_size(axes) * sum(sizes) * min(kept, held) / max(1, kept))
    return communication_seconds(machine, "all_to_all", axes, sent)


def _kept(rule: FactorRule) -> int:
    """The number of candidates that are kept for each element of the other dims."""
    found = (rule.factors[f] for dim in rule.results[0] for f in dim)
    return next((f.size for f in found if f.kind is FactorKind.NEED_REPLICATION), 1)
