"""Numbers that depend only on the position of a device, computed for all devices before the program runs.

The offsets of shards are computed from a device's position along some axes, by chains of integer ops. XLA hoists such a
number out of a loop that uses it, and makes a kernel of it, which takes as long to compile as any other; in front of
loops, the chain becomes a part of each kernel that uses its result. Numbers that are looked up in a table, with one
entry for each device, make equal kernels, which XLA's CPU backend compiles once, because their tables are operands. So
on CPUs, and in loops on all platforms, numpy computes the chains for all devices at once when the module is generated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

from ir.dataflow import Uses, uses_of
from ir.mesh import axes_size
from ir.ops.collective import axes_attr, is_place_of_device
from ir.ops.creation import constant_value
from ir.program import Op, Program, Value, all_ops
from ir.types import s32
from lowering.jax.axes import ProgramAxes

IN_NUMPY: Mapping[str, Callable[[Sequence[str]], str]] = {
    "add": lambda x: f"np.add({x[0]}, {x[1]})",
    "subtract": lambda x: f"np.subtract({x[0]}, {x[1]})",
    "multiply": lambda x: f"np.multiply({x[0]}, {x[1]})",
    "maximum": lambda x: f"np.maximum({x[0]}, {x[1]})",
    "minimum": lambda x: f"np.minimum({x[0]}, {x[1]})",
    "negate": lambda x: f"np.negative({x[0]})",
    "clamp": lambda x: f"np.clip({x[1]}, {x[0]}, {x[2]})",
    "divide": lambda x: f"np.floor_divide(np.subtract({x[0]}, np.fmod({x[0]}, {x[1]})), {x[1]})",
    "remainder": lambda x: f"np.fmod({x[0]}, {x[1]})",
}
"""The ops of chains. Integer division rounds towards zero; numpy's `floor_divide` is used where there is no
remainder."""

_DIVIDING = frozenset({"divide", "remainder"})


@dataclass(frozen=True)
class Places:
    """For each number of a chain the `axis_index` that it is computed from, and the numbers that other ops use."""

    index_of: Mapping[Value, Value] = field(default_factory=dict[Value, Value])
    looked_up: frozenset[Value] = frozenset()


def indices_of(program: Program, axes: ProgramAxes) -> Mapping[Value, Value]:
    """For each number of an SPMD program that is computed from one `axis_index` and constants, that index."""
    index_of: dict[Value, Value] = {}
    constants: dict[Value, object] = {}
    for op in all_ops(program):
        index, number = _index(op, index_of, constants, axes), constant_value(op)
        if index is not None:
            index_of[op.result] = index
        elif number is not None and _is_number(op):
            constants[op.result] = number
    return index_of


def places_of(program: Program, index_of: Mapping[Value, Value], unwritten: Set[Op]) -> Places:
    """The numbers of chains. Uses by ops that are `unwritten` do not count."""
    uses = uses_of(program)
    made = ((v, _made(uses, v, unwritten)) for v in index_of)
    looked_up = (v for v, results in made if v in uses.given or not all(map(index_of.__contains__, results)))
    return Places(index_of, frozenset(looked_up))


def _made(uses: Uses, value: Value, unwritten: Set[Op]) -> Iterator[Value | None]:
    """The results of ops that use a value; None for an op without results."""
    users = (op for op in uses.users.get(value, ()) if op not in unwritten)
    return (result for op in users for result in op.results or (None,))


def _index(
    op: Op, index_of: Mapping[Value, Value], constants: Mapping[Value, object], axes: ProgramAxes
) -> Value | None:
    """The only `axis_index` that the op's number is computed from."""
    if not _is_number(op):
        return None
    if is_place_of_device(op):
        refs = axes_attr(op.attrs)
        return op.result if axes.in_place(refs) and axes.axis_names(refs) else None
    if op.name not in IN_NUMPY or not all(v in index_of or v in constants for v in op.operands):
        return None
    if op.name in _DIVIDING and not constants.get(op.operands[1]):
        return None
    found = {index_of[v] for v in op.operands if v in index_of}
    return found.pop() if len(found) == 1 else None


def _is_number(op: Op) -> bool:
    return len(op.results) == 1 and not op.result.shape and op.result.dtype == s32


def of_all_devices(op: Op, operands: Sequence[str]) -> str:
    """The text of the op's number for each device, in the order of the axes, from the texts of its operands."""
    if is_place_of_device(op):
        return f"np.arange({axes_size(axes_attr(op.attrs))}, dtype=np.int32)"
    return IN_NUMPY[op.name](operands)
