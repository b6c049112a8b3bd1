"""Kernels of while, case, checkpoint, call, map and manual.

Devices may leave a loop at different times if its body has no collectives: the loop then runs until the last one
leaves, and each keeps the values with which it left. Devices may also take different branches of a case: each branch
that some device takes is run for all of them. In a mapped function the elements are additional devices; without
elements, any branch returns results of the right shape. A manual region of a global program is simulated on as many
devices as its axes have.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ir.manual import Manual, manual_part, region_axes
from ir.ops.collective import axes_attr
from ir.program import Op, Value
from ir.sharding import Sharding
from ir.types import Array
from lowering.reference.interpreter import Interpreter, kernel
from lowering.reference.shards import shard, unshard


@kernel("while")
def _while(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    condition, body = op.regions
    carried = list(arrays)
    goes_on = np.ones((1,) * machine.lead, np.bool_)
    while True:
        goes_on = goes_on & machine.run(condition, carried)[0]
        if not goes_on.any():
            return carried
        if goes_on.all():
            carried = machine.run(body, carried)
            continue
        machine.refuse_collectives(op)
        with machine.among(goes_on):
            stepped = machine.run(body, carried)
        carried = [_where(goes_on, new, old) for new, old in zip(stepped, carried, strict=True)]


def _where(devices: Array, new: Array, old: Array) -> Array:
    return np.where(devices.reshape((*devices.shape, *(1,) * (new.ndim - devices.ndim))), new, old)


@kernel("case")
def _case(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    (index,) = arrays
    last = len(op.regions) - 1
    index = np.where((index >= 0) & (index <= last), index, last)
    taken = np.unique(index).tolist() or [last]
    if len(taken) > 1:
        machine.refuse_collectives(op)
    with machine.among(index == taken[0]):
        chosen = machine.run(op.regions[taken[0]], ())
    for branch in taken[1:]:
        with machine.among(index == branch):
            results = machine.run(op.regions[branch], ())
        chosen = [_where(index == branch, new, old) for new, old in zip(results, chosen, strict=True)]
    return chosen


@kernel("checkpoint")
def _checkpoint(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    return machine.run(op.regions[0], arrays)


@kernel("map")
def _map(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    results = machine.map(str(op.attrs["function"]), arrays, op.results[0].type.rank)
    lead, shape = machine.lead, op.results[0].shape
    return [np.broadcast_to(x, (*x.shape[:lead], *shape)) for x in results]


@kernel("call")
def _call(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    return machine.call(str(op.attrs["function"]), arrays)


@kernel("manual")
def _manual(op: Op, arrays: Sequence[Array], machine: Interpreter) -> Sequence[Array]:
    """Operands are cut into shards along the manual axes, with poisoned padding, and results are joined."""
    grid, lead = machine.devices.default, machine.lead
    manual, region = region_axes(op), op.regions[0]
    along = grid.dims(axes_attr(op.attrs))
    shards = [
        shard(
            x.reshape((*_lead(x, lead, grid.rank), *x.shape[lead:])),
            _manual_part(param, manual),
            grid,
            poison=machine.poison,
        )
        for x, param in zip(arrays, region.params, strict=True)
    ]
    returned = machine.run_on_devices(region, shards)
    joined = [
        unshard(x, _manual_part(result, manual), result.shape, grid, along, result.name)
        for x, result in zip(returned, op.results, strict=True)
    ]
    return joined if lead else [x.reshape(x.shape[grid.rank :]) for x in joined]


def _lead(x: Array, lead: int, rank: int) -> tuple[int, ...]:
    """The device dims of an operand: its own, or those of a single device."""
    return x.shape[:lead] if lead else (1,) * rank


def _manual_part(value: Value, manual: Manual) -> Sharding:
    assert value.sharding is not None
    return manual_part(value.sharding, manual)
