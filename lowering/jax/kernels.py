"""Slices that are compiled once: those of equal size of a message that carried several tensors, and the parts of a
tensor that are sent to several devices.

XLA's CPU backend compiles kernels that differ only in their operands once, and each takes as long as the rest of a
small program. The slice of a tensor out of a message is a kernel that has the position in the message as a number. If
several slices have equal sizes, their positions become operands (`columns` in `runtime/ops.py`). An all_to_all is a
slice for each device to that backend: it gets the parts cut already (`of_parts` there).
"""

from __future__ import annotations

import math

from ir.dataflow import uses_of
from ir.ops import OPS
from ir.ops.rule_helpers import ints_attr
from ir.program import Op, Program, Value
from ir.types import TensorType


def slices_alike(program: Program) -> frozenset[Value]:
    """The results of equal-sized slices, at different columns, of a collective's result."""
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
"""With fewer devices there is little to compile, and with more there would be many ops in place of one."""

_MOST = 1 << 16
"""Parts of tensors with more elements are sliced faster than gathered."""


def is_cut_alike(type: TensorType, split: int, devices: int) -> bool:
    """Whether the parts of a tensor that an exchange sends are gathered as by `columns`, and are small. Floats of 16
    bits and fewer are sent as wider ones, so XLA would not find the parts."""
    if devices not in _DEVICES or (type.dtype.is_float and type.dtype.bits < 32) or not 0 < type.size <= _MOST:
        return False
    rows = math.prod(type.shape[:split])
    return rows > 1 or type.size // devices % 2 == 0


def _cuts_columns(op: Op) -> bool:
    """Whether it is a slice that can be gathered as several boxes: of all rows of a matrix, or of one row in halves.
    Short floats are excluded, because XLA's CPU backend may change the bits of a NaN when it gathers them."""
    if op.name != "slice" or op.result.type.rank != 2 or op.result.dtype.is_short:
        return False
    rows, width = op.result.shape
    is_boxes = rows > 1 or (rows == 1 and width > 0 and width % 2 == 0)
    return is_boxes and rows == op.operands[0].shape[0] and set(ints_attr(op.attrs, "stride")) == {1}
