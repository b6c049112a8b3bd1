"""Steps that send shards, or parts of them, to other devices: from dim to dim, or unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from ir.mesh import Axes, DimAxes, Mesh, axes_size, merge_axes, without_minor
from ir.program import DeviceOrder, Value
from ir.records import record
from passes.cost.machine import Machine
from passes.cost.model import communication_seconds, received_bytes
from passes.partition.closed_sharding import ClosedSharding, device_orders
from passes.partition.reshard.steps import Cost, Destination, Step, Task, padded_to_cut, shift_seconds, with_shards_of


@record
class Gather(Step):
    """all_gather of the minor `axes` of a dim."""

    dim: int
    axes: Axes

    @property
    def communication(self) -> tuple[str, Axes]:
        return "all_gather", self.axes

    def shift_seconds(self, task: Task, before: ClosedSharding, after: ClosedSharding) -> float:
        return shift_seconds(task, after, self.dim, self.axes, gather=True)

    def write(self, x: Value, to: Destination) -> Value:
        dim, size = self.dim, to.after.local_shape(to.shape)[self.dim]
        x = to.b.op("all_gather", x, name=to.name, axes=merge_axes(self.axes), dim=dim)
        return with_shards_of(to.b, x, dim, to.shape[dim], to.after.axes[dim], size)


@record
class AllToAll(Step):
    """The minor `axes` of dim `source` become the minor axes of dim `target`."""

    axes: Axes
    source: int
    target: int

    @property
    def communication(self) -> tuple[str, Axes]:
        return "all_to_all", self.axes

    def padded(self, shape: Sequence[int], before: ClosedSharding, after: ClosedSharding) -> float:
        return padded_to_cut(shape, self.target, self.axes, before, after)

    def shift_seconds(self, task: Task, before: ClosedSharding, after: ClosedSharding) -> float:
        gathered = shift_seconds(task, after, self.source, self.axes, gather=True)
        return gathered + shift_seconds(task, before, self.target, self.axes, gather=False)

    def write(self, x: Value, to: Destination) -> Value:
        source, target, local = self.source, self.target, to.after.local_shape(to.shape)
        outer = without_minor(to.after.axes[target], self.axes)
        x = with_shards_of(to.b, x, target, to.shape[target], outer, local[target] * axes_size(self.axes))
        x = to.b.op("all_to_all", x, name=to.name, axes=merge_axes(self.axes), split=target, concat=source)
        return with_shards_of(to.b, x, source, to.shape[source], to.after.axes[source], local[source])


@record
class Permute(Step):
    """collective_permute of whole shards. Position p of order `target` receives from the same position of `source`."""

    target: Axes
    source: Axes

    @property
    def communication(self) -> tuple[str, Axes]:
        return "collective_permute", self.target

    def write(self, x: Value, to: Destination) -> Value:
        target, source = (DeviceOrder(to.sub_axes.mesh, merge_axes(axes)) for axes in (self.target, self.source))
        return to.b.op("collective_permute", x, name=to.name, target=target, source=source)


def permutation(source: DimAxes, target: DimAxes) -> Permute:
    """The collective_permute between two shardings with the same shards over other axes.

    Axes that only one of the two shardings uses index copies in the other; they are paired so that every device takes
    part.
    """
    before, after = [a for d in source for a in d], [a for d in target for a in d]
    return Permute((*after, *(a for a in before if a not in after)), (*before, *(a for a in after if a not in before)))


@record
class Reorder(Step):
    """collective_permute between the device orders of two meshes; None is the default mesh."""

    source: Mesh | None
    target: Mesh | None

    @property
    def communication(self) -> tuple[str, Axes]:
        return "collective_permute", self.other.whole_axes()

    def cost_of(self, machine: Machine, before: int, after: int) -> Cost:
        """The cost of sending whole shards to other devices."""
        kind, axes = self.communication
        return communication_seconds(machine, kind, axes, before), received_bytes(kind, axes_size(axes), before)

    @property
    def other(self) -> Mesh:
        """The mesh that is not the default one."""
        mesh = self.source or self.target
        assert mesh is not None
        return mesh

    def write(self, x: Value, to: Destination) -> Value:
        home, away = device_orders(to.sub_axes, self.other)
        target, source = (home, away) if self.target is None else (away, home)
        return to.b.op("collective_permute", x, name=to.name, target=target, source=source)
