"""Costs of plans in words."""

from __future__ import annotations

import functools

from passes.partition.write.cost import OpCost, PlanCost


def cost_text(cost: OpCost) -> str:
    """`3.2 us, 4,096 bytes received, 65,536 alive`."""
    received = f"{cost.received:,} bytes received, " if cost.received else ""
    return f"{seconds_text(cost.seconds)}, {received}{cost.alive:,} alive"


def sum_text(cost: PlanCost) -> str:
    """`1.2 ms (critical path 1 ms), 4,096 bytes received, 65,536 bytes of memory at the peak`."""
    seconds = f"{seconds_text(cost.seconds)} (critical path {seconds_text(cost.critical_seconds)})"
    return f"{seconds}, {cost.received:,} bytes received, {cost.peak:,} bytes of memory at the peak"


@functools.lru_cache(maxsize=2**14)
def seconds_text(seconds: float) -> str:
    """A time in a suitable unit."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        text = f"{seconds * factor:.3g}"
        if abs(float(text)) >= 1:
            return f"{text} {unit}"
    return f"{seconds * 1e9:.3g} ns"
