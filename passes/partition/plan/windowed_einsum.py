"""Windowed einsums: which loops may take the place of a gather or of a reduction, and what memory and time they take.

Where an einsum's operands clash, one of them is gathered, or a result is computed whole and reduced. Instead the
parts of that operand, or of that result, can travel around the devices while each multiplies with the part at hand
(GShard, section 3.3.2 and Figure 4c; a relative of Cannon's algorithm). `passes.partition.ops.contraction` writes
the loop.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ir.ops import FactorRule
from ir.ops.declaration import TensorFactors
from ir.program import Op, Value
from ir.sharding import shard_size
from ir.types import DType, f32
from passes.cost.machine import Machine
from passes.cost.model import communication_seconds, compute_seconds, loop_seconds
from passes.partition.closed_sharding import ClosedSharding
from passes.partition.exchange.box_exchange import Box, exchange_seconds
from passes.partition.registry import partitioning_of
from passes.partition.strategy import ClosedShardings, Ring


def rings(
    op: Op,
    rule: FactorRule,
    layouts: ClosedShardings,
    ready: Sequence[Sequence[ClosedSharding]],
    wanted: ClosedSharding,
) -> Iterator[tuple[Ring, ClosedShardings]]:
    """Loops that compute what the op does on operands and results in `layouts`; and the layouts that they need.

    `ready` are layouts in which operands lie, or are proposed, and `wanted` the layout proposed for the result. An
    operand travels only where each device multiplies it with something else: equal sums, added up in another order on
    each device, would not be equal to the bit.
    """
    if not partitioning_of(op).in_parts or any(v.type.size == 0 for v in (*op.operands, *op.results)):
        return
    operands, results = layouts
    seen: set[Ring] = set()
    for i, tensor in enumerate(rule.operands):
        for layout in ready[i]:
            for ring, split in _of_operand(tensor, i, operands[i], layout):
                if ring not in seen and results[0].used.issuperset(ring.axes):
                    seen.add(ring)
                    yield ring, ((*operands[:i], split, *operands[i + 1 :]), results)
    yield from ((ring, (operands, (split,))) for ring, split in _of_result(rule.results[0], results[0], wanted))


def _of_operand(
    tensor: TensorFactors, i: int, gathered: ClosedSharding, split: ClosedSharding
) -> Iterator[tuple[Ring, ClosedSharding]]:
    """Dims that `split` splits further than `gathered`, over axes that `gathered` does not use."""
    if split.order is not None or gathered.order is not None:
        return
    for dim, (have, more) in enumerate(zip(gathered.axes, split.axes, strict=True)):
        axes = more[len(have) :]
        if axes and more[: len(have)] == have and not gathered.used.intersection(axes):
            yield Ring(tensor[dim][0], axes, i), gathered.with_dim(dim, more)


def _of_result(
    tensor: TensorFactors, whole: ClosedSharding, wanted: ClosedSharding
) -> Iterator[tuple[Ring, ClosedSharding]]:
    """Dims that are wanted split over axes along which sums are owed."""
    pending = {a for a, kind in whole.partial if kind == "sum"}
    for dim, (have, more) in enumerate(zip(whole.axes, wanted.axes, strict=True)):
        rest = more[len(have) :] if more[: len(have)] == have else ()
        axes = rest[: next((k for k, a in enumerate(rest) if a not in pending), len(rest))]
        if axes:
            partial = tuple(p for p in whole.partial if p[0] not in axes)
            yield Ring(tensor[dim][0], axes, None), ClosedSharding(whole.axes, partial).with_dim(dim, (*have, *axes))


def sum_dtype(dtype: DType) -> DType:
    """The element type in which parts of a sum are added up: 16-bit floats would be rounded in each turn."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


@dataclass(frozen=True, slots=True)
class RingCost:
    """What a loop takes on each device: bytes beyond the operands and results, and time."""

    buffers: int
    seconds: float


def ring_cost(machine: Machine, op: Op, rule: FactorRule, ring: Ring, parts: int, layouts: ClosedShardings) -> RingCost:
    """The cost of a loop, in each turn of which a device does `1 / parts / devices` of the op's work.

    A part is sent while the one before it is multiplied, so a turn takes the longer of the two.
    """
    touched: list[int] = []
    buffers, sent, seconds = 0, 0, 0.0

    def pass_parts(value: Value, tensor: TensorFactors, layout: ClosedSharding) -> None:
        nonlocal buffers, seconds
        whole, usual = fitted_size(value, tensor, layout, ring)
        nbytes = _local_bytes(value, layout)
        part = nbytes // ring.devices
        touched.append(part)
        buffers += part + (nbytes // usual * whole if whole != usual else 0)
        seconds += _fitting_seconds(machine, value, tensor, layout, ring)

    for i, (value, tensor, layout) in enumerate(zip(op.operands, rule.operands, layouts[0], strict=True)):
        if i == ring.moving:
            sent = _local_bytes(value, layout)
            touched.append(sent)
            buffers += 2 * sent
        elif (ring.factor,) in tensor:
            pass_parts(value, tensor, layout)
        else:
            touched.append(_local_bytes(value, layout))
    result, layout = op.result, layouts[1][0]
    if adds_up(rule, ring):
        sums = math.ceil(math.prod(layout.local_shape(result.shape)) * sum_dtype(result.dtype).nbytes)
        touched.append(3 * sums)
        buffers += sums if sum_dtype(result.dtype) == result.dtype else 2 * sums
        if ring.moving is None:
            sent = sums
            buffers += sums
    else:
        pass_parts(result, rule.results[0], layout)
    communication = communication_seconds(machine, "collective_permute", ring.axes, sent)
    compute = compute_seconds(machine, op, parts * ring.devices, touched)
    return RingCost(buffers, seconds + loop_seconds(machine, ring.devices, compute, communication))


def adds_up(rule: FactorRule, ring: Ring) -> bool:
    """Whether turns add to the same elements of the result, and do not write a part of it each."""
    return ring.moving is None or (ring.factor,) not in rule.results[0]


def fitted_size(value: Value, tensor: TensorFactors, layout: ClosedSharding, ring: Ring) -> tuple[int, int]:
    """Sizes of the factor's dim in a shard: one that the ring's parts tile, and the usual one."""
    dim = tensor.index((ring.factor,))
    n, axes = value.shape[dim], layout.axes[dim]
    return shard_size(n, (*axes, *ring.axes)) * ring.devices, shard_size(n, axes)


def _fitting_seconds(
    machine: Machine, value: Value, tensor: TensorFactors, layout: ClosedSharding, ring: Ring
) -> float:
    """Time to shift shards of the factor so that the parts tile them."""
    dim = tensor.index((ring.factor,))
    axes = layout.axes[dim]
    whole, usual = fitted_size(value, tensor, layout, ring)
    if not axes or whole == usual:
        return 0.0
    row = _local_bytes(value, layout) / usual
    return exchange_seconds(machine, value.shape[dim], axes, Box(0, whole, whole), row, usual)


def _local_bytes(value: Value, layout: ClosedSharding) -> int:
    return math.ceil(math.prod(layout.local_shape(value.shape)) * value.dtype.nbytes)
