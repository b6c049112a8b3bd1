"""The axes over which JAX considers each value to differ between devices: the rule of `shard_map(check_vma=True)`.

The emitters need them for casts that JAX does not make by itself, and the boundary for results that JAX cannot prove
equal. They are found for a function once for each way in which its calls' arguments vary: if they were the union over
all calls, a call on values that are equal on all devices would have results that seem to differ, and making these equal
would add communication that the program does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ir.closure import reached
from ir.manual import manual_part, region_axes
from ir.ops import OPS
from ir.ops.collective import axes_attr, orders_attr, replicates
from ir.ops.declaration import ControlKind
from ir.program import Function, Op, Program, Region, Value, callee_of, walk
from ir.sharding import Sharding
from lowering.jax.axes import ProgramAxes, is_elsewhere, permuted_axis_names

AtomSet = frozenset[str]
_NONE: AtomSet = frozenset()


@dataclass(frozen=True, eq=False)
class Version:
    """A function for arguments that vary over certain axes: `varying` has the axes that the values inside vary over, as
    far as JAX knows. Values without an entry do not vary."""

    function: Function
    varying: Mapping[Value, AtomSet]


class Versions:
    """The versions of a program's functions for its calls. In a global program, values vary in manual regions only."""

    def __init__(self, program: Program, axes: ProgramAxes | None) -> None:
        self.program = program
        self.axes = axes
        self._found: dict[tuple[str, tuple[AtomSet, ...]], Version] = {}

    @property
    def entry(self) -> Version:
        main = self.program.main
        axes = self.axes if self.program.stage == "spmd" else None
        return self._of(main, tuple(_NONE if axes is None else boundary_axes(p.sharding, axes) for p in main.params))

    def called(self, op: Op, caller: Version) -> Version:
        """The version that a call in another version calls."""
        function = self.program.functions[str(op.attrs["function"])]
        return self._of(function, tuple(caller.varying.get(v, _NONE) for v in op.operands))

    def reached(self) -> list[Version]:
        """The versions that run, including the entry, in the order of the program's functions."""

        def called(caller: Version) -> list[Version]:
            return [self.called(op, caller) for op in walk(caller.function.body) if callee_of(op) is not None]

        order = {name: i for i, name in enumerate(self.program.functions)}
        return sorted(reached([self.entry], called), key=lambda version: order[version.function.name])

    def _of(self, function: Function, params: tuple[AtomSet, ...]) -> Version:
        key = function.name, params
        found = self._found.get(key)
        if found is None:
            varying = _Analysis(self, self.axes, function, params).run() if self.axes is not None else {}
            found = self._found[key] = Version(function, varying)
        return found

    def results(self, op: Op, operands: tuple[AtomSet, ...]) -> list[AtomSet]:
        """The axes that the results of a call vary over."""
        called = self._of(self.program.functions[str(op.attrs["function"])], operands)
        return [called.varying.get(v, _NONE) for v in called.function.body.results]


def boundary_axes(sharding: Sharding | None, axes: ProgramAxes) -> AtomSet:
    """The names of the sub-axes that the `PartitionSpec` of a parameter or result names."""
    if sharding is None:
        return _NONE
    if is_elsewhere(sharding, axes.default.mesh):
        return frozenset(axes.default.within(1, axes.default.mesh.size))
    refs = (*(a for dim in sharding.axes for a in dim), *(a for a, _ in sharding.partial))
    return frozenset(axes.axis_names(refs))


def _union(sets: Iterable[AtomSet]) -> AtomSet:
    return _NONE.union(*sets)


class _Analysis:
    """The least fixpoint for one function."""

    def __init__(self, versions: Versions, axes: ProgramAxes, function: Function, params: Sequence[AtomSet]) -> None:
        self.versions = versions
        self.axes = axes
        self.body = function.body
        self.known: dict[Value, AtomSet] = dict(zip(function.params, params, strict=True))

    def run(self) -> dict[Value, AtomSet]:
        self._region(self.body)
        return self.known

    def _of(self, value: Value) -> AtomSet:
        return self.known.get(value, _NONE)

    def _join(self, value: Value, axes: AtomSet) -> None:
        self.known[value] = self._of(value) | axes

    def _region(self, region: Region) -> None:
        for op in region.ops:
            for value, axes in zip(op.results, self._results(op), strict=True):
                self._join(value, axes)

    def _results(self, op: Op) -> Sequence[AtomSet]:
        match OPS[op.name].control:
            case None:
                return [self._computed(op, _union(map(self._of, op.operands)))] * len(op.results)
            case ControlKind.LOOP:
                return self._while(op)
            case ControlKind.CHOICE:
                return self._case(op)
            case ControlKind.MANUAL:
                return self._manual(op)
            case ControlKind.CALL | ControlKind.MAP:
                return self.versions.results(op, tuple(map(self._of, op.operands)))

    def _computed(self, op: Op, operands: AtomSet) -> AtomSet:
        opdef = OPS[op.name]
        if opdef.family == "collective":
            return self._collective(op, operands)
        differs = opdef.differs(op, self.axes.default.mesh) if opdef.differs is not None else ()
        return operands.union(*map(self.axes.axis_names, differs))

    def _collective(self, op: Op, operand: AtomSet) -> AtomSet:
        orders = orders_attr(op.attrs)
        if orders is not None:
            return operand.union(permuted_axis_names(self.axes, *orders))
        refs = axes_attr(op.attrs)
        axis_names = self.axes.axis_names(refs)
        if op.name == "all_gather" and op.result.type.size == 0:
            return _NONE
        if not self.axes.in_place(refs) and axis_names:
            return operand.union(self.axes.default.within(1, self.axes.default.mesh.size))
        return operand.difference(axis_names) if replicates(op) else operand.union(axis_names)

    def _while(self, op: Op) -> Sequence[AtomSet]:
        """Carried values vary as their initial values, as the next ones, and as the number of iterations."""
        cond, body = op.regions
        carried = [self._of(v) for v in op.operands]
        while True:
            for region in (cond, body):
                for param, axes in zip(region.params, carried, strict=True):
                    self._join(param, axes)
                self._region(region)
            turns = _union(map(self._of, cond.results))
            after = [self._of(p) | self._of(v) | turns for p, v in zip(body.params, body.results, strict=True)]
            if after == carried:
                return carried
            carried = after

    def _case(self, op: Op) -> Sequence[AtomSet]:
        """A result varies as that of any branch, and as the index."""
        for region in op.regions:
            self._region(region)
        which = _union(map(self._of, op.operands))
        branches = zip(*(map(self._of, region.results) for region in op.regions), strict=True)
        return [which.union(*branch) for branch in branches]

    def _manual(self, op: Op) -> Sequence[AtomSet]:
        """Outside, nothing varies over the axes of the region."""
        manual, (region,) = region_axes(op), op.regions
        for param, operand in zip(region.params, op.operands, strict=True):
            assert param.sharding is not None
            self._join(param, self._of(operand) | boundary_axes(manual_part(param.sharding, manual), self.axes))
        self._region(region)
        inside = self.axes.axis_names(axes_attr(op.attrs))
        return [self._of(v).difference(inside) for v in region.results]
