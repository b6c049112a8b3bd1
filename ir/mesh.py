"""Device meshes, their axes, and parts of axes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt

from ir.names import is_name

MAX_DEVICES = 1 << 20
"""The most devices that a mesh may have: more than exist, and few enough that what each sends can be listed."""

MAX_AXES = 64

_AXES: dict[tuple[str, int, int], AxisRef] = {}
"""All references, by their fields."""


@dataclass(frozen=True, slots=True, eq=False, init=False)
class AxisRef:
    """A mesh axis, or a contiguous part of one.

    An axis of size n can be seen as a little mesh of its own: the part with `size` s and `pre` p is the
    middle axis when n is written as p · s · rest, major to minor (Shardy writes it `"x":(p)s`).
    A whole axis has pre = 1 and size = n.

    Equal references are the same object: planning compares and hashes them more often than anything else.
    """

    name: str
    pre: int
    size: int

    def __new__(cls, name: str, pre: int, size: int) -> AxisRef:
        key = name, pre, size
        found = _AXES.get(key)
        if found is None:
            found = object.__new__(cls)
            for slot, value in zip(("name", "pre", "size"), key, strict=True):
                object.__setattr__(found, slot, value)
            found = _AXES.setdefault(key, found)
        return found

    def __lt__(self, other: AxisRef) -> bool:
        return (self.name, self.pre, self.size) < (other.name, other.pre, other.size)

    def __reduce__(self) -> tuple[object, ...]:
        """A copy, and what is unpickled, is the same object again."""
        return AxisRef, (self.name, self.pre, self.size)

    @property
    def end(self) -> int:
        """pre · size: the `pre` of the next, more minor part."""
        return self.pre * self.size

    def is_part_of(self, size: int) -> bool:
        """Whether an axis of that size has this part."""
        return self.pre >= 1 and self.size >= 1 and size % self.end == 0

    def overlaps(self, other: AxisRef) -> bool:
        return self.name == other.name and self.pre < other.end and other.pre < self.end

    def refines_with(self, other: AxisRef) -> bool:
        """Whether the axis can be cut so that both references consist of whole parts: of the four cuts, each divides
        the next."""
        cuts = sorted((self.pre, self.end, other.pre, other.end))
        return self.name != other.name or all(high % low == 0 for low, high in itertools.pairwise(cuts))


Axes = tuple[AxisRef, ...]
"""Axes, or parts of axes, from major to minor."""

DimAxes = tuple[Axes, ...]
"""The axes that split each dim of a tensor."""


@dataclass(frozen=True, slots=True)
class Mesh:
    """Named axes in order, major first, and the device id at each position.

    `devices` lists the ids in row-major order of the axes; None stands for 0, 1, 2, …
    (GShard, appendix A.3 and Figure 10: a device assignment.)
    """

    axes: tuple[tuple[str, int], ...]
    devices: tuple[int, ...] | None = None
    name: str = ""
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        devices = self.devices
        if devices is not None and len(devices) == self.size and devices == tuple(range(len(devices))):
            object.__setattr__(self, "devices", None)
        object.__setattr__(self, "_hash", hash((self.axes, self.devices, self.name)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[object, ...]:
        """Strings have different hashes in other processes, so the cached hash is not pickled."""
        return Mesh, (self.axes, self.devices, self.name)

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(size for _, size in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @property
    def device_ids(self) -> tuple[int, ...]:
        return self.devices if self.devices is not None else tuple(range(self.size))

    def axis(self, name: str) -> AxisRef:
        """The whole axis of that name. Raises KeyError if the mesh has none."""
        for axis, size in self.axes:
            if axis == name:
                return AxisRef(name, 1, size)
        raise KeyError(name)

    def whole_axes(self) -> tuple[AxisRef, ...]:
        return tuple(AxisRef(name, 1, size) for name, size in self.axes)

    def is_whole(self, ref: AxisRef) -> bool:
        return ref.pre == 1 and ref.size == self.axis(ref.name).size

    def spell(self, ref: AxisRef) -> str:
        """`x` for a whole axis, `x:(2)4` for a part."""
        return ref.name if self.is_whole(ref) else f"{ref.name}:({ref.pre}){ref.size}"

    def __str__(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in self.axes)


def mesh_problems(mesh: Mesh) -> list[str]:
    """The errors in this mesh by itself, in words."""
    if len(mesh.axes) > MAX_AXES:
        return [f"a mesh has {len(mesh.axes):,} axes, and no more than {MAX_AXES} are possible"]
    title = f"mesh {mesh.name!r}" if mesh.name else f"mesh ({mesh})"
    found = [f"axis {name!r} of {title} has size {size!r}" for name, size in mesh.axes if not _is_size(size)]
    found += [f"{title} has two axes {name!r}" for i, name in enumerate(mesh.names) if name in mesh.names[:i]]
    found += [
        f"axis {n!r} of {title} has a name that no program can say" for n in map(str, mesh.names) if not is_name(n)
    ]
    if found:
        return found
    if mesh.size > MAX_DEVICES:
        return [f"{title} has {mesh.size:,} devices, and no more than {MAX_DEVICES:,} are possible"]
    devices = mesh.devices
    if devices is not None and (len(devices) != mesh.size or set(devices) != set(range(mesh.size))):
        return [f"the devices of {title} must be the numbers 0 to {mesh.size - 1} in some order"]
    return []


def _is_size(given: object) -> bool:
    return isinstance(given, SupportsIndex) and given.__index__() > 0


def axes_size(axes: Iterable[AxisRef]) -> int:
    """The number of shards of a dim that is split over these axes."""
    parts = 1
    for axis in axes:
        parts *= axis.size
    return parts


def positions_along(mesh: Mesh, axes: Iterable[AxisRef]) -> npt.NDArray[np.int64]:
    """The position of each device of the mesh along the axes, or parts of them, major first."""
    coordinates = dict(zip(mesh.names, np.indices(mesh.shape).reshape(len(mesh.names), mesh.size), strict=True))
    found = np.zeros(mesh.size, np.int64)
    for axis in axes:
        found = found * axis.size + coordinates[axis.name] // (mesh.axis(axis.name).size // axis.end) % axis.size
    return found


def group_along(mesh: Mesh, axes: Iterable[AxisRef]) -> list[int]:
    """The devices that differ from the first one in their positions along these axes only."""
    rest = np.arange(mesh.size)
    for axis in axes:
        later = math.prod(mesh.shape[mesh.names.index(axis.name) + 1 :]) * (mesh.axis(axis.name).size // axis.end)
        rest -= positions_along(mesh, (axis,)) * later
    return [int(i) for i in np.flatnonzero(rest == 0)]


def axes_in_groups(axes: Sequence[AxisRef], most: int) -> tuple[tuple[AxisRef, ...], ...]:
    """The axes in groups of consecutive parts, minor ones first, with at most `most` devices in each group, except for
    a part of prime size, which is not divided."""
    groups: list[list[AxisRef]] = []
    for part in reversed([part for axis in axes for part in prime_parts(axis)]):
        if not groups or axes_size((*groups[-1], part)) > most:
            groups.append([])
        groups[-1].insert(0, part)
    return tuple(merge_axes(group) for group in groups)


def merge_axes(axes: Sequence[AxisRef]) -> tuple[AxisRef, ...]:
    """The same order of devices in as few references as possible: `x:(1)2, x:(2)4` is `x:(1)8`.

    Parts of size 1 split nothing and are dropped.
    """
    merged: list[AxisRef] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if merged and merged[-1].name == axis.name and merged[-1].end == axis.pre:
            merged[-1] = AxisRef(axis.name, merged[-1].pre, merged[-1].size * axis.size)
        else:
            merged.append(axis)
    return tuple(merged)


def without_minor(axes: Sequence[AxisRef], minor: Sequence[AxisRef]) -> tuple[AxisRef, ...]:
    """`axes` without `minor`, which they end in; the two may be cut into different parts.

    Raises ValueError if they do not end in it.
    """
    rest = list(merge_axes(axes))
    for part in reversed(merge_axes(minor)):
        whole = rest.pop() if rest else AxisRef("", 1, 1)
        if whole.name != part.name or whole.end != part.end or part.pre % whole.pre:
            raise ValueError(f"{axes} do not end in {minor}")
        if part != whole:
            rest.append(AxisRef(whole.name, whole.pre, part.pre // whole.pre))
    return tuple(rest)


def split_axis(axis: AxisRef, cuts: Iterable[int]) -> tuple[AxisRef, ...]:
    """The parts of `axis` between those `cuts` (values of `pre`) that are inside it.

    Raises ValueError if two cuts do not divide one another: the axis then has no parts that refine both.
    """
    points = [axis.pre, *sorted(c for c in set(cuts) if axis.pre < c < axis.end), axis.end]
    parts: list[AxisRef] = []
    for low, high in itertools.pairwise(points):
        if high % low:
            raise ValueError(f"axis {axis.name} is cut at {low} and at {high}, and {low} does not divide {high}")
        parts.append(AxisRef(axis.name, low, high // low))
    return tuple(parts)


def prime_parts(axis: AxisRef) -> tuple[AxisRef, ...]:
    """The axis in parts of prime size, smaller ones major."""
    parts: list[AxisRef] = []
    pre = axis.pre
    for p in prime_factors(axis.size):
        parts.append(AxisRef(axis.name, pre, p))
        pre *= p
    return tuple(parts)


def prime_factors(n: int) -> tuple[int, ...]:
    """Prime factors in ascending order, with multiplicity."""
    factors: list[int] = []
    p = 2
    while p * p <= n:
        while n % p == 0:
            factors.append(p)
            n //= p
        p += 1
    return (*factors, n) if n > 1 else tuple(factors)
