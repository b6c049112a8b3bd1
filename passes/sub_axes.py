"""Mesh axes cut into sub-axes, the common vocabulary of the passes.

A program may split tensors over whole axes and over parts of axes. Cutting each axis wherever some sharding cuts it
makes sub-axes, as Shardy calls them, any two of which are equal or disjoint: a set of them can be compared, moved and
counted without arithmetic. If a program uses whole axes only, the sub-axes are the axes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ir.axis_sets import cut_mesh
from ir.diagnostics import error
from ir.mesh import AxisRef, Mesh, merge_axes, prime_parts, split_axis
from ir.ops import OPS
from ir.ops.collective import collective_axes
from ir.program import Program, Result, Value, all_ops, values_within
from ir.sharding import Partial, ReductionKind, Sharding

Pairs = tuple[tuple[AxisRef, AxisRef], ...]
"""Parts of another mesh's axes, each with a part of the same size of the home mesh's axes."""


@dataclass(frozen=True)
class SubAxes:
    """The cuts of each axis of the home mesh, the sub-axes between them in mesh order, and the matching of other
    meshes' axes.

    All meshes have the same number of devices, so the same primes: after one collective_permute, a tensor on a mesh in
    another device order is one on the home mesh, whatever the two meshes' axes are.
    """

    mesh: Mesh
    cuts: dict[str, frozenset[int]]
    ways_home: Mapping[Mesh, Pairs]

    @functools.cached_property
    def all(self) -> tuple[AxisRef, ...]:
        return self.split(self.mesh.whole_axes())

    @functools.cached_property
    def rank(self) -> dict[AxisRef, int]:
        """The position of each sub-axis in mesh order."""
        return {a: i for i, a in enumerate(self.all)}

    @functools.cached_property
    def primes(self) -> SubAxes:
        """The same axes with every sub-axis cut into parts of prime size."""
        parts = [part for sub_axis in self.all for part in prime_parts(sub_axis)]
        return SubAxes(self.mesh, _cuts(self.mesh, parts), self.ways_home)

    def cut_at(self, places: Iterable[tuple[str, int]]) -> SubAxes:
        """The same axes with additional cuts (names, and products of the parts before), in order. Cuts that have no
        common refinement with the others are left out."""
        cuts = dict(self.cuts)
        for name, place in sorted(places):
            ends = {*cuts[name], self.mesh.axis(name).size}
            if all(end % place == 0 or place % end == 0 for end in ends):
                cuts[name] |= {place}
        return self if cuts == self.cuts else SubAxes(self.mesh, cuts, self.ways_home)

    def split(self, axes: Iterable[AxisRef]) -> tuple[AxisRef, ...]:
        """The sub-axes of these axes, in order, without those of size 1."""
        return tuple([sub_axis for axis in axes for sub_axis in self._parts_of(axis)])

    def _parts_of(self, axis: AxisRef) -> tuple[AxisRef, ...]:
        found = self._parts.get(axis)
        if found is None:
            parts = split_axis(axis, self.cuts.get(axis.name, ()))
            found = self._parts[axis] = tuple(part for part in parts if part.size > 1)
        return found

    @functools.cached_property
    def _parts(self) -> dict[AxisRef, tuple[AxisRef, ...]]:
        """The sub-axes of axes that were requested before."""
        return {}

    def split_partial(self, partial: Partial) -> Partial:
        return tuple((sub_axis, kind) for axis, kind in partial for sub_axis in self.split((axis,)))

    def in_order(self, partial: Iterable[tuple[AxisRef, ReductionKind]]) -> Partial:
        """Pending reductions over sub-axes, in mesh order."""
        return tuple(sorted(partial, key=lambda part: self.rank[part[0]]))

    def home(self, sharding: Sharding) -> Sharding:
        """The sharding on the home mesh that splits every dim as `sharding` does, with devices renamed."""
        if sharding.mesh == self.mesh:
            return sharding
        return _renamed(sharding, self.mesh, self.ways_home[sharding.mesh])


def shardings_of(program: Program) -> Iterable[Sharding]:
    """All shardings in the program."""
    for function in program.functions.values():
        ends: tuple[Value | Result, ...] = (*values_within(function.body), *function.results)
        for value in ends:
            if value.sharding is not None:
                yield value.sharding


def find_sub_axes(program: Program) -> SubAxes:
    """The sub-axes of the program's default mesh. Raises SpmdcError (E307) if shardings have cuts of an axis without a
    common refinement."""
    mesh = program.mesh
    used: dict[Mesh, set[AxisRef]] = {m: set() for m in program.meshes}
    seen = set(shardings_of(program))
    for sharding in seen:
        used.setdefault(sharding.mesh, set()).update(sharding.used_axes())
    named = {a for op in all_ops(program) if OPS[op.name].family == "collective" for a in collective_axes(op)}
    primes = {m: [p for sub_axis in cut_mesh(m, axes) for p in prime_parts(sub_axis)] for m, axes in used.items()}
    ways_home = {m: _match(m, primes[m], mesh, primes[mesh]) for m in used if m != mesh}
    home = {axis for s in seen for axis in (s if s.mesh == mesh else _renamed(s, mesh, ways_home[s.mesh])).used_axes()}
    return SubAxes(mesh, _cuts(mesh, cut_mesh(mesh, home | named)), ways_home)


def find_sub_axes_of(mesh: Mesh, shardings: Iterable[Sharding]) -> SubAxes:
    """The sub-axes into which shardings on a mesh cut its axes."""
    parts = cut_mesh(mesh, {axis for sharding in shardings for axis in sharding.used_axes()})
    return SubAxes(mesh, _cuts(mesh, parts), {})


def _cuts(mesh: Mesh, parts: Sequence[AxisRef]) -> dict[str, frozenset[int]]:
    """The cuts of each axis of a mesh between these parts."""
    return {name: frozenset({p.pre for p in parts if p.name == name}) for name in mesh.names}


def _match(other: Mesh, parts: Sequence[AxisRef], mesh: Mesh, home: Sequence[AxisRef]) -> Pairs:
    """Each part of prime size, paired with one of the home mesh. Raises SpmdcError (E304) if the meshes differ in
    size."""
    if other.size != mesh.size:
        message = f"mesh {other.name!r} has {other.size} devices and the program's mesh has {mesh.size}"
        raise error("E304", message, help="every mesh of a program is over the same devices")
    free = list(home)
    pairs: list[tuple[AxisRef, AxisRef]] = []
    for part in parts:
        match = next(t for t in free if t.size == part.size)
        free.remove(match)
        pairs.append((part, match))
    return tuple(pairs)


def _renamed(sharding: Sharding, mesh: Mesh, pairs: Pairs) -> Sharding:
    def rename(axes: Sequence[AxisRef]) -> tuple[AxisRef, ...]:
        return merge_axes([home for axis in axes for part, home in pairs if axis.overlaps(part)])

    return sharding.with_axes(rename, mesh)
