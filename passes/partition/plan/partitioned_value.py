"""A value of the program, with the shardings in which the plan has it so far, and the ways in which it can be made in
another one without sending it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ir.builder import RegionBuilder
from ir.ops import FactorRule
from ir.program import Op, Value
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.reshard.steps import ReshardPlan


class Spared(NamedTuple):
    """Seconds and bytes that are not received if an op is not needed."""

    seconds: float
    received: float


NOTHING_SPARED = Spared(0.0, 0.0)


@dataclass(frozen=True, eq=False, slots=True)
class Recompute:
    """An op that a device can compute any part of without communication: from nothing, or from values that every device
    has or can compute.

    `depth` is the length of the longest chain of such ops that may be needed.
    """

    op: Op
    rule: FactorRule
    depth: int


Leaf = tuple[Value, tuple[int, ...]]
"""A smaller tensor whose elements a value repeats, and for each of its dims the value's dim along it, or -1."""


@dataclass(eq=False, slots=True)
class PartitionedValue:
    """A global value, and its local form in each of its `shardings`: the first is the one that it was made in."""

    value: Value
    wanted: ClosedSharding
    """The propagated sharding, or the one that was chosen for the value as a carried value of a loop."""
    shardings: dict[ClosedSharding, Value]
    home: RegionBuilder
    """The region in which it was made: reshards of it are there too."""
    recompute: Recompute | None = None
    """The way in which a device computes any part of it without communication, if there is one."""
    maker: tuple[Op, FactorRule] | None = None
    """The op that computes parts of it from parts of its operands, if it is one that devices can repeat."""
    spared: Spared = NOTHING_SPARED
    """What is not spent if the value is made in another sharding only: what its maker takes if that communicates, and
    the reshards of operands that only the maker needs. Nothing if the value has several uses."""
    moved: Mapping[Value, ReshardPlan] = field(default_factory=dict[Value, ReshardPlan])
    """These operands of the maker, with their reshards."""
    leaves: tuple[Leaf, ...] = ()
    """The tensors whose elements it repeats. It is computed from these where they have the right shardings."""
    argument: int | None = None
    """Its number among the arguments of a function, which callers pass in any sharding that is asked for."""
    share: float = 1.0
    """What a reshard by the callers costs for each call, in reshards: less than 1 if it is in front of a loop there."""
