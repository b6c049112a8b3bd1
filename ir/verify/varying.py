"""Over which mesh axes the values of an SPMD program, or of a manual region, may differ between devices.

A forward analysis over sets of mesh axes. It proves that no reduction which a result needs has been forgotten, and
that devices which must meet in a collective all reach it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ir.axis_sets import AxisSets, Mask, SubAxisCuts
from ir.diagnostics import Diagnostic, Span
from ir.mesh import Axes, AxisRef, Mesh
from ir.ops.collective import axes_attr, collective_axes, orders_attr, replicates
from ir.ops.control import is_manual
from ir.ops.declaration import COLLECTIVES, OPS, ControlKind, OpDef
from ir.ops.opaque import is_ordered
from ir.ops.rule_helpers import int_attr
from ir.program import Op, Program, Region, Result, Value, all_ops
from ir.spelling.printer import print_type
from ir.types import TensorType

Env = dict[Value, Mask]
Varying = tuple[Mask, ...]
"""The axes, as a mask of sub-axes, over which a value may differ between devices: one mask for each way in which its
function is called."""


def variance_diagnostics(program: Program) -> list[Diagnostic]:
    """Results that differ where they must agree (E407), collectives that some devices do not reach (E408), and axes
    cut in ways that have no common refinement (E307). The program must be an SPMD program and well-formed."""
    cuts = SubAxisCuts(program.meshes)
    faults = cut_diagnostics(cuts, _references(program))
    if faults:
        return faults
    cuts.align(list(_order_pairs(program)))
    return _Analysis(program, AxisSets(program.meshes, cuts)).entry()


def varying(program: Program) -> Mapping[Value, Varying]:
    """The axes that the values of an SPMD program vary over, for values that the entry reaches. The program must be
    valid."""
    cuts = SubAxisCuts(program.meshes)
    cut_diagnostics(cuts, _references(program))
    cuts.align(list(_order_pairs(program)))
    analysis = _Analysis(program, AxisSets(program.meshes, cuts))
    analysis.entry()
    return analysis.varying


def manual_diagnostics(program: Program) -> list[Diagnostic]:
    """The diagnostics of `variance_diagnostics` for the manual regions of a global program. It must be well-formed."""
    cuts = SubAxisCuts(program.meshes)
    faults = cut_diagnostics(cuts, _references(program))
    return faults or _Analysis(program, AxisSets(program.meshes, cuts)).regions()


def cut_diagnostics(cuts: SubAxisCuts, axes: Iterable[tuple[AxisRef, Span | None]]) -> list[Diagnostic]:
    """Errors where these axes, each with its span, have cuts without a common refinement with those before (E307), and
    with `cuts`, to which theirs are added. They must be axes of the meshes."""
    return [fault for ref, span in axes if (fault := _cut_fault(cuts, ref, span)) is not None]


def _cut_fault(cuts: SubAxisCuts, ref: AxisRef, span: Span | None) -> Diagnostic | None:
    for place in (ref.pre, ref.end):
        if not cuts.cut(ref.name, place):
            message = f"axis {ref.name!r} is cut at {place}, and elsewhere at {cuts.clash(ref.name, place)}"
            return Diagnostic("E307", message, span, help="cut an axis only at places of which one divides the other")
    return None


def _collectives(program: Program) -> Iterator[Op]:
    return (op for op in all_ops(program) if OPS[op.name].family == "collective")


def _references(program: Program) -> Iterator[tuple[AxisRef, Span | None]]:
    signature: tuple[Value | Result, ...] = (*program.main.params, *program.main.results)
    crossing = [v for op in all_ops(program) if is_manual(op) for v in (*op.regions[0].params, *op.results)]
    for value in (*signature, *crossing):
        if value.sharding is not None:
            yield from ((axis, value.span) for axis in value.sharding.used_axes())
    for op in _collectives(program):
        yield from ((axis, op.span) for axis in collective_axes(op))


def _order_pairs(program: Program) -> Iterator[tuple[Axes, Axes]]:
    """Pairs of device orders between which tensors may move, or which are two names for the same order."""
    meshes = program.meshes
    for i, first in enumerate(meshes):
        yield from (
            (first.whole_axes(), second.whole_axes())
            for second in meshes[i + 1 :]
            if first.device_ids == second.device_ids
        )
    seen = {(orders[0].axes, orders[1].axes): None for op in _collectives(program) if (orders := orders_attr(op.attrs))}
    yield from seen


def _union(masks: Iterable[Mask]) -> Mask:
    union = 0
    for mask in masks:
        union |= mask
    return union


class _Analysis:
    """Analyses the program from its entry. Every step is monotone, so an error that is found holds at the fixpoint."""

    def __init__(self, program: Program, axis_sets: AxisSets) -> None:
        self.program = program
        self.axis_sets = axis_sets
        self.found: dict[Op | Value, Diagnostic] = {}
        self.calls: dict[tuple[str, tuple[Mask, ...], Mask], tuple[Mask, ...]] = {}
        self.varying: dict[Value, Varying] = {}
        self.mesh_of = {name: mesh for mesh in program.meshes for name in mesh.names}

    def entry(self) -> list[Diagnostic]:
        main = self.program.main
        env: Env = {param: self._allowed(param) for param in main.params}
        masks = self._body(main.body, env, 0)
        wrong = [self._disagreement(r, m) for r, m in zip(main.results, masks, strict=True)]
        return [*self.found.values(), *(d for d in wrong if d is not None)]

    def regions(self) -> list[Diagnostic]:
        """Analyses a global program: outside of manual regions it has one device."""
        self.region(self.program.main.body, dict.fromkeys(self.program.main.params, 0), 0)
        return list(self.found.values())

    def _allowed(self, value: Value | Result) -> Mask:
        if value.sharding is None:
            return 0
        split = [axis for dim in value.sharding.axes for axis in dim]
        return self.axis_sets.mask([*split, *(axis for axis, _ in value.sharding.partial)])

    def _disagreement(self, result: Result, mask: Mask) -> Diagnostic | None:
        assert result.sharding is not None
        assert result.of is not None
        extra = self.axis_sets.on_mesh(mask, result.sharding.mesh) & ~self._allowed(result)
        return self._differing(result, result.of, extra)

    def _differing(self, result: Result | Value, type: TensorType, extra: Mask) -> Diagnostic | None:
        if not extra:
            return None
        assert result.sharding is not None
        axes = ", ".join(map(result.sharding.mesh.spell, self.axis_sets.axes(extra)))
        return Diagnostic(
            "E407",
            f"result {result.name!r} may differ between devices along {axes}, and its sharding, "
            f"{print_type(type, result.sharding)}, says that they agree",
            result.span,
            help=f"a reduction or a gather over ({axes}) is missing, or the sharding must name these axes",
        )

    def _body(self, body: Region, env: Env, divergent: Mask) -> tuple[Mask, ...]:
        """The masks of a function's results. The masks of all its values are recorded."""
        masks = self.region(body, env, divergent)
        for value, mask in env.items():
            self.varying[value] = (*self.varying.get(value, ()), mask)
        return masks

    def region(self, region: Region, env: Env, divergent: Mask) -> tuple[Mask, ...]:
        """The masks of the region's results. Devices that differ along `divergent` may not all run it."""
        for op in region.ops:
            masks = [env[v] for v in op.operands]
            outcome: Sequence[Mask] = self._outcome(op, masks, env, divergent)
            env.update(zip(op.results, outcome, strict=True))
        return tuple(env[v] for v in region.results)

    def _outcome(self, op: Op, masks: list[Mask], env: Env, divergent: Mask) -> Sequence[Mask]:
        opdef = OPS[op.name]
        match opdef.control:
            case None if is_ordered(op):
                return [_union(masks)] * (len(op.results) - 1) + [masks[-1]]
            case None:
                return masks if opdef.passes_each else self._computed(op, opdef, _union(masks), divergent)
            case ControlKind.LOOP:
                return self._while(op, masks, env, divergent)
            case ControlKind.CHOICE:
                return self._case(op, masks, env, divergent)
            case ControlKind.MANUAL:
                return self._manual(op, masks, env, divergent)
            case ControlKind.MAP:
                return self._call(op, [_union(masks)] * len(masks), divergent)
            case ControlKind.CALL:
                return self._call(op, masks, divergent)

    def _computed(self, op: Op, opdef: OpDef, mask: Mask, divergent: Mask) -> Sequence[Mask]:
        if opdef.family == "collective":
            return [self._collective(op, mask, divergent)] * len(op.results)
        if opdef.differs is None or self.program.stage != "spmd":
            return [mask] * len(op.results)
        return [mask | self.axis_sets.mask(axes) for axes in opdef.differs(op, self.program.mesh)]

    def _collective(self, op: Op, mask: Mask, divergent: Mask) -> Mask:
        axes = collective_axes(op)
        over = self.axis_sets.mask(axes)
        if op.name in COLLECTIVES:
            self._check_reached(op, axes, divergent)
        orders = orders_attr(op.attrs)
        if orders is not None:
            return self.axis_sets.permuted(mask, *orders, shift=int_attr(op.attrs, "shift"))
        if replicates(op):
            return self.axis_sets.on_mesh(mask, self.mesh_of[axes[0].name]) & ~over if axes else mask
        return mask | over

    def _check_reached(self, op: Op, axes: Axes, divergent: Mask) -> None:
        meshes: set[Mesh] = {self.mesh_of[axis.name] for axis in axes}
        missing = _union(self.axis_sets.on_mesh(divergent, mesh) for mesh in meshes) & self.axis_sets.mask(axes)
        if not missing or op in self.found:
            return
        names = ", ".join(self.mesh_of[a.name].spell(a) for a in self.axis_sets.axes(missing))
        self.found[op] = Diagnostic(
            "E408",
            f"{op.name} communicates along {names}, in a loop or a case that may differ between devices along {names}",
            op.span,
            help=f"make the condition, or the index, agree: all_reduce it over ({names}), a condition with kind=or",
        )

    def _while(self, op: Op, carried: list[Mask], env: Env, divergent: Mask) -> list[Mask]:
        """The least fixpoint over the carried values; a second visit starts from what the first one found."""
        cond, body = op.regions
        carried = [mask | env.get(param, 0) for mask, param in zip(carried, body.params, strict=True)]
        while True:
            env.update(zip(cond.params, carried, strict=True))
            (stop,) = self.region(cond, env, divergent)
            if stop & ~divergent:
                (stop,) = self.region(cond, env, divergent | stop)
            env.update(zip(body.params, carried, strict=True))
            after = self.region(body, env, divergent | stop)
            grown = [a | b for a, b in zip(carried, after, strict=True)]
            if grown == carried:
                return [mask | stop for mask in carried]
            carried = grown

    def _case(self, op: Op, masks: list[Mask], env: Env, divergent: Mask) -> list[Mask]:
        """A result varies as in any branch, and with the index."""
        which = _union(masks)
        branches = [self.region(region, env, divergent | which) for region in op.regions]
        return [_union(branch) | which for branch in zip(*branches, strict=True)]

    def _manual(self, op: Op, masks: list[Mask], env: Env, divergent: Mask) -> list[Mask]:
        """Inside, values vary along the region's axes too; returned values vary as the result's sharding says."""
        own, region = self.axis_sets.mask(axes_attr(op.attrs)), op.regions[0]
        env.update((p, mask | (self._allowed(p) & own)) for p, mask in zip(region.params, masks, strict=True))
        returned = self.region(region, env, divergent)
        for result, mask in zip(op.results, returned, strict=True):
            wrong = self._differing(result, result.type, mask & own & ~self._allowed(result))
            if wrong is not None:
                self.found[result] = wrong
        return [mask & ~own for mask in returned]

    def _call(self, op: Op, masks: list[Mask], divergent: Mask) -> tuple[Mask, ...]:
        name = op.attrs["function"]
        assert isinstance(name, str)
        key = (name, tuple(masks), divergent)
        known = self.calls.get(key)
        if known is None:
            function = self.program.functions[name]
            known = self._body(function.body, dict(zip(function.params, masks, strict=True)), divergent)
            self.calls[key] = known
        return known
