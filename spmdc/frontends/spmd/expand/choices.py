"""Expands choices, checkpoints and blocks of another precision: as ops of blocks, or one of the blocks in place."""

from __future__ import annotations

from collections.abc import Sequence

from ir.builder import RegionBuilder
from ir.diagnostics import Span, error
from ir.program import Value
from ir.types import DType, TensorType, f32, pred, s32
from spmdc.frontends.spmd.expand.context import Statements
from spmdc.frontends.spmd.expand.name_scope import Returned
from spmdc.frontends.spmd.items import Item, PoisonedError, Scope, describe, expect_int, expect_value, one_or_several
from spmdc.frontends.spmd.library.emitter import default_dtype
from spmdc.frontends.spmd.syntax import nodes as s

_CHOOSERS = ("the index of a case", "the condition")


def expand_choice(block: Statements, node: s.Case) -> Item:
    """A `case` op, or, if the index is known at compile time, the results of the chosen block."""
    chooser = block.evaluator.expr(node.chooser)
    if isinstance(chooser, int | float):
        return _chosen(block, node, chooser)
    index = _index(block, node, expect_value(chooser, node.chooser.span, _CHOOSERS[node.by_truth]))
    return _one_of(block, "case", (index,), [(branch, _branch_hints(branch)) for branch in node.branches], node.span)


def _index(block: Statements, node: s.Case, chooser: Value) -> Value:
    """The index of a case. The second block of an `if` is the first branch of the op, because its index is 0."""
    wanted = TensorType((), pred if node.by_truth else s32)
    if chooser.type != wanted:
        what = _CHOOSERS[node.by_truth]
        written = _as_chooser(chooser.type, by_truth=node.by_truth)
        raise error(
            "E202",
            f"{what} must be {wanted}, and is {chooser.type}",
            node.chooser.span,
            help=f"make it a scalar of that type, as {written}",
        )
    return block.evaluator.emitter.convert(chooser, s32) if node.by_truth else chooser


def _as_chooser(type: TensorType, *, by_truth: bool) -> str:
    """How to write the condition `x`, or the index `i`, of another type than it has to be."""
    element = ("x" if by_truth else "i") + (f"[{', '.join('0' * type.rank)}]" if type.rank else "")
    if by_truth:
        return element if type.dtype == pred else f"{element} > 0"
    return element if type.dtype == s32 else f"s32({element})"


def _chosen(block: Statements, node: s.Case, chooser: float) -> Item:
    """The results of one of the blocks, expanded in place; the others are dropped."""
    place = expect_int(int(chooser) if node.by_truth else chooser, node.chooser.span, _CHOOSERS[0])
    last = len(node.branches) - 1
    return _in_place(block, node.branches[place if 0 <= place <= last else last], node.span)


def expand_checkpoint(block: Statements, node: s.Checkpoint, targets: Sequence[s.Target]) -> Item:
    """A `checkpoint` op, or its block in place. Its results and the values that are made for them have the names of
    the targets."""
    if block.context.stage != "global":
        raise error("E406", "checkpoints belong to global programs", node.span, help="write what is inside alone")
    if node.condition is not None and not _is_so(block, node.condition):
        return _in_place(block, node.body, node.span)
    hints = [t.name for t in targets] or _branch_hints(node.body)
    return _one_of(block, "checkpoint", (), [(node.body, hints)], node.span)


def _is_so(block: Statements, node: s.Expr) -> bool:
    """The value of a condition that is known at compile time."""
    item = block.evaluator.expr(node)
    number = int(item) if isinstance(item, bool) else item
    return bool(expect_int(number, node.span, "what a checkpoint depends on"))


def expand_precision(block: Statements, node: s.Precision) -> Item:
    """The results of a block in which floats are computed in an element type."""
    if block.context.stage != "global":
        help_text = "write the converts: convert(x, dtype=bf16)"
        raise error("E406", "precisions belong to global programs", node.span, help=help_text)
    return _in_place(block, node.body, node.span, float_type(block.evaluator.expr(node.dtype), node.dtype.span))


def _in_place(block: Statements, statements: Sequence[s.Statement], head: Span, precision: DType | None = None) -> Item:
    """The results of statements that are expanded into this block, possibly in another precision."""
    inner = block.inner(Scope(block.scope), block.builder, head)
    inner.evaluator.emitter.precision = precision or inner.evaluator.emitter.precision
    returned = inner.run(statements, _branch_hints(statements), head, "a branch")
    if returned is None:
        raise PoisonedError
    return block.together([item for item, _ in returned.items])


def _one_of(
    block: Statements,
    name: str,
    operands: Sequence[Value],
    written: Sequence[tuple[Sequence[s.Statement], Sequence[str]]],
    head: Span,
) -> Item:
    """An op that returns the results of one of several blocks, each with names for its results."""
    what = "branch" if operands else name
    blocks = [block.inner(Scope(block.scope), RegionBuilder(block.claims.names), head) for _ in written]
    given = [
        inner.run(statements, hints, head, f"a {what}")
        for inner, (statements, hints) in zip(blocks, written, strict=True)
    ]
    returned = [r for r in given if r is not None]
    if len(returned) < len(given):
        raise PoisonedError
    types = _result_types(returned)
    regions = tuple(
        inner.builder.region(
            *inner.results(r, types, f"this {what}", "all blocks return as many values, of the same types")
        )
        for inner, r in zip(blocks, returned, strict=True)
    )
    return one_or_several(block.evaluator.emitter.ops(name, operands, {}, span=head, regions=regions, types=types))


def float_type(item: Item, span: Span) -> DType:
    """The element type in which floats are to be computed. Raises SpmdcError (E207)."""
    if isinstance(item, DType) and item.is_float:
        return item
    help_text = "precision(bf16) { … }, or a const: const A = where(SHORT, bf16, f32)"
    raise error("E207", f"a precision must be a type of floats, and is {describe(item)}", span, help=help_text)


def _branch_hints(statements: Sequence[s.Statement]) -> tuple[str, ...]:
    """Names for the values of the last statement, if it is a `return`."""
    last = statements[-1] if statements else None
    return ("branch",) * len(last.values) if isinstance(last, s.Return) else ()


def _result_types(branches: Sequence[Returned]) -> list[TensorType]:
    """For each position, the type of the first tensor that a branch returns there, which numbers take."""
    types: list[TensorType] = []
    for i, (first, _) in enumerate(branches[0].items):
        items = [b.items[i][0] for b in branches if i < len(b.items)]
        tensor = next((item for item in items if isinstance(item, Value)), None)
        dtype = default_dtype(first) if isinstance(first, int | float) else f32
        types.append(tensor.type if tensor is not None else TensorType((), dtype))
    return types
