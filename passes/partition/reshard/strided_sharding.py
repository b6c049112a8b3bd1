"""Shardings digit by digit, and two shardings cut into common digits.

An index of a dim is a sequence of digits, major to minor, and so is the position of a device. A sharding assigns digits
of devices to digits of dims; a reshard is another such assignment. Axes may then split any digits of a dim, not only
its first ones: the digits before them stay whole, and each device has a strided set of the indices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

from ir.mesh import Axes, AxisRef, DimAxes, Mesh, axes_size, merge_axes
from ir.records import record
from ir.sharding import Partial, shard_size
from passes.partition.closed_sharding import ClosedSharding, merged_sharding, spell_dims
from passes.sub_axes import SubAxes

DigitRef = tuple[int, int]
"""A digit: the dim, and which of its digits."""


@record
class Digit:
    """Some digits of a dim's indices: the number of values that they take, and the axis that splits them, if any."""

    size: int
    axis: AxisRef | None = None


@record
class StridedSharding:
    """The digits of each dim, major first. Everything after the last one stays whole.

    `extents` are the sizes of the dims with the padding of all shards.
    """

    dims: tuple[tuple[Digit, ...], ...]
    extents: tuple[int, ...]
    partial: Partial = ()

    @property
    def axes(self) -> DimAxes:
        """The axes that split each dim, major first."""
        return tuple(tuple(d.axis for d in dim if d.axis is not None) for dim in self.dims)

    @property
    def places(self) -> dict[AxisRef, DigitRef]:
        """The digit that each axis splits."""
        return {d.axis: (i, j) for i, dim in enumerate(self.dims) for j, d in enumerate(dim) if d.axis is not None}

    def local_shape(self, shape: Sequence[int] = ()) -> tuple[int, ...]:
        """The shape of a shard. The tensor's shape is known, and is a parameter only because
        `ClosedSharding.local_shape` has it."""
        return tuple(n // axes_size(axes) for n, axes in zip(self.extents, self.axes, strict=True))

    @property
    def shard_elements(self) -> int:
        return math.prod(self.local_shape())

    def with_axes(self, axes: dict[DigitRef, AxisRef | None]) -> StridedSharding:
        """The same sharding with other axes at some places."""
        dims = tuple(
            tuple(Digit(d.size, axes.get((i, j), d.axis)) for j, d in enumerate(dim)) for i, dim in enumerate(self.dims)
        )
        return StridedSharding(dims, self.extents, self.partial)

    def with_partial(self, partial: Partial) -> StridedSharding:
        return StridedSharding(self.dims, self.extents, partial)

    def with_extents(self, extents: tuple[int, ...]) -> StridedSharding:
        return StridedSharding(self.dims, extents, self.partial)

    def closed_sharding(self, sub_axes: SubAxes) -> ClosedSharding | None:
        """The sharding that splits the same digits; None if some digit before an axis stays whole."""
        for dim in self.dims:
            split = [d.axis is not None for d in dim]
            if any(minor and not major for major, minor in itertools.pairwise(split)):
                return None
        return merged_sharding(sub_axes, self.axes, self.partial)

    def spell(self, mesh: Mesh) -> str:
        """The spelling, as in `ClosedSharding.spell`; a number stands for digits before an axis that stay whole:
        `[(2,x), -]`."""

        def parts(dim: tuple[Digit, ...]) -> Iterator[str]:
            whole, run = 1, list[AxisRef]()
            for digit in dim:
                if digit.axis is None:
                    yield from (mesh.spell(a) for a in merge_axes(run))
                    whole, run = whole * digit.size, []
                    continue
                if whole > 1:
                    yield str(whole)
                whole = 1
                run.append(digit.axis)
            yield from (mesh.spell(a) for a in merge_axes(run))

        return spell_dims(mesh, [list(parts(dim)) for dim in self.dims], self.partial)


@record
class Ends:
    """Source and target of a reshard in common digits of prime size, so that they differ only in which axes split
    them."""

    source: StridedSharding
    target: StridedSharding


def common_digits(
    sub_axes: SubAxes, shape: Sequence[int], source: ClosedSharding, target: ClosedSharding
) -> Ends | None:
    """Both shardings in common digits; None if their cuts of some dim have no common refinement.

    All reshards of a program cut an axis into the same primes. A dim that changes is padded to a multiple of all its
    digits.
    """
    primes, befores, afters = sub_axes.primes, list[tuple[Digit, ...]](), list[tuple[Digit, ...]]()
    extents: list[int] = []
    for n, have, want in zip(shape, source.axes, target.axes, strict=True):
        before, after = primes.split(have), primes.split(want)
        longer, shorter = (before, after) if len(before) >= len(after) else (after, before)
        if any(a.size != b.size for a, b in zip(longer, shorter, strict=False)):
            return None
        befores.append(_digits(longer, before))
        afters.append(_digits(longer, after))
        extents.append(shard_size(n, longer) * axes_size(longer))
    sizes = tuple(extents)
    return Ends(
        StridedSharding(tuple(befores), sizes, primes.split_partial(source.partial)),
        StridedSharding(tuple(afters), sizes, primes.split_partial(target.partial)),
    )


def _digits(all: Axes, split: Axes) -> tuple[Digit, ...]:
    return tuple(Digit(a.size, split[i] if i < len(split) else None) for i, a in enumerate(all))


def blocks(strided: StridedSharding, *groups: Sequence[DigitRef]) -> tuple[tuple[int, ...], list[list[int]]]:
    """A shard's shape with the digits at some places, which are whole there, as separate dims.

    Adjacent digits of a group share a dim. Also returns, for each group, its dims in the group's order.
    """
    number = {place: (g, k) for g, group in enumerate(groups) for k, place in enumerate(group)}
    shape: list[int] = []
    runs: list[tuple[int, int, int]] = []
    for i, (dim, size) in enumerate(zip(strided.dims, strided.local_shape(), strict=True)):
        whole = 1
        before: tuple[int, int] | None = None
        for j, digit in enumerate(dim):
            at = number.get((i, j))
            if at is None and digit.axis is not None:
                continue
            size //= digit.size
            if at is None:
                whole *= digit.size
            elif before == (at[0], at[1] - 1):
                shape[-1] *= digit.size
            else:
                shape += [whole] if whole > 1 else []
                runs.append((*at, len(shape)))
                shape.append(digit.size)
                whole = 1
            before = at
        shape.append(whole * size)
    found = [[dim for g, _, dim in sorted(runs) if g == group] for group in range(len(groups))]
    return tuple(shape), found
