"""The options of the partitioner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ir.mesh import Mesh
from passes.cost.machine import Machine

WindowedEinsum = Literal["auto", "always", "never"]
Recompute = Literal["auto", "never"]

_SHARE_OF_LATENCIES = 0.03
"""What part of its latency a message over a link counts where ways to do something once are compared. What all ops send
adds up on the links; but their messages, where they need not wait for one another, are joined, or under way at one
time."""

_SHARE_WHERE_BYTES_DECIDE = 0.01
"""What part of it counts where as few bytes as possible are to be sent: it decides between ways that send as many."""


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """What the user decides.

    `machine` is what costs are reckoned for. `memory_limit` is how many bytes of a device's memory one op may take: for
    its operands and results, what operands are gathered from, and buffers. What goes beyond it is chosen only if there
    is nothing else. `windowed_einsum` says whether einsums are computed part by part: where that costs less, always if
    it is possible, or never. `recompute` says whether what an op has made is computed again where that costs less than
    sending it, or never; constants and what counts devices or elements are never sent.
    """

    machine: Machine
    memory_limit: int
    windowed_einsum: WindowedEinsum = "auto"
    recompute: Recompute = "auto"

    @classmethod
    def on(cls, machine: Machine) -> PartitionOptions:
        """The choices of someone who names a machine, and lets ops take all of its memory."""
        return cls(machine, machine.memory)

    def for_meshes(self, meshes: Sequence[Mesh]) -> PartitionOptions:
        """The same, with these meshes laid on the machine's network. Raises SpmdcError (E604) if they do not fit."""
        return replace(self, machine=self.machine.laid_out(meshes)) if self.machine.network else self

    def for_choices(self) -> PartitionOptions:
        """The same, with the machine by which ways to do something once are compared: with whole latencies, what is the
        fastest by itself would save messages at the price of many bytes."""
        return replace(self, machine=self.machine.with_latencies(_SHARE_OF_LATENCIES))

    def for_few_bytes(self) -> PartitionOptions:
        """The same, with the machine by which bytes decide, whatever the messages take."""
        return replace(self, machine=self.machine.with_latencies(_SHARE_WHERE_BYTES_DECIDE))
