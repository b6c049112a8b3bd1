"""Evaluates expressions: to numbers at compile time, and everything else to ops.

A name in front of `(` refers to, in this order: an op, if the call has the op's own form; a function of the program; an
annotation or a composition. So printed programs read back unchanged, and programs may define functions with the names
of compositions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from ir.builder import RegionBuilder
from ir.causes import read_cause
from ir.diagnostics import Span, SpmdcError, error
from ir.ops import OPS, OpDef
from ir.ops.declaration import CAUSE, STRATEGY
from ir.program import Attr, Stage, Value
from ir.types import DTYPES, DType, TensorType
from spmdc.frontends.spmd.expand.annotations import ANNOTATIONS, annotate
from spmdc.frontends.spmd.expand.attributes import count_from_the_end, read_attr, read_type, refuse_unknown
from spmdc.frontends.spmd.expand.constants import (
    FUNCTIONS,
    WORDS,
    fold_call,
    fold_choice,
    fold_infix,
    fold_prefix,
    is_known,
)
from spmdc.frontends.spmd.expand.context import Context, Signature
from spmdc.frontends.spmd.expand.sharded_types import to_become
from spmdc.frontends.spmd.foreign_names import instead_of_call, instead_of_name
from spmdc.frontends.spmd.items import (
    Faults,
    Item,
    PoisonedError,
    Scope,
    Several,
    describe,
    expect_int,
    expect_value,
    one_or_several,
    suggest,
)
from spmdc.frontends.spmd.library.declare import expand_composition
from spmdc.frontends.spmd.library.emitter import COMPARISONS, Emitter, Operand, default_dtype
from spmdc.frontends.spmd.library.functions import COMPOSITIONS
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
                raise error("E001", "a loop is the right side of an assignment", node.span, help="x = while(…) …")
            case s.Case() | s.Manual() | s.Checkpoint() | s.Precision():
                raise error("E001", "blocks are the right side of an assignment", node.span, help="x = if (…) {…} …")
            case _:
                raise error("E001", "mesh axes are here, where a value is needed", node.span)

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
            return self.emitter.infix(node.op, *self.computed((a, b), compared=node.op in COMPARISONS))
        except SpmdcError as problem:
            help_text = self.to_begin_like(a, b) or self.to_begin_like(b, a)
            raise SpmdcError([replace(d, help=help_text or d.help) for d in problem.diagnostics]) from None

    def to_begin_like(self, value: Operand, other: Operand) -> str:
        """How a loop begins with the value as an element of the type of the other operand, as help for an error."""
        dtype = other.dtype if isinstance(other, Value) else default_dtype(other)
        is_same = isinstance(value, Value) and value.dtype == dtype
        return "" if is_same else self.context.to_begin(value, TensorType((), dtype))

    def computed(self, operands: Sequence[Operand], *, compared: bool = False) -> Sequence[Operand]:
        """Operands in the precision of arithmetic. Tensors of one type that are compared are not converted."""
        if compared and len({v.dtype for v in operands if isinstance(v, Value)}) < 2:
            return operands
        return [self.emitter.computed(v) if isinstance(v, Value) else v for v in operands]

    def element_type(self, name: str) -> DType | None:
        """The element type that a name refers to, unless it refers to something else."""
        item = self.scope.find(name)
        return DTYPES.get(name) if item is None else item if isinstance(item, DType) else None

    # Subscripts.

    def index(self, node: s.Index) -> Item:
        if isinstance(node.base, s.Name) and self.element_type(node.base.id) is not None:
            return read_type(self, node, "this")
        base = self.expr(node.base)
        if isinstance(base, tuple):
            return self.element(base, node)
        return self.slice(expect_value(base, node.base.span, "what is sliced"), node)

    def element(self, items: tuple[Item, ...], node: s.Index) -> Item:
        part = node.parts[0] if len(node.parts) == 1 else None
        if part is None or isinstance(part, s.Slice):
            raise error("E203", "a list is subscripted by one integer", node.span, help="sizes[0], or sizes[-1]")
        place = expect_int(self.expr(part), part.span, "a subscript")
        if not -len(items) <= place < len(items):
            message = f"{place} is out of range: the list has {len(items)} entries"
            raise error("E201", message, part.span, help=_valid_subscripts(len(items)))
        return items[place]

    def slice(self, base: Value, node: s.Index) -> Value:
        """`x[a:b:c, i, :]`: slicing as in numpy. An integer drops its dim, and may be computed by the program."""
        if len(node.parts) > base.type.rank:
            message = f"{len(node.parts)} subscripts for the {base.type.rank} dims of {base.type}"
            raise error("E201", message, node.span, help="x[:, 0] has a subscript for each dim, or for the first ones")
        start, limit, stride = [0] * base.type.rank, list(base.shape), [1] * base.type.rank
        dropped: list[int] = []
        computed: dict[int, Value] = {}
        for d, part in enumerate(node.parts):
            if isinstance(part, s.Slice):
                start[d], limit[d], stride[d] = self.bounds(part, base.shape[d])
                continue
            item = self.expr(part)
            if isinstance(item, Value):
                computed[d] = _subscript(item, part.span)
                continue
            place = expect_int(item, part.span, "a subscript")
            if not -base.shape[d] <= place < base.shape[d]:
                message = f"{place} is out of range for dim {d} of {base.type}"
                raise error("E201", message, part.span, help=_valid_subscripts(base.shape[d]))
            start[d] = place % base.shape[d]
            limit[d] = start[d] + 1
            dropped.append(d)
        result = self.at(base, computed) if computed else base
        for d in computed:
            limit[d] = 1
        if start != [0] * base.type.rank or limit != list(result.shape) or any(n != 1 for n in stride):
            strides = tuple(stride) if any(n != 1 for n in stride) else ()
            result = self.emitter.op("slice", result, start=tuple(start), limit=tuple(limit), stride=strides)
        kept = tuple(n for d, n in enumerate(result.shape) if d not in dropped and d not in computed)
        return self.emitter.reshape(result, kept)

    def at(self, x: Value, places: Mapping[int, Value]) -> Value:
        """One element along each of the dims with a place; an index out of range is clamped."""
        zero = self.emitter.constant(0, next(iter(places.values())).dtype)
        starts = [places.get(d, zero) for d in range(x.type.rank)]
        sizes = tuple(1 if d in places else n for d, n in enumerate(x.shape))
        return self.emitter.op("dynamic_slice", x, *starts, sizes=sizes)

    def bounds(self, part: s.Slice, size: int) -> tuple[int, int, int]:
        def number(node: s.Expr | None, default: int) -> int:
            return default if node is None else expect_int(self.expr(node), node.span, "a bound of a slice")

        step = number(part.step, 1)
        if step < 1:
            help_text = "reverse(x, dims=[0]) turns a dim around"
            raise error("E201", f"the step of a slice is {step}: it must be at least 1", part.span, help=help_text)
        low, high = number(part.start, 0), number(part.stop, size)
        low, high = (n + size if n < 0 else n for n in (low, high))
        if not 0 <= low <= high <= size:
            message = f"slice {low}:{high} of a dim of size {size}: 0 <= start <= stop <= {size} must hold"
            raise error("E201", message, part.span, help=f"x[:{size}] is all of the dim, and so is x[:]")
        return low, high, step

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
        name = node.name
        opdef = OPS.get(name)
        if name == "call":  # `call(v, function=layer)`, which is how a call is printed.
            return self.call_function(_function_named(node), node, ())
        if name == "map":
            return self.map_op(node)
        is_function = name in self.context.signatures
        if is_function and opdef is not None and self.context.stage not in opdef.stages:
            opdef = None  # Functions may have the names of ops of other stages.
        if opdef is not None and (name not in _SUGARED or self.has_op_form(node, opdef)):
            return self.op(node, opdef)
        if is_function:
            return self.call_function(name, node, node.keywords)
        if name in ANNOTATIONS:
            return annotate(self, node)
        if name in COMPOSITIONS:
            return self.composition(node)
        dtype = DTYPES.get(name) or self.element_type(name)
        if dtype is not None and len(node.args) == 1:
            operand = self.expr(node.args[0])
            if isinstance(operand, int | float):
                return self.emitter.constant(operand, dtype)
            return self.emitter.convert(expect_value(operand, node.args[0].span, "the operand"), dtype)
        if name in FUNCTIONS:
            return fold_call(name, self.exprs(node.args), node.span)
        if self.context.consts.incomplete:
            raise PoisonedError
        known = [*OPS, *self.context.signatures, *COMPOSITIONS, *ANNOTATIONS, *FUNCTIONS]
        if self.scope.find(name) is not None:
            raise error("E103", f"{name!r} is a value, and cannot be called", node.name_span)
        last = name.rpartition(".")[2]
        hint = (
            self._as_function(name, known)
            or instead_of_call(name)
            or suggest(last, known)
            or "docs/ops.md lists the ops; they are called as functions: sum(x, dim=0)"
        )
        raise error("E103", f"there is no op, function or composition {name!r}", node.name_span, help=hint)

    def _as_function(self, name: str, known: Collection[str]) -> str:
        """The help for a function of a module, or a method of a value."""
        base, _, function = name.rpartition(".")
        if not base or function not in known:
            return ""
        first = f"{base}, " if self.scope.find(base) is not None else ""
        return f"functions are called by their names alone: {function}({first}…)"

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

    def op(self, node: s.Call, opdef: OpDef) -> Item:
        """An op by its own name. Positional arguments after the operands are attributes, in their order."""
        is_inside = self.context.has_manual and opdef.family == "collective"
        if self.context.stage not in opdef.stages and not is_inside:
            where = _WHERE[opdef.stages[0]]
            way = "annotate values, and the partitioner communicates; or write a manual region"
            help = way if opdef.family == "collective" else f"write the program without {opdef.name}: passes add it"
            raise error("E406", f"{opdef.name} belongs to {where}", node.span, help=help)
        if opdef.regions != 0:
            raise error("E203", f"{opdef.name} takes blocks, which this call lacks", node.span)
        count = len(node.args) if opdef.operands is None else min(opdef.operands, len(node.args))
        items: Sequence[Item] = self.exprs(node.args[:count])
        numbers_only = bool(items) and all(isinstance(i, int | float) for i in items)
        if numbers_only and opdef.name in FUNCTIONS and not node.keywords:
            return fold_call(opdef.name, items, node.span)
        if self.emitter.precision is not None and opdef.family in _COMPUTING:
            items = self.computed_items(items, opdef)
        operands = self.operands(opdef, items, node)
        attrs = self.attrs(opdef, node, node.args[count:], operands)
        return one_or_several(self.emitter.ops(opdef.name, operands, attrs))

    def operands(self, opdef: OpDef, items: Sequence[Item], node: s.Call) -> tuple[Value, ...]:
        """The operands as tensors. Numbers are converted as the op requires, and operands of elementwise ops
        broadcast."""
        tensors = [i for i in items if isinstance(i, Value)]
        if len(tensors) == len(items):
            if opdef.family == "elementwise" and len(items) == 2 and tensors[0].shape != tensors[1].shape:
                return self.emitter.aligned(*tensors)
            return tuple(tensors)
        for item, arg in zip(items, node.args, strict=False):
            if not isinstance(item, int | float):
                expect_value(item, arg.span, f"an operand of {opdef.name}")
        operands = [i for i in items if isinstance(i, Value | int | float)]
        if opdef.family == "elementwise" and len(items) == 2 and tensors:
            return self.emitter.aligned(*operands)
        scalar = tensors[0].dtype if tensors and opdef.family in ("elementwise", "layout") else None
        return tuple(
            i if isinstance(i, Value) else self.emitter.constant(i, scalar or default_dtype(i)) for i in operands
        )

    def computed_items(self, items: Sequence[Item], opdef: OpDef) -> Sequence[Item]:
        """The items of a call, with tensors in the precision of arithmetic, unless the op specifies an element type
        itself."""
        if any(a.kind == "dtype" for a in opdef.attrs):
            return items
        tensors = iter(self.computed([i for i in items if isinstance(i, Value)], compared=opdef.name == "compare"))
        return [next(tensors) if isinstance(i, Value) else i for i in items]

    def attrs(self, opdef: OpDef, node: s.Call, rest: Sequence[s.Expr], operands: Sequence[Value]) -> dict[str, Attr]:
        attrs: dict[str, Attr] = {}
        if len(rest) > len(opdef.attrs):
            raise error(
                "E203",
                f"{opdef.name} takes {opdef.operands} operands and {len(opdef.attrs)} attributes, "
                f"and is given {len(node.args)} arguments",
                node.span,
            )
        for definition, argument in zip(opdef.attrs, rest, strict=False):
            attrs[definition.name] = read_attr(self, definition, argument)
        refuse_unknown(opdef, node.keywords)
        for keyword in node.keywords:
            if keyword.name in attrs:
                raise error("E203", f"{keyword.name!r} is given twice", keyword.span)
            found = opdef.attr(keyword.name)
            assert found is not None
            attrs[keyword.name] = read_attr(self, found, keyword.value)
        if operands and opdef.operands != 0:
            count_from_the_end(attrs, operands[0].type.rank, node.span)
        return attrs

    def map_op(self, node: s.Call) -> Item:
        """`map(x, y, function=f)`: a function of scalars, applied to the elements of tensors that broadcast."""
        name = _function_named(node)
        items = self.exprs(node.args)
        signature = self.signature(name, node)
        if signature.is_faulty:
            raise PoisonedError
        params = signature.params
        if len(items) != len(params):
            message = f"function {name!r} takes {len(params)} arguments, and is mapped over {len(items)}"
            raise error("E203", message, node.span)
        pairs = zip(items, node.args, strict=True)
        tensors = [expect_value(i, a.span, "what is mapped over") for i, a in pairs if not isinstance(i, int | float)]
        if not tensors:
            raise error("E207", "one of the operands must be a tensor", node.span)
        shape = self.emitter.common_shape(tensors)
        operands = [
            self.emitter.broadcast_to(self.emitter.as_declared(item, param.type), shape)
            if isinstance(item, Value)
            else self.emitter.tensor(item, param.type.with_shape(shape))
            for item, param in zip(items, params, strict=True)
        ]
        for operand, param, argument in zip(operands, params, node.args, strict=True):
            if operand.type.with_shape(()) != param.type:
                wanted = f"argument {param.name!r} must be elements of {param.type}"
                if param.type.rank:
                    wanted = f"argument {param.name!r} of {name} is no scalar"
                raise error("E202", f"{wanted}, and is {operand.type}", argument.span)
        types = [r.type.with_shape(shape) for r in signature.results]
        return one_or_several(self.emitter.ops("map", operands, {"function": name}, span=node.span, types=types))

    def signature(self, name: str, node: s.Call) -> Signature:
        """The signature of a called function. Raises SpmdcError (E103), or PoisonedError."""
        if name not in self.context.signatures:
            hint = suggest(name, self.context.signatures)
            raise error("E103", f"there is no function {name!r}", node.name_span, help=hint)
        signature = self.context.signatures[name]
        if signature is None:
            raise PoisonedError
        self.context.calls.setdefault(self.function, {}).setdefault(name, node.name_span)
        return signature

    def call_function(self, name: str, node: s.Call, keywords: Sequence[s.Keyword]) -> Item:
        values = self.exprs([*node.args, *(k.value for k in keywords)])
        items = [(item, a.span) for item, a in zip(values, node.args, strict=False)]
        named = {k.name: (item, k.span) for item, k in zip(values[len(items) :], keywords, strict=True)}
        signature = self.signature(name, node)
        operands = self.arguments(signature, items, named, node.span)
        types = [r.type for r in signature.results]
        return one_or_several(self.emitter.ops("call", operands, {"function": name}, span=node.span, types=types))

    def arguments(
        self, signature: Signature, items: Sequence[tuple[Item, Span]], named: dict[str, tuple[Item, Span]], span: Span
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
            value = self.emitter.tensor(item, param.type) if not isinstance(item, Several) else None
            if value is None:
                raise error("E203", f"argument {param.name!r} must be one tensor, and is {describe(item)}", place)
            value = self.emitter.as_declared(value, param.type)
            if value.type != param.type:
                message = f"argument {param.name!r} must be {param.type}, and is {value.type}"
                raise error("E202", message, place, help=to_become(param.type, value.type))
            operands.append(value)
        if not signature.gives_values:
            raise PoisonedError
        return operands

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


def _function_named(node: s.Call) -> str:
    """The name of the function in `call(…, function=f)` and `map(…, function=f)`. Raises SpmdcError (E203)."""
    keyword = node.keywords[0] if len(node.keywords) == 1 else None
    if keyword is None or keyword.name != "function" or not isinstance(keyword.value, s.Name):
        message = f"{node.name} needs the attribute 'function'"
        raise error("E203", message, node.span, help=f"{node.name}(x, function=layer)")
    return keyword.value.id


def _subscript(item: Value, span: Span) -> Value:
    if item.type.rank or not item.dtype.is_integer:
        help_text = "take(x, indices, dim) takes what x has at several indices" if item.dtype.is_integer else ""
        raise error("E207", f"a subscript must be an integer, and is {item.type}", span, help=help_text)
    return item


def _valid_subscripts(size: int) -> str:
    return f"valid subscripts are {-size} to {size - 1}" if size else "it has no element"


def _only_numbers(items: Sequence[Item]) -> bool:
    return bool(items) and all(isinstance(i, int | float) or (isinstance(i, tuple) and _only_numbers(i)) for i in items)


_WHERE: dict[Stage, str] = {
    "global": "global programs",
    "plan": "plans, which begin with `plan`",
    "spmd": "SPMD programs, which begin with `spmd`",
}
_COMPUTING = frozenset({"elementwise", "contraction", "reduction", "window", "convolution"})
"""The op families that compute floats in the program's precision."""
_SUGARED = frozenset(COMPOSITIONS) | ANNOTATIONS
"""Names of ops that are also names of compositions or annotations."""
