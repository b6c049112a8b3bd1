"""What the choice of a strategy counts for the copies of an exchange is what its kernels read and write."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

import spmdc
from ir.builder import Names, RegionBuilder
from ir.mesh import Axes
from ir.ops import FactorKind, FactorRule
from ir.ops.collective import COLLECTIVES
from ir.program import Op, Program, values_of
from passes.cost.fusion import Fusion
from passes.cost.model import accessed
from passes.cost.network import Link
from passes.factors import dims_of_factors
from passes.partition.closed_sharding import ClosedSharding, local_bytes
from passes.partition.context import OpContext
from passes.partition.registry import can_split_along, partitioning_of, seconds_along
from passes.partition.strategy import Strategy
from passes.signatures import signature_of

_FAST_LINKS = replace(spmdc.TPU_V3, usual_link=Link(bandwidth=1e30, latency=1e-30))

_PROGRAMS = {
    "concatenate": ("concatenate([a, b, a], dim=0)", "f32[152, 40]"),
    "convolution": ('conv(c, w, "NWC,WIO->NWC", stride=2, padding="same")', "f32[8, 32, 8]"),
    "pad": ("pad(a, 1.0, low=[3, 0], high=[6, 0])", "f32[73, 40]"),
    "reduce_window": (
        "reduce_window(a, window=[5, 1], padding_low=[2, 0], padding_high=[2, 0], kind=max)",
        "f32[64, 40]",
    ),
    "reverse": ("reverse(a, dims=[0])", "f32[64, 40]"),
    "roll": ("concatenate([a[5:], a[:5]], dim=0)", "f32[64, 40]"),
    "slice": ("a[3:61]", "f32[58, 40]"),
}


def ops_of(name: str) -> tuple[Program, list[Op]]:
    body, result = _PROGRAMS[name]
    text = f"""
    mesh (x=2, y=4)

    def main(a: f32[64, 40], b: f32[24, 40], c: f32[8, 64, 4], w: f32[3, 4, 8]) -> (r: {result}) {{
      return {body}
    }}
    """
    program = spmdc.parse(text)
    return program, [op for op in program.main.body.ops if op.operands]


def strategy_of(rule: FactorRule, factor: int, axes: Axes) -> Strategy | None:
    dims = [dims_of_factors(rule, tensor, {factor: axes}) for tensor in (*rule.operands, *rule.results)]
    at = [ClosedSharding(d) for d in dims if d is not None]
    n = len(rule.operands)
    return Strategy(((factor, axes),), tuple(at[:n]), tuple(at[n:]), 0.0) if len(at) == len(dims) else None


def bytes_written(program: Program, op: Op, rule: FactorRule, strategy: Strategy) -> int:
    """The bytes that the kernels and messages access that the op is written as."""
    b = RegionBuilder(Names())
    local = tuple(
        b.param(v.name, v.type.with_shape(at.local_shape(v.shape)))
        for v, at in zip(op.operands, strategy.operands, strict=True)
    )
    region = b.region(*partitioning_of(op).write(OpContext(program.mesh, op, rule, strategy, local, b)))
    messages = sum(v.type.nbytes for each in region.ops if each.name in COLLECTIVES for v in values_of(each))
    kernels = Fusion(region).kernels
    return messages + sum(sum(each.values()) for kernel in kernels for each in (kernel.reads, kernel.writes))


@pytest.mark.parametrize("name", _PROGRAMS)
def test_the_copies_of_an_exchange_count_as_the_kernels_that_make_them(name: str) -> None:
    program, ops = ops_of(name)
    axes, tried = program.mesh.whole_axes(), 0
    for op in ops:
        rule = signature_of(op).rule
        assert rule is not None
        windows = [f for f, factor in enumerate(rule.factors) if factor.kind is FactorKind.WINDOW]
        for f, along in itertools.product(windows, (axes[:1], axes[1:], axes)):
            strategy = strategy_of(rule, f, along)
            if strategy is None or not can_split_along(op, rule, f):
                continue
            seconds = seconds_along(_FAST_LINKS, op, rule, f, along, strategy.operands)
            places = zip(values_of(op), (*strategy.operands, *strategy.results), strict=True)
            own = accessed(op, [local_bytes(v.shape, v.dtype.nbytes, at) for v, at in places])
            counted = own + seconds * _FAST_LINKS.memory_bandwidth
            if seconds:
                tried += 1
                assert 0.7 < counted / bytes_written(program, op, rule, strategy) < 1.4, (op.name, along)
    assert tried >= 2
