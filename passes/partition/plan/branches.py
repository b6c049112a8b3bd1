"""case: what only some branches need in another sharding is resharded in these, so that nothing is sent for a branch
that is not taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ir.builder import RegionBuilder
from ir.causes import Cause
from ir.program import Op, Value
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.plan.partitioned_value import PartitionedValue
from passes.partition.plan.planner import Planner, partitions_region

_MAX_DEPTH = 3
"""Cases inside so many others are planned once: what all of their branches reshard is resharded in each."""


@partitions_region("case")
def case(p: Planner, b: RegionBuilder, op: Op) -> None:
    """Replicates the index, so that all devices take the same branch and may communicate there. All branches return
    their results in the same shardings; a reduction that is pending in all of them stays pending. What all branches
    reshard in the same way is resharded once, in front of them."""
    index = p.values.reshard_to(op.operands[0], ClosedSharding(()), op.span, Cause("index", op.name))
    branches = [_Branch(p, b) for _ in op.regions]
    returned = _planned(p, op, branches)
    alike = _resharded_in_all(p, branches)
    if alike:
        for (value, sharding), reshard in alike.items():
            assert reshard.cause is not None
            p.values.reshard_to(value, sharding, reshard.span, reshard.cause)
        branches = [_Branch(p, b) for _ in op.regions]
        returned = _planned(p, op, branches)
    p.draft.planned_seconds += max(branch.seconds for branch in branches)
    regions = tuple(branch.b.region(*branch.returned) for branch in branches)
    p.add_whole(b, op, (index,), returned, regions=regions)


def _planned(p: Planner, op: Op, branches: Sequence[_Branch]) -> Sequence[tuple[Value, ClosedSharding]]:
    """Plans the branches. The results of the case, each with the sharding that all of them return it in."""
    values = p.values
    for branch, region in zip(branches, op.regions, strict=True):
        with _planning(p, branch):
            p.ops(branch.b, region.ops)
    shardings = [values.pending([r.results[i] for r in op.regions], values.wanted(v)) for i, v in enumerate(op.results)]
    for branch, region in zip(branches, op.regions, strict=True):
        with _planning(p, branch):
            for value, sharding, result in zip(region.results, shardings, op.results, strict=True):
                cause = Cause("branch", op.name, name=result.name)
                branch.returned.append(values.reshard_to(value, sharding, value.span, cause))
    return tuple(zip(op.results, shardings, strict=True))


class _Branch(dict[Value, PartitionedValue]):
    """The values of the program as a branch has them: it has shardings of its own of values around the case. Those from
    outside a loop around it, and arguments of functions, are still resharded where they come from, once for all
    iterations or calls."""

    def __init__(self, p: Planner, around: RegionBuilder) -> None:
        super().__init__()
        self.around, self.draft = p.values.partitioned, p.draft
        self.depth: int = self.around.depth + 1 if isinstance(self.around, _Branch) else 1
        self.b = RegionBuilder(around.names)
        self.draft.times[self.b] = self.draft.runs(around)
        self.seconds = 0.0
        self.returned: list[Value] = []
        self.copied: dict[Value, PartitionedValue] = {}

    def __missing__(self, value: Value) -> PartitionedValue:
        around = self.around
        while isinstance(around, _Branch) and value not in around:
            around = around.around
        found = around[value]
        if found.argument is not None or self.draft.runs(found.home) < self.draft.runs(self.b):
            return found
        self.copied[value] = found
        self[value] = replace(found, shardings=dict(found.shardings), home=self.b)
        return self[value]

    def resharded(self, p: Planner) -> dict[tuple[Value, ClosedSharding], Op]:
        """The values around the case that the branch receives in other shardings, and the ops that end with these."""
        makers = {op.results[0]: op for op in self.b.ops if op.name == "reshard"}
        return {
            (value, sharding): makers[local]
            for value, around in self.copied.items()
            for sharding, local in self[value].shardings.items()
            if sharding not in around.shardings and local in p.values.moved and local in makers
        }


@contextmanager
def _planning(p: Planner, branch: _Branch) -> Iterator[None]:
    """While this is entered, ops of the branch are planned. Its own values are known outside afterwards."""
    p.values.partitioned, before = branch, p.draft.planned_seconds
    try:
        yield
    finally:
        branch.seconds += p.draft.planned_seconds - before
        p.values.partitioned, p.draft.planned_seconds = branch.around, before
        branch.around.update((v, found) for v, found in branch.items() if v not in branch.copied)


def _resharded_in_all(p: Planner, branches: Sequence[_Branch]) -> Mapping[tuple[Value, ClosedSharding], Op]:
    """What all branches reshard in the same way, as the first of them does."""
    if branches[0].depth > _MAX_DEPTH:
        return {}
    first, *others = [branch.resharded(p) for branch in branches]
    return {found: op for found, op in first.items() if all(found in have for have in others)}
