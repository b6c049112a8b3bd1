"""The options of the partitioner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ir.mesh import Mesh
from passes.cost.machine import Machine
from passes.cost.model import in_loops

WindowedEinsum = Literal["auto", "always", "never"]
Recompute = Literal["auto", "never"]

_SHARE_OF_LATENCIES = 0.03
"""The fraction of a message's latency that counts where ways to do something once are compared. Bytes of all ops add up
on the links, but messages that do not depend on one another are joined, or overlap."""

_SHARE_WHERE_BYTES_DECIDE = 0.01
"""The fraction that counts where as few bytes as possible are to be sent: it decides between ways that send equally
many."""


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """The user's choices.

    `machine` is what costs are estimated for. `memory_limit` is the bytes of a device's memory that one op may take:
    for its operands and results, sources of gathers, and buffers. Strategies beyond the limit are chosen only if there
    are no others. `windowed_einsum` says whether einsums are computed part by part: where that costs less, whenever it
    is possible, or never. `recompute` says whether the result of an op is recomputed where that costs less than sending
    it, or never; constants and iotas are never sent.
    """

    machine: Machine
    memory_limit: int
    windowed_einsum: WindowedEinsum = "auto"
    recompute: Recompute = "auto"

    @classmethod
    def on(cls, machine: Machine) -> PartitionOptions:
        """The options for a machine of which ops may use all memory."""
        return cls(machine, machine.memory)

    def for_meshes(self, meshes: Sequence[Mesh]) -> PartitionOptions:
        """The options with these meshes laid out on the machine's network. Raises SpmdcError (E604) if they do not
        fit."""
        return replace(self, machine=self.machine.laid_out(meshes)) if self.machine.network else self

    def for_choices(self) -> PartitionOptions:
        """The options with the machine by which ways to do something once are compared. With full latencies, the
        fastest single way would save messages at the price of many bytes."""
        return replace(self, machine=self.machine.with_latencies(_SHARE_OF_LATENCIES))

    def for_loops(self) -> PartitionOptions:
        """The options with the machine by which ways to do something in each iteration of a loop are compared."""
        return replace(self, machine=in_loops(self.machine))

    def for_few_bytes(self) -> PartitionOptions:
        """The options with the machine by which bytes decide, and latencies hardly count."""
        return replace(self, machine=self.machine.with_latencies(_SHARE_WHERE_BYTES_DECIDE))
