"""Manual regions: per-device code inside a global program (GShard, section 3.2; Shardy's `sdy.manual_computation`).

Along its manual axes, the op `manual` passes each device its shards of the operands, and takes shards back. Along all
others, the free axes, its body is partitioned like other code. In a nested region, or in a function that a region
calls, the axes of all regions around are manual.

A parameter of the region has the type of a shard along the manual axes. `of` and its sharding specify the tensor that
it is a shard of, as for the parameters of an SPMD program; a result's sharding specifies the tensor that a shard of is
returned. In each dim the free axes of a sharding are minor to the manual ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ir.mesh import AxisRef
from ir.ops.collective import axes_attr
from ir.ops.control import is_manual
from ir.program import Op, Program, Region, all_ops, called_in, callee_of, callees_first
from ir.sharding import Sharding, local_shape
from ir.types import TensorType

Manual = frozenset[str]
"""The names of the axes that are manual at a point of the program."""

NOWHERE: Manual = frozenset()

Keeps = Callable[[AxisRef], bool]


def region_axes(op: Op) -> Manual:
    """The axes that a manual region adds to those that are manual around it."""
    return frozenset(axis.name for axis in axes_attr(op.attrs))


def has_manual(program: Program) -> bool:
    """Whether the program has a manual region."""
    return any(op.regions and is_manual(op) for op in all_ops(program))


def axes_of_regions(program: Program) -> Manual:
    """The axes that are manual in some region of the program."""
    return NOWHERE.union(*(region_axes(op) for op in all_ops(program) if op.regions and is_manual(op)))


def ops_within(region: Region, manual: Manual) -> Iterator[tuple[Op, Manual]]:
    """Every op of the region, those of inner regions included, with the axes that are manual where it is."""
    stack = [(iter(region.ops), manual)]
    while stack:
        ops, around = stack[-1]
        op = next(ops, None)
        if op is None:
            stack.pop()
            continue
        yield op, around
        inside = around | region_axes(op) if op.regions and is_manual(op) else around
        stack.extend((iter(r.ops), inside) for r in reversed(op.regions))


def contexts(program: Program) -> dict[str, frozenset[Manual]]:
    """For each function, the sets of axes that are manual where it is called; an empty set of axes for one that is
    never called."""
    found: dict[str, set[Manual]] = {name: set() for name in program.functions}
    for function in reversed(callees_first(program)):
        around = found[function.name] or {NOWHERE}
        found[function.name] = around
        if function.name == program.entry:
            around.add(NOWHERE)
        for manual in tuple(around):
            for callee, inside in _called_within(function.body, manual):
                found[callee].add(inside)
    return {name: frozenset(around) for name, around in found.items()}


def _called_within(region: Region, manual: Manual) -> Iterator[tuple[str, Manual]]:
    """The functions that the region's ops call, with the axes that are manual there."""
    if not any(op.regions for op in region.ops):
        yield from ((callee, manual) for callee in called_in(region))
        return
    for op, inside in ops_within(region, manual):
        callee = callee_of(op)
        if callee is not None:
            yield callee, inside


def manual_part(sharding: Sharding, manual: Manual) -> Sharding:
    """The part of a sharding that is along manual axes."""
    return _part(sharding, lambda axis: axis.name in manual)


def free_part(sharding: Sharding, manual: Manual) -> Sharding:
    """The part of a sharding that is along free axes."""
    return _part(sharding, lambda axis: axis.name not in manual)


def _part(sharding: Sharding, keeps: Keeps) -> Sharding:
    return sharding.with_axes(lambda axes: tuple(filter(keeps, axes)))


def inner_type(type: TensorType, sharding: Sharding | None, manual: Manual) -> TensorType:
    """The type of a tensor's shard along the manual axes of its sharding: ceil(n / parts) elements of a dim of n."""
    if sharding is None:
        return type
    return type.with_shape(local_shape(type.shape, manual_part(sharding, manual).axes))


def is_in_order(axes: tuple[AxisRef, ...], manual: Manual) -> bool:
    """Whether the manual axes of a dim are major to its free ones."""
    known = [axis.name in manual for axis in axes]
    return known == sorted(known, reverse=True)
