"""The network of a machine: dims of devices that are joined by rings, lines or switches, and how a mesh is laid out on
them.

A mesh axis is laid out on parts of dims, its digits: the axis y=8 of a mesh (x=16, y=8) on a torus of 16 x 8 is the
second dim, and on one of 32 x 4 it may be half of the first dim and all of the second. Of all layouts of a mesh on a
network the one is used in which collectives along single axes take the least time.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from ir.diagnostics import error
from ir.mesh import Axes, AxisRef, Mesh, prime_factors

DimKind = Literal["ring", "line", "switch"]
DIM_KINDS: tuple[DimKind, ...] = get_args(DimKind)

MAX_DIMS = 8
"""The most dims that a network may have: the cost of a collective takes every subset of them into account."""
_MOST_LAYOUTS = 512
"""The most layouts of a mesh on a network that are compared."""
_PROBE_BYTES = 2**20
"""The bytes that each device puts into the collectives by which layouts are compared."""


@dataclass(frozen=True, slots=True)
class Link:
    """The link along a mesh axis: the bytes/s that a device receives, and the seconds that one more message adds, among
    many in flight, so that bytes decide for all but the smallest tensors."""

    bandwidth: float
    latency: float


@dataclass(frozen=True, slots=True)
class NetworkDim:
    """Devices that differ in one coordinate, and how they are joined.

    `bandwidth` is the bytes/s of one link in one direction: to each neighbour in a ring or line, or to the switch.
    `latency` is the seconds of one hop. Each pair of neighbours has a link of its own.
    """

    name: str
    size: int
    kind: DimKind
    bandwidth: float
    latency: float


Place = tuple[int, ...]
"""A device's coordinates, one for each dim."""


@dataclass(frozen=True, slots=True)
class Digit:
    """A part of a dim: `size` devices, each `stride` away from the next."""

    dim: int
    stride: int
    size: int


@dataclass(frozen=True, slots=True)
class Reach:
    """The devices of one group along one dim, and how they are joined.

    If a group's devices are `stride` apart, `stride` groups share each link. A group that does not go round the whole
    ring is a line.
    """

    size: int
    stride: int
    kind: DimKind
    bandwidth: float
    latency: float

    @property
    def rate(self) -> float:
        """Bytes/s that every device of the group can receive from its neighbours at the same time: from both sides in a
        ring of more than two devices, from one side at the end of a line."""
        return self.bandwidth * (2 if self.kind == "ring" and self.size > 2 else 1)

    @property
    def hops(self) -> int:
        """The number of messages, one after another, until each device has heard from all."""
        if self.kind == "switch":
            return math.ceil(math.log2(self.size))
        return self.distance

    @property
    def distance(self) -> int:
        """The number of links between the devices that are furthest apart."""
        if self.kind == "switch":
            return 1
        return self.stride * (self.size // 2 if self.kind == "ring" else self.size - 1)

    def exchanged(self, nbytes: float) -> float:
        """Seconds in which each device sends an equal part of that many bytes to each, itself included: the time of the
        links in the middle, over which each half of the devices sends half of its bytes to the other."""
        n = self.size
        if self.kind == "switch":
            return (n - 1) / n * nbytes / self.bandwidth
        half = (n // 2) * (n - n // 2) / n * nbytes / self.bandwidth
        return half / 2 if self.kind == "ring" and n > 2 else half

    def opposite(self, nbytes: float) -> float:
        """Seconds in which all devices send that many bytes to the device that is furthest away, as far as that is
        possible for all."""
        half = self.size // 2
        if self.kind == "switch":
            return nbytes / self.bandwidth
        return (half / 2 if self.kind == "ring" and self.size > 2 else half) * nbytes / self.bandwidth


@dataclass(frozen=True, slots=True)
class Network:
    """The dims of a network, the slowest to change in the numbering of devices first."""

    dims: tuple[NetworkDim, ...]

    @property
    def size(self) -> int:
        """The number of devices."""
        return math.prod(dim.size for dim in self.dims)

    def __str__(self) -> str:
        return " x ".join(f"{dim.name}={dim.size}" for dim in self.dims)


_Known = dict[Axes, tuple[Reach, ...]]


@dataclass(frozen=True, slots=True)
class Placement:
    """The layout of a program's meshes on a network: the digits of each axis, major first."""

    network: Network
    digits: tuple[tuple[str, tuple[Digit, ...]], ...]
    _found: _Known = field(default_factory=_Known, repr=False, compare=False)

    def reaches(self, axes: Axes) -> tuple[Reach, ...]:
        """The links of a group of devices along `axes`, for each dim in which they differ."""
        found = self._found.get(axes)
        if found is None:
            found = self._found[axes] = tuple(self._reaches(axes))
        return found

    def device_order(self, mesh: Mesh) -> tuple[int, ...]:
        """The number, in row-major order of the network's dims, of the device at each position of the mesh."""
        weights = [math.prod(dim.size for dim in self.network.dims[i + 1 :]) for i in range(len(self.network.dims))]
        order = [0]
        by_axis = dict(self.digits)
        for axis in mesh.names:
            for digit in by_axis[axis]:
                step = digit.stride * weights[digit.dim]
                order = [place + i * step for place in order for i in range(digit.size)]
        return tuple(order)

    def spell(self, axis: str) -> str:
        """The dims that an axis is laid out on, major first: `x, y (4 of 8, 2 apart)`."""
        return ", ".join(map(self._spell, dict(self.digits)[axis])) or "one device"

    def _spell(self, digit: Digit) -> str:
        dim = self.network.dims[digit.dim]
        if digit.size == dim.size:
            return dim.name
        return f"{dim.name} ({digit.size} of {dim.size}{f', {digit.stride} apart' if digit.stride > 1 else ''})"

    def _reaches(self, axes: Axes) -> Iterator[Reach]:
        digits = [digit for axis in dict.fromkeys(axes) for digit in self._digits(axis)]
        for i, dim in enumerate(self.network.dims):
            own = [digit for digit in digits if digit.dim == i]
            if own:
                stride = min(digit.stride for digit in own)
                end = max(digit.stride * digit.size for digit in own)
                size = min(math.prod(digit.size for digit in own), max(2, dim.size // stride))
                yield _reach(dim, size, stride, end)

    def _digits(self, axis: AxisRef) -> Iterator[Digit]:
        """The digits of a part of an axis. If it cannot be cut at digits, it is taken to be on the first one that it
        overlaps."""
        before = 1
        left = axis.size
        for digit in dict(self.digits).get(axis.name, ()):
            low, high = max(axis.pre, before), min(axis.end, before * digit.size)
            if low < high:
                end = before * digit.size
                is_cut = low % before == 0 and end % high == 0 and high % low == 0
                size, stride = (high // low, digit.stride * (end // high)) if is_cut else (left, digit.stride)
                size = min(size, left)
                left = math.ceil(left / size)
                if size > 1:
                    yield Digit(digit.dim, stride, size)
            before *= digit.size


def _reach(dim: NetworkDim, size: int, stride: int, end: int) -> Reach:
    if dim.kind == "switch":
        return Reach(size, 1, "switch", dim.bandwidth, dim.latency)
    kind: DimKind = "ring" if dim.kind == "ring" and end == dim.size and size * stride == end else "line"
    return Reach(size, stride, kind, dim.bandwidth / stride, dim.latency)


def gather_seconds(reaches: Sequence[Reach], part: float) -> float:
    """Time in which every device receives `part` bytes from each other device of its group, over all dims at the same
    time.

    For every set of dims, data from devices that differ in these dims only must pass their links. That is a lower bound
    on the time, which is reached by mixed orders of the dims, each for a share of the bytes.
    """
    worst = 0.0
    for count in range(1, len(reaches) + 1):
        for chosen in itertools.combinations(reaches, count):
            others = math.prod(reach.size for reach in chosen) - 1
            worst = max(worst, others * part / sum(reach.rate for reach in chosen))
    return worst


def network_seconds(kind: str, reaches: Sequence[Reach], operand_bytes: float) -> float:
    """Time of one collective in which each device puts in that many bytes (GShard, section 5.3 and Figure 9).

    An all_reduce is a scatter and a gather or, where that is faster, sends every operand to all devices.
    """
    group = math.prod(reach.size for reach in reaches)
    latency = sum(reach.hops * reach.latency for reach in reaches)
    if kind == "all_gather":
        return latency + gather_seconds(reaches, operand_bytes)
    if kind == "reduce_scatter":
        return latency + gather_seconds(reaches, operand_bytes / group)
    if kind == "all_reduce":
        in_parts = 2 * (latency + gather_seconds(reaches, operand_bytes / group))
        return min(in_parts, latency + gather_seconds(reaches, operand_bytes))
    if kind == "all_to_all":
        return latency + max((reach.exchanged(operand_bytes) for reach in reaches), default=0.0)
    far = sum(reach.distance * reach.latency for reach in reaches)
    return far + max((reach.opposite(operand_bytes) for reach in reaches), default=0.0)


def reaches_among(dims: Sequence[NetworkDim], places: Sequence[Place]) -> tuple[Reach, ...]:
    """The links of devices at these places, for each dim in which they differ, as if the devices were a grid."""
    found: list[Reach] = []
    for i, dim in enumerate(dims):
        at = sorted({place[i] for place in places})
        if len(at) > 1:
            stride = min(b - a for a, b in itertools.pairwise(at))
            found.append(_reach(dim, len(at), stride, len(at) * stride))
    return tuple(found)


def permute_seconds(dims: Sequence[NetworkDim], pairs: Iterable[tuple[Place, Place]], nbytes: float) -> float:
    """Time in which the first place of each pair sends that many bytes to the second, all at once, along one dim after
    the other, in rings the shorter way: the time of the busiest link, and the hops of the longest path."""
    loads: Counter[tuple[int, Place, bool]] = Counter()
    latency = 0.0
    for source, target in pairs:
        hops = 0.0
        at = source
        for i, dim in enumerate(dims):
            there = (*at[:i], target[i], *at[i + 1 :])
            links = [(i, place, is_back) for place, is_back in _links(dim, i, at, target[i])]
            loads.update(links)
            hops += len(links) * dim.latency
            at = there
        latency = max(latency, hops)
    return latency + max((count * nbytes / dims[i].bandwidth for (i, _, _), count in loads.items()), default=0.0)


def _links(dim: NetworkDim, i: int, source: Place, target: int) -> Iterator[tuple[Place, bool]]:
    """The links from a place to one that differs in one dim. Each is the place where it begins, and whether it leads to
    lower numbers. For a switch it is the link to the switch."""
    ahead = target - source[i]
    if dim.kind == "ring":
        ahead = (ahead + dim.size // 2) % dim.size - dim.size // 2
    if dim.kind == "switch":
        ahead = min(1, abs(ahead))
    step = 1 if ahead > 0 else -1
    for k in range(abs(ahead)):
        at = source[i] + k * step
        yield (*source[:i], at % dim.size if dim.kind == "ring" else at, *source[i + 1 :]), ahead < 0


def neighbour_seconds(reaches: Sequence[Reach], nbytes: float) -> float:
    """Time in which each device receives that many bytes from its neighbour."""
    latency = sum(reach.stride * reach.latency for reach in reaches)
    return latency + nbytes / min((reach.bandwidth for reach in reaches), default=math.inf)


# Laying meshes on networks.


def sized(dims: Sequence[NetworkDim], devices: int) -> Network:
    """The network in which the dims of size 0 share the remaining factor of the number of devices, as evenly as
    possible."""
    rest = devices // math.gcd(devices, math.prod(dim.size for dim in dims if dim.size))
    is_open = [i for i, dim in enumerate(dims) if not dim.size]
    sizes = [dim.size for dim in dims]
    for i in is_open:
        sizes[i] = 1
    for prime in sorted(prime_factors(rest), reverse=True) if is_open else ():
        smallest = min(is_open, key=lambda i: sizes[i])
        sizes[smallest] *= prime
    return Network(tuple(replace(dim, size=size) for dim, size in zip(dims, sizes, strict=True)))


@functools.lru_cache(maxsize=256)
def place(network: Network, meshes: tuple[Mesh, ...]) -> Placement:
    """The layout of the meshes on the network. Raises SpmdcError (E604) if the sizes of axes do not divide the dims."""
    digits: dict[str, tuple[Digit, ...]] = {}
    for mesh in meshes:
        for axis, found in _best(network, mesh).items():
            digits.setdefault(axis, found)
    return Placement(network, tuple(digits.items()))


def _best(network: Network, mesh: Mesh) -> Mapping[str, tuple[Digit, ...]]:
    """The layout in which an all_reduce and an all_to_all along each axis take the least time; of equal ones the first,
    in which the major axes are on the first dims."""
    best: tuple[float, Mapping[str, tuple[Digit, ...]]] | None = None
    for digits in itertools.islice(_layouts(network, mesh), _MOST_LAYOUTS):
        placement = Placement(network, tuple(digits.items()))
        seconds = 0.0
        for axis in mesh.whole_axes():
            reaches = placement.reaches((axis,))
            seconds += network_seconds("all_reduce", reaches, _PROBE_BYTES)
            seconds += network_seconds("all_to_all", reaches, _PROBE_BYTES)
        if best is None or seconds < best[0] * (1 - 1e-9):
            best = seconds, digits
    if best is None:
        raise error(
            "E604",
            f"the mesh ({mesh}) does not lie on the network ({network})",
            help=f"the mesh has {mesh.size} devices and the network {network.size}: each axis takes whole parts of "
            "dims, by sizes that divide theirs",
        )
    return best[1]


def _layouts(network: Network, mesh: Mesh) -> Iterator[Mapping[str, tuple[Digit, ...]]]:
    """All ways to write each axis as digits of dims, for every distribution of the prime factors of its size."""
    sizes = [size for _, size in mesh.axes]
    dims = [dim.size for dim in network.dims]
    primes = sorted({p for n in (*sizes, *dims) for p in prime_factors(n)})
    by_prime = [[Counter(prime_factors(n))[p] for n in (*sizes, *dims)] for p in primes]
    if any(sum(counts[: len(sizes)]) > sum(counts[len(sizes) :]) for counts in by_prime):
        return
    tables = [list(itertools.islice(_tables(c[: len(sizes)], c[len(sizes) :]), _MOST_LAYOUTS)) for c in by_prime]
    for dealt in itertools.product(*tables):
        parts = [
            [math.prod(p ** table[a][d] for p, table in zip(primes, dealt, strict=True)) for d in range(len(dims))]
            for a in range(len(sizes))
        ]
        yield {name: tuple(_digits_of(parts, a)) for a, name in enumerate(mesh.names)}


def _digits_of(parts: Sequence[Sequence[int]], axis: int) -> Iterator[Digit]:
    """The digits of an axis. In each dim, later axes of the mesh have smaller strides."""
    for dim, size in enumerate(parts[axis]):
        if size > 1:
            yield Digit(dim, math.prod(later[dim] for later in parts[axis + 1 :]), size)


def _tables(rows: Sequence[int], room: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
    """All ways to distribute the numbers of each row over columns with that much room."""
    if not rows:
        yield ()
        return
    for first in _dealt(rows[0], room):
        left = [have - taken for have, taken in zip(room, first, strict=True)]
        for rest in _tables(rows[1:], left):
            yield (first, *rest)


def _dealt(count: int, room: Sequence[int]) -> Iterator[tuple[int, ...]]:
    if not room:
        if not count:
            yield ()
        return
    for taken in range(min(count, room[0]), -1, -1):
        for rest in _dealt(count - taken, room[1:]):
            yield (taken, *rest)
