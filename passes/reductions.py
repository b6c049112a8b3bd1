"""Rewrites reductions over devices as the collectives that backends have.

Backends have sums, which they can also scatter, minima and maxima. Any other reduction is an exchange of parts that
each device then reduces itself. So the program contains what is sent, and how much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ir.builder import Names, RegionBuilder
from ir.mesh import axes_size
from ir.ops.collective import axes_attr, is_in_one_call
from ir.ops.rule_helpers import int_attr
from ir.program import Function, Op, Program, Value, walk
from ir.registry import Registry
from passes.cost.machine import Machine
from passes.cost.model import reduction_in_parts
from passes.partition.shards import resize
from passes.rewrite import map_ops, with_parts


def write_reductions(program: Program, machine: Machine) -> Program:
    """The SPMD program with all_reduce and reduce_scatter ops that no backend has as a single call replaced by the
    exchanges that take the least time on a machine."""
    functions = {name: _function(f, machine) for name, f in program.functions.items()}
    return with_parts(program, functions=functions)


def _function(function: Function, machine: Machine) -> Function:
    if not any(_is_to_be_written(op) for op in walk(function.body)):
        return function
    names = Names.beside(function)

    def written(op: Op) -> Sequence[Op]:
        if not _is_to_be_written(op):
            return (op,)
        b = RegionBuilder(names, span=op.span, cause=op.cause)
        _WRITTEN[op.name](b, op, machine)
        return b.in_place_of(op)

    return with_parts(function, body=map_ops(function.body, written))


def _is_to_be_written(op: Op) -> bool:
    if op.name not in _WRITTEN or is_in_one_call(op):
        return False
    return op.operands[0].type.size > 0 and axes_size(axes_attr(op.attrs)) > 1


_WRITTEN: Registry[Callable[[RegionBuilder, Op, Machine], Value]] = Registry()
"""How collectives that reduce are written with other collectives."""


@_WRITTEN.of("reduce_scatter")
def _reduce_scatter(b: RegionBuilder, op: Op, machine: Machine) -> Value:
    x, dim = op.operands[0], int_attr(op.attrs, "dim")
    return _exchanged_and_reduced(b, op, x, dim)


def _exchanged_and_reduced(b: RegionBuilder, op: Op, x: Value, dim: int) -> Value:
    """The device's part, along `dim`, of the reduction of `x`."""
    axes, name = axes_attr(op.attrs), op.result.name
    parts = axes_size(axes)
    x = b.op("all_to_all", x, name=name, axes=axes, split=dim, concat=dim)
    shape = (*x.shape[:dim], parts, x.shape[dim] // parts, *x.shape[dim + 1 :])
    x = b.op("reshape", x, name=name, shape=shape)
    return b.op("reduce", x, name=name, dims=(dim,), kind=op.attrs["kind"])


@_WRITTEN.of("all_reduce")
def _all_reduce(b: RegionBuilder, op: Op, machine: Machine) -> Value:
    """Gathers all operands or, for large ones, exchanges parts and gathers the reduced ones."""
    x, axes, name = op.operands[0], axes_attr(op.attrs), op.result.name
    group = axes_size(axes)
    if len(reduction_in_parts(machine, axes, x.type.nbytes)) == 1:
        x = b.op("reshape", x, name=name, shape=(1, *x.shape))
        x = b.op("all_gather", x, name=name, axes=axes, dim=0)
        return b.op("reduce", x, name=name, dims=(0,), kind=op.attrs["kind"])
    n = x.type.size
    flat = resize(b, b.op("reshape", x, name=name, shape=(n,)), 0, math.ceil(n / group) * group)
    reduced = _exchanged_and_reduced(b, op, flat, 0)
    flat = b.op("all_gather", reduced, name=name, axes=axes, dim=0)
    return b.op("reshape", resize(b, flat, 0, n), name=name, shape=x.shape)
