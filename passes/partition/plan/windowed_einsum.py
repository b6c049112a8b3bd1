"""Windowed einsums: which loops can replace a gather or a reduction, and what memory and time they take.

If an einsum's operands are sharded in conflicting ways, one of them is gathered, or a result is computed whole and
reduced. Instead the parts of that operand, or of that result, can rotate around the devices, each of which multiplies
its current part (GShard, section 3.3.2 and Figure 4c; a relative of Cannon's algorithm).
`passes.partition.ops.contraction` writes the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ir.ops import FactorRule
from ir.ops.declaration import TensorFactors
from ir.program import Op, Value
from ir.sharding import shard_size
from ir.types import DType, f32
from passes.cost.machine import Machine
from passes.cost.model import arithmetic_seconds, communication_seconds, loop_seconds, memory_seconds, messages_seconds
from passes.partition.closed_sharding import ClosedSharding, bytes_of, local_bytes
from passes.partition.exchange.box_exchange import Box, exchange_seconds
from passes.partition.registry import partitioning_of
from passes.partition.strategy import ClosedShardings, WindowedEinsum


def windowed_einsums(
    rule: FactorRule, shardings: ClosedShardings, ready: Sequence[Sequence[ClosedSharding]], wanted: ClosedSharding
) -> Iterator[tuple[WindowedEinsum, ClosedShardings]]:
    """Loops that compute the same as an op that can be windowed, on operands and results in `shardings`, each with the
    shardings that it needs.

    `ready` has the shardings in which operands exist, or may come to, and `wanted` the one that the result should have.
    An operand rotates only where each device multiplies it by something different: equal sums that are added up in
    another order on each device would not be equal to the bit.
    """
    operands, results = shardings
    for i, found in enumerate(ready):
        ways = dict(way for sharding in found for way in _of_operand(rule.operands[i], i, operands[i], sharding))
        for windowed, split in ways.items():
            if results[0].used.issuperset(windowed.axes):
                yield windowed, ((*operands[:i], split, *operands[i + 1 :]), results)
    yield from ((windowed, (operands, (split,))) for windowed, split in _of_result(rule.results[0], results[0], wanted))


def can_be_windowed(op: Op) -> bool:
    """Whether a loop over parts can compute the op."""
    return partitioning_of(op).in_parts and all(v.type.size for v in (*op.operands, *op.results))


def _of_operand(
    tensor: TensorFactors, i: int, gathered: ClosedSharding, split: ClosedSharding
) -> Iterator[tuple[WindowedEinsum, ClosedSharding]]:
    """The loops for dims that `split` splits further than `gathered`, over axes that `gathered` does not use."""
    if split.order is not None or gathered.order is not None:
        return
    for dim, (have, more) in enumerate(zip(gathered.axes, split.axes, strict=True)):
        axes = more[len(have) :]
        if axes and more[: len(have)] == have and not gathered.used.intersection(axes):
            yield WindowedEinsum(tensor[dim][0], axes, i), gathered.with_dim(dim, more)


def _of_result(
    tensor: TensorFactors, whole: ClosedSharding, wanted: ClosedSharding
) -> Iterator[tuple[WindowedEinsum, ClosedSharding]]:
    """The loops for dims that are wanted split over axes along which sums are pending."""
    pending = {a for a, kind in whole.partial if kind == "sum"}
    if not pending:
        return
    for dim, (have, more) in enumerate(zip(whole.axes, wanted.axes, strict=True)):
        rest = more[len(have) :] if more[: len(have)] == have else ()
        axes = rest[: next((k for k, a in enumerate(rest) if a not in pending), len(rest))]
        if axes:
            partial = tuple(p for p in whole.partial if p[0] not in axes)
            yield (
                WindowedEinsum(tensor[dim][0], axes, None),
                ClosedSharding(whole.axes, partial).with_dim(dim, (*have, *axes)),
            )


def sum_dtype(dtype: DType) -> DType:
    """The element type in which the parts of a sum are added up: 16-bit floats would be rounded in each iteration."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


@dataclass(frozen=True, slots=True)
class WindowedCost:
    """The cost of a loop on each device: bytes beyond the operands and results, and time."""

    buffers: int
    seconds: float


def windowed_cost(
    machine: Machine, op: Op, rule: FactorRule, windowed: WindowedEinsum, parts: int, shardings: ClosedShardings
) -> WindowedCost:
    """The cost of a loop, in each iteration of which a device does `1 / parts / devices` of the op's work.

    A part is sent while the one before it is multiplied, so an iteration takes the longer of the two if the machine can
    do both at once. The products of iterations are narrow: by the TPU compiler's cycles, each takes the sum of its
    arithmetic and memory times, not the longer of them (docs/tpu.md).
    """
    touched: list[int] = []
    buffers, sent, seconds = 0, 0, 0.0

    def pass_parts(value: Value, tensor: TensorFactors, sharding: ClosedSharding) -> None:
        nonlocal buffers, seconds
        whole, usual = fitted_size(value, tensor, sharding, windowed)
        nbytes = bytes_of(value, sharding)
        part = nbytes // windowed.devices
        touched.append(part)
        buffers += part + (nbytes // usual * whole if whole != usual else 0)
        seconds += _fitting_seconds(machine, value, tensor, sharding, windowed)

    for i, (value, tensor, sharding) in enumerate(zip(op.operands, rule.operands, shardings[0], strict=True)):
        if i == windowed.rotating:
            sent = bytes_of(value, sharding)
            touched.append(sent)
            buffers += 2 * sent
        elif (windowed.factor,) in tensor:
            pass_parts(value, tensor, sharding)
        else:
            touched.append(bytes_of(value, sharding))
    result, sharding = op.result, shardings[1][0]
    if adds_up(rule, windowed):
        sums = local_bytes(result.shape, sum_dtype(result.dtype).nbytes, sharding)
        touched.append(3 * sums)
        buffers += sums if sum_dtype(result.dtype) == result.dtype else 2 * sums
        if windowed.rotating is None:
            sent = sums
            buffers += sums
    else:
        pass_parts(result, rule.results[0], sharding)
    seconds += _narrowing_seconds(machine, op, windowed, sent)
    communication = messages_seconds(machine, windowed.axes, sent)
    arithmetic = arithmetic_seconds(machine, op) / parts / windowed.devices
    compute = arithmetic + memory_seconds(machine, sum(touched))
    return WindowedCost(buffers, seconds + loop_seconds(machine, windowed.devices, compute, communication))


def _narrowing_seconds(machine: Machine, op: Op, windowed: WindowedEinsum, part: int) -> float:
    """By how much a gather of the operand, in another strategy that the loop is compared with, takes less time than
    estimated: if products read f32 as bf16, a gather for them sends bf16, while the parts of a loop are sent as they
    are."""
    narrow = machine.kernels is not None and machine.kernels.narrow
    if windowed.rotating is None or not narrow or op.operands[windowed.rotating].dtype != f32:
        return 0.0
    return communication_seconds(machine, "all_gather", windowed.axes, part) / 2


def adds_up(rule: FactorRule, windowed: WindowedEinsum) -> bool:
    """Whether iterations add to the same elements of the result, instead of writing a part of it each."""
    return windowed.rotating is None or (windowed.factor,) not in rule.results[0]


def fitted_size(
    value: Value, tensor: TensorFactors, sharding: ClosedSharding, windowed: WindowedEinsum
) -> tuple[int, int]:
    """Two sizes of the factor's dim in a shard: one that the parts tile, and the usual one."""
    dim = tensor.index((windowed.factor,))
    n, axes = value.shape[dim], sharding.axes[dim]
    return shard_size(n, (*axes, *windowed.axes)) * windowed.devices, shard_size(n, axes)


def _fitting_seconds(
    machine: Machine, value: Value, tensor: TensorFactors, sharding: ClosedSharding, windowed: WindowedEinsum
) -> float:
    """Time to shift the boundaries of shards of the factor so that the parts tile them."""
    dim = tensor.index((windowed.factor,))
    axes = sharding.axes[dim]
    whole, usual = fitted_size(value, tensor, sharding, windowed)
    if not axes or whole == usual:
        return 0.0
    row = bytes_of(value, sharding) / usual
    return exchange_seconds(machine, value.shape[dim], axes, Box(0, whole, whole), row, usual)
