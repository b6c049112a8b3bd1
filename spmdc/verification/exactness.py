"""Whether all that a program computes on the way is exact, so that any order of summation gives the same bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ir.diagnostics import InternalError
from ir.mesh import axes_size
from ir.ops.collective import axes_attr
from ir.ops.rule_helpers import int_attr, ints_attr
from ir.program import Op, Program, Value
from ir.types import Array, DType
from lowering.reference.interpreter import Interpreter, Shared
from lowering.reference.mesh_dims import NO_DEVICES, Grids
from lowering.reference.poison import poison_of

_SUMS = (
    "all_reduce", "convolution", "cumsum", "dot_general", "reduce", "reduce_scatter", "reduce_window", "scatter",
    "select_and_scatter",
)  # fmt: skip

_PASS_ON = (
    "all_gather", "all_to_all", "box_permute", "box_permutes", "broadcast_in_dim", "collective_permute", "complex",
    "concatenate", "convert", "dynamic_slice", "dynamic_update_slice", "gather", "imag", "negate",
    "optimization_barrier", "pad", "real", "reshape", "reverse", "select", "shard", "slice", "stop_gradient",
    "transpose",
)  # fmt: skip
"""Ops that a reduction owed passes through: their results have terms as large as their operands have."""

FAULTS = (InternalError, AssertionError, ArithmeticError, LookupError, TypeError, ValueError)


def evaluate_watched(program: Program, arrays: Sequence[Array]) -> tuple[tuple[Array, ...], bool]:
    """The unpartitioned results, and whether any order of summation gives the same.

    It does where all floats on the way are integers, and so small that the partial sums must be exact.
    """
    watch = _Watch(Shared(program, poison_of(0)), NO_DEVICES)
    with np.errstate(all="ignore"):
        results = watch.run(program.main.body, arrays)
    return tuple(np.array(r, order="C") for r in results), watch.seen.exact


@dataclass
class _Seen:
    """Whether all that was computed so far is exact. Shared by an entry's activation and those of its calls."""

    exact: bool = True


class _Watch(Interpreter):
    """An interpreter that looks at every value. `bounds` are limits on a value's magnitude and that of its terms."""

    def __init__(self, shared: Shared, grids: Grids, mapped: int = 0, *, seen: _Seen | None = None) -> None:
        super().__init__(shared, grids, mapped)
        self.seen = seen or _Seen()
        self.bounds: dict[Value, float] = {}

    def inner(self, grids: Grids, mapped: int = 0) -> _Watch:
        return _Watch(self._shared, grids, mapped, seen=self.seen)

    def _execute(self, op: Op) -> None:
        super()._execute(op)
        if not self.seen.exact:
            return
        operands = [self._bound(v) for v in op.operands if v.dtype.kind != "pred"]
        terms = _bound_of_terms(op, operands)
        for value in op.results:
            array = self.values[value]
            bound = max(_magnitude(array), terms if _is_inexact(value.dtype) else 0.0)
            self.bounds[value] = bound
            if _is_inexact(value.dtype) and not (_are_integers(array) and bound <= _limit(value.dtype)):
                self.seen.exact = False

    def _bound(self, value: Value) -> float:
        if value not in self.bounds:
            self.bounds[value] = _magnitude(self.values[value])
        return self.bounds[value]


def _is_inexact(dtype: DType) -> bool:
    return dtype.is_float or dtype.is_complex


def _limit(dtype: DType) -> float:
    return dtype.component.format.exact_integers / (2 if dtype.is_complex else 1)


def _are_integers(array: Array) -> bool:
    if array.dtype.kind == "c":
        return _are_integers(array.real) and _are_integers(array.imag)
    wide = array.astype(np.float64)
    return bool(np.isfinite(wide).all() and (wide == np.rint(wide)).all())


def _magnitude(array: Array) -> float:
    if array.size == 0:
        return 0.0
    return float(np.abs(array if array.dtype.kind == "c" else array.astype(np.float64)).max())


def _bound_of_terms(op: Op, operands: Sequence[float]) -> float:
    """A limit on the sum of the magnitudes of all terms that the op, and those it got its operands from, add up."""
    if op.name in ("add", "subtract"):
        return math.fsum(operands)
    if op.name == "multiply":
        return math.prod(operands)
    terms = _terms(op)
    if op.name in ("dot_general", "convolution"):
        return math.prod(operands) * terms
    return max(operands, default=0.0) * terms if op.name in _SUMS or op.name in _PASS_ON else 0.0


def _terms(op: Op) -> int:
    """How many terms at most each element of a result is the sum of."""
    if op.name in ("all_reduce", "reduce_scatter"):
        return axes_size(axes_attr(op.attrs)) if op.attrs["kind"] == "sum" else 1
    if op.name == "dot_general":
        return math.prod(op.operands[0].shape[d] for d in ints_attr(op.attrs, "lhs_contract"))
    if op.name == "convolution":
        return op.operands[1].type.size // max(1, op.operands[1].shape[int_attr(op.attrs, "rhs_output")])
    if op.name == "cumsum":
        return op.result.shape[int_attr(op.attrs, "dim")]
    if op.name == "reduce":
        return op.operands[0].type.size // max(1, op.results[0].type.size) if op.attrs["kind"] == "sum" else 1
    if op.name == "reduce_window":
        return math.prod(ints_attr(op.attrs, "window")) if op.attrs["kind"] == "sum" else 1
    if op.name in ("scatter", "select_and_scatter"):
        return 1 + op.operands[-1].type.size
    return 1
