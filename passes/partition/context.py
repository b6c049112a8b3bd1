"""The context in which the code of an op family writes an op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from ir.builder import RegionBuilder
from ir.causes import Cause, CauseKind
from ir.mesh import Axes, AxisRef, Mesh, merge_axes
from ir.ops import FactorRule
from ir.program import Attr, Op, Value
from ir.types import TensorType
from passes.partition.exchange.box_exchange import Request, cut, exchange_all, spread
from passes.partition.exchange.halo import Halo
from passes.partition.shards import padding_of
from passes.partition.strategy import Strategy

Callers = dict[tuple[Value, tuple[AxisRef, ...]], Value]
"""What the first device along some axes got from a call on the host, keyed by the value that all devices have of it."""


@dataclass(frozen=True, eq=False, slots=True)
class OpContext:
    """The context of an op family's own code: the op, how it is split, its local operands, and the builder to write
    to."""

    mesh: Mesh
    op: Op
    rule: FactorRule
    strategy: Strategy
    operands: tuple[Value, ...]
    builder: RegionBuilder
    of_the_caller: Callers = field(default_factory=dict[tuple[Value, tuple[AxisRef, ...]], Value])
    names: Mapping[Value, str] = field(default_factory=dict[Value, str])
    """What causes call operands, if not by their own names."""

    def local_type(self, result: int = 0) -> TensorType:
        """The type of a shard of a result."""
        value = self.op.results[result]
        return value.type.with_shape(self.strategy.results[result].local_shape(value.shape))

    def exchanged(self, need: Halo, *, of: Value, fill: Value | None = None) -> Value:
        """The box that this device needs of an operand, from its shard `of`. Holes of a dilation are `fill` too."""
        (box,) = self.all_exchanged((need,), of=(of,), fills=(fill,))
        return box

    def all_exchanged(
        self, needs: Sequence[Halo], *, of: Sequence[Value], fills: Sequence[Value | None]
    ) -> list[Value]:
        """The boxes that this device needs of several operands, all split over the same axes, in one exchange. The
        boxes of operands that all devices along these axes have whole are cut from them."""
        axes = self._axes_along(needs[0])
        requests: list[Request] = []
        for need, x, fill in zip(needs, of, fills, strict=True):
            if self._is_whole(need):
                continue
            n = need.extent(self.op.operands[need.operand].shape)
            requests.extend(Request(x, need.dim, n, box, need.dilation, fill) for box in need.exchanges)
        boxes: list[Value] = []
        sent = [need for need in needs if not self._is_whole(need)]
        with self.because("halo", axes, *(self.op.operands[need.operand] for need in sent or needs)):
            got = iter(exchange_all(self.builder, axes, requests))
            for need, x, fill in zip(needs, of, fills, strict=True):
                if self._is_whole(need):
                    boxes.append(cut(self.builder, x, need.dim, axes, need.box, fill=fill))
                    continue
                parts = [(next(got), box) for box in need.exchanges]
                if not need.parts:
                    boxes.append(parts[0][0])
                    continue
                hole = fill or padding_of(self.builder, TensorType((), parts[0][0].dtype))
                boxes.append(spread(self.builder, axes, need.dim, parts, need.box, hole))
        return boxes

    def because(self, kind: CauseKind, axes: Axes, *values: Value) -> AbstractContextManager[None]:
        """A context in which ops are written with this op as their cause, because data of these values is sent along
        the axes."""
        along = tuple(map(self.mesh.spell, merge_axes(axes)))
        names = tuple(dict.fromkeys(self.names.get(v, v.name) for v in values))
        return self.builder.at(self.op.span, Cause(kind, self.op.name, name=self.op.label, values=names, axes=along))

    def _is_whole(self, need: Halo) -> bool:
        return not self.strategy.operands[need.operand].axes[need.dim]

    def _axes_along(self, need: Halo) -> Axes:
        """The axes that split the dims of a need."""
        if not self._is_whole(need):
            return self.strategy.operands[need.operand].axes[need.dim]
        (factor,) = self.rule.operands[need.operand][need.dim]
        return dict(self.strategy.factors)[factor]

    def emit(self, *operands: Value, **attrs: Attr) -> tuple[Value, ...]:
        """Writes the op on local operands, with results named as the op's are."""
        names = [v.name for v in self.op.results]
        return self.builder.append(self.op.name, operands, attrs, names=names, span=self.op.span, cause=self.op.cause)


Localize = Callable[[OpContext], Sequence[Value]]
"""Writes one op on its local operands and returns its local results."""
