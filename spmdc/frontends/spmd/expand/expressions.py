"""Evaluates expressions: to numbers at compile time, and everything else to ops.

A name in front of `(` refers to, in this order: an op, if the call has the op's own form; a function of the program; an
annotation or a composition. So printed programs read back unchanged, and programs may define functions with the names
of compositions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import cast

from ir.builder import RegionBuilder
from ir.causes import read_cause
from ir.diagnostics import Span, SpmdcError, error
from ir.ops import OPS, OpDef
from ir.ops.declaration import CAUSE, STRATEGY
from ir.program import Value
from ir.types import DTYPES, DType, TensorType
from spmdc.frontends.spmd.expand.annotations import ANNOTATIONS, annotate
from spmdc.frontends.spmd.expand.attributes import read_attr, read_type
from spmdc.frontends.spmd.expand.constants import (
    FUNCTIONS,
    WORDS,
    fold_call,
    fold_choice,
    fold_infix,
    fold_prefix,
    is_known,
)
from spmdc.frontends.spmd.expand.context import Context
from spmdc.frontends.spmd.expand.function_calls import call_function, function_named, map_function
from spmdc.frontends.spmd.expand.op_calls import call_op
from spmdc.frontends.spmd.expand.subscripts import subscript
from spmdc.frontends.spmd.foreign_names import instead_of_call, instead_of_name
from spmdc.frontends.spmd.items import Faults, Item, PoisonedError, Scope, expect_value, suggest
from spmdc.frontends.spmd.library import COMPOSITIONS
from spmdc.frontends.spmd.library.declare import expand_composition
from spmdc.frontends.spmd.library.emitter import COMPARISONS, Emitter, Operand, default_dtype
from spmdc.frontends.spmd.syntax import nodes as s

_MAX_DEPTH = 100
_PLAIN = (s.Number, s.Text)
_DEFINED_LATER = "a value of this name is defined further down, or in another block"


class Evaluator:
    """Evaluates the expressions of one block. Ops are emitted to `emitter`."""

    def __init__(
        self,
        context: Context,
        function: str,
        builder: RegionBuilder,
        scope: Scope,
        span: Span,
        precision: DType | None = None,
    ) -> None:
        self.context = context
        self.function = function
        self.builder = builder
        self.scope = scope
        self.emitter = Emitter(builder, span, precision=precision)
        self.depth = 0
        self.written: Collection[str] = ()
        """The names that the function binds anywhere."""

    def expr(self, node: s.Expr) -> Item:
        """The item that an expression evaluates to. Raises SpmdcError, or PoisonedError if it uses a value with an
        error."""
        if isinstance(node, s.Name):
            return self.name(node)
        if isinstance(node, _PLAIN):
            return node.value
        if self.depth >= _MAX_DEPTH:
            message = f"expressions nest deeper than {_MAX_DEPTH} levels here"
            raise error("E003", message, node.span, help="name the inner parts")
        outer = self.emitter.span
        self.emitter.span = node.span
        self.depth += 1
        try:
            return self.inner(node)
        finally:
            self.emitter.span = outer
            self.depth -= 1

    def inner(self, node: s.Expr) -> Item:
        match node:
            case s.Call():
                return self.call(node)
            case s.Binary():
                return self.binary(node)
            case s.Unary():
                item = self.expr(node.operand)
                if isinstance(item, int | float):
                    return fold_prefix(node.op, item, node.span)
                operand = expect_value(item, node.operand.span, "the operand")
                return self.emitter.prefix(node.op, self.emitter.computed(operand))
            case s.Array():
                return tuple(self.exprs(node.items))
            case s.Literal():
                return cast("Item", node.value)
            case s.Index():
                return self.index(node)
            case s.While() | s.Repeat():
                raise error("E001", "a loop is the right side of an assignment", node.span, help=_assigned(node))
            case s.Case() | s.Manual() | s.Checkpoint() | s.Precision():
                raise error("E001", "blocks are the right side of an assignment", node.span, help=_assigned(node))
            case _:
                raise error(
                    "E001",
                    "mesh axes are here, where a value is needed",
                    node.span,
                    help="axes are given by name, axes=(x, y), and to annotations",
                )

    def exprs(self, nodes: Iterable[s.Expr]) -> list[Item]:
        """The items that several expressions evaluate to. Raises SpmdcError with the errors of all, or
        PoisonedError."""
        faults = Faults()
        items: list[Item] = []
        for node in nodes:
            try:
                items.append(self.expr(node))
            except (SpmdcError, PoisonedError) as problem:
                faults.add(problem)
        faults.raise_all()
        return items

    def value(self, node: s.Expr, what: str) -> Value:
        """An expression that must be a tensor."""
        return expect_value(self.expr(node), node.span, what)

    def name(self, node: s.Name) -> Item:
        item = self.scope.lookup(node.id)
        if item is not None:
            if self.scope.is_within_seal and self.scope.is_sealed_off(node.id):
                message = f"{node.id!r} is a tensor outside of the manual region, which sees those passed to it only"
                raise error("E404", message, node.span, help=f"pass it: manual({node.id} = {node.id}, …)")
            return item
        if node.id in WORDS:
            return WORDS[node.id]
        if node.id in DTYPES:
            return DTYPES[node.id]
        if self.scope.may_lack():
            raise PoisonedError
        known = [*self.scope.names(), *self.context.signatures]
        hint = suggest(node.id, known)
        if node.id in self.context.signatures or node.id in COMPOSITIONS or node.id in OPS:
            hint = f"to call it, write {node.id}(…)"
        elif node.id in self.written:
            hint = _DEFINED_LATER if self.function else "a const of this name is defined further down: move it up"
        by_const = f"; a number is, by const {node.id} = 8" if "." not in node.id else ""
        hint = instead_of_name(node.id) or hint or f"names are defined before they are used{by_const}"
        self.scope.poison(node.id)  # reported here, and not wherever else it is used
        raise error("E101", f"{node.id!r} is not defined here", node.span, help=hint)

    def binary(self, node: s.Binary) -> Item:
        """Chains are evaluated along their left side without recursion, so they may be long."""
        chain: list[s.Binary] = []
        first: s.Expr = node
        while isinstance(first, s.Binary):
            chain.append(first)
            first = first.left
        faults = Faults()
        left: Item = 0
        with faults:
            left = self.expr(first)
        for link in reversed(chain):
            with faults:
                right = self.expr(link.right)
                if not faults.found:
                    self.emitter.span = link.span
                    left = self.infix(link, left, right)
        faults.raise_all()
        return left

    def infix(self, node: s.Binary, left: Item, right: Item) -> Item:
        if isinstance(left, int | float) and isinstance(right, int | float):
            return fold_infix(node.op, left, right, node.span)
        what = f"an operand of {node.op!r}"
        a = left if isinstance(left, int | float) else expect_value(left, node.left.span, what)
        b = right if isinstance(right, int | float) else expect_value(right, node.right.span, what)
        try:
            return self.emitter.infix(node.op, *self.emitter.all_computed((a, b), compared=node.op in COMPARISONS))
        except SpmdcError as problem:
            help_text = self.to_begin_like(a, b) or self.to_begin_like(b, a)
            raise SpmdcError([replace(d, help=help_text or d.help) for d in problem.diagnostics]) from None

    def to_begin_like(self, value: Operand, other: Operand) -> str:
        """How a loop begins with the value as an element of the type of the other operand, as help for an error."""
        dtype = other.dtype if isinstance(other, Value) else default_dtype(other)
        is_same = isinstance(value, Value) and value.dtype == dtype
        return "" if is_same else self.context.to_begin(value, TensorType((), dtype))

    def element_type(self, name: str) -> DType | None:
        """The element type that a name refers to, unless it refers to something else."""
        item = self.scope.find(name)
        return DTYPES.get(name) if item is None else item if isinstance(item, DType) else None

    def index(self, node: s.Index) -> Item:
        if isinstance(node.base, s.Name) and self.element_type(node.base.id) is not None:
            return read_type(self, node, "this")
        return subscript(self, self.expr(node.base), node)

    # Calls.

    def call(self, node: s.Call) -> Item:
        said = {k.name: k for k in node.keywords if k.name in (STRATEGY.name, CAUSE.name)}
        if not said or self.context.stage != "plan":
            return self.applied(node)
        before = len(self.builder.ops)
        item = self.applied(replace(node, keywords=tuple(k for k in node.keywords if k.name not in said)))
        if len(self.builder.ops) == before:
            first = next(iter(said.values()))
            raise error("E201", f"{node.name} has a {first.name} and writes no op", first.span, help="leave it out")
        strategy, cause = (
            str(read_attr(self, each, said[each.name].value)) if each.name in said else "" for each in (STRATEGY, CAUSE)
        )
        op = self.builder.ops[-1]
        self.builder.ops[-1] = replace(op, strategy=strategy, cause=read_cause(cause) if cause else None)
        return item

    def applied(self, node: s.Call) -> Item:
        """The results of an op, a function or a composition."""
        name, opdef = node.name, OPS.get(node.name)
        if name == "call":  # `call(v, function=layer)`, which is how a call is printed.
            return call_function(self, function_named(node), node, ())
        if name == "map":
            return map_function(self, node)
        is_function = name in self.context.signatures
        if is_function and opdef is not None and self.context.stage not in opdef.stages:
            opdef = None  # Functions may have the names of ops of other stages.
        if opdef is not None and (name not in _SUGARED or self.has_op_form(node, opdef)):
            return call_op(self, node, opdef)
        if is_function:
            return call_function(self, name, node, node.keywords)
        if name in ANNOTATIONS:
            return annotate(self, node)
        if name in COMPOSITIONS:
            return self.composition(node)
        dtype = DTYPES.get(name) or self.element_type(name)
        if dtype is not None and len(node.args) == 1:
            return self.converted(node.args[0], dtype)
        if name in FUNCTIONS:
            return fold_call(name, self.exprs(node.args), node.span)
        raise self.unknown(node)

    def converted(self, node: s.Expr, dtype: DType) -> Value:
        """`f32(x)`: a number or a tensor as one of that element type."""
        operand = self.expr(node)
        if isinstance(operand, int | float):
            return self.emitter.constant(operand, dtype)
        return self.emitter.convert(expect_value(operand, node.span, "the operand"), dtype)

    def unknown(self, node: s.Call) -> SpmdcError | PoisonedError:
        """The error for a call of nothing that is known; if consts are missing, it may be one of these."""
        if self.context.consts.incomplete:
            return PoisonedError()
        name, (base, _, last) = node.name, node.name.rpartition(".")
        if self.scope.find(name) is not None:
            return error(
                "E103",
                f"{name!r} is a value, and cannot be called",
                node.name_span,
                help="multiply it, x * (y), or index it, x[0]; or give the value another name than the function has",
            )
        known = [*OPS, *self.context.signatures, *COMPOSITIONS, *ANNOTATIONS, *FUNCTIONS]
        hint = "docs/ops.md lists the ops; they are called as functions: sum(x, dim=0)"
        if base and last in known:
            first = f"{base}, " if self.scope.find(base) is not None else ""
            hint = f"functions are called by their names alone: {last}({first}…)"
        else:
            hint = instead_of_call(name) or suggest(last, known) or hint
        return error("E103", f"there is no op, function or composition {name!r}", node.name_span, help=hint)

    def has_op_form(self, node: s.Call, opdef: OpDef) -> bool:
        """Whether the arguments fit the op itself, so that it is not a composition of the same name. In a plan all
        calls are ops."""
        if self.context.stage == "plan":
            return True
        if opdef.name in ("select", "clamp") or any(self.is_list(a) for a in node.args):
            return False
        given = {k.name for k in node.keywords}
        required = {a.name for a in opdef.attrs if a.required}
        fits = opdef.operands is None or len(node.args) == opdef.operands
        return fits and required <= given <= {a.name for a in opdef.attrs}

    def is_list(self, node: s.Expr) -> bool:
        named = isinstance(node, s.Name) and isinstance(self.scope.find(node.id), tuple)
        return named or isinstance(node, s.Array | s.Literal)

    def composition(self, node: s.Call) -> Item:
        definition = COMPOSITIONS[node.name]
        values = self.exprs([*node.args, *(k.value for k in node.keywords)])
        items = values[: len(node.args)]
        keywords = {k.name: item for k, item in zip(node.keywords, values[len(items) :], strict=True)}
        if node.name in FUNCTIONS and not keywords and _only_numbers(items):
            return fold_call(node.name, items, node.span)
        if node.name == "where" and not keywords and len(items) == 3 and all(map(is_known, items)):
            return fold_choice(items, [a.span for a in node.args])
        return expand_composition(self.emitter, definition, items, keywords, node)


def _assigned(node: s.Expr) -> str:
    """The assignment of a loop, or of another expression with blocks."""
    match node:
        case s.While():
            shown = "while(…) cond {…} do {…}"
        case s.Repeat():
            shown = f"{'repeat' if node.unrolled else 'loop'} {node.counter} < … (…) {{…}}"
        case s.Case():
            shown = "if (…) {…} else {…}" if node.by_truth else "case(…) {…} or {…}"
        case s.Manual():
            shown = "manual(…) {…}"
        case s.Checkpoint():
            shown = "checkpoint {…}"
        case _:
            shown = "precision(…) {…}"
    return f"give it a name of its own: x = {shown}"


def _only_numbers(items: Sequence[Item]) -> bool:
    return bool(items) and all(isinstance(i, int | float) or (isinstance(i, tuple) and _only_numbers(i)) for i in items)


_SUGARED = frozenset(COMPOSITIONS) | ANNOTATIONS
"""Names of ops that are also names of compositions or annotations."""
