"""The machine that costs are reckoned for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Topology:
    """What one device can do. Units: flop/s, bytes/s of memory and of links, seconds that one more message adds.

    Latency is that of a message among many in flight, so that bytes decide but for the smallest tensors.
    """

    name: str
    flops: float
    memory_bandwidth: float
    link_bandwidth: float
    latency: float


TPU_V3 = Topology("tpu-v3-core", flops=61e12, memory_bandwidth=450e9, link_bandwidth=70e9, latency=1e-7)
"""One TPU v3 core, the machine of the GShard paper (half a chip's published 123 Tflop/s and 900 GB/s)."""
