"""The origin of a NaN or an infinity: the first op, in program order, that makes one from finite numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ir.program import Op, Program
from ir.types import Array
from lowering.reference.interpreter import Interpreter, Shared
from lowering.reference.mesh_dims import NO_DEVICES, DeviceGrids
from lowering.reference.poison import poison_of
from spmdc.frontends.jax.gradients import gradient


@dataclass(frozen=True)
class Fault:
    """The op, what it makes (`nan` or `inf`), and whether it is in the gradient only."""

    op: Op
    makes: str
    in_gradient: bool


def first_fault(program: Program, arrays: Mapping[str, Array]) -> Fault | None:
    """The op that makes the first NaN from operands without NaN, in the program or in its gradient; otherwise the first
    that makes an infinity from finite operands. None if the evaluation, which rounds differently, makes none."""
    loss = program.main.results[0].name
    for makes, is_one in (("nan", np.isnan), ("inf", np.isinf)):
        for in_gradient in (False, True):
            looked_at = gradient(program, (), loss) if in_gradient else program
            op = _first(looked_at, [arrays[p.name] for p in looked_at.main.params], is_one)
            if op is not None:
                return Fault(op, makes, in_gradient)
    return None


class _FoundError(Exception):
    def __init__(self, op: Op) -> None:
        self.op = op


def _first(program: Program, arrays: list[Array], is_one: Callable[[Array], Array]) -> Op | None:
    watch = _Watch(Shared(program, poison_of(0)), NO_DEVICES)
    watch.is_one = is_one
    try:
        with np.errstate(all="ignore"):
            watch.run(program.main.body, arrays)
    except _FoundError as found:
        return found.op
    return None


class _Watch(Interpreter):
    """An interpreter that stops at the first op that makes such a number from others."""

    is_one: Callable[[Array], Array]

    def inner(self, grids: DeviceGrids, mapped: int = 0) -> _Watch:
        made = _Watch(self._shared, grids, mapped)
        made.is_one = self.is_one
        return made

    def _execute(self, op: Op) -> None:
        super()._execute(op)
        if not op.operands or op.regions:
            return
        if self._any(op.results) and not self._any(op.operands):
            raise _FoundError(op)

    def _any(self, values: tuple[object, ...]) -> bool:
        arrays = (self.values[v] for v in values if v.dtype.is_continuous)  # type: ignore[attr-defined,index]
        return any(bool(np.any(self.is_one(array.astype(np.float64)))) for array in arrays if array.dtype.kind != "c")
