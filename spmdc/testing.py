"""Hypothesis strategies for meshes, shardings and whole programs, and the property they are for.

    @given(spmdc.testing.programs())
    def test_partitioning_changes_nothing(program):
        spmdc.testing.check_equivalence(program)

Values are integers, also in floating-point types, and stay small enough to be exact there, so that sums in any order
agree and equality is bit for bit. The first of the choices at every draw is the simplest, and what a program leaves
out takes no draws, so that a failing program shrinks to a few ops over one axis.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from ir.builder import RegionBuilder
from ir.mesh import AxisRef, Mesh, merge_axes, prime_factors
from ir.program import Function, Program, Result, Value
from ir.sharding import DimSharding, ReductionKind, Sharding
from ir.text import print_program
from ir.types import DTYPES, DType, TensorType, bf16, c64, f16, f32, pred, s8, s32, u8, u32
from passes.partition.choose import WindowedEinsum
from spmdc import random_control, random_indexing, random_numbers, random_windows

Array = npt.NDArray[Any]

Divisions = Mapping[str, tuple[AxisRef, ...]]
"""The parts, major to minor, into which shardings may cut each axis."""

DIMS = (1, 2, 3, 4, 5, 7, 8)
"""Sizes of dims: small, unequal, prime, and one that every even axis divides."""

_LARGE_DIMS = (6, 12, 13, 16, 24, 32)
_AXIS_SIZES = (2, 3, 4, 1, 2, 3, 4, 6, 8, 12)

_EXACT = {"f32": 2**24, "f64": 2**53, "bf16": 2**8, "f16": 2**11, "c64": 2**24, "c128": 2**53}
_MAX_ELEMENTS = 2048
_DTYPES = (s32, f32, bf16, f16, u8, s8, u32, pred, c64)


@st.composite
def meshes(draw: st.DrawFn, max_axes: int = 3, max_devices: int = 64) -> Mesh:
    """Meshes of 1 to `max_axes` axes of sizes 1 to 12, some in an order of devices of their own."""
    sizes: list[int] = []
    for _ in range(draw(st.integers(1, max_axes))):
        room = max_devices // math.prod(sizes)
        sizes.append(draw(st.sampled_from([n for n in _AXIS_SIZES if n <= room])))
    mesh = Mesh(tuple(zip("xyzuvw", sizes, strict=False)))
    if not _seldom(draw, 3):
        return mesh
    return Mesh(mesh.axes, tuple(draw(st.permutations(range(mesh.size)))))


@st.composite
def other_meshes(draw: st.DrawFn, mesh: Mesh) -> Mesh:
    """Meshes over the same devices in another order, with axes of other names and, at times, other sizes."""
    sizes = draw(st.sampled_from([mesh.shape, *(f for f in _factorizations(mesh.size) if len(f) <= 3)]))
    axes = tuple((f"other_{i}", size) for i, size in enumerate(sizes))
    return Mesh(axes, tuple(draw(st.permutations(range(mesh.size)))), "other")


@st.composite
def divisions(draw: st.DrawFn, *among: Mesh) -> Divisions:
    """Into which parts the shardings of one program cut each axis of its meshes: 12 as 2 by 6, 3 by 2 by 2, or whole.

    Shardings that are to meet must be of the same divisions: parts cut otherwise may have no common refinement.
    """
    return {
        axis.name: _parts(axis, draw(st.sampled_from(_factorizations(axis.size))) if axis.size > 3 else (axis.size,))
        for mesh in among
        for axis in mesh.whole_axes()
    }


def _factorizations(n: int) -> list[tuple[int, ...]]:
    """All ways to write n as a product of factors in order, itself first."""
    longer = ((f, *rest) for f in range(2, n) if n % f == 0 for rest in _factorizations(n // f))
    return [(n,), *longer]


def _parts(axis: AxisRef, sizes: Sequence[int]) -> tuple[AxisRef, ...]:
    ends = itertools.accumulate(sizes, operator.mul)
    return tuple(AxisRef(axis.name, end // size, size) for end, size in zip(ends, sizes, strict=True))


@st.composite
def shardings(
    draw: st.DrawFn,
    mesh: Mesh,
    type: TensorType,
    *,
    partial: bool = True,
    unclear: bool = True,
    divided: Divisions | None = None,
) -> Sharding:
    """Shardings of a tensor: whole axes and parts of them on any dims, open and closed dims, partial axes.

    `partial` allows reductions to be owed, `unclear` open dims, priorities and explicitly replicated axes. The parts of
    axes are those of `divided`; if it is not given, those of prime size, smaller ones major.
    """
    whole = [a for a in mesh.whole_axes() if a.size > 1]
    parts = [p for a in whole for p in (divided[a.name] if divided else _parts(a, prime_factors(a.size)))]
    free = list(dict.fromkeys((*whole, *parts)))

    def some() -> Iterator[AxisRef]:
        while free:
            axis = draw(st.sampled_from([None, *free]))
            if axis is None:
                return
            free[:] = [a for a in free if not a.overlaps(axis)]
            yield axis

    owed = list(some()) if partial and _seldom(draw, 3) else []
    kept = list(some()) if unclear and _seldom(draw, 5) else []
    dims = [_dim(draw, merge_axes(list(some())), unclear) for _ in range(type.rank)]
    kind: ReductionKind = draw(st.sampled_from(partial_kinds(type.dtype))) if owed else "sum"
    return Sharding(mesh, tuple(dims), tuple((a, kind) for a in owed), tuple(kept))


def _dim(draw: st.DrawFn, axes: tuple[AxisRef, ...], unclear: bool) -> DimSharding:
    is_open = unclear and _seldom(draw, 3)
    return DimSharding(axes, is_open, 1 if unclear and axes and _seldom(draw, 7) else 0)


def _seldom(draw: st.DrawFn, others: int) -> bool:
    """True once for every `others` times that it is not."""
    return draw(st.integers(0, others)) == others


def partial_kinds(dtype: DType) -> tuple[ReductionKind, ...]:
    """The reductions that a tensor of that element type can be owed, without loss for small integers."""
    if dtype == pred:
        return ("or", "and")
    if dtype.is_complex:
        return ("sum",)
    return ("sum", "max", "min") if dtype.is_float else ("sum", "max", "min", "and", "or")


@st.composite
def programs(
    draw: st.DrawFn, max_ops: int = 10, dtypes: Sequence[DType] | None = None, max_devices: int = 64
) -> Program:
    """Valid global programs of the whole op set over random meshes, with random annotations, functions and loops."""
    mesh = draw(meshes(max_devices=max_devices))
    all_meshes = (mesh, draw(other_meshes(mesh))) if mesh.size > 1 and _seldom(draw, 3) else (mesh,)
    few = [draw(st.sampled_from(tuple(dtypes) if dtypes is not None else _DTYPES)) for _ in range(2)]
    sizes = [draw(st.sampled_from(choice)) for choice in (DIMS, DIMS, DIMS + _LARGE_DIMS)]
    shapes = tuple(tuple(draw(st.permutations(sizes))[: draw(st.sampled_from((2, 1, 3, 0)))]) for _ in range(3))
    choices = _Choices(all_meshes, draw(divisions(*all_meshes)), shapes, tuple(dict.fromkeys((f32, *few))))
    helper = None
    if draw(st.booleans()):
        writer = Writer(draw, choices)
        function = writer.function("helper", 3)
        helper = _Helper(function, tuple(writer.bounds[v] for v in function.body.results))
    scalars = random_control.scalar_function(draw(st.sampled_from((f32, s32)))) if draw(st.booleans()) else None
    main = Writer(draw, choices, helper, scalars).function("main", max_ops)
    functions = (helper.function if helper else None, scalars, main)
    return Program(all_meshes, {f.name: f for f in functions if f is not None})


def inputs_for(program: Program, seed: int = 0) -> tuple[Array, ...]:
    """Small integers in the type of each parameter, also as the parts of complex numbers.

    They go from -3 to 3; with a seed other than 0, those of some parameters are all negative, or the least and greatest
    of their integer type.
    """
    rng = np.random.default_rng(seed)

    def draw(type: TensorType) -> Array:
        if type.dtype.is_complex:
            part = type.with_dtype(type.dtype.component)
            return (draw(part) + 1j * draw(part)).astype(type.dtype.numpy)
        manner = rng.choice(("mixed", "negative", "extreme")) if seed else "mixed"
        if manner == "extreme" and type.dtype.is_integer:
            ends = np.array([type.dtype.lowest, type.dtype.highest, 0], type.dtype.numpy)
            return rng.choice(ends, type.shape)
        low = 0 if type.dtype.kind in ("unsigned", "pred") else -_INPUT_BOUND
        high = 1 if type.dtype == pred else -1 if manner == "negative" and low else _INPUT_BOUND
        return rng.integers(low, high + 1, type.shape).astype(type.dtype.numpy)

    return tuple(draw(p.type) for p in program.main.params)


def check_equivalence(
    program: Program, *, jax: bool = False, seed: int = 0, windowed_einsum: WindowedEinsum = "auto"
) -> None:
    """Partitions the program, runs it on its logical devices with poisoned padding, and compares bit for bit.

    With `jax`, runs the JAX lowering instead of the simulator. `windowed_einsum` is as for `spmdc.partition`. Raises
    AssertionError with both programs as text.
    """
    from spmdc.api import evaluate, partition

    arrays = inputs_for(program, seed)
    expected = evaluate(program, *arrays)
    partitioned = partition(program, windowed_einsum=windowed_einsum)
    actual = partitioned.to_jax()(*arrays) if jax else partitioned.simulate(*arrays)
    for result, want, got in zip(program.main.results, expected, map(np.asarray, actual), strict=True):
        same = want.dtype == got.dtype and want.shape == got.shape and _same_bits(want, got)
        assert same, (
            f"{result.name} differs: {want.tolist()} unpartitioned, {got.tolist()} partitioned\n"
            f"{print_program(program, locations=False)}\n{partitioned.text()}"
        )


def _same_bits(a: Array, b: Array) -> bool:
    nan = a != a
    return bool(np.array_equal(nan, b != b) and np.array_equal(np.where(nan, 0, a), np.where(nan, 0, b)))


_INPUT_BOUND = 3


@dataclass(frozen=True)
class _Helper:
    """A function to call with inputs of magnitude up to 3, and limits on the magnitude of its results."""

    function: Function
    bounds: tuple[int, ...]


@dataclass(frozen=True)
class _Choices:
    """What one program draws from: few shapes and types, so that values fit one another."""

    meshes: tuple[Mesh, ...]
    divided: Divisions
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...]


@dataclass
class Writer:
    """Draws one function op by op. `bounds` are limits on the magnitude of values, which keep floats exact."""

    draw: st.DrawFn
    choices: _Choices
    helper: _Helper | None = None
    scalars: Function | None = None
    bounds: dict[Value, int] = field(default_factory=dict[Value, int])
    values: list[Value] = field(default_factory=list[Value])
    b: RegionBuilder = field(default_factory=RegionBuilder)

    def function(self, name: str, max_ops: int) -> Function:
        for i in range(self.draw(st.integers(1, 3))):
            type = self.type() if i else self.type().with_dtype(self.choices.dtypes[0])
            sharding = self.sharding(type) if self.draw(st.integers(0, 4)) else None
            self.keep(self.b.param(f"a{i}", type, sharding), _INPUT_BOUND)
        self.write(max_ops)
        used = {v for op in self.b.ops for v in op.operands}
        leaves = [v for v in self.values if v not in used] or self.values[-1:]
        results = leaves[-4:]
        declared = [
            Result(f"r{i}", v.type, self.sharding(v.type) if self.draw(st.booleans()) else None)
            for i, v in enumerate(results)
        ]
        return self.b.function(name, results, declared)

    def write(self, most: int) -> None:
        for _ in range(most):
            if not self.draw(_written(self)):
                return

    # Choices.

    def type(self) -> TensorType:
        shape = self.draw(st.sampled_from(self.choices.shapes))
        return TensorType(shape, self.draw(st.sampled_from(self.choices.dtypes)))

    def sharding(self, type: TensorType, *, unclear: bool = True) -> Sharding:
        meshes = self.choices.meshes
        mesh = meshes[-1] if len(meshes) > 1 and _seldom(self.draw, 3) else meshes[0]
        partial = type.dtype.is_integer or type.dtype in (f32, c64, pred)
        divided = self.choices.divided
        return self.draw(shardings(mesh, type, partial=partial, unclear=unclear, divided=divided))

    def pick(self, accept: Callable[[Value], bool] = lambda v: v.dtype.is_ordered) -> Value:
        """A value that `accept`s; the newest are likelier. If not told otherwise, any but one of complex numbers."""
        fitting = [v for v in self.values if accept(v)]
        return self.draw(st.sampled_from(fitting[::-1]))

    def has(self, accept: Callable[[Value], bool]) -> bool:
        return any(accept(v) for v in self.values)

    def keep(self, value: Value, bound: int) -> None:
        """Makes the value available, unless it is too large or not exact."""
        exact = _EXACT.get(value.dtype.name)
        if value.type.size <= _MAX_ELEMENTS and (exact is None or bound <= exact):
            self.values.append(value)
            self.bounds[value] = bound

    def constant(self, number: int, type: TensorType) -> Value:
        value = bool(number) if type.dtype == pred else float(number) if type.dtype.is_float else abs(number)
        return self.b.op("constant", value=value, type=type)


_WRITERS: list[Callable[[Writer], None]] = []


@st.composite
def _written(draw: st.DrawFn, w: Writer) -> bool:
    """Writes an op or says that there are enough. Its draws belong together, so that shrinking leaves out the op."""
    if draw(st.integers(0, 11)) == 0:
        return False
    outer, w.draw = w.draw, draw
    draw(st.sampled_from([*_WRITERS, *_LIKELY]))(w)
    w.draw = outer
    return True


def any_value(value: Value) -> bool:
    """What to pick where complex numbers will do, too."""
    return True


def growth(dtype: DType) -> int:
    """How much larger than both factors together a product can be: the parts of complex ones are sums of two."""
    return 2 if dtype.is_complex else 1


def _writer(write: Callable[[Writer], None]) -> Callable[[Writer], None]:
    _WRITERS.append(write)
    return write


_UNARY: dict[str, Callable[[DType], bool]] = {
    "negate": lambda t: t != pred,
    "abs": lambda t: t.kind in ("signed", "float"),
    "sign": lambda t: t.kind in ("signed", "float"),
    "not": lambda t: t.is_integer or t == pred,
    "popcnt": lambda t: t.is_integer,
    "count_leading_zeros": lambda t: t.is_integer,
    "floor": lambda t: t.is_float,
    "round_nearest_even": lambda t: t.is_float,
}
_BINARY: dict[str, Callable[[DType], bool]] = {
    "add": lambda t: t != pred,
    "subtract": lambda t: t != pred,
    "multiply": lambda t: t != pred,
    "maximum": lambda t: t.is_ordered,
    "minimum": lambda t: t.is_ordered,
    "and": lambda t: t.is_integer or t == pred,
    "or": lambda t: t.is_integer or t == pred,
    "xor": lambda t: t.is_integer or t == pred,
    "divide": lambda t: t.is_integer,
    "remainder": lambda t: t.is_integer,
    "shift_left": lambda t: t.is_integer,
    "shift_right_arithmetic": lambda t: t.is_integer,
}


@_writer
def _unary(w: Writer) -> None:
    x = w.pick(any_value)
    names = [n for n, accepts in _UNARY.items() if accepts(x.dtype)]
    w.keep(w.b.op(w.draw(st.sampled_from(names)), x), w.bounds[x])


@_writer
def _binary(w: Writer) -> None:
    x = w.pick(any_value)
    y = w.pick(lambda v: v.type == x.type)
    name = w.draw(st.sampled_from([n for n, accepts in _BINARY.items() if accepts(x.dtype)]))
    a, c = w.bounds[x], w.bounds[y]
    w.keep(w.b.op(name, x, y), growth(x.dtype) * a * c if name == "multiply" else a + c)


@_writer
def _compare_select(w: Writer) -> None:
    x = w.pick()
    y = w.pick(lambda v: v.type == x.type)
    which = w.b.op("compare", x, y, direction=w.draw(st.sampled_from(["EQ", "LT", "GE"])))
    if w.draw(st.booleans()):
        w.keep(which, 1)
        return
    other = w.pick(lambda v: v.shape == x.shape)
    second = w.pick(lambda v: v.type == other.type)
    w.keep(w.b.op("select", which, other, second), max(w.bounds[other], w.bounds[second]))


@_writer
def _clamp(w: Writer) -> None:
    x = w.pick()
    if x.dtype == pred:
        return
    low, high = (w.constant(n, TensorType((), x.dtype)) for n in (1, 2))
    w.keep(w.b.op("clamp", low, x, high), 2)


@_writer
def _convert(w: Writer) -> None:
    x = w.pick(any_value)
    dtype = w.draw(st.sampled_from([t for t in DTYPES.values() if t in w.choices.dtypes]))
    if not x.dtype.is_integer and dtype.kind == "unsigned":
        return
    bound = 1 if x.dtype == pred else 2**x.dtype.bits if x.dtype.is_integer else w.bounds[x]
    w.keep(w.b.op("convert", x, dtype=dtype), bound)


@_writer
def _constant(w: Writer) -> None:
    type = w.type()
    w.keep(w.constant(w.draw(st.integers(0, 3)), type), 3)


@_writer
def _iota(w: Writer) -> None:
    type = w.type()
    if type.rank and type.dtype != pred:
        w.keep(w.b.op("iota", type=type, dim=w.draw(st.integers(0, type.rank - 1))), max(type.shape))


@_writer
def _random_bits(w: Writer) -> None:
    key = w.b.op("constant", value=(w.draw(st.integers(0, 9)), 7), type=TensorType((2,), u32))
    w.keep(w.b.op("random_bits", key, type=w.type().with_dtype(u32)), 2**32)


@_writer
def _broadcast(w: Writer) -> None:
    x = w.pick(lambda v: v.type.rank <= 2) if w.has(lambda v: v.type.rank <= 2) else None
    if x is None:
        return
    rank = w.draw(st.integers(x.type.rank, 3))
    dims = sorted(w.draw(st.permutations(range(rank)))[: x.type.rank])
    shape = [w.draw(st.sampled_from(DIMS)) for _ in range(rank)]
    for n, d in zip(x.shape, dims, strict=True):
        shape[d] = n if n != 1 else shape[d]
    w.keep(w.b.op("broadcast_in_dim", x, shape=tuple(shape), dims=tuple(dims)), w.bounds[x])


@_writer
def _reshape(w: Writer) -> None:
    x = w.pick(any_value)
    shape = [1]
    for p in w.draw(st.permutations(prime_factors(x.type.size))):
        if len(shape) < 3 and w.draw(st.booleans()):
            shape.append(p)
        else:
            shape[-1] *= p
    w.keep(w.b.op("reshape", x, shape=tuple(shape)), w.bounds[x])


@_writer
def _transpose(w: Writer) -> None:
    x = w.pick(any_value)
    w.keep(w.b.op("transpose", x, perm=tuple(w.draw(st.permutations(range(x.type.rank))))), w.bounds[x])


@_writer
def _slice(w: Writer) -> None:
    x = w.pick(any_value)
    start, limit, stride = [], [], []
    for n in x.shape:
        whole = w.draw(st.booleans())
        start.append(0 if whole else w.draw(st.integers(0, n - 1)))
        limit.append(n if whole else w.draw(st.integers(start[-1] + 1, n)))
        stride.append(w.draw(st.integers(1, 2)))
    w.keep(w.b.op("slice", x, start=tuple(start), limit=tuple(limit), stride=tuple(stride)), w.bounds[x])


@_writer
def _pad(w: Writer) -> None:
    x = w.pick(any_value)
    fill = w.constant(1, TensorType((), x.dtype))
    low = tuple(w.draw(st.integers(-1 if n > 2 else 0, 1)) for n in x.shape)
    high = tuple(w.draw(st.integers(-1 if n > 2 else 0, 2)) for n in x.shape)
    interior = tuple(w.draw(st.integers(0, 1)) for _ in x.shape)
    w.keep(w.b.op("pad", x, fill, low=low, high=high, interior=interior), w.bounds[x] + 1)


@_writer
def _concatenate(w: Writer) -> None:
    x = w.pick(any_value)
    if not x.type.rank:
        return
    dim = w.draw(st.integers(0, x.type.rank - 1))
    y = w.pick(lambda v: v.type == x.type)
    w.keep(w.b.op("concatenate", x, y, dim=dim), max(w.bounds[x], w.bounds[y]))


@_writer
def _dynamic_slice(w: Writer) -> None:
    x = w.pick(any_value)
    starts = [w.constant(w.draw(st.integers(0, 2 * n)), TensorType((), s32)) for n in x.shape]
    sizes = tuple(w.draw(st.integers(1, n)) for n in x.shape)
    w.keep(w.b.op("dynamic_slice", x, *starts, sizes=sizes), w.bounds[x])


@_writer
def _dot_general(w: Writer) -> None:
    x = w.pick(any_value)
    if x.dtype == pred:
        return
    y = w.pick(lambda v: v.dtype == x.dtype)
    batch: list[tuple[int, int]] = []
    contract: list[tuple[int, int]] = []
    free = list(range(y.type.rank))
    for i, n in enumerate(x.shape):
        match = next((j for j in free if y.shape[j] == n), None)
        role = w.draw(st.sampled_from(["contract", "free", "batch"]))
        if match is None or role == "free":
            continue
        free.remove(match)
        (batch if role == "batch" else contract).append((i, match))
    if x.type.rank + len(free) - len(contract) > 4:
        return
    depth = int(np.prod([x.shape[i] for i, _ in contract], dtype=np.int64))
    result = w.b.op(
        "dot_general",
        x,
        y,
        lhs_batch=tuple(i for i, _ in batch),
        rhs_batch=tuple(j for _, j in batch),
        lhs_contract=tuple(i for i, _ in contract),
        rhs_contract=tuple(j for _, j in contract),
    )
    w.keep(result, growth(x.dtype) * w.bounds[x] * w.bounds[y] * depth)


@_writer
def _reduce(w: Writer) -> None:
    x = w.pick(any_value)
    dims = tuple(d for d in range(x.type.rank) if w.draw(st.booleans()))
    kinds = ["max", "min"] if x.dtype.is_ordered else []
    kinds += ["and", "or"] if x.dtype.is_integer or x.dtype == pred else []
    kinds += ["sum"] if x.dtype != pred else []
    kind = w.draw(st.sampled_from(kinds))
    bound = w.bounds[x] * int(np.prod([x.shape[d] for d in dims], dtype=np.int64))
    w.keep(w.b.op("reduce", x, dims=dims, kind=kind), bound if kind == "sum" else w.bounds[x])


@_writer
def _argmax(w: Writer) -> None:
    x = w.pick()
    if not x.type.rank:
        return
    dim = w.draw(st.integers(0, x.type.rank - 1))
    index = w.b.op("iota", type=x.type.with_dtype(s32), dim=dim)
    kind = w.draw(st.sampled_from(["argmax", "argmin"]))
    best, where = w.b.multi("reduce", x, index, dims=(dim,), kind=kind)
    w.keep(best, w.bounds[x])
    w.keep(where, x.shape[dim])


@_writer
def _cumsum(w: Writer) -> None:
    x = w.pick(any_value)
    if x.type.rank and x.dtype != pred:
        dim = w.draw(st.integers(0, x.type.rank - 1))
        w.keep(w.b.op("cumsum", x, dim=dim, reverse=w.draw(st.booleans())), w.bounds[x] * x.shape[dim])


@_writer
def _shard(w: Writer) -> None:
    x = w.pick(any_value)
    w.keep(w.b.op("shard", x, sharding=w.sharding(x.type)), w.bounds[x])


@_writer
def _barrier(w: Writer) -> None:
    x, y = w.pick(any_value), w.pick(any_value)
    for before, after in zip((x, y), w.b.multi("optimization_barrier", x, y), strict=True):
        w.keep(after, w.bounds[before])


@_writer
def _call(w: Writer) -> None:
    if w.helper is None:
        return
    operands: list[Value] = []
    for param in w.helper.function.params:
        fitting = [v for v in w.values if v.type == param.type and w.bounds[v] <= _INPUT_BOUND]
        if not fitting:
            return
        operands.append(w.draw(st.sampled_from(fitting)))
    types = [r.type for r in w.helper.function.results]
    results = w.b.append("call", operands, {"function": w.helper.function.name}, types=types)
    for value, bound in zip(results, w.helper.bounds, strict=True):
        w.keep(value, bound)


_WRITERS.extend((*random_control.WRITERS, *random_indexing.WRITERS, *random_numbers.WRITERS, *random_windows.WRITERS))

_LIKELY = (_dot_general, _reduce, _shard, _shard, _binary, _call)
"""Drawn twice as often as the others, or more."""
