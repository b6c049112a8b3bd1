"""Mesh axes cut into atoms, the common vocabulary of the passes.

A program may split tensors over whole axes and over parts of axes. Cutting each axis wherever some sharding cuts it
gives atoms: any two are equal or disjoint, so a set of atoms can be compared, moved and counted without arithmetic
on sub-axes. A program that uses whole axes only has its axes as atoms.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ir.diagnostics import Diagnostic, SpmdcError
from ir.mesh import AxisRef, Mesh, merge_axes, prime_factors, split_axis
from ir.program import Program, all_ops
from ir.sharding import DimSharding, ReductionKind, Sharding


@dataclass(frozen=True)
class Atoms:
    """The cuts of each axis of one mesh, and the atoms between them in mesh order."""

    mesh: Mesh
    cuts: dict[str, frozenset[int]]

    @functools.cached_property
    def all(self) -> tuple[AxisRef, ...]:
        return self.split(self.mesh.whole_axes())

    @functools.cached_property
    def rank(self) -> dict[AxisRef, int]:
        """Each atom's place in mesh order."""
        return {a: i for i, a in enumerate(self.all)}

    def split(self, axes: Iterable[AxisRef]) -> tuple[AxisRef, ...]:
        """The atoms of these axes, in order, without those of size 1."""
        return tuple(atom for axis in axes for atom in split_axis(axis, self.cuts.get(axis.name, ())) if atom.size > 1)

    def split_partial(
        self, partial: Iterable[tuple[AxisRef, ReductionKind]]
    ) -> tuple[tuple[AxisRef, ReductionKind], ...]:
        return tuple((atom, kind) for axis, kind in partial for atom in self.split((axis,)))


def shardings_of(program: Program) -> Iterable[Sharding]:
    """Every sharding that the program mentions."""
    for function in program.functions.values():
        for param in function.params:
            if param.sharding is not None:
                yield param.sharding
        for result in function.results:
            if result.sharding is not None:
                yield result.sharding
    for op in all_ops(program):
        for value in op.results:
            if value.sharding is not None:
                yield value.sharding
        for region in op.regions:
            yield from (p.sharding for p in region.params if p.sharding is not None)


def find_atoms(program: Program) -> Atoms:
    """The atoms of the program's default mesh. Raises SpmdcError (E307) if shardings cut an axis in ways that clash."""
    mesh = program.mesh
    cuts: dict[str, set[int]] = {name: set() for name in mesh.names}
    seen: set[Sharding] = set()
    for sharding in shardings_of(program):
        if sharding in seen:
            continue
        seen.add(sharding)
        for axis in onto_mesh(sharding, mesh).used_axes():
            cuts[axis.name] |= {axis.pre, axis.end}
    atoms = Atoms(mesh, {name: frozenset(points) for name, points in cuts.items()})
    try:
        _ = atoms.all
    except ValueError as problem:
        raise SpmdcError(
            Diagnostic(
                "E307",
                f"{problem}",
                notes=("every sharding of a program must see an axis in parts that refine one another",),
                help="split over sub-axes whose boundaries divide one another",
            )
        ) from None
    return atoms


@functools.lru_cache(maxsize=256)
def matching_axes(source: Mesh, target: Mesh) -> tuple[tuple[AxisRef, AxisRef], ...]:
    """Pairs (part of a source axis, part of a target axis) of equal prime size that use up both meshes.

    After one collective_permute, a tensor on a mesh in another device order then is one on the target mesh, whatever
    the two meshes' axes are: both have the same number of devices, so the same primes. Raises SpmdcError (E304) if not.
    """
    if source.size != target.size:
        raise SpmdcError(
            Diagnostic(
                "E304",
                f"mesh {source.name!r} has {source.size} devices and the program's mesh has {target.size}",
                help="every mesh of a program lies on the same devices",
            )
        )

    def primes(mesh: Mesh) -> list[AxisRef]:
        parts: list[AxisRef] = []
        for name, size in mesh.axes:
            pre = 1
            for p in prime_factors(size):
                parts.append(AxisRef(name, pre, p))
                pre *= p
        return parts

    free = primes(target)
    pairs: list[tuple[AxisRef, AxisRef]] = []
    for part in primes(source):
        match = next(t for t in free if t.size == part.size)
        free.remove(match)
        pairs.append((part, match))
    return tuple(pairs)


def onto_mesh(sharding: Sharding, mesh: Mesh) -> Sharding:
    """The sharding on `mesh` that splits every dim as `sharding` does, devices renamed by `matching_axes`."""
    if sharding.mesh == mesh:
        return sharding
    pairs = matching_axes(sharding.mesh, mesh)

    def rename(axes: Sequence[AxisRef]) -> tuple[AxisRef, ...]:
        renamed: list[AxisRef] = []
        for axis in axes:
            parts = [(s, t) for s, t in pairs if axis.overlaps(s)]
            if any(s.pre < axis.pre or s.end > axis.end for s, _ in parts):
                raise SpmdcError(
                    Diagnostic(
                        "E307", f"sub-axis {axis.name}:({axis.pre}){axis.size} does not consist of whole prime parts"
                    )
                )
            renamed.extend(t for _, t in parts)
        return merge_axes(renamed)

    return Sharding(
        mesh,
        tuple(DimSharding(rename(d.axes), d.open, d.priority) for d in sharding.dims),
        tuple((a, kind) for axis, kind in sharding.partial for a in rename((axis,))),
        rename(sharding.replicated),
    )
