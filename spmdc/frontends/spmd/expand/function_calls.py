"""Calls of the program's functions, and of `map`, which applies one to the elements of tensors."""

from __future__ import annotations

from collections.abc import Sequence

from ir.diagnostics import Span, error
from ir.program import Value
from spmdc.frontends.spmd.expand.context import Expressions, Signature
from spmdc.frontends.spmd.expand.sharded_types import to_become
from spmdc.frontends.spmd.items import Item, PoisonedError, Several, describe, expect_value, one_or_several, suggest
from spmdc.frontends.spmd.library.emitter import Emitter
from spmdc.frontends.spmd.syntax import nodes as s


def call_function(given: Expressions, name: str, node: s.Call, keywords: Sequence[s.Keyword]) -> Item:
    """The results of a function of the program. Arguments may have the names of its parameters."""
    values = given.exprs([*node.args, *(k.value for k in keywords)])
    items = [(item, a.span) for item, a in zip(values, node.args, strict=False)]
    named = {k.name: (item, k.span) for item, k in zip(values[len(items) :], keywords, strict=True)}
    signature = _signature(given, name, node)
    operands = _arguments(given.emitter, signature, items, named, node.span)
    types = [r.type for r in signature.results]
    return one_or_several(given.emitter.ops("call", operands, {"function": name}, span=node.span, types=types))


def _arguments(
    emitter: Emitter,
    signature: Signature,
    items: Sequence[tuple[Item, Span]],
    named: dict[str, tuple[Item, Span]],
    span: Span,
) -> list[Value]:
    """The arguments of a call in the order of the parameters, without those for parameters of unknown types.

    Raises SpmdcError (E203, E202), or PoisonedError if it is not known what the function returns.
    """
    params = signature.params
    given = dict(zip((p.name for p in params), items, strict=False))
    for name, (_, place) in named.items():
        if name in given or name not in {p.name for p in params}:
            problem = "is given twice" if name in given else "is no parameter"
            hint = f"{signature.name}({', '.join(p.name for p in params)})"
            raise error("E203", f"{name!r} {problem} of function {signature.name!r}", place, help=hint)
        given[name] = named[name]
    if len(items) > len(params) or len(given) < len(params):
        count = len(items) + len(named)
        message = f"function {signature.name!r} takes {len(params)} arguments, and is given {count}"
        help_text = f"{signature.name}({', '.join(f'{p.name}: {p.type}' for p in params)})"
        raise error("E203", message, span, help=help_text)
    operands: list[Value] = []
    for param in params:
        item, place = given[param.name]
        if param.faulty:
            continue
        if isinstance(item, Several):
            raise error(
                "E203",
                f"argument {param.name!r} must be one tensor, and is {describe(item)}",
                place,
                help="take one of the results first: a, b = f(x)",
            )
        value = emitter.as_declared(emitter.tensor(item, param.type), param.type)
        if value.type != param.type:
            message = f"argument {param.name!r} must be {param.type}, and is {value.type}"
            raise error("E202", message, place, help=to_become(param.type, value.type))
        operands.append(value)
    if not signature.gives_values:
        raise PoisonedError
    return operands


def map_function(given: Expressions, node: s.Call) -> Item:
    """`map(x, y, function=f)`: a function of scalars, applied to the elements of tensors that broadcast."""
    name = function_named(node)
    items = given.exprs(node.args)
    signature = _signature(given, name, node)
    if signature.is_faulty:
        raise PoisonedError
    params = signature.params
    if len(items) != len(params):
        message = f"function {name!r} takes {len(params)} arguments, and is mapped over {len(items)}"
        raise error("E203", message, node.span, help=f"give {', '.join(p.name for p in params) or 'none'}")
    pairs = zip(items, node.args, strict=True)
    tensors = [expect_value(i, a.span, "what is mapped over") for i, a in pairs if not isinstance(i, int | float)]
    if not tensors:
        raise error(
            "E207",
            "one of the operands must be a tensor",
            node.span,
            help="map over a tensor; a function of numbers alone is called directly",
        )
    shape = given.emitter.common_shape(tensors)
    operands = [
        given.emitter.broadcast_to(given.emitter.as_declared(item, param.type), shape)
        if isinstance(item, Value)
        else given.emitter.tensor(item, param.type.with_shape(shape))
        for item, param in zip(items, params, strict=True)
    ]
    for operand, param, argument in zip(operands, params, node.args, strict=True):
        if operand.type.with_shape(()) != param.type:
            wanted = f"argument {param.name!r} must be elements of {param.type}"
            if param.type.rank:
                wanted = f"argument {param.name!r} of {name} is no scalar"
            raise error(
                "E202",
                f"{wanted}, and is {operand.type}",
                argument.span,
                help="map takes a function of scalars, and tensors of the same element types: f32(x) converts x",
            )
    types = [r.type.with_shape(shape) for r in signature.results]
    return one_or_several(given.emitter.ops("map", operands, {"function": name}, span=node.span, types=types))


def _signature(given: Expressions, name: str, node: s.Call) -> Signature:
    """The signature of a called function. Raises SpmdcError (E103), or PoisonedError."""
    if name not in given.context.signatures:
        hint = suggest(name, given.context.signatures)
        raise error("E103", f"there is no function {name!r}", node.name_span, help=hint)
    signature = given.context.signatures[name]
    if signature is None:
        raise PoisonedError
    given.context.calls.setdefault(given.function, {}).setdefault(name, node.name_span)
    return signature


def function_named(node: s.Call) -> str:
    """The name of the function in `call(…, function=f)` and `map(…, function=f)`. Raises SpmdcError (E203)."""
    keyword = node.keywords[0] if len(node.keywords) == 1 else None
    if keyword is None or keyword.name != "function" or not isinstance(keyword.value, s.Name):
        message = f"{node.name} needs the attribute 'function'"
        raise error("E203", message, node.span, help=f"{node.name}(x, function=layer)")
    return keyword.value.id
