"""What a converter works with: the values of the function at hand, and a builder to which ops are appended.

A converter turns one MLIR op into ops of ours. It is registered under the op's name without its dialect, for StableHLO,
CHLO and MHLO mean the same by the same names.
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
"""What an MLIR value stands for: a value, or, of an HLO tuple, several."""

AnyValue: TypeAlias = "mlir.Value[Any]"

Number = bool | int | float | complex


class PoisonedError(Exception):
    """An operand is the result of an op with an error, which has been reported."""


class Module(Protocol):
    """What a converter may ask of the module whose op it is given."""

    locations: Locations
    shardings: Shardings
    effects: Effects
    sources: dict[str, mlir.Operation]
    """The functions of the module as they are written."""
    functions: dict[str, Function]
    """Those that are imported so far, and those that ops of theirs have become."""
    elementwise: dict[tuple[str, ...], str]
    """The functions of scalars that ops of elements have become, by op and element types."""
    group_shapes: dict[int, tuple[int, ...]]
    """The shape of the tensors of each sharding group."""
    replicas: int
    """How many copies of all its partitions run, of a module that is partitioned by hand."""
    draws: int
    """How many states of random numbers its ops begin with so far."""
    kept: list[mlir.Module]
    """Modules that must live as long as this one."""
    in_simpler_ops: Callable[[mlir.Module], mlir.Module]
    """Writes ops of CHLO in those of StableHLO. Raises NoSimplerFormError."""

    def type(self, type: mlir.Type, span: Span | None) -> TensorType:
        """The type that an MLIR type is here. Raises SpmdcError (E703, E704, E706)."""

    def called(self, function: str, manual: Manual, span: Span | None) -> str:
        """The name here of a function of the module that is called at `span`, and therefore imported."""

    def fresh_function(self, hint: str) -> str:
        """A name that no function has yet."""

    def block(self, block: mlir.Block, scope: Scope) -> list[Value]:
        """Converts the block's ops. Returns what it returns, tuples flattened; raises PoisonedError if that has an
        error."""

    def region(self, region: mlir.Region, scope: Scope, bound: Sequence[Bound]) -> Region:
        """A region of an op, in a scope of its own, its arguments bound. Raises PoisonedError if it has errors."""

    def convert(self, op: mlir.Operation, scope: Scope) -> None:
        """Appends what an op is here, and binds its results. Reports what is wrong with it."""


@dataclass
class Transfers:
    """What the program hands to the host, in order, each with a name for it."""

    handed: list[tuple[str, Value]] = field(default_factory=list[tuple[str, Value]])


@dataclass
class Scope:
    """One region of a function in the making. All regions of a function share `values` and `numbers`.

    `numbers` has the values whose elements are all one known number.
    """

    module: Module
    builder: RegionBuilder
    values: dict[AnyValue, Bound] = field(default_factory=dict["AnyValue", Bound])
    numbers: dict[Value, Number] = field(default_factory=dict[Value, Number])
    fallback: Span | None = None
    """Where ops come from that do not say it."""
    manual: frozenset[str] = frozenset()
    """The axes that are manual here."""
    positions: dict[Value, int] = field(default_factory=dict[Value, int])
    """The values that are a device's number, divided by so much."""
    by_device: dict[Value, tuple[int, ...]] = field(default_factory=dict[Value, "tuple[int, ...]"])
    """The integers that are computed of a device's number alone: one for each position on the manual axes."""
    lists: dict[Value, tuple[int, ...]] = field(default_factory=dict[Value, "tuple[int, ...]"])
    """The constants that are lists of integers, in manual regions."""
    narrowed: dict[Value, Value] = field(default_factory=dict[Value, Value])
    """The s32 values that some u32 ones are."""
    token: Value | None = None
    """What the next effect follows, in functions that have effects."""
    repeats: bool = False
    """Whether what stands here may run several times."""
    transfers: Transfers | None = None
    """Those of the program, where what stands here runs once and for the program as a whole."""

    def inner(self) -> Scope:
        """The scope of a region inside this one."""
        builder = RegionBuilder(self.builder.names)
        shared = (self.fallback, self.manual, self.positions, self.by_device, self.lists, self.narrowed)
        inner = Scope(self.module, builder, self.values, self.numbers, *shared, self.token, self.repeats)
        inner.builder.span = self.builder.span
        return inner

    def bound(self, value: AnyValue) -> Bound:
        """What the MLIR value stands for. Raises PoisonedError if it is that of an op with an error."""
        found = self.values.get(value)
        if found is None:
            raise PoisonedError
        return found

    def operand(self, value: AnyValue) -> Value:
        found = self.bound(value)
        if not isinstance(found, Value):
            raise error("E702", "a tuple is used where a tensor is expected", self.builder.span)
        return found

    def operands(self, op: mlir.Operation) -> list[Value]:
        """The operands that are tensors. Tokens of the module's are left aside: see `token`."""
        given = list(op.operands)
        found = [value for value in map(self.values.get, given) if isinstance(value, Value)]
        return found if len(found) == len(given) else [self.operand(v) for v in given if not is_token(v)]

    def tokens(self, has_effects: bool = True) -> list[Value]:
        """The token, for what has effects; nothing for other ops."""
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
        """Appends an op with regions, or whose types follow from a function."""
        return self.builder.append(opname, operands, attrs, types=types, regions=regions)

    def full(self, number: Number, type: TensorType) -> Value:
        """A tensor of one number."""
        value = self.emit("constant", value=number, type=type)
        self.numbers[value] = number
        return value

    def number(self, value: Value) -> Number | None:
        """The number that every element of the value is, if that is known."""
        return self.numbers.get(value)

    def copy_facts(self, value: Value, copy: Value) -> None:
        """What is known about a value holds for its copy."""
        known: tuple[dict[Value, Any], ...] = self.numbers, self.positions, self.by_device, self.lists, self.narrowed
        for facts in known:
            if value in facts:
                facts[copy] = facts[value]

    def transposed(self, value: Value, perm: tuple[int, ...]) -> Value:
        """The value with its dims in that order."""
        return value if perm == tuple(range(len(perm))) else self.emit("transpose", value, perm=perm)

    def broadcast(self, value: Value, type: TensorType) -> Value:
        """A scalar in every place of a tensor."""
        number = self.number(value)
        if value.type == type:
            return value
        if number is not None:
            return self.full(number, type)
        return self.emit("broadcast_in_dim", value, shape=type.shape, dims=())

    def refuse(self, op: mlir.Operation, why: str, *, code: str = "E702", help: str = "") -> SpmdcError:
        """The error that an op cannot be imported, to be raised."""
        return error(code, f"{op.name}: {why}", self.builder.span, help=help)


def _leaf_types(type: mlir.Type) -> list[mlir.Type]:
    if not isinstance(type, mlir.TupleType):
        return [type]
    return [leaf for i in range(type.num_types) for leaf in _leaf_types(type.get_type(i))]


Converter = Callable[[mlir.Operation, Scope], "Bound | list[Bound]"]
"""Appends ops that compute the op's results, and returns what its only result stands for, or what each does."""

CONVERTERS: Registry[Converter] = Registry()

converts = CONVERTERS.of
"""Registers a converter for the MLIR ops of these names, given without dialect."""
