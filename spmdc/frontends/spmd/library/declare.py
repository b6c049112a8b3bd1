"""How compositions are declared: a Python function whose signature is the composition's signature.

The annotation of each parameter specifies its kind: `Value` is a tensor, `Operand` a tensor or a number, `Values` a
list of tensors, `int`, `Ints`, `float`, `bool`, `DType`, `TensorType`, `str`, `Item` anything. A parameter with
`| None` may be omitted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import UnionType
from typing import Any

from ir.diagnostics import Span, SpmdcError, error
from ir.program import Value
from ir.types import DType, TensorType
from spmdc.frontends.spmd.foreign_names import instead_of_argument, instead_of_reduction
from spmdc.frontends.spmd.items import Item, Several, describe, expect_int, expect_ints, expect_value, suggest
from spmdc.frontends.spmd.library.emitter import Emitter
from spmdc.frontends.spmd.syntax import nodes as s

Expand = Callable[..., Item]
Values = tuple[Value, ...]
Ints = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ParamRule:
    """One parameter of a composition."""

    name: str
    kind: str
    optional: bool


@dataclass(frozen=True, slots=True)
class Composition:
    """A named composition. `expand` takes an emitter, then the arguments by name. One that `computes` does so in the
    program's precision; others move, choose, make or convert elements."""

    name: str
    params: tuple[ParamRule, ...]
    expand: Expand
    computes: bool

    def __str__(self) -> str:
        shown = ", ".join(f"[{p.name}]" if p.optional else p.name for p in self.params)
        return f"{self.name}({shown})"


COMPOSITIONS: dict[str, Composition] = {}
"""Every composition, by name."""


def composition(*aliases: str, computes: bool = True) -> Callable[[Expand], Expand]:
    """Declares a composition under its function's name, less a trailing underscore, and under aliases."""

    def decorate(function: Expand) -> Expand:
        for name in (function.__name__.rstrip("_"), *aliases):
            declare(name, function, computes=computes)
        return function

    return decorate


def declare(name: str, function: Expand, *, computes: bool = True) -> None:
    """Declares a composition. Its parameters are the function's, except the emitter and keyword-only ones."""
    assert name not in COMPOSITIONS, name
    rules = tuple(
        ParamRule(p.name, str(p.annotation).removesuffix(" | None"), p.default is not p.empty)
        for p in list(inspect.signature(function).parameters.values())[1:]
        if p.kind is not p.KEYWORD_ONLY
    )
    COMPOSITIONS[name] = Composition(name, rules, function, computes)


def expand_composition(
    emitter: Emitter, definition: Composition, items: Sequence[Item], keywords: Mapping[str, Item], node: s.Call
) -> Item:
    """Binds the arguments and expands. Raises SpmdcError (E203, E207, and what its ops refuse)."""
    params = definition.params
    if len(items) > len(params):
        message = f"{definition.name} takes {len(params)} arguments, and is given {len(items)}"
        raise error("E203", message, node.span, help=str(definition))
    places = {p.name: (item, arg.span) for p, item, arg in zip(params, items, node.args, strict=False)}
    for keyword in node.keywords:
        if keyword.name not in {p.name for p in params}:
            names = [p.name for p in params]
            hint = instead_of_argument(keyword.name, names) or suggest(keyword.name, names) or str(definition)
            raise error("E203", f"{definition.name} has no argument {keyword.name!r}", keyword.span, help=hint)
        if keyword.name in places:
            raise error("E203", f"{keyword.name!r} is given twice", keyword.span, help="leave one of them out")
        places[keyword.name] = (keywords[keyword.name], keyword.value.span)
    missing = [repr(p.name) for p in params if not p.optional and p.name not in places]
    if missing:
        message = f"{definition.name} needs the argument{'s' * (len(missing) > 1)} {', '.join(missing)}"
        raise error("E203", message, node.span, help=str(definition))
    try:
        arguments = {
            p.name: _READERS[p.kind](*places[p.name], f"{p.name} of {definition.name}")
            for p in params
            if p.name in places
        }
        if definition.computes:
            arguments = {name: _computed(emitter, argument) for name, argument in arguments.items()}
        return definition.expand(emitter, **arguments)
    except SpmdcError as problem:
        meant = instead_of_reduction(definition.name) if len(items) == 2 and not keywords else ""
        raise SpmdcError([replace(d, help=meant or d.help or str(definition)) for d in problem.diagnostics]) from None


def _computed(emitter: Emitter, argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(_computed(emitter, each) for each in argument)
    return emitter.computed(argument) if isinstance(argument, Value) else argument


def _operand(item: Item, span: Span, what: str) -> Item:
    return item if isinstance(item, int | float) else expect_value(item, span, what)


def _values(item: Item, span: Span, what: str) -> Values:
    if isinstance(item, Several):
        return item.values
    if not isinstance(item, tuple):
        return (expect_value(item, span, what),)
    return tuple(expect_value(i, span, f"each of {what}") for i in item)


def _float(item: Item, span: Span, what: str) -> float:
    if isinstance(item, bool):
        raise error("E207", f"{what} must be a compile-time number, and is {describe(item)}", span)
    return float(_number(item, span, what))


def _of(kind: type | UnionType, words: str, code: str = "E203") -> Callable[[Item, Span, str], Any]:
    def read(item: Item, span: Span, what: str) -> Any:
        if isinstance(item, kind):
            return item
        raise error(code, f"{what} must be {words}, and is {describe(item)}", span)

    return read


_number = _of(int | float, "a compile-time number", "E207")

_READERS: dict[str, Callable[[Item, Span, str], Any]] = {
    "Value": expect_value,
    "Operand": _operand,
    "Values": _values,
    "int": expect_int,
    "Ints": expect_ints,
    "float": _float,
    "bool": _of(bool, "true or false"),
    "str": _of(str, "a text in quotes"),
    "DType": _of(DType, "an element type"),
    "TensorType": _of(TensorType, "a type"),
    "Number": _number,
    "Item": lambda item, span, what: item,
}
