"""Candidates: the partial results of a search that only the op itself can combine (argmax, top_k). Devices exchange
them, and search again in what they get."""

from __future__ import annotations

from collections.abc import Sequence

from ir.mesh import Axes, axes_in_groups, merge_axes
from ir.program import Value
from passes.partition.context import OpContext
from passes.partition.exchange.halo import GATHER_FANOUT


def groups_of_candidates(c: OpContext, axes: Axes) -> Sequence[Axes]:
    """The axes over which candidates are exchanged, one group after another. All devices get the candidates of a few
    devices at a time; if each compares those of a part of the result, it gets them at once."""
    return axes_in_groups(axes, GATHER_FANOUT) if c.strategy.candidates_to is None else (merge_axes(axes),)


def exchanged_candidates(c: OpContext, candidates: Sequence[Value], group: Axes, dim: int) -> list[Value]:
    """The candidates of the devices of a group, in the order of their shards along `dim`: a new first dim, or the dim
    that is searched. With `candidates_to`, those of this device's part of that factor."""
    b, to = c.builder, c.strategy.candidates_to
    if to is None:
        return [b.op("all_gather", v, name=v.name, axes=group, dim=dim) for v in candidates]
    part = c.rule.results[0].index((to,)) + candidates[0].type.rank - len(c.rule.results[0])
    return [b.op("all_to_all", v, name=v.name, axes=group, split=part, concat=dim) for v in candidates]
