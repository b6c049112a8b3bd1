"""Checks that a program is valid: names, types, regions, shardings, and what each stage allows.

Every pass may assume it of its input and must preserve it. All errors are found, not just the first. For an SPMD
program `ir.verify.varying` adds the proof that devices agree where the program specifies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ir.axis_sets import SubAxisCuts
from ir.diagnostics import Diagnostic, Span, SpmdcError
from ir.manual import has_manual
from ir.mesh import AxisRef, Mesh, mesh_problems
from ir.ops import OPS, TypeRuleError
from ir.ops.collective import collective_axes
from ir.ops.control import control_of, is_loop, is_manual, is_map
from ir.ops.declaration import ControlKind
from ir.ops.layout import is_annotation
from ir.ops.reduction import check_reducible
from ir.program import (
    Function,
    Op,
    Program,
    Region,
    Result,
    Stage,
    Value,
    callee_of,
    callees_first,
    values_within,
    walk,
)
from ir.sharding import Sharding, local_shape, sharding_faults
from ir.types import TensorType, pred, s32, size_problem
from ir.verify.manual import inside_diagnostics, region_diagnostics
from ir.verify.ops import op_diagnostics
from ir.verify.varying import cut_diagnostics, manual_diagnostics, variance_diagnostics

_MOST_ERRORS = 200
"""The most errors of a program that are reported."""
MAX_DEPTH = 100
"""The maximal nesting depth of regions and calls together."""


def verify(program: Program) -> list[Diagnostic]:
    """All errors in the program. Linear in the number of ops."""
    verifier = _Verifier(program)
    verifier.run()
    if verifier.found:
        return verifier.found
    if program.stage == "spmd":
        return variance_diagnostics(program)
    return (inside_diagnostics(program) or manual_diagnostics(program)) if verifier.has_manual else []


def check(program: Program) -> None:
    """Raises SpmdcError with all errors in the program, if there are any."""
    found = verify(program)
    if found:
        raise SpmdcError(found[:_MOST_ERRORS])


def mesh_diagnostics(meshes: Sequence[Mesh]) -> list[Diagnostic]:
    """The errors in these meshes as those of one program (E304)."""
    found: list[str] = []
    owners: dict[str, str] = {}
    for i, mesh in enumerate(meshes):
        title = f"mesh {mesh.name!r}" if mesh.name else f"mesh ({mesh})"
        found.extend(mesh_problems(mesh))
        found.extend(f"axis {n!r} of {title} is an axis of {owners[n]} too" for n in mesh.names if n in owners)
        owners.update(dict.fromkeys(mesh.names, title))
        if mesh.size != meshes[0].size:
            found.append(f"{title} has {mesh.size} devices, and the first mesh has {meshes[0].size}")
        if i and mesh.name in {m.name for m in meshes[:i]}:
            found.append(f"{title} needs a name of its own")
    return [
        Diagnostic("E304", message, help="all meshes are of the same devices, and have names and axes of their own")
        for message in found
    ]


def sharding_diagnostics(
    sharding: Sharding, type: TensorType, what: str, span: Span | None = None, stage: Stage = "global"
) -> list[Diagnostic]:
    """The errors in this sharding for a tensor of that type (E301, E302, E303, E308). `what` names the tensor.

    In a plan any element type can have a pending sum: of one device's element and nothing on the others.
    """
    faults = sharding_faults(sharding, type.shape)
    pending = {kind for _, kind in sharding.partial}
    for kind in sorted(pending - {"sum"} if stage == "plan" else pending):
        try:
            check_reducible(kind, type)
        except TypeRuleError as e:
            faults.append(("E308", f"it cannot be partial: {e.message}"))
    return [
        Diagnostic(code, f"the sharding of {what}: {message}", span, help=f"the mesh is ({sharding.mesh})")
        for code, message in faults
    ]


@dataclass
class _Verifier:
    program: Program
    found: list[Diagnostic] = field(default_factory=list[Diagnostic])
    visible: set[Value] = field(default_factory=set[Value])
    defined: set[Value] = field(default_factory=set[Value])
    names: dict[str, Value] = field(default_factory=dict[str, Value])
    calls: dict[str, list[tuple[Op, int]]] = field(default_factory=dict[str, list[tuple[Op, int]]])
    depths: dict[str, int] = field(default_factory=dict[str, int])
    sized: set[TensorType] = field(default_factory=set[TensorType])
    """The types that were checked for their size."""
    checked: dict[tuple[Sharding, TensorType], bool] = field(default_factory=dict[tuple[Sharding, TensorType], bool])
    fine: set[tuple[object, ...]] = field(default_factory=set[tuple[object, ...]])
    """The ops without errors of their own: their names, and which attributes and types they have."""
    attrs: set[int] = field(default_factory=set[int])
    """The ids of the attributes that have been checked. Ops that share them are often alike."""
    cuts: list[tuple[AxisRef, Span | None]] = field(default_factory=list[tuple[AxisRef, Span | None]])
    """The axes of each sharding, with the first span where it occurs."""
    groups: dict[int, tuple[int, ...]] = field(default_factory=dict[int, "tuple[int, ...]"])
    """The shape of the tensors of each sharding group."""
    has_manual: bool = False
    around_manual: frozenset[Value] | set[Value] = frozenset()
    """The values outside the innermost manual region."""

    def add(self, code: str, message: str, span: Span | None = None, help: str = "") -> None:
        self.found.append(Diagnostic(code, message, span, help=help))

    def run(self) -> None:
        program = self.program
        self.has_manual = program.stage != "spmd" and has_manual(program)
        self.found.extend(mesh_diagnostics(program.meshes))
        if program.stage == "spmd" and not program.meshes:
            self.add("E306", "an SPMD program needs a mesh, and declares none", help="mesh (x=8)")
        if program.entry not in program.functions:
            self.add("E403", f"there is no function {program.entry!r} to start from")
        for name, function in program.functions.items():
            if name != function.name:
                self.add("E403", f"function {function.name!r} is listed as {name!r}", function.span)
            self.function(name, function)
        if not self.found and program.stage != "spmd":
            self.found.extend(cut_diagnostics(SubAxisCuts(program.meshes), self.cuts))
        self.call_graph()
        if not self.found:
            self.maps()

    def function(self, name: str, function: Function) -> None:
        self.visible, self.defined, self.names = set(), set(), {}
        self.calls[name], self.depths[name] = [], 0
        is_entry = self.program.stage == "spmd" and name == self.program.entry
        self.signature(function, is_entry)
        self.region(function.body, name, 1, is_entry=is_entry)

    def signature(self, function: Function, is_entry: bool) -> None:
        returned, declared = function.body.results, function.results
        if len(returned) != len(declared):
            message = f"{function.name} returns {len(returned)} values, and its signature names {len(declared)}"
            self.add("E401", message, function.span)
        for value, result in zip(returned, declared, strict=False):
            if value.type != result.type:
                message = f"{function.name} returns {value.name!r} of type {value.type} for {_title(result)}"
                self.add("E401", message, result.span or function.span)
        for result in declared:
            self.placement(result, "result", is_entry)

    def placement(self, value: Value | Result, what: str, is_entry: bool) -> None:
        """Checks a value's sharding, and for the entry of an SPMD program the tensor that it is a shard of."""
        fault = "" if value.type in self.sized else _size_fault(value.type, self.program.stage)
        if not fault:
            self.sized.add(value.type)
            if not is_entry and value.sharding is None and value.of is None:
                return
        title = f"{what} {value.name!r}"
        if fault:
            self.add("E205", f"{title}{fault}", value.span)
        if is_entry:
            self.shard(value, title)
        elif value.of is not None:
            self.add("E409", f"{title} is no parameter or result of an SPMD entry, and cannot be a shard", value.span)
        elif value.sharding is not None and self.program.stage == "spmd":
            self.add("E406", f"{title} has a sharding, and has one device's shape already", value.span)
        elif value.sharding is not None:
            self.sharding(value.sharding, value.type, title, value.span)

    def shard(self, value: Value | Result, title: str) -> None:
        if value.of is None or value.sharding is None:
            self.add("E409", f"{title} does not say which shard of which tensor it is", value.span)
            return
        if not self.sharding(value.sharding, value.of, title, value.span):
            return
        local = TensorType(local_shape(value.of.shape, value.sharding.axes), value.of.dtype)
        if value.type != local:
            self.add("E409", f"{title} has type {value.type}, and a shard has type {local}", value.span)

    def sharding(self, sharding: Sharding, type: TensorType, title: str, span: Span | None) -> bool:
        """Whether the sharding is valid for the type; errors are reported at each value that has it."""
        if self.checked.get((sharding, type)):
            return True
        self.cuts.extend((axis, span) for axis in sharding.used_axes())
        before = len(self.found)
        if not self.program.meshes:
            self.add("E306", f"{title} has a sharding, and the program declares no mesh", span, "mesh (x=8)")
        elif sharding.mesh not in self.program.meshes:
            self.add("E301", f"the sharding of {title} is on a mesh ({sharding.mesh}) that is not declared", span)
        self.found.extend(sharding_diagnostics(sharding, type, title, span, self.program.stage))
        fine = self.checked[sharding, type] = len(self.found) == before
        return fine

    def define(self, value: Value, twin: Value | None = None) -> None:
        """Defines a value. `twin` is a value that may have the same name: a loop's condition and body use the same
        names for carried values."""
        if value in self.defined:
            self.add("E102", f"{value.name!r} is defined twice", value.span)
        other = self.names.setdefault(value.name, value)
        if other is not value and other is not twin:
            self.add("E102", f"two values of the function are named {value.name!r}", value.span)
        self.defined.add(value)
        self.visible.add(value)

    def use(self, value: Value, span: Span | None) -> None:
        if value in self.visible:
            return
        if value in self.around_manual:
            help_text = f"pass it: manual({value.name} = {value.name}, …)"
            self.add("E404", f"{value.name!r} is used in a manual region, and is outside of it", span, help_text)
            return
        where = "outside the region that defines it" if value in self.defined else "before it is defined"
        self.add("E404", f"{value.name!r} is used {where}", span)

    def region(
        self,
        region: Region,
        function: str,
        depth: int,
        twins: Sequence[Value] = (),
        *,
        is_entry: bool = False,
        is_manual: bool = False,
    ) -> None:
        before = self.depths[function]
        self.depths[function] = max(before, depth)
        if depth > MAX_DEPTH:
            if before < depth:
                self.add("E003", f"the regions of {function} nest deeper than {MAX_DEPTH} levels")
            return
        for i, param in enumerate(region.params):
            self.define(param, twins[i] if i < len(twins) else None)
            if is_manual:
                self.crossing(param)
            else:
                self.placement(param, "parameter", is_entry)
        for op in region.ops:
            self.op(op, function, depth)
        for value in region.results:
            self.use(value, value.span)
        self.visible.difference_update(region.params, *(op.results for op in region.ops))

    def sharding_group(self, op: Op) -> None:
        """Checks that the tensors of a sharding group have one shape."""
        group, shape = op.attrs.get("group"), op.result.shape
        if not isinstance(group, int):
            return
        known = self.groups.setdefault(group, shape)
        if known != shape:
            own = f"{op.result.name!r} of shape {list(shape)}"
            message = f"{own} is in group {group}, of tensors of shape {list(known)}"
            self.add("E303", message, op.span, help="give it another group")

    def op(self, op: Op, function: str, depth: int) -> None:
        for value in op.operands:
            if value not in self.visible:
                self.use(value, op.span)
        faults = self.op_itself(op)
        if not faults and is_annotation(op):
            self.sharding_group(op)
        control = control_of(op)
        if control is ControlKind.MANUAL:
            self.manual(op, function, depth)
            return
        if self.has_manual and not faults and OPS[op.name].family == "collective":
            self.cuts.extend((axis, op.span) for axis in collective_axes(op))
        twins: Sequence[Value] = ()
        for region in op.regions:
            self.region(region, function, depth + 1, twins)
            twins = region.params if control is ControlKind.LOOP else ()
        match control:
            case ControlKind.LOOP if len(op.regions) == 2:
                self.loop(op)
            case ControlKind.CHOICE:
                self.case(op)
            case ControlKind.CALL | ControlKind.MAP if callee_of(op) is not None:
                self.calls[function].append((op, depth))
                self.call(op)
            case _:
                pass
        for value in op.results:
            self.define(value)
            self.placement(value, "value", is_entry=False)

    def op_itself(self, op: Op) -> Sequence[Diagnostic]:
        """Checks an op apart from its regions and callee, once for all ops with the same attributes and types."""
        kind: tuple[object, ...] = ()
        if id(op.attrs) in self.attrs:
            types = [id(v.type) for v in (*op.operands, *op.results)]
            kind = op.name, id(op.attrs), len(op.operands), len(op.regions), *types
            if kind in self.fine:
                return ()
        self.attrs.add(id(op.attrs))
        faults = op_diagnostics(op, self.program.stage, self.program.meshes, has_manual=self.has_manual)
        self.found.extend(faults)
        if kind and not faults:
            self.fine.add(kind)
        return faults

    def manual(self, op: Op, function: str, depth: int) -> None:
        """Checks a manual region, which sees none of the values around it."""
        before = len(self.found)
        visible, around = self.visible, self.around_manual
        for region in op.regions:
            self.visible, self.around_manual = set(), visible
            self.region(region, function, depth + 1, is_manual=True)
        self.visible, self.around_manual = visible, around
        for value in op.results:
            self.define(value)
            self.placement(value, "value", is_entry=False)
        if len(self.found) == before and len(op.regions) == 1:
            self.found.extend(region_diagnostics(op, self.program.mesh))

    def crossing(self, param: Value) -> None:
        """Checks the tensor that a parameter of a manual region says it is a shard of."""
        if param.of is not None and param.sharding is not None:
            self.sharding(param.sharding, param.of, f"parameter {param.name!r}", param.span)

    def loop(self, op: Op) -> None:
        cond, body = op.regions
        carried = [v.type for v in op.operands]
        stop = [TensorType((), pred)]
        for what, values, expected in (
            ("condition takes", cond.params, carried),
            ("condition returns", cond.results, stop),
            ("body takes", body.params, carried),
            ("body returns", body.results, carried),
        ):
            types = [v.type for v in values]
            if types != expected:
                message = f"the loop's {what} {_types(types)}, and must {what.split()[1][:-1]} {_types(expected)}"
                self.add("E405", message, op.span)

    def case(self, op: Op) -> None:
        """Checks that the index, if any, is s32[], that regions have no parameters, and that all return the types of
        the case."""
        if any(v.type != TensorType((), s32) for v in op.operands):
            self.add(
                "E405", f"the index of a case must be s32[], and is {_types([v.type for v in op.operands])}", op.span
            )
        given = [v.type for v in op.results]
        for i, region in enumerate(op.regions):
            if region.params:
                self.add("E405", f"branch {i} of the case has parameters, and a case passes none", op.span)
            types = [v.type for v in region.results]
            if types != given:
                message = f"branch {i} of the case returns {_types(types)}, and the case returns {_types(given)}"
                self.add("E405", message, op.span)

    def call(self, op: Op) -> None:
        name = op.attrs.get("function")
        if not isinstance(name, str):
            return
        callee = self.program.functions.get(name)
        if callee is None:
            self.add("E103", f"there is no function {name!r}", op.span)
            return
        ends = (
            ("takes", [v.type for v in op.operands], [v.type for v in callee.params]),
            ("returns", [v.type for v in op.results], [r.type for r in callee.results]),
        )
        if is_map(op):
            self.map(op, callee, ends)
            return
        for verb, here, there in ends:
            if len(here) != len(there):
                self.add("E203", f"{name} {verb} {len(there)} values, and the call has {len(here)}", op.span)
            elif here != there:
                self.add("E202", f"{name} {verb} {_types(there)}, and the call has {_types(here)}", op.span)

    def map(self, op: Op, callee: Function, ends: Sequence[tuple[str, list[TensorType], list[TensorType]]]) -> None:
        """Checks that a mapped function takes and returns scalars, of the element types of tensors of one shape."""
        shapes = {v.shape for v in (*op.operands, *op.results)}
        if len(shapes) > 1 or not op.operands:
            shown = _types([v.type for v in (*op.operands, *op.results)])
            self.add("E202", f"map takes and returns tensors of one shape, and has {shown}", op.span)
        for verb, here, there in ends:
            wanted = [t.with_shape(()) for t in here]
            if wanted != there:
                message = f"{callee.name} {verb} {_types(there)}, and to be mapped here it must have {_types(wanted)}"
                self.add("E202", message, op.span)

    def maps(self) -> None:
        """Checks that a mapped function computes with scalars only, and has no loops: each element, padding included,
        would take iterations of its own."""
        faults: dict[str, str] = {}
        if not any(is_map(op) for calls in self.calls.values() for op, _ in calls):
            return
        for function in callees_first(self.program):
            ends: list[Value | Result] = [*values_within(function.body), *function.results]
            if any(end.sharding is not None and end.sharding.partial for end in ends):
                faults[function.name] = "leaves a reduction pending"
            for op in walk(function.body):
                callee = callee_of(op) or ""
                if is_map(op) and faults.get(callee):
                    self.add("E405", f"{callee} cannot be mapped over elements: it {faults[callee]}", op.span)
                fault = faults.get(callee, "") or _unmappable(op)
                if fault:
                    faults.setdefault(function.name, fault)

    def call_graph(self) -> None:
        """Checks that calls do not recurse, nor nest too deep."""
        total: dict[str, int] = {}
        for root in self.calls:
            stack = [] if root in total else [(root, iter(self.calls[root]))]
            active = {name: None for name, _ in stack}
            while stack:
                name, rest = stack[-1]
                op, _ = next(rest, (None, 0))
                callee = op.attrs.get("function") if op is not None else None
                if op is None:
                    stack.pop()
                    del active[name]
                    total[name] = self.total_depth(name, total)
                elif callee in active:
                    path = [*list(active)[list(active).index(str(callee)) :], callee]
                    self.add("E402", f"{callee} calls itself: {' → '.join(map(str, path))}", op.span,
                             help="write the repetition as a loop")  # fmt: skip
                elif isinstance(callee, str) and callee in self.calls and callee not in total:
                    stack.append((callee, iter(self.calls[callee])))
                    active[callee] = None

    def total_depth(self, name: str, total: dict[str, int]) -> int:
        deepest, is_reported = self.depths[name], self.depths[name] > MAX_DEPTH
        for op, depth in self.calls[name]:
            below = total.get(str(op.attrs.get("function")), 0)
            deepest, is_reported = max(deepest, depth + below), is_reported or below > MAX_DEPTH
        if deepest > MAX_DEPTH and not is_reported:
            self.add(
                "E003", f"the calls of {name} nest deeper than {MAX_DEPTH} levels", self.program.functions[name].span
            )
        return deepest


def _unmappable(op: Op) -> str:
    """Why a function with this op cannot be mapped over elements; empty if it can."""
    if is_loop(op):
        return "loops"
    if is_manual(op):
        return "holds a manual region"
    if OPS[op.name].family == "collective":
        return "communicates"
    tensor = next((v for v in op.results if v.type.rank), None)
    return f"computes {tensor.name!r}, which is no scalar but {tensor.type}" if tensor is not None else ""


def _size_fault(type: TensorType, stage: Stage) -> str:
    """Why no value can have the type, as words to follow its title; empty if one can."""
    if min(type.shape, default=0) < 0:
        return f" has type {type}: sizes must not be negative"
    problem = size_problem(type) if stage != "spmd" else ""
    return f": {problem}" if problem else ""


def _title(result: Result) -> str:
    return f"result {result.name!r} of type {result.type}" if result.name else f"a result of type {result.type}"


def _types(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"
