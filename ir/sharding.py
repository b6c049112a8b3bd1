"""How a tensor is sharded over a mesh.

One representation for GShard's `replicate`, `split` and `shard`, JAX's `PartitionSpec`, HLO's tile assignments
and Shardy's `#sdy.sharding`, plus OneFlow's partial value. `ir.spelling.shardings` reads and writes the spellings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from ir.mesh import AxisRef, Mesh, axes_size, merge_axes
from ir.notebooks import Drawn
from ir.records import record

ReductionKind = Literal["sum", "prod", "max", "min", "and", "or"]
Partial = tuple[tuple[AxisRef, ReductionKind], ...]
"""Axes, each with the reduction that is pending over it."""
ChangeAxes = Callable[[tuple[AxisRef, ...]], tuple[AxisRef, ...]]
REDUCTION_KINDS: tuple[ReductionKind, ...] = ("sum", "prod", "max", "min", "and", "or")


@record
class DimSharding:
    """The axes that split one dim, major first. Propagation may add axes to an open dim, minor to those it has.

    A lower `priority` propagates earlier (Shardy's user priorities).
    """

    axes: tuple[AxisRef, ...] = ()
    open: bool = False
    priority: int = 0


@record
class Sharding(Drawn):
    """A mesh, the axes that split each dim, and the pending reductions.

    `partial` pairs an axis with a reduction kind: the tensor is that reduction, over the axis, of what the
    devices hold. `replicated` names axes that must not come to split the tensor. Every axis is used once.
    """

    mesh: Mesh
    dims: tuple[DimSharding, ...]
    partial: Partial = ()
    replicated: tuple[AxisRef, ...] = ()

    def __repr__(self) -> str:
        spell = self.mesh.spell
        dims = ", ".join(",".join([*map(spell, d.axes), *["?"] * d.open]) or "-" for d in self.dims)
        pending = f" partial over {','.join(spell(axis) for axis, _ in self.partial)}" if self.partial else ""
        return f"<Sharding [{dims}]{pending} on mesh ({self.mesh})>"

    @staticmethod
    def replicate(mesh: Mesh, rank: int) -> Sharding:
        """The whole tensor on every device (GShard's `replicate`)."""
        return Sharding(mesh, (DimSharding(),) * rank)

    @staticmethod
    def unknown(mesh: Mesh, rank: int) -> Sharding:
        """A sharding that splits nothing yet, with dims that propagation may split."""
        return Sharding(mesh, (DimSharding(open=True),) * rank)

    @staticmethod
    def of(mesh: Mesh, *dims: Sequence[str | AxisRef] | str | None) -> Sharding:
        """A closed sharding from axis names, as `jax.sharding.PartitionSpec` takes them."""

        def refs(dim: Sequence[str | AxisRef] | str | None) -> tuple[AxisRef, ...]:
            names = () if dim is None else (dim,) if isinstance(dim, str) else tuple(dim)
            return tuple(mesh.axis(a) if isinstance(a, str) else a for a in names)

        return Sharding(mesh, tuple(DimSharding(refs(d)) for d in dims))

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def axes(self) -> tuple[tuple[AxisRef, ...], ...]:
        """The axes of each dim."""
        return tuple(d.axes for d in self.dims)

    @property
    def is_replicated(self) -> bool:
        return not self.partial and not any(d.axes for d in self.dims)

    def used_axes(self) -> Iterator[AxisRef]:
        """Every axis that the sharding mentions."""
        for dim in self.dims:
            yield from dim.axes
        for axis, _ in self.partial:
            yield axis
        yield from self.replicated

    def with_axes(self, change: ChangeAxes, mesh: Mesh | None = None) -> Sharding:
        """The sharding with the axes of each dim, and all others, changed by `change`, on another mesh if one is
        given."""
        return Sharding(
            mesh or self.mesh,
            tuple([DimSharding(change(d.axes), d.open, d.priority) for d in self.dims]),
            tuple([(a, kind) for axis, kind in self.partial for a in change((axis,))]),
            change(self.replicated),
        )

    def closed(self) -> Sharding:
        """The same sharding with closed dims."""
        dims = tuple(DimSharding(merge_axes(d.axes)) for d in self.dims)
        return Sharding(self.mesh, dims, self.partial)


def shard_size(n: int, axes: Sequence[AxisRef]) -> int:
    """The number of elements of a dim of size n on one device: ceil(n / shards); the last shards have padding."""
    return -(-n // axes_size(axes))


def local_shape(shape: Sequence[int], axes: Sequence[Sequence[AxisRef]]) -> tuple[int, ...]:
    """The shape of one device's shard."""
    return tuple([shard_size(n, a) if a else n for n, a in zip(shape, axes, strict=True)])


def sharding_faults(sharding: Sharding, shape: Sequence[int]) -> list[tuple[str, str]]:
    """The errors in this sharding for a tensor of that shape, as diagnostic codes and messages."""
    if sharding.rank != len(shape):
        return [("E303", f"the sharding has {sharding.rank} dims, the tensor has {len(shape)}")]
    faults: list[tuple[str, str]] = []
    sizes = dict(sharding.mesh.axes)
    seen: list[AxisRef] = []
    for axis in sharding.used_axes():
        if axis.name not in sizes:
            faults.append(("E301", f"axis {axis.name!r} is not in the mesh ({sharding.mesh})"))
            continue
        if not axis.is_part_of(sizes[axis.name]):
            part, size = f"{axis.name}:({axis.pre}){axis.size}", sizes[axis.name]
            faults.append(("E303", f"{part} is no part of axis {axis.name!r} of size {size}"))
            continue
        if any(axis.overlaps(other) for other in seen):
            faults.append(("E302", f"axis {sharding.mesh.spell(axis)!r} is used twice"))
        clash = next((other for other in seen if not axis.refines_with(other)), None)
        if clash is not None:
            spell = sharding.mesh.spell
            faults.append(("E307", f"{spell(clash)} and {spell(axis)} have no common refinement"))
        seen.append(axis)
    kinds = {kind for _, kind in sharding.partial}
    if len(kinds) > 1:
        listed = ", ".join(sorted(kinds))
        faults.append(("E308", f"reductions of different kinds are pending ({listed}), in no definite order"))
    return faults
