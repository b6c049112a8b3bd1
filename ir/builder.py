"""Builds functions op by op: infers types, names values, and reports errors in an op at once."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ir.causes import Cause
from ir.diagnostics import Span, SpmdcError, error
from ir.ops import OPS, AttrDef, OpDef, TypeRuleError
from ir.program import Attr, Function, Op, Region, Result, Value, values_within
from ir.sharding import Sharding
from ir.types import TensorType


@dataclass
class Names:
    """Hands out names that are unique in one function: `h`, then `h.1`, `h.2`, …

    Names made over a `base` avoid the base's names without copying or changing it.
    """

    used: set[str] = field(default_factory=set[str])
    counters: dict[str, int] = field(default_factory=dict[str, int])
    base: Names | None = None

    @staticmethod
    def beside(*functions: Function) -> Names:
        """Names that no value of these functions has."""
        return Names({v.name for function in functions for v in values_within(function.body)})

    def fresh(self, hint: str) -> str:
        """`hint` if it is free, else its next numbered variant."""
        used, base = self.used, self.base
        if hint not in used and (base is None or not base._is_used(hint)):
            used.add(hint)
            return hint
        stem = hint if hint in self.counters else _stem_of(hint)
        count = self._count(stem) + 1
        while (name := f"{stem}.{count}") in used or (base is not None and base._is_used(name)):
            count += 1
        self.counters[stem] = count
        used.add(name)
        return name

    def take(self, names: Names) -> None:
        """Adds the names that were made over these to these."""
        self.used |= names.used
        self.counters |= names.counters

    def _is_used(self, name: str) -> bool:
        return name in self.used or (self.base is not None and self.base._is_used(name))

    def _count(self, stem: str) -> int:
        count = self.counters.get(stem)
        return count if count is not None else self.base._count(stem) if self.base is not None else 0


def _stem_of(hint: str) -> str:
    """The name without its number: `h` for `h.2` and for `h`."""
    stem, _, number = hint.rpartition(".")
    return stem if stem and number.isdigit() else hint


class RegionBuilder:
    """Appends ops to one region. Regions nested in a function share its `names`.

    Ops that are built without a span or cause of their own get `span` and `cause`.
    """

    def __init__(self, names: Names | None = None, *, span: Span | None = None, cause: Cause | None = None) -> None:
        self.names = names if names is not None else Names()
        self.params: list[Value] = []
        self.ops: list[Op] = []
        self.constants: MutableMapping[Value, Attr] = {}
        """The values of the constants in this region."""
        self.undefined: set[Value] = set()
        """The values of which any elements will do."""
        self.span = span
        self.cause = cause

    @contextmanager
    def at(self, span: Span | None, cause: Cause | None) -> Iterator[None]:
        """A context in which ops get that span and cause; after it they get the previous ones."""
        before = self.span, self.cause
        self.span, self.cause = span, cause
        try:
            yield
        finally:
            self.span, self.cause = before

    def param(
        self,
        name: str,
        type: TensorType,
        sharding: Sharding | None = None,
        *,
        span: Span | None = None,
        of: TensorType | None = None,
        is_taken: bool = False,
    ) -> Value:
        """Adds a parameter. If it `is_taken`, the name is reserved for it already, and is used as it is."""
        value = Value(name if is_taken else self.names.fresh(name), type, sharding, span or self.span, of)
        self.params.append(value)
        return value

    def op(
        self,
        opname: str,
        *operands: Value,
        name: str = "",
        sharding: Sharding | None = None,
        span: Span | None = None,
        cause: Cause | None = None,
        **attrs: Attr,
    ) -> Value:
        """Appends an op with one result and returns the result. Raises SpmdcError if the op's type rule rejects it."""
        (result,) = self.multi(opname, *operands, names=(name,), shardings=(sharding,), span=span, cause=cause, **attrs)
        return result

    def multi(
        self,
        opname: str,
        *operands: Value,
        names: Sequence[str] = (),
        shardings: Sequence[Sharding | None] = (),
        span: Span | None = None,
        cause: Cause | None = None,
        **attrs: Attr,
    ) -> tuple[Value, ...]:
        """Appends an op with any number of results. Raises SpmdcError if the op's type rule rejects it."""
        return self.append(opname, operands, attrs, names=names, shardings=shardings, span=span, cause=cause)

    def append(
        self,
        opname: str,
        operands: Sequence[Value],
        attrs: dict[str, Attr],
        *,
        names: Sequence[str] = (),
        shardings: Sequence[Sharding | None] = (),
        span: Span | None = None,
        cause: Cause | None = None,
        regions: tuple[Region, ...] = (),
        types: Sequence[TensorType] | None = None,
    ) -> tuple[Value, ...]:
        """Appends an op with regions and result types. `types` is needed where no type rule infers them (call)."""
        span = span or self.span
        inferred = types if types is not None else infer_types(opname, [v.type for v in operands], attrs, span)
        fresh = self.names.fresh
        if names or shardings:
            hints = [name or opname for name in (*names, *[""] * (len(inferred) - len(names)))]
            placed = (*shardings, *[None] * (len(inferred) - len(shardings)))
            results = tuple([Value(fresh(n), t, s, span) for n, t, s in zip(hints, inferred, placed, strict=False)])
        else:
            results = tuple([Value(fresh(opname), t, None, span) for t in inferred])
        self.ops.append(Op(opname, tuple(operands), results, attrs, regions, span, cause or self.cause))
        if opname == "constant":
            self.constants[results[0]] = attrs["value"]
        elif opname == "undefined":
            self.undefined.update(results)
        return results

    def in_place_of(self, op: Op) -> Sequence[Op]:
        """The ops so far, of which the last makes the results of `op` instead of its own."""
        return (*self.ops[:-1], replace(self.ops[-1], results=op.results))

    def region(self, *results: Value) -> Region:
        """The finished region."""
        return Region(tuple(self.params), tuple(self.ops), results)

    def function(
        self, name: str, results: Sequence[Value], declared: Sequence[Result] = (), *, span: Span | None = None
    ) -> Function:
        """The finished function. Without `declared`, its results have the names and shardings of the values."""
        signature = tuple(declared) or tuple(Result(v.name, v.type, v.sharding, span=v.span) for v in results)
        return Function(name, self.region(*results), signature, span)


def infer_types(
    opname: str, operands: Sequence[TensorType], attrs: dict[str, Attr], span: Span | None = None
) -> Sequence[TensorType]:
    """The result types of an op. Raises SpmdcError (E103, E201, E203) if there is no such op, or its type rule rejects
    it."""
    opdef = OPS.get(opname)
    if opdef is None:
        raise error("E103", f"there is no op {opname!r}", span, help="docs/ops.md lists the ops")
    if opdef.operands is not None and len(operands) != opdef.operands:
        message = f"{opname} takes {opdef.operands} operands, and is given {len(operands)}"
        raise error("E203", message, span, help=str(opdef))
    for attr in opdef.attrs:
        if attr.name not in attrs:
            if attr.required:
                raise _lacking(opdef, [a for a in opdef.attrs if a.required and a.name not in attrs], span)
            attrs[attr.name] = attr.default
        elif attr.choices and attrs[attr.name] not in attr.choices:
            help_text = f"it is one of {', '.join(attr.choices)}"
            raise error("E203", f"{opname}: {attr.name} is {attrs[attr.name]!r}", span, help=help_text)
    # All attributes of the op are present by now.
    for extra in attrs.keys() - {a.name for a in opdef.attrs} if len(attrs) > len(opdef.attrs) else ():
        known = ", ".join(a.name for a in opdef.attrs) or "none"
        raise error("E203", f"{opname} has no attribute {extra!r}", span, help=f"its attributes: {known}")
    try:
        return opdef.infer(operands, attrs)
    except TypeRuleError as e:
        raise error("E201", f"{opname}: {e.message}", span, help=e.help or str(opdef)) from None


def _lacking(opdef: OpDef, missing: Sequence[AttrDef], span: Span | None) -> SpmdcError:
    """The error for an op without some of its attributes."""
    names = ", ".join(repr(attr.name) for attr in missing)
    choices = [f"{attr.name} is one of {', '.join(attr.choices)}" for attr in missing if attr.choices]
    message = f"{opdef.name} needs the attribute{'s' * (len(missing) > 1)} {names}"
    return error("E203", message, span, help="; ".join([str(opdef), *choices]))
