"""Kernels of while, case, call and map.

Devices may leave a loop at different times if its body has no collectives: the loop then runs until the last is done,
and each keeps the values it left with. So they may take different branches of a case: each branch that some device
takes is run for all of them. A mapped function sees the elements as further devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ir.program import Op
from lowering.reference.registry import Array, Machine, kernel


@kernel("while")
def _while(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
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
        stepped = machine.run(body, carried)
        carried = [_where(goes_on, new, old) for new, old in zip(stepped, carried, strict=True)]


def _where(devices: Array, new: Array, old: Array) -> Array:
    return np.where(devices.reshape((*devices.shape, *(1,) * (new.ndim - devices.ndim))), new, old)


@kernel("case")
def _case(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    (index,) = arrays
    last = len(op.regions) - 1
    index = np.where((index >= 0) & (index <= last), index, last)
    taken = np.unique(index).tolist()
    if len(taken) > 1:
        machine.refuse_collectives(op)
    chosen = machine.run(op.regions[taken[0]], ())
    for branch in taken[1:]:
        results = machine.run(op.regions[branch], ())
        chosen = [_where(index == branch, new, old) for new, old in zip(results, chosen, strict=True)]
    return chosen


@kernel("map")
def _map(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    results = machine.map(str(op.attrs["function"]), arrays, op.results[0].type.rank)
    lead, shape = machine.lead, op.results[0].shape
    return [np.broadcast_to(x, (*x.shape[:lead], *shape)) for x in results]


@kernel("call")
def _call(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    return machine.call(str(op.attrs["function"]), arrays)
