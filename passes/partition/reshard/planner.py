"""From any sharding to any other by the cheapest sequence of collectives and local steps.

All data movement of a program, except box exchanges, is planned by `Resharder.plan`. If the two shardings cut dims in
ways that have a common refinement, the plan is constructed directly (`sweep`), and receives no more than necessary. If
latency or padding could make another plan cheaper, or there is no such plan, one is searched for (`search`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from passes.cost.machine import Machine
from passes.cost.model import ROUNDING
from passes.partition.closed_sharding import ClosedSharding, is_sparse, local_bytes, merged_sharding
from passes.partition.reshard.bounds import Bounds, Least, SampledDevices
from passes.partition.reshard.search import Search, stepwise_plan
from passes.partition.reshard.steps import AnySharding, Reorder, ReshardPlan, Task
from passes.partition.reshard.strided import Retile
from passes.partition.reshard.sweep import direct_plan
from passes.sub_axes import SubAxes

_CLOSE = 0.02
"""A plan whose time exceeds the least by at most this fraction is not compared with others."""
_IN_PLACE = ReshardPlan()
_Key = tuple[tuple[int, ...], float, ClosedSharding, ClosedSharding]


class Resharder:
    """Plans reshards over one mesh, for one machine, each once. With `steps_of`, the plans are those of that resharder,
    priced with the latencies of this machine."""

    def __init__(self, sub_axes: SubAxes, machine: Machine, steps_of: Resharder | None = None) -> None:
        self.sub_axes = sub_axes
        self.machine = machine
        self.steps_of = steps_of
        self.plans: dict[_Key, ReshardPlan] = {}
        self.bounds: dict[_Key, float] = {}
        self.sampled: SampledDevices = SampledDevices(sub_axes.all) if steps_of is None else steps_of.sampled

    def plan(
        self, shape: tuple[int, ...], itemsize: float, source: ClosedSharding, target: ClosedSharding
    ) -> ReshardPlan:
        """The cheapest plan for a tensor of that global shape and element size in bytes."""
        if source == target:
            return _IN_PLACE
        key = (shape, itemsize, source, target)
        found = self.plans.get(key)
        if found is None:
            if self.steps_of is None:
                found = self._plan(key)
            else:
                found = self._priced(self.steps_of.plan(*key), self.steps_of.machine, key)
            self.plans[key] = found
        return found

    def cheapest(
        self, shape: tuple[int, ...], itemsize: float, sources: Iterable[ClosedSharding], target: ClosedSharding
    ) -> tuple[ReshardPlan, ClosedSharding]:
        """The plan that takes the least time, from any of the sources, and the source that it starts from."""
        plans = [(self.plan(shape, itemsize, source, target), source) for source in sources]
        return min(plans, key=lambda found: found[0].seconds)

    def least_seconds(
        self, shape: tuple[int, ...], itemsize: float, source: ClosedSharding, target: ClosedSharding
    ) -> float:
        """A lower bound of the cheapest plan's time, if that is not known yet: the time to receive what some device
        lacks."""
        if source == target:
            return 0.0
        key = (shape, itemsize, source, target)
        found = self.bounds.get(key)
        if found is None:
            found = self.bounds[key] = self._least_seconds(key)
        return found

    def _least_seconds(self, key: _Key) -> float:
        plan = self.plans.get(key)
        if plan is not None:
            return plan.seconds
        _, _, source, target = key
        if source.order is not None or target.order is not None:
            return 0.0
        return Bounds(Task(self.machine, self.sub_axes, *key), self.sampled).least(source).seconds

    def _plan(self, key: _Key) -> ReshardPlan:
        shape, itemsize, source, target = key
        home, wanted = ClosedSharding(source.axes, source.partial), ClosedSharding(target.axes, target.partial)
        plan = _IN_PLACE
        if source.order is not None:
            plan = plan.then(self._reorder(local_bytes(shape, itemsize, source), source, home))
        if home != wanted:
            plan = plan.then(self._between(Task(self.machine, self.sub_axes, shape, itemsize, home, wanted)))
        if target.order is not None:
            plan = plan.then(self._reorder(local_bytes(shape, itemsize, wanted), wanted, target))
        return plan

    def _priced(self, plan: ReshardPlan, whole: Machine, key: _Key) -> ReshardPlan:
        """The plan, priced for the machine `whole`, with the latencies of this one."""
        shape, itemsize, source, _ = key
        at: AnySharding = source
        ours, theirs = (Task(machine, self.sub_axes, *key) for machine in (self.machine, whole))
        saved = 0.0
        for step, after in plan.steps:
            if isinstance(step, Retile):
                saved += step.cost(theirs, at, after)[0] - step.cost(ours, at, after)[0]
            else:
                nbytes = math.ceil(itemsize * math.prod(at.local_shape(shape)))
                saved += step.cost_of(whole, nbytes, nbytes)[0] - step.cost_of(self.machine, nbytes, nbytes)[0]
            at = after
        return replace(plan, seconds=plan.seconds - saved)

    def _reorder(self, size: int, before: ClosedSharding, after: ClosedSharding) -> ReshardPlan:
        step = Reorder(before.order, after.order)
        return ReshardPlan(((step, after),), *step.cost_of(self.machine, size, size))

    def _between(self, task: Task) -> ReshardPlan:
        """The cheapest plan on the home mesh."""
        shape, source, target, best = task.shape, task.source, task.target, direct_plan(task)
        plain = 0 not in shape and not source.partial and not target.partial and not _is_sparse(shape, source)
        if best is not None and plain and _collectives(best) <= 1:
            return best
        bounds = Bounds(task, self.sampled)
        if best is not None and _is_unbeaten(best, bounds.least(source)):
            return best
        fine = self.sub_axes.primes
        refined = replace(task, sub_axes=fine, source=_refine(source, fine), target=_refine(target, fine))
        plan = best or self._merged(stepwise_plan(refined))
        plan = Search(task, bounds).run(plan.seconds) or plan
        if best is not None or fine.all == self.sub_axes.all:
            return plan
        found = Search(refined, Bounds(refined, SampledDevices(fine.all))).run(plan.seconds)
        return self._merged(found) if found is not None else plan

    def _merged(self, plan: ReshardPlan) -> ReshardPlan:
        """The plan with parts of axes merged in each sharding as far as possible."""
        steps = tuple((step, merged_sharding(self.sub_axes, after.axes, after.partial)) for step, after in plan.steps)
        return ReshardPlan(steps, plan.seconds, plan.received)


def _is_unbeaten(plan: ReshardPlan, least: Least) -> bool:
    """Whether no plan receives fewer bytes, or takes much less time."""
    return plan.received <= least.received * ROUNDING and plan.seconds * (1 - _CLOSE) <= least.seconds


def _is_sparse(shape: Sequence[int], sharding: ClosedSharding) -> bool:
    return any(
        is_sparse(n, axes[:k], axes[k:]) for n, axes in zip(shape, sharding.axes, strict=True) for k in range(len(axes))
    )


def _collectives(plan: ReshardPlan) -> int:
    return sum(1 for step, _ in plan.steps if step.communication[0])


def _refine(sharding: ClosedSharding, sub_axes: SubAxes) -> ClosedSharding:
    return ClosedSharding(tuple(sub_axes.split(a) for a in sharding.axes), sub_axes.split_partial(sharding.partial))
