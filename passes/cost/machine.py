"""The machine that costs are reckoned for: what one device can do, and what joins the devices along each mesh axis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ir.mesh import AxisRef, axes_size


@dataclass(frozen=True, slots=True)
class Link:
    """What joins the devices along a mesh axis: bytes/s that a device receives, and seconds that one more message adds,
    among many in flight, so that bytes decide but for the smallest tensors."""

    bandwidth: float
    latency: float


@dataclass(frozen=True, slots=True)
class Machine:
    """What one device can do. Units: flop/s, bytes/s of memory, seconds, bytes of memory.

    `flops` is the rate of arithmetic, but for element types that have one of their own in `rates`, by name. `turn` is
    what one iteration of a loop adds: it starts its ops anew, and small products leave a device idle. `usual_link`
    joins devices along every axis but those that have one of their own in `links`, by name.
    """

    name: str
    flops: float
    memory_bandwidth: float
    turn: float
    memory: int
    usual_link: Link
    links: tuple[tuple[str, Link], ...] = ()
    rates: tuple[tuple[str, float], ...] = ()

    def link(self, axis: AxisRef) -> Link:
        """What joins the devices along an axis, or a part of one."""
        return next((link for name, link in self.links if name == axis.name), self.usual_link)

    def links_of(self, axes: Iterable[AxisRef]) -> dict[Link, int]:
        """The links along these axes, and how many devices each of them joins."""
        if not self.links:
            return {self.usual_link: axes_size(axes)}
        found: dict[Link, int] = {}
        for axis in axes:
            link = self.link(axis)
            found[link] = found.get(link, 1) * axis.size
        return found or {self.usual_link: 1}

    def flops_of(self, dtype: str) -> float:
        """The rate of arithmetic on elements of that type, in flop/s."""
        return next((rate for name, rate in self.rates if name == dtype), self.flops)


TPU_V3 = Machine(
    "tpu-v3",
    flops=61e12,
    memory_bandwidth=450e9,
    turn=2e-6,
    memory=16 * 2**30,
    usual_link=Link(bandwidth=70e9, latency=1e-7),
)
"""One TPU v3 core, the machine of the GShard paper (half a chip's published 123 Tflop/s, 900 GB/s and 32 GiB)."""

MACHINES = {machine.name: machine for machine in (TPU_V3,)}
"""Those that can be asked for by name."""
