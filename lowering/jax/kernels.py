"""Slices that are compiled once: those of one size of a message in which several tensors have arrived, and those of
what is sent to several devices.

XLA's CPU backend compiles kernels that differ in nothing but their operands once, and each takes as long as the rest of
a small program. What cuts a tensor out of a message is a kernel, of which the place in the message is a number. Where
several are of one size, their places become operands (`columns` in `runtime/ops.py`). An exchange of each with all is
to that backend a slice for each device: it finds them cut already (`of_parts` there).
"""

from __future__ import annotations

import math

from ir.dataflow import uses_of
from ir.ops import OPS
from ir.ops.rule_helpers import ints_attr
from ir.program import Op, Program, Value
from ir.types import TensorType


def slices_alike(program: Program) -> frozenset[Value]:
    """The results of slices of one size, each of other columns, of what a collective brings."""
    uses = uses_of(program)
    found: set[Value] = set()
    for value, users in uses.users.items():
        maker = uses.makers.get(value)
        if maker is None or OPS[maker.name].communication is None:
            continue
        alike: dict[tuple[int, ...], list[Value]] = {}
        for op in filter(_cuts_columns, users):
            alike.setdefault(op.result.shape, []).append(op.result)
        found.update(v for results in alike.values() if len(results) > 1 for v in results)
    return frozenset(found)


_DEVICES = range(4, 17)
"""Of fewer there is little to compile, and more would be many ops for one."""

_MOST = 1 << 16
"""Of more elements than this, parts are sooner sliced than gathered."""


def is_cut_alike(type: TensorType, split: int, devices: int) -> bool:
    """Whether the parts of a tensor that an exchange sends are gathered as `columns` does, and small. Floats of 16 bits
    and fewer are sent as wider ones, so that XLA does not find the parts."""
    if devices not in _DEVICES or (type.dtype.is_float and type.dtype.bits < 32) or not 0 < type.size <= _MOST:
        return False
    rows = math.prod(type.shape[:split])
    return rows > 1 or type.size // devices % 2 == 0


def _cuts_columns(op: Op) -> bool:
    """Whether it is a slice that can be gathered as several boxes: of all rows of a matrix, or of one row in halves.
    What XLA's CPU backend gathers of short floats may have other bits in a NaN."""
    if op.name != "slice" or op.result.type.rank != 2 or op.result.dtype.is_short:
        return False
    rows, width = op.result.shape
    is_boxes = rows > 1 or (rows == 1 and width > 0 and width % 2 == 0)
    return is_boxes and rows == op.operands[0].shape[0] and set(ints_attr(op.attrs, "stride")) == {1}
