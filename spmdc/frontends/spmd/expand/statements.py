"""Expands the statements of a block: binds names, checks written types, builds choices.

Each value that a statement binds has the statement's name; the intermediate values of an expression are numbered after
it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ir.builder import RegionBuilder
from ir.causes import read_cause
from ir.diagnostics import Source, Span, SpmdcError, error
from ir.ops import OPS
from ir.program import Value
from ir.sharding import Sharding
from ir.types import DType, TensorType
from spmdc.frontends.spmd.expand.choices import expand_checkpoint, expand_choice, expand_precision
from spmdc.frontends.spmd.expand.context import Context
from spmdc.frontends.spmd.expand.expressions import Evaluator
from spmdc.frontends.spmd.expand.loops import expand_loop
from spmdc.frontends.spmd.expand.manual_regions import expand_manual, undeclared
from spmdc.frontends.spmd.expand.name_scope import NameScope, Returned
from spmdc.frontends.spmd.expand.repetition import expansion_of
from spmdc.frontends.spmd.expand.sharded_types import tensor_type, to_become, type_sharding
from spmdc.frontends.spmd.items import Faults, Item, Scope, Several, expect_value
from spmdc.frontends.spmd.syntax import nodes as s


@dataclass(frozen=True, slots=True)
class ReturnedSoFar:
    """The items of a `return` as far as they are known, with errors or not; None stands for one with an error."""

    items: tuple[tuple[Item | None, Span], ...]
    span: Span


def written_names(statements: Iterable[s.Statement]) -> Iterator[str]:
    """All names that the statements bind, those of inner blocks included."""
    for statement in statements:
        if isinstance(statement, s.Repeated):
            yield statement.name
            continue
        if isinstance(statement, s.Assign):
            yield from (t.name for t in statement.targets)
        for value in s.values_of(statement):
            if isinstance(value, s.While):
                yield from (c.target.name for c in value.carried)
            elif isinstance(value, s.Manual):
                yield from (p.name for p in value.passed)
            for block in s.blocks_of(value):
                yield from written_names(block)


class StatementExpander:
    """Expands the statements of one region."""

    def __init__(
        self,
        context: Context,
        function: str,
        claims: NameScope,
        scope: Scope,
        builder: RegionBuilder,
        span: Span,
        precision: DType | None = None,
    ):
        self.context = context
        self.function = function
        self.claims = claims
        self.scope = scope
        self.builder = builder
        self.evaluator = Evaluator(context, function, builder, scope, span, precision)
        self.evaluator.written = claims.bound
        self.failed = False
        self.given_back: ReturnedSoFar | None = None

    def inner(self, scope: Scope, builder: RegionBuilder, span: Span) -> StatementExpander:
        precision = self.evaluator.emitter.precision
        return StatementExpander(self.context, self.function, self.claims, scope, builder, span, precision)

    def run(self, statements: Sequence[s.Statement], hints: Sequence[str], span: Span, what: str) -> Returned | None:
        """Expands the statements; None if there were errors, which are reported. `hints` are names for the results."""
        returned: Returned | None = None
        ended = False
        for statement in statements:
            if ended:
                self.report(
                    error(
                        "E001",
                        "nothing may follow `return` in its block",
                        statement.span,
                        help="write it before the `return`",
                    )
                )
                break
            match statement:
                case s.Assign() | s.Repeated():
                    self.attempt(statement)
                case s.Return():
                    ended = True
                    returned = self.give(statement, hints)
                case s.Faulty():
                    ended = statement.returns or (statement.is_block and statement is statements[-1])
                    self.leave_out(statement)
        if not ended:
            hint = f"end it with: return {', '.join(hints)}" if hints else "end it with `return` and its results"
            self.report(error("E401", f"{what} ends without `return`", span, help=hint))
        return None if self.failed else returned

    def leave_out(self, statement: s.Faulty) -> None:
        """Skips a statement with a syntax error, which is reported already; its names are poisoned."""
        self.failed = True
        for name in statement.names:
            self.scope.poison(name)

    def report(self, problem: SpmdcError) -> None:
        self.context.diagnostics.extend(problem.diagnostics)
        self.failed = True

    def attempt(self, statement: s.Assign | s.Repeated) -> None:
        """Expands a statement; its names are poisoned if it fails."""
        faults = Faults()
        with faults:
            if isinstance(statement, s.Assign):
                self.assign(statement)
            else:
                self.repeat(statement)
        if faults.found:
            self.context.diagnostics.extend(faults.diagnostics)
            self.failed = True
            for name in written_names((statement,)):
                self.scope.poison(name)

    # Statements.

    def assign(self, statement: s.Assign) -> None:
        first_op = len(self.builder.ops)
        targets = statement.targets
        emitter = self.evaluator.emitter
        emitter.hint = targets[0].name if targets else ""
        emitter.span = statement.span
        item = self.evaluate(statement.value, targets)
        items: tuple[Item, ...] = item.values if isinstance(item, Several) else (item,)
        if not targets and items:
            raise error("E203", "the result of this call is not used", statement.span, help="name it: x = …")
        if len(items) != len(targets):
            message = f"{len(items)} values on the right, and {len(targets)} names on the left"
            help_text = _named(statement.value)
            raise error("E203", message, statement.span, help=help_text)
        fresh = self.made_since(first_op)
        for target, part in zip(targets, items, strict=True):
            self.bind(target, part, fresh)
        self.locate(statement, statement.value.span, first_op)

    def repeat(self, repeated: s.Repeated) -> None:
        """Expands an assignment as an earlier one of its pattern, or else by itself."""
        first_op, emitter = len(self.builder.ops), self.evaluator.emitter
        known = self.context.expansions.get(repeated.pattern) if emitter.precision is None else None
        operands = known.operands_of(repeated, self.scope) if known is not None else None
        if known is None or operands is None:
            self.assign(repeated.build())
            expansion = expansion_of(repeated, self.builder.ops[first_op:], self.scope)
            if expansion is not None and self.context.stage != "plan" and emitter.precision is None:
                self.context.expansions[repeated.pattern] = expansion
            return
        emitter.hint, emitter.span = repeated.name, repeated.value_span
        (made,) = emitter.ops(known.name, operands, known.attrs, types=known.results)
        value = self.settle(made, repeated.name, known.sharding, {made})
        self.scope.bind(repeated.name, value, repeated.name_span)
        self.locate(repeated.pattern.first, repeated.value_span, first_op)

    def made_since(self, first_op: int) -> set[Value]:
        """The results of the ops from `first_op` on: values that have no final names yet."""
        return {v for op in self.builder.ops[first_op:] for v in op.results}

    def bind(self, target: s.Target, item: Item, fresh: set[Value]) -> None:
        declared, sharding = self.declared(target)
        if declared is None and not isinstance(item, Value):
            self.scope.bind(target.name, item, target.span)
            return
        count = len(self.builder.ops)
        if not isinstance(item, Value):
            item = self.evaluator.emitter.tensor(item, declared)
        elif declared is not None:
            item = self.evaluator.emitter.as_declared(item, declared)
        fresh |= self.made_since(count)
        if declared is not None and item.type != declared:
            assert target.type is not None
            message = f"{target.name!r} is declared {declared}, and is {item.type}"
            _, help_text = undeclared(item, declared, self.builder.ops) or (None, to_become(declared, item.type))
            raise error("E202", message, target.type.span, help=help_text)
        value = self.settle(item, target.name, sharding, fresh)
        fresh.discard(value)
        self.scope.bind(target.name, value, target.span)

    def declared(self, target: s.Target) -> tuple[TensorType | None, Sharding | None]:
        if target.type is None:
            return None, None
        type = tensor_type(target.type, self.evaluator.expr, self.scope)
        return type, type_sharding(target.type, type, self.context.meshes)

    def settle(self, value: Value, name: str, sharding: Sharding | None, fresh: set[Value]) -> Value:
        """The value with its name and its annotation. A value that this statement made is changed in place; any other
        is annotated by a `shard` op, or otherwise only gets an additional name."""
        if value in fresh and (sharding is None or value.sharding in (None, sharding)):
            _complete(value, self.claims.claim(name), sharding or value.sharding)
            return value
        if sharding is None:
            return value
        if self.context.stage == "spmd":
            raise error(
                "E406",
                "annotations belong to global programs",
                self.evaluator.emitter.span,
                help="in an SPMD program, every value is a shard already: write its type as that of the shard",
            )
        (placed,) = self.evaluator.emitter.ops("shard", (value,), {}, shardings=(sharding,))
        _complete(placed, self.claims.claim(name), sharding)
        return placed

    def locate(self, statement: s.Assign, place: Span, first_op: int) -> None:
        """Gives an op in printed form, whose text is at `place`, the source location in its trailing comment.

        In a text whose ops have such comments, an op without one has no location. Errors in a plan are errors in its
        own text, so the results keep their positions there.
        """
        value, locations = statement.value, self.context.locations
        if not locations or len(self.builder.ops) != first_op + 1 or any(t.type is None for t in statement.targets):
            return
        if not _is_printed_form(value) or place.source is not self.context.source:
            return
        location = locations.get(place.end_line)
        op, span = self.builder.ops[-1], None
        cause = op.cause
        if location is not None:
            # The trailing comments of a plan have costs; ops have their causes as attributes.
            if location.reason and self.context.stage != "plan":
                cause = read_cause(location.reason)
            if location.file:
                source = self.context.sources.setdefault(location.file, Source(location.file))
                span = Span(source, location.line, location.column, location.line, location.column + 1)
        for result in op.results if self.context.stage != "plan" else ():
            _complete(result, result.name, result.sharding, span)
        self.builder.ops[-1] = replace(op, span=span, cause=cause)

    def give(self, statement: s.Return, hints: Sequence[str]) -> Returned | None:
        items: list[tuple[Item, Span]] = []
        known: list[tuple[Item | None, Span]] = []
        are_counted = True
        for i, node in enumerate(statement.values):
            hint = hints[i] if i < len(hints) else "out"
            made: tuple[Item, ...] | None = None
            with self.context.reporting() as faults:
                made = self.given(node, hint)
            self.failed |= faults.found
            items.extend((item, node.span) for item in made or ())
            known.extend((item, node.span) for item in ((None,) if made is None else made))
            are_counted = are_counted and not (made is None and isinstance(node, s.Call | s.Block))
        self.given_back = ReturnedSoFar(tuple(known), statement.span) if are_counted else None
        return None if self.failed else Returned(tuple(items), statement.span)

    def given(self, node: s.Expr, hint: str) -> tuple[Item, ...]:
        """The items of one expression after `return`. A value that is made there gets the name of the result."""
        first_op = len(self.builder.ops)
        self.evaluator.emitter.hint = self.claims.reserve(hint)
        item = self.evaluate(node)
        items: tuple[Item, ...] = item.values if isinstance(item, Several) else (item,)
        fresh = self.made_since(first_op)
        return tuple(self.settle(i, hint, None, fresh) if isinstance(i, Value) else i for i in items)

    def evaluate(self, node: s.Expr, targets: Sequence[s.Target] = ()) -> Item:
        """The item of an expression, which may consist of blocks. `targets` are what its values are bound to."""
        if isinstance(node, s.While | s.Repeat):
            return expand_loop(self, node)
        if isinstance(node, s.Case):
            return expand_choice(self, node)
        if isinstance(node, s.Checkpoint):
            return expand_checkpoint(self, node, targets)
        if isinstance(node, s.Precision):
            return expand_precision(self, node)
        if isinstance(node, s.Manual):
            return expand_manual(self, node, targets)
        return self.evaluator.expr(node)

    def together(self, items: Sequence[Item]) -> Item:
        """Several items as one; tensors if there are several."""
        return items[0] if len(items) == 1 else Several(tuple(self.evaluator.emitter.tensor(i) for i in items))

    def results(
        self, returned: Returned, types: Sequence[TensorType], what: str, rule: str, carried: Sequence[Value] = ()
    ) -> list[Value]:
        """The tensors that a block returns, called `what` in errors, with the `rule` for its results as their help.
        `carried` are the parameters that they become in the next round. Raises SpmdcError (E405) if they are not of
        these types."""
        if len(returned.items) != len(types):
            message = f"{what} returns {len(returned.items)} values, and must return {len(types)}"
            raise error("E405", message, returned.span, help=rule)
        results: list[Value] = []
        for i, ((item, span), type) in enumerate(zip(returned.items, types, strict=True)):
            value = self.as_result(item, type, span)
            if value.type != type:
                is_elsewhere = not carried or value.type in types
                help_text = "" if is_elsewhere else self.context.to_begin(carried[i], value.type)
                message = f"{what} must return {type} here, and returns {value.type}"
                raise error("E405", message, span, help=help_text or rule)
            results.append(value)
        return results

    def as_result(self, item: Item, type: TensorType, span: Span) -> Value:
        """A returned item as a tensor; a number takes the wanted type."""
        self.evaluator.emitter.span = span
        if isinstance(item, Value | int | float | tuple):
            return self.evaluator.emitter.tensor(item, type)
        return expect_value(item, span, "what is returned")


def _named(value: s.Expr) -> str:
    """Help for an assignment of these values to more names, or to fewer."""
    if not isinstance(value, s.While | s.Repeat):
        return "each value has a name: values, places = top_k(x, 2)"
    carried = ", ".join(entry.target.name for entry in value.carried)
    counter = f", and its counter {value.counter} is none of them" if isinstance(value, s.Repeat) else ""
    return f"the values of a loop are those that it carries, {carried or 'none'}{counter}"


def _is_printed_form(value: s.Expr) -> bool:
    """Whether an op is printed like this: by its name, or as blocks, but for choices by truth."""
    if isinstance(value, s.Case):
        return not value.by_truth
    return isinstance(value, s.While | s.Manual | s.Checkpoint) or (isinstance(value, s.Call) and value.name in OPS)


def _complete(value: Value, name: str, sharding: Sharding | None, span: Span | None = None) -> None:
    """Sets the name, annotation and span of a value that is under construction, and not used elsewhere."""
    object.__setattr__(value, "name", name)
    object.__setattr__(value, "sharding", sharding)
    if span is not None:
        object.__setattr__(value, "span", span)
