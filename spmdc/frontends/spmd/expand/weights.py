"""The initial values of weights: the `= normal(0.02)` after parameters of the entry."""

from __future__ import annotations

from collections.abc import Callable

from ir.diagnostics import error
from ir.initializers import DRAWN, Initializer, initializer_problem
from ir.types import DType
from spmdc.frontends.spmd.expand.constants import FUNCTIONS
from spmdc.frontends.spmd.items import Item, Number, describe, suggest
from spmdc.frontends.spmd.library.emitter import as_element
from spmdc.frontends.spmd.syntax import nodes as s

Evaluate = Callable[[s.Expr], Item]

_NUMBERS = {"zeros": "0", "ones": "1", "constant": "0.5, the number itself", "full": "0.5, the number itself"}
_FORMS = {name: f"{name}({', '.join(taken)})" for name, taken in DRAWN.items()}
_HELP = f"a weight holds a number, or what one of these draws: {', '.join(_FORMS.values())}"


def initializer(node: s.Expr, dtype: DType, evaluate: Evaluate) -> Initializer:
    """The initializer that an expression specifies for a weight. `evaluate` evaluates it at compile time. Raises
    SpmdcError (E201, E203, E207, E414, and errors of `evaluate`)."""
    name = node.name if isinstance(node, s.Call) else node.id if isinstance(node, s.Name) else ""
    if isinstance(node, s.Call) and name in DRAWN:
        return _drawn(node, dtype, evaluate)
    if name in DRAWN or name in _NUMBERS:
        help_text = f"write = {_FORMS.get(name) or _NUMBERS[name]}"
        raise error("E414", f"{name!r} alone does not say what the weight holds", node.span, help=help_text)
    if isinstance(node, s.Call) and name not in FUNCTIONS:
        raise error("E414", f"nothing is drawn by {name!r}", node.name_span, help=suggest(name, DRAWN) or _HELP)
    return Initializer("", (as_element(_number(node, evaluate), dtype, node.span),))


def _drawn(node: s.Call, dtype: DType, evaluate: Evaluate) -> Initializer:
    wanted = DRAWN[node.name]
    given = dict(zip(wanted, node.args, strict=False))
    for keyword in node.keywords:
        if keyword.name not in wanted or keyword.name in given:
            raise error("E203", f"{_FORMS[node.name]} takes no {keyword.name!r}", keyword.span, help=_HELP)
        given[keyword.name] = keyword.value
    if len(node.args) > len(wanted) or len(given) < len(wanted):
        message = f"{_FORMS[node.name]} is given {len(node.args) + len(node.keywords)} numbers"
        raise error("E203", message, node.span, help=_HELP)
    drawn = tuple([float(_number(given[each], evaluate)) for each in wanted])
    problem = initializer_problem(node.name, drawn, dtype)
    if problem:
        raise error("E414", problem, node.span, help=_HELP)
    return Initializer(node.name, drawn)


def _number(node: s.Expr, evaluate: Evaluate) -> Number:
    item = evaluate(node)
    if not isinstance(item, int | float):
        raise error("E207", f"a weight holds numbers, and this is {describe(item)}", node.span, help=_HELP)
    return item
