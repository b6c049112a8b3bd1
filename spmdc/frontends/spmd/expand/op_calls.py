"""Calls of ops by their own names: their operands as tensors, and their attributes."""

from __future__ import annotations

from collections.abc import Sequence

from ir.diagnostics import error
from ir.ops import OpDef
from ir.program import Attr, Stage, Value
from spmdc.frontends.spmd.expand.attributes import count_from_the_end, read_attr, refuse_unknown
from spmdc.frontends.spmd.expand.constants import FUNCTIONS, fold_call
from spmdc.frontends.spmd.expand.context import Expressions
from spmdc.frontends.spmd.items import Item, expect_value, one_or_several
from spmdc.frontends.spmd.library.emitter import default_dtype
from spmdc.frontends.spmd.syntax import nodes as s

_WHERE: dict[Stage, str] = {
    "global": "global programs",
    "plan": "plans, which begin with `plan`",
    "spmd": "SPMD programs, which begin with `spmd`",
}
_COMPUTING = frozenset({"elementwise", "contraction", "reduction", "window", "convolution"})
"""The op families that compute floats in the program's precision."""


def call_op(given: Expressions, node: s.Call, opdef: OpDef) -> Item:
    """An op by its own name. Positional arguments after the operands are attributes, in their order."""
    is_inside = given.context.has_manual and opdef.family == "collective"
    if given.context.stage not in opdef.stages and not is_inside:
        where = _WHERE[opdef.stages[0]]
        way = "annotate values, and the partitioner communicates; or write a manual region"
        help = way if opdef.family == "collective" else f"write the program without {opdef.name}: passes add it"
        raise error("E406", f"{opdef.name} belongs to {where}", node.span, help=help)
    if opdef.regions != 0:
        raise error(
            "E203",
            f"{opdef.name} takes blocks, which this call lacks",
            node.span,
            help=f"docs/language.md shows how {opdef.name} is written",
        )
    count = len(node.args) if opdef.operands is None else min(opdef.operands, len(node.args))
    items: Sequence[Item] = given.exprs(node.args[:count])
    numbers_only = bool(items) and all(isinstance(i, int | float) for i in items)
    if numbers_only and opdef.name in FUNCTIONS and not node.keywords:
        return fold_call(opdef.name, items, node.span)
    if given.emitter.precision is not None and opdef.family in _COMPUTING:
        items = _computed_items(given, items, opdef)
    operands = _operands(given, opdef, items, node)
    attrs = _attrs(given, opdef, node, node.args[count:], operands)
    return one_or_several(given.emitter.ops(opdef.name, operands, attrs))


def _operands(given: Expressions, opdef: OpDef, items: Sequence[Item], node: s.Call) -> tuple[Value, ...]:
    """The operands as tensors. Numbers are converted as the op requires, and operands of elementwise ops
    broadcast."""
    tensors = [i for i in items if isinstance(i, Value)]
    if len(tensors) == len(items):
        if opdef.family == "elementwise" and len(items) == 2 and tensors[0].shape != tensors[1].shape:
            return given.emitter.aligned(*tensors)
        return tuple(tensors)
    for item, arg in zip(items, node.args, strict=False):
        if not isinstance(item, int | float):
            expect_value(item, arg.span, f"an operand of {opdef.name}")
    operands = [i for i in items if isinstance(i, Value | int | float)]
    if opdef.family == "elementwise" and len(items) == 2 and tensors:
        return given.emitter.aligned(*operands)
    scalar = tensors[0].dtype if tensors and opdef.family in ("elementwise", "layout") else None
    return tuple(i if isinstance(i, Value) else given.emitter.constant(i, scalar or default_dtype(i)) for i in operands)


def _computed_items(given: Expressions, items: Sequence[Item], opdef: OpDef) -> Sequence[Item]:
    """The items of a call, with tensors in the precision of arithmetic, unless the op specifies an element type
    itself."""
    if any(a.kind == "dtype" for a in opdef.attrs):
        return items
    values = [i for i in items if isinstance(i, Value)]
    tensors = iter(given.emitter.all_computed(values, compared=opdef.name == "compare"))
    return [next(tensors) if isinstance(i, Value) else i for i in items]


def _attrs(
    given: Expressions, opdef: OpDef, node: s.Call, rest: Sequence[s.Expr], operands: Sequence[Value]
) -> dict[str, Attr]:
    attrs: dict[str, Attr] = {}
    if len(rest) > len(opdef.attrs):
        takes = f"{opdef.operands} operands and {len(opdef.attrs)} attributes"
        raise error(
            "E203", f"{opdef.name} takes {takes}, and is given {len(node.args)} arguments", node.span, help=str(opdef)
        )
    for definition, argument in zip(opdef.attrs, rest, strict=False):
        attrs[definition.name] = read_attr(given, definition, argument)
    refuse_unknown(opdef, node.keywords)
    for keyword in node.keywords:
        if keyword.name in attrs:
            raise error("E203", f"{keyword.name!r} is given twice", keyword.span, help="leave one of them out")
        found = opdef.attr(keyword.name)
        assert found is not None
        attrs[keyword.name] = read_attr(given, found, keyword.value)
    if operands and opdef.operands != 0:
        count_from_the_end(attrs, operands[0].type.rank, node.span)
    return attrs
