"""The shardings of values and their closed forms, by which the planner compares them. Each is converted once."""

from __future__ import annotations

from collections.abc import Iterable

from ir.mesh import Mesh
from ir.program import Value
from ir.sharding import Sharding
from ir.types import TensorType
from passes.partition.closed_sharding import ClosedSharding, closed_sharding_of, sharding_of
from passes.sub_axes import SubAxes


class Shardings:
    """The shardings of one program, on one mesh."""

    def __init__(self, mesh: Mesh, sub_axes: SubAxes) -> None:
        self.mesh = mesh
        self.sub_axes = sub_axes
        self._closed: dict[int, tuple[Sharding, ClosedSharding]] = {}
        """The closed forms by the ids of shardings, which values share."""
        self._spelled: dict[ClosedSharding, Sharding] = {}
        self._propagated: dict[Value, ClosedSharding] = {}

    def propagated(self, value: Value) -> ClosedSharding:
        """The sharding that propagation gave a value."""
        found = self._propagated.get(value)
        if found is None:
            found = self._propagated[value] = self.closed(value.sharding, value.type)
        return found

    def put(self, shardings: Iterable[tuple[Value, ClosedSharding]]) -> None:
        """Gives these values these shardings instead of the propagated ones."""
        self._propagated.update(shardings)

    def or_replicated(self, sharding: Sharding | None, type: TensorType) -> Sharding:
        """The sharding itself; replicated if there is none."""
        return sharding if sharding is not None else Sharding.replicate(self.mesh, type.rank)

    def closed(self, sharding: Sharding | None, type: TensorType) -> ClosedSharding:
        """The compact form of a sharding; replicated if there is none."""
        if sharding is None:
            return closed_sharding_of(self.or_replicated(None, type), self.sub_axes)
        _, found = self._closed.get(id(sharding), (sharding, None))
        if found is None:
            found = closed_sharding_of(sharding, self.sub_axes)
            self._closed[id(sharding)] = sharding, found
        return found

    def spelled(self, sharding: ClosedSharding) -> Sharding:
        """The sharding in the form that values of the plan have."""
        found = self._spelled.get(sharding)
        if found is None:
            found = self._spelled[sharding] = sharding_of(sharding, self.sub_axes)
        return found
