"""Batch normalisation, in the arithmetic of StableHLO's specification."""

from __future__ import annotations

import math

from jaxlib.mlir import ir as mlir

from ir.program import Value
from spmdc.frontends.stablehlo.attributes import int_of
from spmdc.frontends.stablehlo.scope import Bound, Scope, converts


class _Normalization:
    """The shapes of one op: features are along one dim of the operand."""

    def __init__(self, op: mlir.Operation, scope: Scope) -> None:
        self.scope = scope
        self.values = scope.operands(op)
        self.x = self.values[0]
        self.feature = int_of(op.attributes["feature_index"])
        epsilon = op.attributes["epsilon"]
        assert isinstance(epsilon, mlir.FloatAttr)
        self.epsilon = float(epsilon.value)
        self.others = tuple(d for d in range(self.x.type.rank) if d != self.feature)
        self.count = float(math.prod(self.x.shape[d] for d in self.others))

    def wide(self, value: Value) -> Value:
        """A vector with a number for each feature, broadcast to all elements."""
        return self.scope.emit("broadcast_in_dim", value, shape=self.x.shape, dims=(self.feature,))

    def total(self, value: Value) -> Value:
        """The sum over all but the features."""
        return self.scope.emit("reduce", value, dims=self.others, kind="sum")

    def number(self, value: float, like: Value) -> Value:
        return self.scope.full(value, like.type)

    def deviation(self, variance: Value) -> Value:
        shifted = self.scope.emit("add", variance, self.number(self.epsilon, variance))
        return self.scope.emit("sqrt", shifted)

    def normalized(self, mean: Value, variance: Value, scale: Value, offset: Value) -> Value:
        emit = self.scope.emit
        centered = emit("subtract", self.x, self.wide(mean))
        divided = emit("divide", centered, self.wide(self.deviation(variance)))
        return emit("add", emit("multiply", divided, self.wide(scale)), self.wide(offset))


@converts("batch_norm_inference")
def _inference(op: mlir.Operation, scope: Scope) -> Value:
    n = _Normalization(op, scope)
    _, scale, offset, mean, variance = n.values
    return n.normalized(mean, variance, scale, offset)


@converts("batch_norm_training")
def _training(op: mlir.Operation, scope: Scope) -> list[Bound]:
    n = _Normalization(op, scope)
    _, scale, offset = n.values
    mean = scope.emit("divide", n.total(n.x), n.number(n.count, scale))
    centered = scope.emit("subtract", n.x, n.wide(mean))
    variance = scope.emit("divide", n.total(scope.emit("multiply", centered, centered)), n.number(n.count, scale))
    return [n.normalized(mean, variance, scale, offset), mean, variance]


@converts("batch_norm_grad")
def _grad(op: mlir.Operation, scope: Scope) -> list[Bound]:
    n = _Normalization(op, scope)
    _, scale, mean, variance, gradient = n.values
    emit = scope.emit
    deviation = n.deviation(variance)
    centered = emit("subtract", n.x, n.wide(mean))
    of_offset = n.total(gradient)
    weighted = n.total(emit("multiply", gradient, centered))
    scaled = emit("multiply", gradient, n.number(n.count, gradient))
    squared = emit("multiply", deviation, deviation)
    correction = emit("divide", emit("multiply", n.wide(weighted), centered), n.wide(squared))
    inner = emit("subtract", emit("subtract", scaled, n.wide(of_offset)), correction)
    factor = emit("divide", emit("divide", scale, deviation), n.number(n.count, scale))
    of_scale = emit("divide", weighted, deviation)
    return [emit("multiply", n.wide(factor), inner), of_scale, of_offset]
