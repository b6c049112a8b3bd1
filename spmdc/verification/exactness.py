"""Whether all intermediate values of a program are exact, so that any order of summation has the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ir.diagnostics import InternalError
from ir.ops import OPS
from ir.program import Op, Program, Value
from ir.types import Array
from lowering.reference.interpreter import Interpreter, Shared
from lowering.reference.mesh_dims import NO_DEVICES, DeviceGrids
from lowering.reference.poison import poison_of

FAULTS = (InternalError, AssertionError, ArithmeticError, LookupError, TypeError, ValueError)


def evaluate_watched(program: Program, arrays: Sequence[Array]) -> tuple[tuple[Array, ...], bool]:
    """The unpartitioned results, and whether they are the same in any order of summation.

    That is so if all intermediate floats are integers, and small enough for partial sums to be exact.
    """
    watch = _Watch(Shared(program, poison_of(0)), NO_DEVICES)
    with np.errstate(all="ignore"):
        results = watch.run(program.main.body, arrays)
    return tuple(np.array(r, order="C") for r in results), watch.seen.exact


@dataclass
class _Seen:
    """Whether everything computed so far is exact. Shared by an entry's activation and those of its calls."""

    exact: bool = True


class _Watch(Interpreter):
    """An interpreter that examines every value. `bounds` has limits on a value's magnitude and on that of its terms."""

    def __init__(self, shared: Shared, grids: DeviceGrids, mapped: int = 0, *, seen: _Seen | None = None) -> None:
        super().__init__(shared, grids, mapped)
        self.seen = seen or _Seen()
        self.bounds: dict[Value, float] = {}

    def inner(self, grids: DeviceGrids, mapped: int = 0) -> _Watch:
        return _Watch(self._shared, grids, mapped, seen=self.seen)

    def _execute(self, op: Op) -> None:
        super()._execute(op)
        if not self.seen.exact:
            return
        operands = [self._bound(v) for v in op.operands if v.dtype.kind != "pred"]
        terms = OPS[op.name].bound_of_terms(op, operands)
        for value in op.results:
            array = self.values[value]
            bound = max(_magnitude(array), terms if value.dtype.is_continuous else 0.0)
            self.bounds[value] = bound
            if value.dtype.is_continuous:
                limit = value.dtype.component.format.exact_integers / (2 if value.dtype.is_complex else 1)
                self.seen.exact = self.seen.exact and _are_integers(array) and bound <= limit

    def _bound(self, value: Value) -> float:
        if value not in self.bounds:
            self.bounds[value] = _magnitude(self.values[value])
        return self.bounds[value]


def _are_integers(array: Array) -> bool:
    if array.dtype.kind == "c":
        return _are_integers(array.real) and _are_integers(array.imag)
    wide = array.astype(np.float64)
    return bool(np.isfinite(wide).all() and (wide == np.rint(wide)).all())


def _magnitude(array: Array) -> float:
    if array.size == 0:
        return 0.0
    return float(np.abs(array if array.dtype.kind == "c" else array.astype(np.float64)).max())
