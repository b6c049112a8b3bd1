"""Writes one function of a random program (`spmdc.testing`), op by op.

The ops are written by the functions of the other modules in this folder, one for each family. Values are small
integers, or arbitrary numbers: NaN, infinities, the extremes of integers. On arbitrary numbers only ops are used whose
results do not depend on the order of computation: layouts, choices, comparisons, extremes, elementwise functions; and
on integers, which wrap, all ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from ir.builder import RegionBuilder
from ir.mesh import Mesh
from ir.program import Function, Result, Value
from ir.sharding import Sharding
from ir.types import DType, TensorType, c64, f32, pred, s32
from spmdc.verification.random_programs.shardings import Divisions, seldom, shardings

Write = Callable[["Writer"], None]

INPUT_BOUND = 3
COUNTER = TensorType((), s32)
"""The type of loop counters, indices and choices."""
_MAX_ELEMENTS = 2048


@dataclass(frozen=True)
class Helper:
    """A function to call with inputs of magnitude up to 3, and limits on the magnitude of its results."""

    function: Function
    bounds: tuple[int, ...]


@dataclass(frozen=True)
class Choices:
    """What one program draws from: few shapes and types, so that values fit together; and the ops to write.

    With `anything`, values are arbitrary numbers. With `manual` axes, a manual region along these is written.
    """

    meshes: tuple[Mesh, ...]
    divided: Divisions
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]
    ops: Sequence[Write]
    anything: bool = False
    manual: frozenset[str] = frozenset()


@dataclass
class Writer:
    """Draws one function op by op. `bounds` are limits on the magnitude of values, which keep floats exact.

    `depth` is the number of regions around this one.
    """

    draw: st.DrawFn
    choices: Choices
    helper: Helper | None = None
    scalars: Function | None = None
    bounds: dict[Value, int] = field(default_factory=dict[Value, int])
    values: list[Value] = field(default_factory=list[Value])
    b: RegionBuilder = field(default_factory=RegionBuilder)
    depth: int = 0

    def function(self, name: str, max_ops: int) -> Function:
        """The function, of at most that many steps, each of one op or a few."""
        for i in range(self.draw(st.integers(1, 3))):
            type = self.type() if i else self.type().with_dtype(self.choices.dtypes[0])
            sharding = self.sharding(type) if self.draw(st.integers(0, 4)) else None
            self.keep(self.b.param(f"a{i}", type, sharding), INPUT_BOUND)
        self.write(max_ops)
        used = {v for op in self.b.ops for v in op.operands}
        leaves = [v for v in self.values if v not in used] or self.values[-1:]
        results = leaves[-4:]
        declared = [
            Result(f"r{i}", v.type, self.sharding(v.type) if self.draw(st.booleans()) else None)
            for i, v in enumerate(results)
        ]
        return self.b.function(name, results, declared)

    def within(self, b: RegionBuilder) -> Writer:
        """A writer for a region in this one, which sees the values around it."""
        return replace(self, b=b, bounds=dict(self.bounds), values=list(self.values), depth=self.depth + 1)

    def write(self, most: int) -> None:
        """Writes at most that many steps."""
        for _ in range(most):
            if not self.draw(_written(self)):
                return

    # Choices.

    @property
    def anything(self) -> bool:
        return self.choices.anything

    def type(self) -> TensorType:
        shape = self.draw(st.sampled_from(self.choices.shapes))
        return TensorType(shape, self.draw(st.sampled_from(self.choices.dtypes)))

    def sharding(self, type: TensorType) -> Sharding:
        """A sharding; with pending reductions where their parts are exact."""
        meshes = self.choices.meshes
        manual = self.choices.manual
        mesh = meshes[-1] if len(meshes) > 1 and not manual and seldom(self.draw, 3) else meshes[0]
        integral = type.dtype.is_integer or type.dtype == pred
        partial = integral or (type.dtype in (f32, c64) and not self.anything)
        divided = self.choices.divided
        return self.draw(shardings(mesh, type, partial=partial, divided=divided, without=manual))

    def pick(self, accept: Callable[[Value], bool] | None = None, *, filled: bool = False) -> Value:
        """A value that `accept`s; newer ones are likelier. By default, any but complex ones.

        If it is to be `filled`, none of its dims is of size 0.

        A step for which there is no value is left out.
        """
        accept = accept or (lambda v: v.dtype.is_ordered)
        fitting = [v for v in self.values if accept(v) and (v.type.size or not filled)]
        if not fitting:
            raise NothingFitsError
        return self.draw(st.sampled_from(fitting[::-1]))

    def adds(self, value: Value) -> bool:
        """Whether sums of the value's elements are exact in any order."""
        return not self.anything or value.dtype.is_integer or value.dtype == pred

    def has(self, accept: Callable[[Value], bool]) -> bool:
        return any(accept(v) for v in self.values)

    def keep(self, value: Value, bound: int) -> None:
        """Makes the value available, unless it is too large or not exact."""
        part = value.dtype.component
        exact = part.format.exact_integers if part.is_float else bound
        if value.type.size <= _MAX_ELEMENTS and (self.anything or bound <= exact):
            self.values.append(value)
            self.bounds[value] = bound

    def constant(self, number: int, type: TensorType) -> Value:
        value = bool(number) if type.dtype == pred else float(number) if type.dtype.is_float else abs(number)
        return self.b.op("constant", value=value, type=type)


class NothingFitsError(Exception):
    """There is no value that the op accepts."""


@st.composite
def _written(draw: st.DrawFn, w: Writer) -> bool:
    """Writes an op, or decides that there are enough. Its draws are grouped, so that shrinking leaves out the op."""
    if draw(st.integers(0, 11)) == 0:
        return False
    outer, w.draw = w.draw, draw
    try:
        draw(st.sampled_from(w.choices.ops))(w)
    except NothingFitsError:
        return True
    finally:
        w.draw = outer
    return True


def any_value(value: Value) -> bool:
    """Accepts all values, complex ones too."""
    return True


def growth(dtype: DType) -> int:
    """How much larger than the product of its factors' magnitudes a product can be: the parts of complex ones are sums
    of two."""
    return 2 if dtype.is_complex else 1
