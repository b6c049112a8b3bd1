"""The machine that costs are reckoned for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topology:
    """What one device can do. Units: flop/s, bytes/s of memory and of links, seconds, bytes of memory.

    `latency` is what one more message adds, among many in flight, so that bytes decide but for the smallest tensors.
    `turn` is what one turn of a loop adds: it starts its ops anew, and small products leave a device idle.
    """

    name: str
    flops: float
    memory_bandwidth: float
    link_bandwidth: float
    latency: float
    turn: float
    memory: int


TPU_V3 = Topology(
    "tpu-v3-core",
    flops=61e12,
    memory_bandwidth=450e9,
    link_bandwidth=70e9,
    latency=1e-7,
    turn=2e-6,
    memory=16 * 2**30,
)
"""One TPU v3 core, the machine of the GShard paper (half a chip's published 123 Tflop/s, 900 GB/s and 32 GiB)."""
