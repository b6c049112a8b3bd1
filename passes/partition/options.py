"""What a person may say about the choices of the partitioner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from passes.cost.machine import TPU_V3

WindowedEinsum = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """What the user says about choices.

    `memory_limit` is how many bytes of a device's memory one op may take: for its operands and results, what operands
    are gathered from, and buffers. What goes beyond it is chosen only if there is nothing else. `windowed_einsum` says
    whether einsums are computed part by part: where that costs less, always if it is possible, or never.
    """

    memory_limit: int = TPU_V3.memory
    windowed_einsum: WindowedEinsum = "auto"
