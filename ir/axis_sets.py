"""Mesh axes cut into *sub-axes* wherever a program cuts them, and sets of axes as bit masks, a bit for each sub-axis.

Passes and lowerings cut axes by the functions here. A mask says which coordinates of a device a tensor depends on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property

from ir.diagnostics import error
from ir.mesh import Axes, AxisRef, Mesh, axes_size, merge_axes, split_axis
from ir.program import DeviceOrder

Mask = int
"""A set of sub-axes, a bit for each."""


def cut_axis(axis: AxisRef, places: Iterable[int]) -> Axes:
    """The sub-axes of an axis that is cut at these places (values of `pre`).

    Raises SpmdcError (E307) if there are no parts that refine all.
    """
    try:
        return split_axis(axis, places)
    except ValueError as problem:
        raise error(
            "E307",
            str(problem),
            notes=("every sharding and collective of a program must see an axis in parts that refine one another",),
            help="cut an axis only at places of which one divides the other",
        ) from None


def cut_mesh(mesh: Mesh, used: Iterable[AxisRef]) -> Axes:
    """The parts of the mesh's axes between all cuts that the used axes make, in mesh order. Raises as `cut_axis`."""
    ends: dict[str, set[int]] = {name: set() for name in mesh.names}
    for axis in used:
        if axis.name in ends:
            ends[axis.name] |= {axis.pre, axis.end}
    return tuple(part for axis in mesh.whole_axes() for part in cut_axis(axis, ends[axis.name]))


class SubAxisCuts:
    """For each axis, the places (values of `pre`) at which it is cut, each dividing the next."""

    def __init__(self, meshes: Iterable[Mesh]) -> None:
        self.places: dict[str, list[int]] = {
            name: [1, size] if size > 1 else [1] for mesh in meshes for name, size in mesh.axes
        }

    def cut(self, name: str, place: int) -> bool:
        """Cuts the axis there. Returns False, without a cut, if another cut has no common refinement with it."""
        places = self.places[name]
        if place in places:
            return True
        if self.clash(name, place) is not None:
            return False
        places.append(place)
        places.sort()
        return True

    def clash(self, name: str, place: int) -> int | None:
        """A cut that has no common refinement with one at `place`."""
        return next((p for p in self.places[name] if p % place and place % p), None)

    def align(self, pairs: Sequence[tuple[Axes, Axes]]) -> None:
        """Cuts both orders of each pair at the same positions, so that moving a tensor from one order to the other
        maps sub-axes to sub-axes."""
        before = -1
        while before != (before := sum(map(len, self.places.values()))):
            for left, right in pairs:
                positions = self._positions(left) | self._positions(right)
                self._cut_at(left, positions)
                self._cut_at(right, positions)

    def _positions(self, axes: Axes) -> set[int]:
        found: set[int] = set()
        major = 1
        for axis in axes:
            found |= {major * p // axis.pre for p in self.places[axis.name] if axis.pre <= p <= axis.end}
            major *= axis.size
        return found

    def _cut_at(self, axes: Axes, positions: Iterable[int]) -> None:
        major = 1
        for axis in axes:
            end = major * axis.size
            for p in positions:
                if major < p < end and p % major == 0 and end % p == 0:
                    self.cut(axis.name, axis.pre * p // major)
            major = end


class AxisSets:
    """The sub-axes of a program's meshes, and what collectives do to sets of them."""

    def __init__(self, meshes: Sequence[Mesh], cuts: SubAxisCuts) -> None:
        self._cuts = cuts
        self._bits: dict[AxisRef, Mask] = {}
        self._by_axis: dict[str, tuple[AxisRef, ...]] = {}
        for mesh in meshes:
            for axis in mesh.whole_axes():
                parts = tuple(part for part in split_axis(axis, cuts.places[axis.name]) if part.size > 1)
                self._by_axis[axis.name] = parts
                self._bits |= {part: 1 << (len(self._bits) + i) for i, part in enumerate(parts)}
        self._meshes = tuple(meshes)
        self._masks: dict[AxisRef, Mask] = {}

    @cached_property
    def _mesh_masks(self) -> tuple[tuple[Mesh, Mask], ...]:
        return tuple((mesh, self.mask(mesh.whole_axes())) for mesh in self._meshes)

    def mask(self, axes: Iterable[AxisRef]) -> Mask:
        """The mask of these axes."""
        mask = 0
        for axis in axes:
            known = self._masks.get(axis)
            if known is None:
                known = sum(self._bits[part] for part in self._by_axis[axis.name] if part.overlaps(axis))
                self._masks[axis] = known
            mask |= known
        return mask

    def axes(self, mask: Mask) -> Axes:
        """The axes of a mask, in the order of the meshes."""
        return merge_axes([sub_axis for sub_axis, bit in self._bits.items() if mask & bit])

    def on_mesh(self, mask: Mask, mesh: Mesh) -> Mask:
        """The coordinates on `mesh` that determine the coordinates `mask`, which may be of other meshes too."""
        for other, whole in self._mesh_masks:
            foreign = mask & whole
            if other == mesh or not foreign:
                continue
            mask &= ~whole
            if other.device_ids == mesh.device_ids:
                mask |= self._carried(foreign, other.whole_axes(), mesh.whole_axes())
            else:
                mask |= self.mask(mesh.whole_axes())
        return mask

    def permuted(self, mask: Mask, target: DeviceOrder, source: DeviceOrder, shift: int = 0) -> Mask:
        """The coordinates that a tensor varies over, if it varied over `mask` before position p of `target` received it
        from position p + shift, modulo their number, of `source`. Coordinates that neither order names are unchanged,
        within one mesh."""
        moved = self._permuted(mask, target, source)
        size = axes_size(target.axes)
        turning = size // math.gcd(shift, size)
        turned = sum(bit for low, _, bit in self._layout(target.axes) if low % turning)
        return moved | turned if moved & turned and turning > 1 else moved

    def _permuted(self, mask: Mask, target: DeviceOrder, source: DeviceOrder) -> Mask:
        mask = self.on_mesh(mask, source.mesh)
        sent, received = self.mask(source.axes), self.mask(target.axes)
        moved = self._carried(mask & sent, source.axes, target.axes)
        if source.mesh != target.mesh:
            return moved
        if mask & received & ~sent:
            return mask | sent | received
        return moved | (mask & ~sent & ~received)

    def _carried(self, mask: Mask, source: Axes, target: Axes) -> Mask:
        """The sub-axes of `target` that determine the sub-axes `mask` of `source` at the same position."""
        goal = self._layout(target)
        edges = sorted({1, *(high for _, high, _ in goal)})
        carried = 0
        for low, high, bit in self._layout(source):
            if not mask & bit:
                continue
            first = max(e for e in edges if e <= low and low % e == 0)
            last = min(e for e in edges if e >= high and e % high == 0)
            carried |= sum(b for a, z, b in goal if first <= a and z <= last)
        return carried

    def _layout(self, axes: Axes) -> list[tuple[int, int, Mask]]:
        """The sub-axes of an order of axes, each with the positions in the order at which it begins and ends."""
        layout: list[tuple[int, int, Mask]] = []
        major = 1
        for axis in axes:
            for part in self._by_axis[axis.name]:
                if part.overlaps(axis):
                    low = major * part.pre // axis.pre
                    layout.append((low, low * part.size, self._bits[part]))
            major *= axis.size
        return layout
