"""Emits ops for expressions: literals, broadcasting, infix operators. Compositions are written with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from ir.builder import RegionBuilder
from ir.diagnostics import Span, error
from ir.literals import Flat, flattened
from ir.ops.creation import are_all_numbers_of, numbers_of
from ir.program import Attr, Region, Value
from ir.sharding import Sharding
from ir.types import DType, TensorType, f32, pred, s32
from spmdc.frontends.spmd.items import Item, Number, as_tensor, check_type, describe

Operand = Value | Number

_INFIX = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "&": "and", "|": "or", "^": "xor"}
COMPARISONS = {"<": "LT", "<=": "LE", ">": "GT", ">=": "GE", "==": "EQ", "!=": "NE"}
_LARGEST_PRODUCT = 8


class Emitter:
    """Appends ops to a region, each with the current name hint and source span.

    Operands are tensors or numbers; a number takes the other operand's element type. Shapes broadcast as in numpy.
    Errors are SpmdcErrors at `span`.
    """

    def __init__(self, builder: RegionBuilder, span: Span, hint: str = "", precision: DType | None = None) -> None:
        self.builder = builder
        self.span = span
        self.hint = hint
        self.precision = precision
        """The element type in which floats are computed, if the program specifies one."""

    def op(self, opname: str, *operands: Value, **attrs: Attr) -> Value:
        """Emits an op with one result."""
        (result,) = self.ops(opname, operands, attrs)
        return result

    def ops(
        self,
        opname: str,
        operands: Sequence[Value],
        attrs: dict[str, Attr],
        *,
        shardings: Sequence[Sharding] = (),
        span: Span | None = None,
        regions: tuple[Region, ...] = (),
        types: Sequence[TensorType] | None = None,
    ) -> tuple[Value, ...]:
        """Emits an op with any number of results. `types` has theirs if no type rule infers them."""
        names, span = (self.hint,) * max(len(operands) + 1, len(types or ())), span or self.span
        results = self.builder.append(
            opname, operands, attrs, names=names, shardings=shardings, span=span, regions=regions, types=types
        )
        for value in results:
            check_type(value.type, self.span)
        return results

    # Literals and shapes.

    def literal(self, value: Number, dtype: DType) -> Number:
        """The number as an element of that type. Raises SpmdcError (E201) if the type does not have it."""
        return as_element(value, dtype, self.span)

    def constant(self, value: Number, dtype: DType, shape: tuple[int, ...] = ()) -> Value:
        """A tensor filled with that number."""
        type = check_type(TensorType(shape, dtype), self.span)
        return self.op("constant", value=self.literal(value, dtype), type=type)

    def scalar_like(self, value: Operand, like: Value) -> Value:
        """A number as a scalar of the element type of `like`; a tensor unchanged."""
        return value if isinstance(value, Value) else self.constant(value, like.dtype)

    def full_like(self, value: Number, like: Value) -> Value:
        return self.constant(value, like.dtype, like.shape)

    def broadcast(self, x: Value, shape: tuple[int, ...], dims: Sequence[int]) -> Value:
        """`x` with its dim i as dim dims[i] of `shape`."""
        if x.shape == shape and tuple(dims) == tuple(range(len(shape))):
            return x
        check_type(x.type.with_shape(shape), self.span)
        return self.op("broadcast_in_dim", x, shape=shape, dims=tuple(dims))

    def broadcast_to(self, x: Value, shape: tuple[int, ...]) -> Value:
        """`x` with its dims as the last ones of `shape`."""
        return self.broadcast(x, shape, range(len(shape) - x.type.rank, len(shape)))

    def expand(self, x: Value, like: Value, removed: Sequence[int]) -> Value:
        """`x`, which lacks the dims `removed` of `like`, repeated along them."""
        kept = [d for d in range(like.type.rank) if d not in removed]
        return self.broadcast(x, like.shape, kept)

    def reshape(self, x: Value, shape: tuple[int, ...]) -> Value:
        return x if x.shape == shape else self.op("reshape", x, shape=shape)

    def convert(self, x: Value, dtype: DType) -> Value:
        return x if x.dtype == dtype else self.op("convert", x, dtype=dtype)

    # Precision.

    @property
    def floats(self) -> DType:
        """The default element type of floats."""
        return self.precision or f32

    def computed(self, x: Value) -> Value:
        """A tensor in the precision of arithmetic: floats are converted to the program's."""
        return self.convert(x, self.precision) if self.precision is not None and x.dtype.is_float else x

    def all_computed(self, operands: Sequence[Operand], *, compared: bool) -> Sequence[Operand]:
        """Operands in the precision of arithmetic. Tensors of one type that are compared are not converted."""
        if compared and len({v.dtype for v in operands if isinstance(v, Value)}) < 2:
            return operands
        return [self.computed(v) if isinstance(v, Value) else v for v in operands]

    def as_declared(self, x: Value, type: TensorType) -> Value:
        """A tensor converted to its written type: with a precision, floats are converted to the written element
        type."""
        are_floats = x.dtype.is_float and type.dtype.is_float
        return self.convert(x, type.dtype) if self.precision is not None and are_floats else x

    def iota_like(self, x: Value, dim: int) -> Value:
        return self.op("iota", type=x.type.with_dtype(s32), dim=dim)

    def reduce(self, x: Value, dims: Sequence[int], kind: str) -> Value:
        return self.op("reduce", x, dims=tuple(dims), kind=kind) if dims else x

    # Elementwise.

    def common_shape(self, operands: Sequence[Value]) -> tuple[int, ...]:
        """The shape to which all operands broadcast. Raises SpmdcError (E201)."""
        rank = max(v.type.rank for v in operands)
        shape = [1] * rank
        for v in operands:
            for d, n in enumerate(v.shape, start=rank - v.type.rank):
                if n != 1 and shape[d] not in (1, n):
                    shown = " and ".join(str(o.type) for o in operands)
                    message = f"the shapes of {shown} do not broadcast: dim {d - rank} has sizes {shape[d]} and {n}"
                    help = "dims are aligned from the last; expand_dims(x, dim) inserts one of size 1"
                    raise error("E201", message, self.span, help=help)
                shape[d] = n if n != 1 else shape[d]
        return tuple(shape)

    def aligned(self, *operands: Operand) -> tuple[Value, ...]:
        """The operands as tensors of one shape; numbers take the first tensor's element type."""
        tensors = [v for v in operands if isinstance(v, Value)]
        if not tensors:
            raise error("E207", "one of the operands must be a tensor", self.span)
        dtype, shape = tensors[0].dtype, self.common_shape(tensors)
        return tuple(
            self.broadcast_to(v, shape) if isinstance(v, Value) else self.constant(v, dtype, shape) for v in operands
        )

    def binary(self, opname: str, a: Operand, b: Operand) -> Value:
        """An elementwise op of two operands."""
        return self.op(opname, *self.aligned(a, b))

    def compare(self, a: Operand, b: Operand, direction: str) -> Value:
        return self.op("compare", *self.aligned(a, b), direction=direction)

    def select(self, which: Value, on_true: Operand, on_false: Operand) -> Value:
        """Elementwise choice; the condition broadcasts too."""
        if not isinstance(on_true, Value) and not isinstance(on_false, Value):
            help_text = f"a number has the type of the other branch, and {as_tensor(on_true)} is a tensor"
            raise error("E207", "one of the branches must be a tensor", self.span, help=help_text)
        tensors = [v for v in (which, on_true, on_false) if isinstance(v, Value)]
        shape = self.common_shape(tensors)
        dtype = next(v.dtype for v in (on_true, on_false) if isinstance(v, Value))
        branches = [
            self.broadcast_to(v, shape) if isinstance(v, Value) else self.constant(v, dtype, shape)
            for v in (on_true, on_false)
        ]
        return self.op("select", which if not which.type.rank else self.broadcast_to(which, shape), *branches)

    def infix(self, op: str, a: Operand, b: Operand) -> Value:
        """`a op b` for tensors: `//` and `%` round towards negative infinity, as in Python."""
        if op in COMPARISONS:
            return self.compare(a, b, COMPARISONS[op])
        if op in _INFIX:
            return self.binary(_INFIX[op], a, b)
        if op == "**":
            return self.power(a, b)
        x, y = self.aligned(a, b)
        return self.floor_divide(x, y) if op == "//" else self.floor_remainder(x, y)

    def power(self, a: Operand, b: Operand) -> Value:
        small = isinstance(b, int) and not isinstance(b, bool) and 1 <= b <= _LARGEST_PRODUCT
        if not (isinstance(a, Value) and small):
            return self.binary("power", a, b)
        assert isinstance(b, int)
        result: Value | None = None
        square, rest = a, b
        while rest:
            if rest & 1:
                result = square if result is None else self.op("multiply", result, square)
            rest >>= 1
            square = self.op("multiply", square, square) if rest else square
        assert result is not None
        return result

    def floor_divide(self, x: Value, y: Value) -> Value:
        quotient = self.op("divide", x, y)
        if x.dtype.is_float:
            return self.op("floor", quotient)
        if x.dtype.kind == "unsigned":
            return quotient
        inexact = self.compare(self.op("multiply", quotient, y), x, "NE")
        mixed = self._signs_differ(x, y)
        return self.select(self.op("and", inexact, mixed), self.binary("subtract", quotient, 1), quotient)

    def floor_remainder(self, x: Value, y: Value) -> Value:
        rest = self.op("remainder", x, y)
        if x.dtype.kind == "unsigned":
            return rest
        wrong = self.op("and", self.compare(rest, 0, "NE"), self._signs_differ(rest, y))
        return self.select(wrong, self.op("add", rest, y), rest)

    def _signs_differ(self, x: Value, y: Value) -> Value:
        return self.op("xor", self.compare(x, 0, "LT"), self.compare(y, 0, "LT"))

    def prefix(self, op: str, a: Value) -> Value:
        return self.op("negate" if op == "-" else "not", a)

    def tensor(self, item: Item, type: TensorType | None = None) -> Value:
        """An item as a tensor: a number as a scalar s32, f32 or pred, or broadcast to `type` if that is given."""
        if isinstance(item, Value):
            return item
        if isinstance(item, tuple):
            return self._array(item, type)
        if isinstance(item, int | float):
            if type is not None:
                return self.constant(item, type.dtype, type.shape)
            return self.constant(item, default_dtype(item))
        raise error("E207", f"a tensor is needed here, and this is {describe(item)}", self.span)

    def _array(self, items: tuple[Item, ...], type: TensorType | None) -> Value:
        literal = flattened(items)
        if not all(issubclass(kind, int | float) for kind in literal.kinds):
            message = "a list of numbers is needed here"
            raise error("E207", message, self.span, help="concatenate and stack join tensors")
        if literal.shape is None:
            raise error("E201", "the rows of the list have different lengths", self.span)
        floats = float in literal.kinds or not literal.numbers
        dtype = type.dtype if type is not None else default_dtype(0.0 if floats else literal.numbers[0])
        value = self._typed(items, literal, dtype)
        return self.op("constant", value=value, type=check_type(TensorType(literal.shape, dtype), self.span))

    def _typed(self, items: tuple[Item, ...], literal: Flat, dtype: DType) -> tuple[Attr, ...]:
        """Nested numbers converted to the element type. Raises SpmdcError (E201) if the type lacks one."""
        made: Callable[[Any], Number] = float if dtype.is_continuous else bool if dtype == pred else int
        alike = literal.kinds in ({made}, {bool if dtype == pred else int})
        if not (alike and are_all_numbers_of(literal, dtype)):
            for number in literal.numbers:
                self.literal(number, dtype)
        return cast("tuple[Attr, ...]", items) if literal.kinds == {made} else _each(items, made)


def default_dtype(value: Number) -> DType:
    """The default element type of a number: f32, s32 or pred."""
    if isinstance(value, bool):
        return pred
    return s32 if isinstance(value, int) else f32


def _each(items: tuple[Any, ...], made: Callable[[Any], Number]) -> tuple[Any, ...]:
    """Nested numbers converted to that Python type."""
    if any(isinstance(i, tuple) for i in items[:1]):
        return tuple(_each(row, made) for row in items)
    return tuple(map(made, items))


def as_element(value: Number, dtype: DType, span: Span) -> Number:
    """The number as an element of that type. Raises SpmdcError (E201) if the type does not have it."""
    problem = literal_problem(value, dtype)
    if problem:
        raise error("E201", problem, span, help=_literal_help(value, dtype))
    if dtype.is_continuous:
        return float(value)
    return bool(value) if dtype == pred else int(value)


def _literal_help(value: Number, dtype: DType) -> str:
    """What to write instead of a number that the type does not have."""
    if dtype == pred or isinstance(value, bool):
        return "write true or false" if dtype == pred else f"write {int(value)}"
    if dtype.is_float:
        return numbers_of(dtype)
    if isinstance(value, int):
        return f"{dtype} holds {dtype.lowest} to {dtype.highest}"
    return f"convert(x, dtype=f32) makes a tensor of floats; {dtype} takes integers"


def literal_problem(value: Number, dtype: DType) -> str:
    """Why the type does not have a number; empty if it does."""
    if dtype == pred:
        return "" if isinstance(value, bool) else f"{value} is no truth value, and the elements are pred"
    if isinstance(value, bool):
        return f"{'true' if value else 'false'} is no number, and the elements are {dtype}"
    if dtype.is_float:
        return "" if dtype.format.holds(value) else f"{dtype} has no {value}"
    if dtype.is_complex:
        return ""
    if isinstance(value, float):
        return f"{value} is a float, and the elements are {dtype}"
    assert isinstance(dtype.lowest, int)
    assert isinstance(dtype.highest, int)
    return "" if dtype.lowest <= value <= dtype.highest else f"{value} does not fit {dtype}"
