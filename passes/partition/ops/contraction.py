"""dot_general: as it is on shards, or as a loop over parts that rotate around the devices.

GShard's windowed einsum (section 3.3.2 and Figure 4c). In each iteration a device multiplies its current part while the
part for the next iteration is sent; which part that is follows from the device's position. The loop has as many
iterations as there are devices, and its size does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ir.builder import RegionBuilder
from ir.mesh import Axes, merge_axes
from ir.ops.declaration import TensorFactors
from ir.ops.reduction import identity_of, zero_of
from ir.program import Attr, DeviceOrder, Value
from ir.types import TensorType
from passes.partition.context import OpContext
from passes.partition.exchange.box_exchange import Box, exchange
from passes.partition.plan.windowed_einsum import adds_up, sum_dtype
from passes.partition.registry import partitions
from passes.partition.shards import integer, resize, shard_index, splat, take_shard
from passes.partition.strategy import WindowedEinsum

Turn = Callable[[RegionBuilder, Value, Sequence[Value]], Sequence[Value]]
"""Writes one iteration: from its number and the carried values, the values that are carried to the next iteration."""


@partitions("dot_general", in_parts=True)
def dot_general(c: OpContext) -> Sequence[Value]:
    """The op on the shards, or the loop that was chosen."""
    windowed = c.strategy.windowed
    if windowed is None:
        return c.emit(*c.operands, **c.op.attrs)
    with c.because(
        "windowed_einsum", windowed.axes, c.op.result if windowed.rotating is None else c.op.operands[windowed.rotating]
    ):
        writer = _Writer(c, windowed)
        return (writer.sums_travel() if windowed.rotating is None else writer.operand_travels(windowed.rotating),)


class _Writer:
    """Writes one loop."""

    def __init__(self, c: OpContext, windowed: WindowedEinsum) -> None:
        self.c = c
        self.windowed = windowed
        self.b = c.builder
        self.name = c.op.result.name
        axes = merge_axes(windowed.axes)
        self.order = DeviceOrder(c.mesh, axes)
        self.index = shard_index(self.b, windowed.axes)
        self.adds = adds_up(c.rule, windowed)
        self.dtype = sum_dtype(c.op.result.dtype) if self.adds else c.op.result.dtype
        self.part_size = self._part_size()
        self.operands = [x if i == windowed.rotating else self._fitted(i, x) for i, x in enumerate(c.operands)]

    def operand_travels(self, rotating: int) -> Value:
        """In iteration t a device has the part of the device t positions on. Its product is added to the result, or
        written to its position in it."""

        def multiplied(b: RegionBuilder, number: Value, part: Value, result: Value) -> Value:
            start = self._start(b, b.op("add", self.index, number, name="part"))
            product = self._product(b, start, part)
            if self.adds:
                return b.op("add", result, product, name=self.name)
            place = self._place(b, self.c.rule.results[0], start)
            return b.op("dynamic_update_slice", result, product, *place, name=self.name)

        def turn(b: RegionBuilder, number: Value, carried: Sequence[Value]) -> Sequence[Value]:
            part, result = carried
            return self._passed_on(b, part, 1), multiplied(b, number, part, result)

        part, result = self._loop(0, (self.operands[rotating], self._nothing()), turn)
        return self._finished(multiplied(self.b, integer(self.b, self.windowed.devices - 1), part, result))

    def sums_travel(self) -> Value:
        """In iteration t a device has the sum of the device t + 1 positions back, and adds its share to it."""
        farthest = self.b.op("add", self.index, integer(self.b, self.windowed.devices - 1), name="part")

        def turn(b: RegionBuilder, number: Value, carried: Sequence[Value]) -> Sequence[Value]:
            received = self._passed_on(b, carried[0], -1)
            share = self._product(b, self._start(b, b.op("subtract", farthest, number, name="part")), None)
            return (b.op("add", received, share, name=self.name),)

        first = self._product(self.b, self._start(self.b, farthest), None)
        (result,) = self._loop(1, (first,), turn)
        return self._finished(result)

    # The loop.

    def _loop(self, first: int, carried: Sequence[Value], turn: Turn) -> Sequence[Value]:
        """An iteration for each other device, the first one numbered `first`. Returns the carried values after the
        last."""
        outer, trips = self.b, self.windowed.devices - 1
        values = (integer(outer, first), *carried)
        names = ("turn", *(v.name for v in carried))
        condition, body = (RegionBuilder(outer.names, span=outer.span, cause=outer.cause) for _ in range(2))
        for b in (condition, body):
            for name, value in zip(names, values, strict=True):
                b.param(name, value.type)
        limit = integer(condition, first + trips)
        goes_on = condition.op("compare", condition.params[0], limit, name="goes_on", direction="LT")
        number, *rest = body.params
        after = turn(body, number, rest)
        number = body.op("add", number, integer(body, 1), name="turn")
        regions = (condition.region(goes_on), body.region(number, *after))
        attrs: dict[str, Attr] = {"trip_count": trips}
        return outer.append("while", values, attrs, names=names, regions=regions)[1:]

    def _passed_on(self, b: RegionBuilder, part: Value, shift: int) -> Value:
        """The part of the device `shift` positions on."""
        at = self.order
        return b.op("collective_permute", part, name=part.name, target=at, source=at, shift=shift)

    # One iteration.

    def _start(self, b: RegionBuilder, number: Value) -> Value:
        """Where the part of that number begins, modulo the number of devices."""
        number = b.op("remainder", number, integer(b, self.windowed.devices), name="part")
        return b.op("multiply", number, integer(b, self.part_size), name="start")

    def _product(self, b: RegionBuilder, start: Value, part: Value | None) -> Value:
        """The product of the operands, each cut to the part at `start`; `part` is the current part of the rotating
        operand."""
        parts: list[Value] = []
        for i, (x, tensor) in enumerate(zip(self.operands, self.c.rule.operands, strict=True)):
            if i == self.windowed.rotating and part is not None:
                parts.append(part)
            elif (self.windowed.factor,) in tensor:
                parts.append(take_shard(b, x, self._dim(tensor), start, self.part_size))
            else:
                parts.append(x)
        attrs = dict(self.c.op.attrs)
        if self.dtype != self.c.op.result.dtype:
            attrs["dtype"] = self.dtype
        return b.append("dot_general", parts, attrs, names=(self.name,))[0]

    def _place(self, b: RegionBuilder, tensor: TensorFactors, start: Value) -> Sequence[Value]:
        zero = integer(b, 0)
        return [start if factors == (self.windowed.factor,) else zero for factors in tensor]

    # Before and after the loop.

    def _part_size(self) -> int:
        c, rotating = self.c, self.windowed.rotating
        if rotating is None:
            return c.local_type().shape[self._dim(c.rule.results[0])]
        return c.operands[rotating].shape[self._dim(c.rule.operands[rotating])]

    def _dim(self, tensor: TensorFactors) -> int:
        return tensor.index((self.windowed.factor,))

    def _fitted(self, i: int, x: Value) -> Value:
        """A shard with the windowed factor, resized so that the parts tile it. Beyond the dim's end it is zero, because
        it is summed."""
        tensor = self.c.rule.operands[i]
        if (self.windowed.factor,) not in tensor:
            return x
        dim = self._dim(tensor)
        n, axes = self.c.op.operands[i].shape[dim], self.c.strategy.operands[i].axes[dim]
        return self._resized(x, dim, n, axes, self.part_size * self.windowed.devices)

    def _resized(self, x: Value, dim: int, n: int, axes: Axes, size: int) -> Value:
        """The shard over `axes` of a dim of size n, resized to `size` elements, with zeros where there are none."""
        if x.shape[dim] == size:
            return x
        zero = splat(self.b, identity_of("sum", x.dtype), TensorType((), x.dtype))
        if not axes:
            return resize(self.b, x, dim, size, zero)
        return exchange(self.b, x, dim, n, axes, Box(0, size, size), fill=zero)

    def _nothing(self) -> Value:
        """The initial result: the exact identity of the sum, or a buffer to write to."""
        shape = list(self.c.local_type().shape)
        if not self.adds:
            shape[self._dim(self.c.rule.results[0])] = self.part_size * self.windowed.devices
        type = TensorType(tuple(shape), self.dtype)
        return self.b.op("constant", name=self.name, value=zero_of(self.dtype), type=type)

    def _finished(self, result: Value) -> Value:
        """The requested shard of the result."""
        c = self.c
        if self.adds:
            return result if self.dtype == c.op.result.dtype else self.b.op("convert", result, dtype=c.op.result.dtype)
        dim = self._dim(c.rule.results[0])
        axes = c.strategy.results[0].axes[dim]
        return self._resized(result, dim, c.op.result.shape[dim], axes, c.local_type().shape[dim])
