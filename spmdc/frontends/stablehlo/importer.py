"""Converts an MLIR module of StableHLO to a Program, function by function, op by op.

Errors in ops are collected, and ops that use their results are skipped, so that one run reports everything in a module
that cannot be imported.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxlib.mlir import ir as mlir

from ir.builder import Names, RegionBuilder
from ir.diagnostics import Diagnostic, Diagnostics, InternalError, Span, SpmdcError, error
from ir.manual import Manual
from ir.mesh import AxisRef, Mesh
from ir.ops.host import TOKEN
from ir.program import Function, Program, Region, Result, Value
from ir.sharding import Sharding
from ir.types import TensorType
from ir.verify.program import check
from passes.manager import IMPORTED, Compilation, run
from spmdc.frontends.stablehlo.attributes import entries, int_of, is_token, items, outermost, tensor_type, text_of
from spmdc.frontends.stablehlo.by_hand import Devices, devices_of, entry_of
from spmdc.frontends.stablehlo.effects import Effects, is_callback, with_end
from spmdc.frontends.stablehlo.locations import Locations, name_of
from spmdc.frontends.stablehlo.meshes import partitions_of
from spmdc.frontends.stablehlo.mlir_modules import in_simpler_ops_elsewhere
from spmdc.frontends.stablehlo.names import identifier, name_of_instruction, name_of_path
from spmdc.frontends.stablehlo.ops import CONVERTERS
from spmdc.frontends.stablehlo.ops.sharding import annotated, grouped
from spmdc.frontends.stablehlo.scope import Bound, Converter, PoisonedError, Scope
from spmdc.frontends.stablehlo.shard_calls import Group, convert_group, regrouped
from spmdc.frontends.stablehlo.shardings import Shardings, group_of, has_sharding, is_annotated

ENTRY = "main"
RETURNS = frozenset({"func.return", "stablehlo.return", "mhlo.return", "sdy.return"})
_MAX_ERRORS = 50


@dataclass(frozen=True)
class Settings:
    """What is known about a module besides its text.

    With `names_from_locations`, values are named as the HLO instructions that they were. `mesh` is the default mesh, if
    the module does not declare it; `partitions` the number of devices that it is for, and `replicas` the number of
    copies of these.
    """

    names_from_locations: bool = False
    mesh: Mesh | None = None
    partitions: int | None = None
    replicas: int | None = None
    callbacks: Sequence[Callable[..., Any]] = ()
    """The Python functions that the module calls, by number."""
    is_pure: bool = False
    """Whether it is known that nothing in the module has effects."""
    is_scheduled: bool = False
    """Whether XLA has scheduled the module, which is its last pass."""
    has_shard_calls: bool = False
    """Whether there are manual regions in HLO's form."""
    may_be_by_hand: bool = False
    """Whether there are collectives, or other signs of a module that is partitioned manually as a whole."""
    in_simpler_ops: Callable[[mlir.Module], mlir.Module] = in_simpler_ops_elsewhere
    """Converts CHLO ops to StableHLO ops; for a user's module in a separate process."""


def import_module(module: mlir.Module, locations: Locations, settings: Settings) -> Program:
    """The program of a StableHLO module, whose context is entered, verified and simplified. Raises SpmdcError with all
    errors."""
    try:
        program = ModuleImporter(module, locations, settings).run()
    except RecursionError:
        message = "regions nest too deep in one another, or functions call one another so"
        raise error("E003", message, help="write loops") from None
    check(program)
    return run(Compilation(program), IMPORTED).program


class ModuleImporter:
    """The state that the functions of a module share."""

    def __init__(self, module: mlir.Module, locations: Locations, settings: Settings) -> None:
        self.locations = locations
        self.names_from_locations = settings.names_from_locations
        self.has_shard_calls = settings.has_shard_calls
        self.problems = Diagnostics()
        self.sources = {text_of(op.attributes["sym_name"]): op for op in outermost(module, "func.func")}
        self.functions: dict[str, Function] = {}
        self.elementwise: dict[tuple[str, ...], str] = {}
        """The functions of scalars for elementwise ops, by op and element types."""
        self.group_shapes: dict[int, tuple[int, ...]] = {}
        """The shape of the tensors of each sharding group."""
        self.draws = 0
        self.kept: list[mlir.Module] = []
        self.in_simpler_ops = settings.in_simpler_ops
        self._called: dict[tuple[str, Manual], str] = {}
        self._callers: dict[str, Span | None] = {}
        """The first call of each function, for functions and ops without a location."""
        self._names = Names()
        self._types: dict[mlir.Type, TensorType] = {}
        self.devices = _devices(module, settings)
        self.replicas = self.devices.replicas if self.devices is not None else 1
        if self.devices is None:
            _check_replicas(module, locations, settings.replicas)
        self.effects = Effects(self.sources, settings.callbacks, settings.is_pure)
        self.last_token: Value | None = None
        """The last token of the entry."""
        self._by_hand: str | None = None
        """The function that each device runs, if the module is partitioned manually."""
        self._placed: list[Sharding | None] = []
        """The shardings of the tensors that its parameters and then its results are shards of, as far as they are
        known."""
        mesh, partitions = settings.mesh, settings.partitions
        if self.devices is not None:
            mesh, partitions = self.devices.mesh, self.devices.replicas * self.devices.partitions
        self.shardings = Shardings(module, mesh, partitions, locations)

    def run(self) -> Program:
        entry = self._entry()
        self._names.fresh(ENTRY)
        axes = self._axes_by_hand()
        around = frozenset(axis.name for axis in axes)
        self._by_hand = self.fresh_function("shard") if around else None
        first = self._by_hand or ENTRY
        self._called[entry, around] = first
        self._callers[first] = None
        waiting = [(entry, around)]
        while waiting:
            known = len(self._called)
            name, manual = waiting.pop(0)
            self._function(self.sources[name], self._called[name, manual], manual)
            waiting.extend(list(self._called)[known:])
        self.problems.raise_errors()
        if first not in self.functions:
            raise InternalError("a function has faults that were not reported")
        if around:
            mesh = self.shardings.meshes[0]
            self.functions[ENTRY] = entry_of(self.functions[first], ENTRY, mesh, axes, self._placed)
        main = with_end(self.functions[ENTRY], list(self.functions.values()), self.last_token)
        ordered = {ENTRY: main, **{name: f for name, f in self.functions.items() if name != ENTRY}}
        return Program(self.shardings.meshes or (Mesh(()),), ordered, entry=ENTRY, source=self.locations.source)

    def _axes_by_hand(self) -> tuple[AxisRef, ...]:
        """The manual axes of the entry, if the module is partitioned manually: those of the manual subgroup of its
        shardings, or all."""
        if self.devices is None or not self.shardings.meshes:
            return ()
        if self.effects.in_function(self._entry()):
            raise error("E709", "the module is partitioned by hand, and calls code with effects",
                        self.locations.span(self.sources[self._entry()].location),
                        help="import the program as it is outside of shard_map")  # fmt: skip
        free = self.shardings.free_axes()
        return tuple(axis for axis in self.shardings.meshes[0].whole_axes() if axis.name not in free)

    def _entry(self) -> str:
        if ENTRY in self.sources:
            return ENTRY
        public = [n for n, op in self.sources.items() if not _is_private(op)]
        if not public:
            help = "one module to a file, with a public func.func, @main if there are several"
            raise error("E403", f"{self.locations.source.name} has no function to start from", help=help)
        return public[0]

    def type(self, type: mlir.Type, span: Span | None) -> TensorType:
        """The program's type for an MLIR type. Raises SpmdcError (E703, E704, E706)."""
        found = self._types.get(type)
        if found is None:
            found = self._types[type] = tensor_type(type, span)
        return found

    def called(self, function: str, manual: Manual, span: Span | None) -> str:
        """The name in the program of a function of the module that is called at `span`. It is imported once for each
        set of axes that are manual where it is called."""
        key = (function, manual)
        if key not in self._called:
            self._called[key] = name = self.fresh_function(function)
            self._callers[name] = span
        return self._called[key]

    def fresh_function(self, hint: str) -> str:
        """A new name for a function."""
        return self._names.fresh(identifier(hint, "function"))

    def _function(self, op: mlir.Operation, name: str, manual: Manual) -> None:
        span = self.locations.span(op.location) or self._callers[name]
        if not op.regions[0].blocks:
            missing = error("E702", f"function {name} is declared and has no body", span, help="give its body")
            self.problems.extend(missing.diagnostics)
            return
        block = op.regions[0].blocks[0]
        scope = Scope(self, RegionBuilder(), fallback=span, manual=manual, repeats=name != ENTRY)
        scope.builder.span = span
        of_wholes = name == self._by_hand
        faults = self._params(op, block, scope, span, of_wholes)
        has_effects = self.effects.in_function(text_of(op.attributes["sym_name"]))
        if has_effects and name == ENTRY:
            scope.token = scope.emit("constant", value=0, type=TOKEN)
        elif has_effects:
            scope.token = scope.builder.param("token", TOKEN, span=span)
        if name == ENTRY:
            scope.handed = []
        before = len(self.problems.errors)
        returned: list[Value] | None = None
        with contextlib.suppress(PoisonedError):
            returned = self.block(block, scope)
        if len(self.problems.errors) == before:
            self.problems.extend(faults)
        if returned is None or faults:
            return
        try:
            results = self._results(op, returned, span, manual, of_wholes)
        except SpmdcError as problem:
            self.problems.extend(problem.diagnostics)
            return
        if name == ENTRY:
            self.last_token = scope.token
            results += _handed_over(scope, results)
        else:
            results += [(token, Result("token", TOKEN, span=span)) for token in scope.tokens(has_effects)]
        self.functions[name] = Function(name, scope.builder.region(*(v for v, _ in results)), tuple(
            result for _, result in results
        ), span)  # fmt: skip

    def _params(
        self, op: mlir.Operation, block: mlir.Block, scope: Scope, span: Span | None, of_wholes: bool
    ) -> list[Diagnostic]:
        """Binds the parameters. Returns the errors of those that cannot be parameters; ops that use these may have
        more."""
        faults: list[Diagnostic] = []
        attributes = list(map(entries, items(op.attributes, "arg_attrs")))
        for i, argument in enumerate(block.arguments):
            if is_token(argument):
                scope.values[argument] = ()
                continue
            place = self.locations.span(argument.location) or span
            path = name_of(argument.location)
            name = name_of_path(path, f"arg{i}") if path and not path.startswith("jit(") else f"arg{i}"
            try:
                type = self.type(argument.type, place)
                given = attributes[i] if attributes else {}
                sharding = self._of_end(given, type, place, scope.manual, of_wholes)
            except SpmdcError as problem:
                faults += _located(name, place, problem)
                continue
            param = scope.builder.param(name, type, sharding, span=place)
            scope.values[argument] = self._grouped(op, scope, param, attributes[i] if attributes else {})
        return faults

    def _grouped(
        self, op: mlir.Operation, scope: Scope, value: Value, given: Mapping[str, mlir.Attribute] | mlir.OpAttributeMap
    ) -> Value:
        """The value in the sharding group that its HLO sharding names, if any."""
        sharding = given.get("mhlo.sharding", None)
        group = group_of(text_of(sharding)) if isinstance(sharding, mlir.StringAttr) else None
        return value if group is None else grouped(op, scope, value, group)

    def _of_end(
        self, given: Mapping[str, mlir.Attribute], type: TensorType, span: Span | None,
        manual: Manual, of_wholes: bool,
    ) -> Sharding | None:  # fmt: skip
        """The sharding of a parameter or result of a function, unless that is the sharding of the tensor that it is a
        shard of."""
        sharding = self.shardings.of_argument(given, type, span, manual)
        if not of_wholes:
            return sharding
        mesh = self.shardings.meshes[0]
        if sharding is None or set(mesh.names) > manual:
            self._placed.append(None)
            return sharding
        if sharding.mesh != mesh:
            raise error("E709", f"it is split along no axes of the mesh ({mesh}) of the groups of devices", span,
                        help="split it along those axes, or leave its sharding out")  # fmt: skip
        self._placed.append(sharding)
        return None

    def _results(
        self, op: mlir.Operation, returned: Sequence[Value], span: Span | None, manual: Manual, of_wholes: bool
    ) -> list[tuple[Value, Result]]:
        attributes = list(map(entries, items(op.attributes, "res_attrs")))
        names = Names()
        results: list[tuple[Value, Result]] = []
        attributes = attributes[len(attributes) - len(returned) :]
        for i, value in enumerate(returned):
            attribute = attributes[i] if attributes else {}
            sharding = self._of_end(attribute, value.type, span, manual, of_wholes)
            path = text_of(attribute["jax.result_info"]) if "jax.result_info" in attribute else ""
            default = "result" if len(returned) == 1 else f"result_{i}"
            name = names.fresh(name_of_path(path, default) if path else default)
            results.append((value, Result(name, value.type, sharding, span=span)))
        return results

    def block(self, block: mlir.Block, scope: Scope) -> list[Value]:
        """Converts the block's ops. Returns the block's results, with tuples flattened; raises PoisonedError if they
        have errors."""
        plain = (view.operation for view in block.operations)
        for op in plain if not self.has_shard_calls else regrouped(block):
            if isinstance(op, Group):
                self._group(op, scope)
                continue
            if op.name in RETURNS:
                return [leaf for v in op.operands for leaf in leaves(scope.bound(v))]
            self.convert(op, scope)
            if self.problems.items and len(self.problems.errors) >= _MAX_ERRORS:
                self.problems.raise_errors()
        raise PoisonedError

    def region(self, region: mlir.Region, scope: Scope, bound: Sequence[Bound]) -> Region:
        """A region of an op, in its own scope, with bound arguments. Raises PoisonedError if it has errors."""
        block = region.blocks[0]
        scope.values.update(zip(block.arguments, bound, strict=True))
        return scope.builder.region(*self.block(block, scope))

    def _group(self, group: Group, scope: Scope) -> None:
        try:
            convert_group(group, scope)
        except PoisonedError:
            return
        except SpmdcError as problem:
            self.problems.extend(problem.diagnostics)

    def convert(self, op: mlir.Operation, scope: Scope) -> None:
        """Appends the ops for an MLIR op, and binds its results. Reports its errors."""
        location = op.location
        scope.builder.span = self.locations.span(location) or scope.fallback
        before = len(scope.builder.ops)
        is_placed = has_sharding(op)
        try:
            converted = _converter(op, scope)(op, scope)
            annotations = self._annotations(op, scope) if is_placed else []
        except PoisonedError:
            return
        except SpmdcError as problem:
            self.problems.extend(_located(op.name, scope.builder.span, problem))
            return
        results = list(op.results)
        if len(results) == 1 and isinstance(converted, Value) and not (self.names_from_locations or is_placed):
            scope.values[results[0]] = scope.once(converted)
            return
        tokens = [v for v in results if is_token(v)]
        scope.values.update(dict.fromkeys(tokens, ()))
        results = [v for v in results if v not in tokens]
        given = converted if isinstance(converted, list) else [converted]
        if len(results) == 1 and isinstance(results[0].type, mlir.TupleType) and isinstance(converted, list):
            given = [tuple(converted)]
        hint = name_of_instruction(name_of(location)) if self.names_from_locations else ""
        for i, (result, value) in enumerate(zip(results, given, strict=True)):
            sharding = annotations[i] if annotations else None
            if isinstance(value, Value) and (hint or sharding is not None):
                is_new = len(scope.builder.ops) > before and value in scope.builder.ops[-1].results
                value = _finish(scope, value, hint, sharding) if is_new else annotated(scope, value, sharding)
            if isinstance(value, Value) and len(results) == 1 and "mhlo.sharding" in op.attributes:
                value = self._grouped(op, scope, value, op.attributes)
            scope.values[result] = value

    def _annotations(self, op: mlir.Operation, scope: Scope) -> list[Sharding | None]:
        """The shardings in an op's attributes for its results; empty if there are none."""
        if is_callback(op) or not is_annotated(op):
            return []
        ranks = [t.rank for t in scope.result_types(op)]
        return self.shardings.of_op(op, ranks, scope.builder.span, scope.manual)


def _devices(module: mlir.Module, settings: Settings) -> Devices | None:
    """The devices of a module that is partitioned manually; None for any other, and for one that JAX has lowered in
    this process."""
    if settings.mesh is not None or not settings.may_be_by_hand or settings.has_shard_calls:
        return None
    replicas, partitions = _replicas(module, settings.replicas), partitions_of(module, settings.partitions) or 1
    return devices_of(module, replicas, partitions, is_scheduled=settings.is_scheduled)


def _replicas(module: mlir.Module, written: int | None) -> int:
    attributes = module.operation.attributes
    name = "mhlo.num_replicas"
    return written if written is not None else int_of(attributes[name]) if name in attributes else 1


def _check_replicas(module: mlir.Module, locations: Locations, written: int | None) -> None:
    """Raises SpmdcError (E709) if the module runs as several replicas, each with arguments of its own."""
    count = _replicas(module, written)
    if count > 1:
        message = f"the module runs as {count} replicas, which are not partitions of one program"
        help = "give the batch a dim for what the replicas compute, and split it over partitions"
        raise error("E709", message, locations.span(module.operation.location), help=help)


def _converter(op: mlir.Operation, scope: Scope) -> Converter:
    """The op's converter; a custom call's may be that of its target. Raises SpmdcError (E702) if there is none."""
    spelt = op.name
    converter = _named(spelt)
    if spelt.endswith(".custom_call"):
        converter = CONVERTERS.get(f"custom_call @{text_of(op.attributes['call_target_name'])}", converter)
    if converter is None:
        raise scope.refuse(op, "there is no such op here", help="spmdc imports StableHLO, CHLO and Shardy's sdy")
    return converter


@functools.lru_cache(maxsize=1024)
def _named(spelt: str) -> Converter | None:
    """The converter of ops with that name, with or without its dialect."""
    return CONVERTERS.get(spelt) or CONVERTERS.get(spelt.partition(".")[2])


def leaves(bound: Bound) -> list[Value]:
    """The values of a tuple, and of tuples in it, in order."""
    return [bound] if isinstance(bound, Value) else [leaf for part in bound for leaf in leaves(part)]


def _finish(scope: Scope, value: Value, hint: str, sharding: Sharding | None) -> Value:
    """Sets the name and sharding of a result of the last op."""
    ops = scope.builder.ops
    last = ops[-1]
    name = scope.builder.names.fresh(hint) if hint and value.name != hint else value.name
    if value.sharding is not None and sharding is not None:
        return annotated(scope, value, sharding)
    finished = replace(value, name=name, sharding=sharding or value.sharding)
    ops[-1] = replace(last, results=tuple(finished if v is value else v for v in last.results))
    scope.copy_facts(value, finished)
    return finished


def _handed_over(scope: Scope, results: Sequence[tuple[Value, Result]]) -> list[tuple[Value, Result]]:
    """The additional results of the entry: the values that it sends to the host while it runs."""
    names = Names({result.name for _, result in results})
    return [(v, Result(names.fresh(hint), v.type, None, span=v.span)) for hint, v in scope.handed or ()]


def _located(what: str, span: Span | None, problem: SpmdcError) -> list[Diagnostic]:
    """The diagnostics, with the op or parameter that they are about, and its location."""
    return [
        replace(d, message=d.message if what in d.message else f"{what}: {d.message}", span=d.span or span)
        for d in problem.diagnostics
    ]


def _is_private(op: mlir.Operation) -> bool:
    attributes = op.attributes
    return "sym_visibility" in attributes and text_of(attributes["sym_visibility"]) == "private"
