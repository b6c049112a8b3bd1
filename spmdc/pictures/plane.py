"""The two dims of a tensor that a picture shows, and which blocks are drawn: all, or the first and the last of many."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spmdc.pictures.placement import Block, Placement

MOST_PANELS = 8
_MOST_DEVICES = 6


@dataclass(frozen=True)
class Plane:
    """`rows` and `columns` are dims, None if the tensor has too few; `panels` are the other split dims, for each index
    of which there is a separate drawing."""

    placement: Placement
    rows: int | None
    columns: int | None
    panels: tuple[int, ...]

    @staticmethod
    def of(placement: Placement) -> Plane:
        """The plane of the last two split dims; if there are fewer, with others, the last first."""
        rank = len(placement.shape)
        split = [dim for dim in range(rank) if placement.parts[dim] > 1]
        whole = [dim for dim in range(rank) if placement.parts[dim] == 1]
        drawn = sorted((split[-2:] + whole[::-1])[:2])
        columns = drawn[-1] if drawn else None
        return Plane(placement, drawn[0] if len(drawn) == 2 else None, columns, tuple(split[:-2]))

    def places(self) -> Iterator[dict[int, int]]:
        """The index of each panel: the part of each dim that it shows."""
        for parts in itertools.product(*(range(self.placement.parts[dim]) for dim in self.panels)):
            yield dict(zip(self.panels, parts, strict=True))

    def block(self, place: dict[int, int], row: int, column: int) -> Block:
        """The block of a panel in that row and column."""
        at = {**place, **({} if self.rows is None else {self.rows: row})}
        at |= {} if self.columns is None else {self.columns: column}
        return self.placement.block([at.get(dim, 0) for dim in range(len(self.placement.shape))])

    def shown(self, dim: int | None, most: int) -> list[int | None]:
        """The parts of a dim that are drawn, with None for a gap."""
        parts = 1 if dim is None else self.placement.parts[dim]
        if parts <= most:
            return list(range(parts))
        return [*range(most - 2), None, parts - 1]


def span(first: int, behind: int) -> str:
    """The elements from the first to the last, as 0…3; a dash if there are none."""
    return "-" if first == behind else str(first) if behind == first + 1 else f"{first}…{behind - 1}"


def numbers(devices: Sequence[int]) -> str:
    """Device ids in few characters: runs as 0-3, and of many the first and their number."""
    runs: list[list[int]] = []
    for device in devices:
        if runs and device == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], device]
        else:
            runs.append([device])
    if len(runs) > _MOST_DEVICES:
        return ",".join(_run(run) for run in runs[: _MOST_DEVICES // 2]) + f",… ({len(devices):,})"
    return ",".join(map(_run, runs))


def _run(run: Sequence[int]) -> str:
    return str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" if run[1] > run[0] + 1 else f"{run[0]},{run[1]}"


def caption(placement: Placement) -> str:
    """A description of how the tensor is cut."""
    sharding, mesh = placement.sharding, placement.sharding.mesh
    blocks = 1
    for parts in placement.parts:
        blocks *= parts
    shard = ", ".join(map(str, placement.shard))
    words = [f"{blocks:,} block{'s' if blocks > 1 else ''} of [{shard}] on {mesh.size:,} devices, mesh ({mesh})"]
    if sharding.partial:
        axes = ", ".join(mesh.spell(axis) for axis, _ in sharding.partial)
        words.append(f"each device has a term of a {sharding.partial[0][1]} over {axes}")
    elif placement.replicas > 1:
        words.append(f"{placement.replicas:,} devices hold each")
    if placement.is_uneven:
        sizes = zip(placement.shape, placement.parts, placement.shard, strict=True)
        dims = " and ".join(f"dim {d}" for d, (n, parts, size) in enumerate(sizes) if n != parts * size)
        only = f", {placement.idle:,} devices nothing else" if placement.idle else ""
        words.append(f"the last of {dims} hold padding ({placement.padding:.2g}%){only}")
    return "; ".join(words)


def axes_of(placement: Placement, dim: int) -> str:
    """The axes that split a dim, as `dim 0 over (x,y)`."""
    names = list(map(placement.sharding.mesh.spell, placement.sharding.axes[dim]))
    over = names[0] if len(names) == 1 else f"({','.join(names)})"
    return f"dim {dim} over {over}" if names else f"dim {dim}"


def place_name(placement: Placement, place: dict[int, int]) -> str:
    """The label of a panel: the elements of the dims that it does not show."""
    return ", ".join(f"dim {dim}: {span(*placement.extent(dim, part))}" for dim, part in place.items())


def panels_shown(plane: Plane) -> tuple[list[dict[int, int]], int]:
    """The indices of the panels that are drawn, and the number of the others."""
    places = list(itertools.islice(plane.places(), MOST_PANELS))
    total = 1
    for dim in plane.panels:
        total *= plane.placement.parts[dim]
    return places, total - len(places)
