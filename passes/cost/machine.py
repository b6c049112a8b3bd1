"""The machine for which costs are estimated: what one device can do, and the links along each mesh axis."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ir.diagnostics import InternalError, SpmdcError, error, require
from ir.mesh import MAX_DEVICES, Axes, AxisRef, Mesh, axes_size
from ir.names import did_you_mean
from passes.cost.kernels import Kernels
from passes.cost.machine_file import read_machine
from passes.cost.measured import Measured
from passes.cost.network import Link, NetworkDim, Placement, Reach, place, sized

DEFAULT_MACHINE = "tpu-v3"
_EQUAL_LINK = Link(bandwidth=70e9, latency=1e-7)
"""An estimate of what joins the devices of the default machine without a shape, all as far from one another."""
_FOLDER = Path(__file__).parent / "machines"


@dataclass(frozen=True, slots=True)
class Machine:
    """What one device can do. Units: flop/s, bytes/s of memory, seconds, bytes of memory.

    `flops` is the rate of arithmetic for all element types that have no rate of their own in `rates`, by name. `turn`
    is what one iteration of a loop adds: its ops are started again, and small products leave a device idle.
    `asynchronous` says whether devices compute while the parts of a loop are sent. `clock` is the cycles/s in which the
    compiler states how long ops take, 0 if it does not. `usual_link` joins devices along all axes that have no link of
    their own in `links`, by name.

    A machine with a `network` has the links of the network's dims instead, along the axes of a mesh that is laid out on
    it (`laid_out`). Dims of size 0 are as large as the mesh needs. Measured times of collectives take precedence over
    times computed from links. `kernels` describes the kernels of the compiler, where they do not reach all that the
    device can do.
    """

    name: str
    flops: float
    memory_bandwidth: float
    turn: float
    memory: int
    usual_link: Link
    links: tuple[tuple[str, Link], ...] = ()
    rates: tuple[tuple[str, float], ...] = ()
    asynchronous: bool = True
    network: tuple[NetworkDim, ...] = ()
    measured: tuple[Measured, ...] = ()
    clock: float = 0.0
    kernels: Kernels | None = None
    placement: Placement | None = field(default=None, repr=False)

    @staticmethod
    def of(given: Machine | str) -> Machine:
        """The machine itself, or the one of that name or file. Raises SpmdcError (E005, E601, E602, E603)."""
        return given if isinstance(given, Machine) else machine(given)

    @staticmethod
    def load(path: str | Path) -> Machine:
        """The machine that a TOML file describes (docs/machines.md). Raises SpmdcError (E005, E602)."""
        return Machine(**read_machine(Path(path)))

    def shaped(self, sizes: Sequence[int]) -> Machine:
        """The machine with a network of these sizes, of all dims or of those whose size depends on the mesh. Raises
        SpmdcError (E603) if the numbers of dims differ, or a dim has another size."""
        own = self.network
        if len(sizes) == len(own):
            given = list(sizes)
        elif len(sizes) == sum(not dim.size for dim in own):
            rest = iter(sizes)
            given = [dim.size or next(rest) for dim in own]
        else:
            raise error("E603", f"{len(sizes)} sizes are no shape of {self.name}", help=f"its dims: {_dims(own)}")
        for dim, size in zip(own, given, strict=True):
            if dim.size not in (0, size):
                message = f"the dim {dim.name} of {self.name} has {dim.size} devices, and not {size}"
                raise error("E603", message, help=f"give the sizes of other dims alone: {_dims(own)}")
        if math.prod(given) > MAX_DEVICES:
            message = f"a network of {math.prod(given):,} devices is beyond {MAX_DEVICES:,}"
            raise error("E603", message, help=f"give smaller sizes; its dims: {_dims(own)}")
        name = f"{self.name}:{'x'.join(map(str, given))}"
        return replace(self, name=name, network=tuple(replace(d, size=n) for d, n in zip(own, given, strict=True)))

    def laid_out(self, meshes: Sequence[Mesh]) -> Machine:
        """The machine with these meshes laid out on its network. Raises SpmdcError (E604) if they do not fit."""
        if not self.network or not meshes:
            return self
        return replace(self, placement=place(sized(self.network, meshes[0].size), tuple(meshes)))

    def has_room_for(self, meshes: Sequence[Mesh]) -> bool:
        """Whether these meshes fit on the machine's network."""
        try:
            self.laid_out(meshes)
        except SpmdcError:
            return False
        return True

    def with_latencies(self, share: float) -> Machine:
        """The machine with that fraction of each link's latency. The hops of a network and measured times stay as they
        are."""
        usual = replace(self.usual_link, latency=share * self.usual_link.latency)
        links = tuple((name, replace(link, latency=share * link.latency)) for name, link in self.links)
        return replace(self, usual_link=usual, links=links)

    def reaches(self, axes: Axes) -> tuple[Reach, ...]:
        """The links of a group of devices along `axes`, for each dim of the network."""
        if self.placement is None:
            raise InternalError(f"no mesh is laid on the network of {self.name}")
        return self.placement.reaches(axes)

    def link(self, axis: AxisRef) -> Link:
        """The link along an axis, or a part of one. On a network it is the one between neighbours."""
        if self.network:
            reaches = self.reaches((axis,))
            return Link(min(r.bandwidth for r in reaches), max(r.latency for r in reaches))
        return next((link for name, link in self.links if name == axis.name), self.usual_link)

    def links_of(self, axes: Iterable[AxisRef]) -> dict[Link, int]:
        """The links along these axes, and how many devices each joins."""
        if not self.links and not self.network:
            return {self.usual_link: axes_size(axes)}
        found: dict[Link, int] = {}
        for axis in axes:
            link = self.link(axis)
            found[link] = found.get(link, 1) * axis.size
        return found or {self.usual_link: 1}

    def flops_of(self, dtype: str) -> float:
        """The rate of arithmetic on elements of that type, in flop/s."""
        return next((rate for name, rate in self.rates if name == dtype), self.flops)


def machine(spec: str) -> Machine:
    """The machine with a name, a name and the shape of its network (`tpu-v4:8x8x4`), or a TOML file.

    Only `tpu-v3`, the default, has equal links between all of its devices, and no network. The network of any other is
    as large as the mesh needs, unless a shape is given. Raises SpmdcError (E005, E601, E602, E603).
    """
    require(isinstance(spec, str), "a machine is a Machine, or the name of one", spec, 'spmdc.machine("tpu-v3")')
    if spec.endswith(".toml") or "/" in spec:
        return Machine.load(spec)
    name, colon, shape = spec.partition(":")
    if name not in machine_names():
        known = machine_names()
        help_text = did_you_mean(name, known, cutoff=0.5) or f"there are {', '.join(known)}"
        raise error("E603", f"there is no machine {name[:60]!r}", help=f"{help_text}; a file's name ends in .toml")
    if not colon:
        found = _shipped(name)
        return replace(found, network=(), usual_link=_EQUAL_LINK) if name == DEFAULT_MACHINE else found
    if not re.fullmatch(r"[1-9]\d{0,6}(x[1-9]\d{0,6}){0,15}", shape, re.ASCII):
        help_text = f"as in {name}:4x4; its dims: {_dims(_shipped(name).network)}"
        raise error("E603", f"{shape[:60]!r} is not the shape of a network", help=help_text)
    return _shipped(name).shaped([int(size) for size in shape.split("x")])


def machine_called(kind: str) -> Machine | None:
    """The machine that JAX calls devices of such a kind after, as in "NVIDIA H100 80GB HBM3"; None if none is known."""
    words = re.split(r"[^a-z0-9]+", kind.lower())
    name = next((name for name in machine_names() if name in words), None)
    return machine(name) if name is not None else None


@functools.cache
def machine_names() -> tuple[str, ...]:
    """The names of all known machines."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@functools.cache
def _shipped(name: str) -> Machine:
    return Machine.load(_FOLDER / f"{name}.toml")


def _dims(dims: Sequence[NetworkDim]) -> str:
    return ", ".join(f"{dim.name}{f' of {dim.size}' if dim.size else ''}" for dim in dims)


TPU_V3 = machine(DEFAULT_MACHINE)
"""One TPU v3 core, the machine of the GShard paper, joined to all others by equal links."""
