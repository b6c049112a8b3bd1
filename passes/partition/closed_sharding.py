"""The sharding of a local value: a closed sharding, in a compact form over the sub-axes of the program's mesh, by which
the planner compares them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import field

from ir.manual import Manual, region_axes
from ir.mesh import Axes, AxisRef, DimAxes, Mesh, axes_size, merge_axes, prime_parts
from ir.ops.control import is_manual
from ir.program import DeviceOrder, Program, Result, Value, all_ops
from ir.records import record
from ir.sharding import DimSharding, Partial, Sharding, local_shape, shard_size
from ir.types import TensorType
from passes.sub_axes import SubAxes


@record
class ClosedSharding:
    """The sub-axes that split each dim, and the pending reductions, sorted by axis.

    `order` is set if the shards are in the device order of another mesh. The axes are still the default mesh's, matched
    to the other mesh's by `SubAxes.ways_home`, and one collective_permute reorders the shards.
    """

    axes: DimAxes
    partial: Partial = ()
    order: Mesh | None = None
    _hash: int = field(init=False, repr=False, compare=False, default=0)
    _used: frozenset[AxisRef] | None = field(init=False, repr=False, compare=False, default=None)

    def __hash__(self) -> int:
        found = self._hash
        if not found:
            found = hash((self.axes, self.partial, self.order))
            object.__setattr__(self, "_hash", found)
        return found

    @staticmethod
    def replicated(rank: int) -> ClosedSharding:
        return ClosedSharding(((),) * rank)

    @property
    def rank(self) -> int:
        return len(self.axes)

    @property
    def parts(self) -> int:
        """Into how many parts the value is split."""
        return math.prod(map(axes_size, self.axes))

    @property
    def used(self) -> frozenset[AxisRef]:
        found = self._used
        if found is None:
            found = frozenset([*(a for dim in self.axes for a in dim), *(a for a, _ in self.partial)])
            object.__setattr__(self, "_used", found)
        return found

    @property
    def is_plain(self) -> bool:
        """Whether the dims are split over axes of the default mesh, with nothing pending: a device that can compute any
        part of a value can then compute its shard."""
        return not self.partial and self.order is None

    def local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a shard of a tensor of that shape."""
        return local_shape(shape, self.axes)

    def with_dim(self, dim: int, axes: Axes) -> ClosedSharding:
        return ClosedSharding((*self.axes[:dim], axes, *self.axes[dim + 1 :]), self.partial, self.order)

    def without_partial(self) -> ClosedSharding:
        return ClosedSharding(self.axes, (), self.order)

    def spell(self, mesh: Mesh) -> str:
        """The spelling in reports: `[x, -, (y,z)] partial(w)`."""

        text = spell_dims(mesh, [list(map(mesh.spell, merge_axes(axes))) for axes in self.axes], self.partial)
        return text + (f" on {self.order.name or 'its own device order'}" if self.order else "")


def spell_dims(mesh: Mesh, dims: Sequence[Sequence[str]], partial: Partial) -> str:
    """The axes that split each dim, and the axes of pending reductions: `[x, -, (y,z)] partial(w)`."""
    texts = (names[0] if len(names) == 1 else f"({','.join(names)})" if names else "-" for names in dims)
    pending = ",".join(map(mesh.spell, merge_axes([a for a, _ in partial])))
    return f"[{', '.join(texts)}]" + (f" partial({pending})" if pending else "")


def closed_sharding_of(sharding: Sharding, sub_axes: SubAxes) -> ClosedSharding:
    """The compact form of a sharding without open dims."""
    home = sub_axes.home(sharding)
    away = sharding.mesh if sharding.mesh != sub_axes.mesh and (home.axes or home.partial) else None
    if home.is_replicated:
        away = None
    partial = sub_axes.in_order(sub_axes.split_partial(home.partial))
    return ClosedSharding(tuple(sub_axes.split(d.axes) for d in home.dims), partial, away)


def sharding_of(sharding: ClosedSharding, sub_axes: SubAxes) -> Sharding:
    """The sharding with axes named as sub-axes: the inverse of `closed_sharding_of`."""
    if sharding.order is None:
        return Sharding(sub_axes.mesh, tuple(map(DimSharding, sharding.axes)), sharding.partial)
    by_home = sorted(sub_axes.ways_home[sharding.order], key=lambda pair: pair[1].pre)

    def away(axes: Sequence[AxisRef]) -> Axes:
        return _as_cut([part for axis in axes for part, home in by_home if axis.overlaps(home)])

    partial = tuple((a, kind) for axis, kind in sharding.partial for a in away((axis,)))
    return Sharding(sharding.order, tuple(DimSharding(away(axes)) for axes in sharding.axes), partial)


def _as_cut(parts: Sequence[AxisRef]) -> Axes:
    """Parts of prime size merged as far as possible. Those of an axis that is cut differently on its own stay separate,
    because their matching on the home mesh depends on it."""
    merged = merge_axes(parts)
    return merged if [p for axis in merged for p in prime_parts(axis)] == list(parts) else tuple(parts)


def merged_sharding(sub_axes: SubAxes, axes: DimAxes, partial: Partial) -> ClosedSharding:
    """The sharding over these axes, which may be parts of sub-axes. All parts of a sub-axis are merged to the
    sub-axis."""
    names = sub_axes.mesh.names
    pending = merge_axes(sorted((a for a, _ in partial), key=lambda a: (names.index(a.name), a.pre)))
    kinds = [kind for _, kind in partial[:1]]
    dims = tuple(sub_axes.split(merge_axes(dim)) for dim in axes)
    return ClosedSharding(dims, tuple((a, kind) for kind in kinds for a in sub_axes.split(pending)))


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


class PlanShardings(Shardings):
    """The shardings of the values of a plan. Inside manual regions these are along the free axes."""

    def __init__(self, program: Program, sub_axes: SubAxes) -> None:
        super().__init__(program.mesh, sub_axes)
        self.inside: dict[Value, ClosedSharding] = {}
        """The shardings of manual regions' parameters, as they are inside."""
        for op in all_ops(program):
            for param in op.regions[0].params if op.regions and is_manual(op) else ():
                self.inside[param] = inside_sharding(self.around(param), region_axes(op))

    def of(self, value: Value | Result) -> ClosedSharding:
        """The sharding of a value; replicated if it has none."""
        if self.inside and isinstance(value, Value) and value in self.inside:
            return self.inside[value]
        return self.around(value)

    def around(self, value: Value | Result) -> ClosedSharding:
        """The sharding of a value, for the parameter of a manual region around the region."""
        return self.closed(value.sharding, value.type)


def inside_sharding(outside: ClosedSharding, manual: Manual) -> ClosedSharding:
    """The sharding over the free axes of a value that crosses the boundary of a manual region, from its sharding around
    the region."""
    dims = tuple(tuple(a for a in axes if a.name not in manual) for axes in outside.axes)
    return ClosedSharding(dims, tuple((a, kind) for a, kind in outside.partial if a.name not in manual))


def device_orders(sub_axes: SubAxes, other: Mesh) -> tuple[DeviceOrder, DeviceOrder]:
    """The matching positions of two meshes, as a device order of the home mesh and one of the other."""
    pairs = sub_axes.ways_home[other]
    return (
        DeviceOrder(sub_axes.mesh, merge_axes([home for _, home in pairs])),
        DeviceOrder(other, merge_axes([away for away, _ in pairs])),
    )


def local_bytes(shape: Sequence[int], itemsize: float, sharding: ClosedSharding) -> int:
    """The size of a shard of a tensor of that shape."""
    return math.ceil(itemsize * math.prod(sharding.local_shape(shape)))


def bytes_of(value: Value, sharding: ClosedSharding) -> int:
    """The size of a shard of a value."""
    return local_bytes(value.shape, value.dtype.nbytes, sharding)


def is_aligned(n: int, outer: Axes, inner: Axes) -> bool:
    """Whether the shards over outer + inner of a dim of size n tile those over outer, padding included.

    If not, going from one to the other moves data across shard boundaries. To or from an unsplit dim it never does: the
    padding is added or cut off.
    """
    if not outer:
        return True
    parts = axes_size(outer)
    return -(-n // parts) == -(-n // (parts * axes_size(inner))) * axes_size(inner)


def is_sparse(n: int, outer: Axes, inner: Axes) -> bool:
    """Whether more than half of the shards over outer + inner of a dim of size n is padding, and not so of those over
    outer: a gather would receive mostly padding."""
    parts, whole = axes_size(inner), shard_size(n, outer)
    return 2 * whole < parts * shard_size(n, (*outer, *inner))
