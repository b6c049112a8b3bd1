"""Candidates: the partial results of a search that only the op itself can combine (argmax, top_k). Devices exchange
them, and search again in what they get."""

from __future__ import annotations

from collections.abc import Sequence

from ir.builder import RegionBuilder
from ir.mesh import Axes, axes_in_groups, merge_axes
from ir.ops import FactorRule
from ir.program import Value
from passes.partition.exchange.halo import GATHER_FANOUT
from passes.partition.strategy import Strategy


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
