"""Kernels of while and call.

Devices may leave a loop at different times if its body has no collectives: the loop then runs until the last is done,
and each keeps the values it left with.
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


@kernel("call")
def _call(op: Op, arrays: Sequence[Array], machine: Machine) -> Sequence[Array]:
    return machine.call(str(op.attrs["function"]), arrays)
