"""How ops are partitioned that need more than their factor rules. Each is registered beside the code that writes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ir.mesh import Axes
from ir.ops import FactorKind, FactorRule
from ir.ops.boxes import Boxes
from ir.ops.declaration import TensorFactors
from ir.program import Op, Value
from ir.registry import Registry
from passes.cost.machine import Machine
from passes.cost.model import memory_seconds
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.context import Localize
from passes.partition.exchange.box_exchange import (
    boxes_of,
    cannot_be_written,
    exchanges_accessed,
    exchanges_received,
    exchanges_seconds,
)
from passes.partition.exchange.halo import Halo
from passes.partition.strategy import Strategy

ALONG = (FactorKind.WINDOW, FactorKind.SCAN)
"""Factors along which devices exchange something."""

Constants = Mapping[Value, int]
"""The integers that are known."""

Halos = Callable[[Op, int, Axes], Sequence[Halo]]
"""What devices need of an op's operands if one of its dims is split over axes."""

ScanSeconds = Callable[[Machine, Op, Axes, ClosedSharding], float]
"""The time, on a machine, of what a scan exchanges whose dim is split over axes, and whose operand has that
sharding."""


@dataclass(frozen=True, slots=True)
class Partitioning:
    """How the local form of an op is written, where it is not the op itself on shards.

    An op can be split along a WINDOW factor if its halos are known: `halo` if a dim of its result is split,
    `kernel_halo` if a summed dim of the second operand, the kernel, is split; and along a SCAN factor if it has
    `scan_seconds`. Padding of the operands in `ignores_padding_of` never reaches a real element, so they need no mask.
    An op that is written `in_parts` may become a windowed einsum.
    """

    write: Localize
    halo: Halos | None = None
    kernel_halo: Halos | None = None
    scan_seconds: ScanSeconds | None = None
    ignores_padding_of: tuple[int, ...] = ()
    in_parts: bool = False


PARTITIONINGS: dict[str, Partitioning] = {}
"""The partitionings of all ops that have one. The local form of any other op is the op itself."""


def partitions(
    *names: str,
    halo: Halos | None = None,
    kernel_halo: Halos | None = None,
    scan_seconds: ScanSeconds | None = None,
    ignores_padding_of: tuple[int, ...] = (),
    in_parts: bool = False,
) -> Callable[[Localize], Localize]:
    """Registers a function that writes the local form of these ops: see `Partitioning`."""

    def register(write: Localize) -> Localize:
        for name in names:
            assert name not in PARTITIONINGS, name
            PARTITIONINGS[name] = Partitioning(write, halo, kernel_halo, scan_seconds, ignores_padding_of, in_parts)
        return write

    return register


class Surroundings(Protocol):
    """What is known around an op that is to be partitioned."""

    @property
    def constants(self) -> Constants:
        """The integers that are known."""

    def wanted(self, value: Value) -> ClosedSharding:
        """The sharding that propagation gave a value."""

    def is_split(self, value: Value, dim: int) -> bool:
        """Whether a dim is split in the sharding in which a value was made."""

    def has_to_be_sent(self, value: Value) -> bool:
        """Whether devices that need all of a value cannot compute it from what they have."""

    def users(self, value: Value) -> Sequence[Op]:
        """The ops of the program that use a value."""


Rewrite = Callable[[Op, Surroundings], Sequence[Op]]
"""Ops that do the same and can be split in more ways, where that helps; otherwise the op itself."""

REWRITES: Registry[Rewrite] = Registry()

rewrites = REWRITES.of
"""Registers a function that rewrites these ops before they are partitioned."""

_NOTHING_ELSE = Partitioning(lambda c: c.emit(*c.operands, **c.op.attrs))


def partitioning_of(op: Op) -> Partitioning:
    """How the op is partitioned."""
    return PARTITIONINGS.get(op.name, _NOTHING_ELSE)


def can_split_along(op: Op, rule: FactorRule, factor: int) -> bool:
    """Whether the op can be split along a WINDOW or SCAN factor."""
    own = partitioning_of(op)
    if _is_kernel(rule, factor):
        return own.kernel_halo is not None
    return own.scan_seconds is not None or (own.halo is not None and _dim_of(rule.results[0], factor) is not None)


def seconds_along(
    machine: Machine, op: Op, rule: FactorRule, factor: int, axes: Axes, operands: Sequence[ClosedSharding]
) -> float:
    """Time of the communication for splitting such a factor over `axes`, beyond resharding operands, and of the copies
    of an exchange; 0 if nothing is sent."""
    scan_seconds = partitioning_of(op).scan_seconds
    if scan_seconds is not None:
        return scan_seconds(machine, op, axes, operands[0])
    exchanges = _exchanges(op, rule, factor, axes, operands)
    sent = exchanges_seconds(machine, *exchanges, axes)
    if not sent or math.isinf(sent):
        return sent
    return sent + memory_seconds(machine, exchanges_accessed(*exchanges, axes))


def received_along(op: Op, rule: FactorRule, strategy: Strategy) -> int:
    """Bytes that the worst device receives in the op's exchanges along WINDOW factors."""
    along = ((f, axes) for f, axes in strategy.factors if axes and rule.factors[f].kind is FactorKind.WINDOW)
    exchanges = ((*_exchanges(op, rule, f, axes, strategy.operands), axes) for f, axes in along)
    return sum(exchanges_received(*each) for each in exchanges)


def is_worth_writing(op: Op, rule: FactorRule, factor: int, axes: Axes, operands: Sequence[ClosedSharding]) -> bool:
    """Whether the exchanges for splitting such a factor over `axes` take no more rounds than a program should have."""
    if partitioning_of(op).scan_seconds is not None:
        return True
    return not cannot_be_written(*_exchanges(op, rule, factor, axes, operands), axes)


def cut_of_the_whole(op: Op, rule: FactorRule, factor: int, axes: Axes) -> frozenset[tuple[int, int]]:
    """The operands, each with a dim, that devices may as well have whole along this dim if `axes` split a WINDOW
    factor: then they cut out what they need, and receive nothing."""
    own = partitioning_of(op)
    if own.scan_seconds is not None or own.halo is None or _is_kernel(rule, factor):
        return frozenset()
    needs = _needs(op, rule, factor, axes)
    return frozenset((need.operand, need.dim) for need in needs if need.is_a_run)


def _exchanges(
    op: Op, rule: FactorRule, factor: int, axes: Axes, operands: Sequence[ClosedSharding]
) -> tuple[Sequence[Boxes], Sequence[int]]:
    """The exchanges for splitting a WINDOW factor, and the bytes of one index of each."""
    boxes: list[Boxes] = []
    rows: list[int] = []
    for need in _needs(op, rule, factor, axes):
        if not operands[need.operand].axes[need.dim]:
            continue
        value = op.operands[need.operand]
        shape = operands[need.operand].local_shape(value.shape)
        n, chunk = need.extent(value.shape), need.length(shape) * need.dilation
        row = math.ceil(math.prod(shape) * need.dilation * value.dtype.nbytes) // max(1, chunk)
        boxes.extend(boxes_of(n, axes, box, chunk) for box in need.exchanges)
        rows.extend(row for _ in need.exchanges)
    return boxes, rows


def _needs(op: Op, rule: FactorRule, factor: int, axes: Axes) -> Sequence[Halo]:
    own, is_kernel = partitioning_of(op), _is_kernel(rule, factor)
    halo = own.kernel_halo if is_kernel else own.halo
    dim = _dim_of(rule.operands[1] if is_kernel else rule.results[0], factor)
    assert halo is not None
    assert dim is not None
    return halo(op, dim, axes)


def _is_kernel(rule: FactorRule, factor: int) -> bool:
    """Whether the factor is a dim of a kernel: a part of the kernel contributes to every sum."""
    return rule.factors[factor].kind is FactorKind.WINDOW and rule.factors[factor].reduction is not None


def _dim_of(tensor: TensorFactors, factor: int) -> int | None:
    """The dim that has that factor alone."""
    return next((d for d, factors in enumerate(tensor) if factors == (factor,)), None)
