"""The context of a converter: the values of the current function, and a builder to which ops are appended.

A converter turns one MLIR op into ops of the program. It is registered under the op's name without its dialect, because
StableHLO, CHLO and MHLO mean the same by the same names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from jaxlib.mlir import ir as mlir

from ir.builder import RegionBuilder
from ir.diagnostics import InternalError, Span, SpmdcError, error
from ir.manual import Manual
from ir.program import Attr, Function, Region, Value
from ir.registry import Registry
from ir.types import TensorType
from spmdc.frontends.stablehlo.attributes import is_token, is_token_type
from spmdc.frontends.stablehlo.effects import Effects
from spmdc.frontends.stablehlo.locations import Locations
from spmdc.frontends.stablehlo.shardings import Shardings

Bound: TypeAlias = "Value | tuple[Bound, ...]"
"""What an MLIR value is bound to: a value, or, for an HLO tuple, several."""

AnyValue: TypeAlias = "mlir.Value[Any]"

Number = bool | int | float | complex


class PoisonedError(Exception):
    """An operand is the result of an op with an error, which has been reported."""


class Module(Protocol):
    """What a converter needs of the module that its op is in."""

    locations: Locations
    shardings: Shardings
    effects: Effects
    sources: dict[str, mlir.Operation]
    """The functions of the module, as MLIR ops."""
    functions: dict[str, Function]
    """The imported functions, and those that were made for their ops."""
    elementwise: dict[tuple[str, ...], str]
    """The functions of scalars for elementwise ops, by op and element types."""
    group_shapes: dict[int, tuple[int, ...]]
    """The shape of the tensors of each sharding group."""
    replicas: int
    """The number of replicas of all partitions, if the module is partitioned manually."""
    draws: int
    """The number of random states that its ops begin with so far."""
    kept: list[mlir.Module]
    """Modules that must live as long as this one."""
    in_simpler_ops: Callable[[mlir.Module], mlir.Module]
    """Converts CHLO ops to StableHLO ops. Raises NoSimplerFormError."""

    def type(self, type: mlir.Type, span: Span | None) -> TensorType:
        """The program's type for an MLIR type. Raises SpmdcError (E703, E704, E706)."""

    def called(self, function: str, manual: Manual, span: Span | None) -> str:
        """The name in the program of a function of the module that is called at `span`, and is imported therefore."""

    def fresh_function(self, hint: str) -> str:
        """A new name for a function."""

    def block(self, block: mlir.Block, scope: Scope) -> list[Value]:
        """Converts the block's ops. Returns the block's results, with tuples flattened; raises PoisonedError if they
        have errors."""

    def region(self, region: mlir.Region, scope: Scope, bound: Sequence[Bound]) -> Region:
        """A region of an op, in its own scope, with bound arguments. Raises PoisonedError if it has errors."""

    def convert(self, op: mlir.Operation, scope: Scope) -> None:
        """Appends the ops for an MLIR op, and binds its results. Reports its errors."""


@dataclass
class Scope:
    """One region of a function under construction. All regions of a function share `values` and `numbers`.

    `numbers` has the values whose elements all equal one known number.
    """

    module: Module
    builder: RegionBuilder
    values: dict[AnyValue, Bound] = field(default_factory=dict["AnyValue", Bound])
    numbers: dict[Value, Number] = field(default_factory=dict[Value, Number])
    fallback: Span | None = None
    """The location of ops that have none."""
    manual: frozenset[str] = frozenset()
    """The axes that are manual here."""
    positions: dict[Value, int] = field(default_factory=dict[Value, int])
    """Values that are a device's number, divided by these strides."""
    by_device: dict[Value, tuple[int, ...]] = field(default_factory=dict[Value, "tuple[int, ...]"])
    """Integers that are computed from a device's number only: one for each position on the manual axes."""
    lists: dict[Value, tuple[int, ...]] = field(default_factory=dict[Value, "tuple[int, ...]"])
    """The constants that are lists of integers, in manual regions."""
    narrowed: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """The s32 values that some u32 values equal."""
    token: Value | None = None
    """The token that the next effect takes, in functions with effects."""
    repeats: bool = False
    """Whether ops here may run several times."""
    handed: list[tuple[str, Value]] | None = None
    """The values that the program sends to the host, in order, each with a name, if ops here run exactly once, in the
    program's entry."""
    scalars: dict[tuple[str, TensorType], Value] = field(default_factory=dict[tuple[str, TensorType], Value])
    """The constants of this region that are scalars, by the spelling of their number."""

    def inner(self) -> Scope:
        """The scope of a region inside this one."""
        builder = RegionBuilder(self.builder.names)
        shared = (self.fallback, self.manual, self.positions, self.by_device, self.lists, self.narrowed)
        inner = Scope(self.module, builder, self.values, self.numbers, *shared, self.token, self.repeats)
        inner.builder.span = self.builder.span
        return inner

    def bound(self, value: AnyValue) -> Bound:
        """The value that an MLIR value is bound to. Raises PoisonedError if its op has an error."""
        found = self.values.get(value)
        if found is None:
            raise PoisonedError
        return found

    def operand(self, value: AnyValue) -> Value:
        found = self.bound(value)
        if not isinstance(found, Value):
            raise error(
                "E702",
                "a tuple is used where a tensor is expected",
                self.builder.span,
                help="take an element of it: stablehlo.get_tuple_element",
            )
        return found

    def operands(self, op: mlir.Operation) -> list[Value]:
        """The operands that are tensors. The module's tokens are ignored: see `token`."""
        given = list(op.operands)
        found = [value for value in map(self.values.get, given) if isinstance(value, Value)]
        return found if len(found) == len(given) else [self.operand(v) for v in given if not is_token(v)]

    def tokens(self, has_effects: bool = True) -> list[Value]:
        """The token, for ops with effects; nothing for others."""
        if not has_effects:
            return []
        if self.token is None:
            raise InternalError("an effect where no token was led to")
        return [self.token]

    def type(self, value: AnyValue) -> TensorType:
        """The type of an MLIR value."""
        return self.module.type(value.type, self.builder.span)

    def result_types(self, op: mlir.Operation) -> list[TensorType]:
        """The types of the op's results, those of a tuple one by one."""
        return self.types([v.type for v in op.results])

    def types(self, given: Iterable[mlir.Type]) -> list[TensorType]:
        """The types of tensors among MLIR types, those of a tuple one by one."""
        span, found = self.builder.span, list[TensorType]()
        for type in given:
            if isinstance(type, mlir.RankedTensorType):
                found.append(self.module.type(type, span))
            elif not is_token_type(type):
                found.extend(self.module.type(leaf, span) for leaf in _leaf_types(type))
        return found

    def emit(self, opname: str, *operands: Value, **attrs: Attr) -> Value:
        """Appends an op of one result."""
        return self.builder.append(opname, operands, attrs)[0]

    def emit_all(self, opname: str, *operands: Value, **attrs: Attr) -> list[Bound]:
        """Appends an op."""
        return list(self.builder.append(opname, operands, attrs))

    def append(
        self, opname: str, operands: Sequence[Value], attrs: dict[str, Attr], types: Sequence[TensorType],
        regions: tuple[Region, ...] = (),
    ) -> tuple[Value, ...]:  # fmt: skip
        """Appends an op with regions, or with types that no rule infers."""
        return self.builder.append(opname, operands, attrs, types=types, regions=regions)

    def full(self, number: Number, type: TensorType) -> Value:
        """A tensor filled with one number."""
        value = self.emit("constant", value=number, type=type)
        self.numbers[value] = number
        return value

    def once(self, value: Value) -> Value:
        """The value, or the earlier constant of this region that it equals, if it is the last op's and a scalar. JAX
        writes a constant for each use."""
        op = self.builder.ops[-1] if self.builder.ops else None
        if op is None or op.name != "constant" or op.results != (value,) or value.type.rank:
            return value
        known = self.scalars.setdefault((repr(op.attrs["value"]), value.type), value)
        if known is not value:
            self.builder.ops.pop()
        return known

    def zeros(self, type: TensorType) -> Value:
        """A tensor of zeros, or of what is not true."""
        return self.full(False if type.dtype.kind == "pred" else 0, type)

    def number(self, value: Value) -> Number | None:
        """The number that every element of the value equals, if known."""
        return self.numbers.get(value)

    def copy_facts(self, value: Value, copy: Value) -> None:
        """Gives a copy the facts that are known about a value."""
        known: tuple[dict[Value, Any], ...] = self.numbers, self.positions, self.by_device, self.lists, self.narrowed
        for facts in known:
            if value in facts:
                facts[copy] = facts[value]

    def transposed(self, value: Value, perm: tuple[int, ...]) -> Value:
        """The value with its dims in that order."""
        return value if perm == tuple(range(len(perm))) else self.emit("transpose", value, perm=perm)

    def broadcast(self, value: Value, type: TensorType) -> Value:
        """A scalar broadcast to a tensor type."""
        number = self.number(value)
        if value.type == type:
            return value
        if number is not None:
            return self.full(number, type)
        return self.emit("broadcast_in_dim", value, shape=type.shape, dims=())

    def refuse(self, op: mlir.Operation, why: str, *, code: str = "E702", help: str = "") -> SpmdcError:
        """The error for an op that cannot be imported, to be raised by the caller."""
        return error(code, f"{op.name}: {why}", self.builder.span, help=help)


def _leaf_types(type: mlir.Type) -> list[mlir.Type]:
    if not isinstance(type, mlir.TupleType):
        return [type]
    return [leaf for i in range(type.num_types) for leaf in _leaf_types(type.get_type(i))]


Converter = Callable[[mlir.Operation, Scope], "Bound | list[Bound]"]
"""Appends ops that compute the op's results, and returns the value of its only result, or a list with those of all."""

CONVERTERS: Registry[Converter] = Registry()

converts = CONVERTERS.of
"""Registers a converter for the MLIR ops of these names, given without dialect."""
