"""Over which axes JAX believes that each value differs between devices: the rule of `shard_map(check_vma=True)`.

The emitters need it to cast what JAX does not cast by itself, and the boundary to return what JAX cannot see to be
equal. It is the least fixpoint over the whole program; a function called from several places varies as the union says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ir.ops import OPS
from ir.ops.collective import axes_attr
from ir.program import Op, Program, Region, Value, callee_of
from ir.sharding import Sharding
from lowering.jax.axes import ProgramAxes, is_elsewhere
from lowering.jax.collective import permutation_orders, permuted_atoms

AtomSet = frozenset[str]
_NONE: AtomSet = frozenset()


def varying_axes(program: Program, axes: ProgramAxes) -> dict[Value, AtomSet]:
    """The atoms over which each value of an SPMD program may differ, as far as JAX can tell."""
    return _Analysis(program, axes).run()


def boundary_axes(sharding: Sharding | None, axes: ProgramAxes) -> AtomSet:
    """The atoms that the `PartitionSpec` of a parameter or result names."""
    if sharding is None:
        return _NONE
    if is_elsewhere(sharding, axes.default.mesh):
        return frozenset(axes.default.within(1, axes.default.mesh.size))
    refs = (*(a for dim in sharding.axes for a in dim), *(a for a, _ in sharding.partial))
    return frozenset(axes.atoms(refs))


def _union(sets: Iterable[AtomSet]) -> AtomSet:
    return _NONE.union(*sets)


class _Analysis:
    def __init__(self, program: Program, axes: ProgramAxes) -> None:
        self.program = program
        self.axes = axes
        self.known: dict[Value, AtomSet] = {}
        self.grew = True

    def run(self) -> dict[Value, AtomSet]:
        for param in self.program.main.params:
            self._join(param, boundary_axes(param.sharding, self.axes))
        while self.grew:
            self.grew = False
            for function in self.program.functions.values():
                self._region(function.body)
        return self.known

    def _of(self, value: Value) -> AtomSet:
        return self.known.get(value, _NONE)

    def _join(self, value: Value, axes: AtomSet) -> None:
        before = self._of(value)
        if not axes <= before:
            self.known[value] = before | axes
            self.grew = True

    def _region(self, region: Region) -> None:
        for op in region.ops:
            for value, axes in zip(op.results, self._results(op), strict=True):
                self._join(value, axes)

    def _results(self, op: Op) -> Sequence[AtomSet]:
        if op.name == "while":
            return self._while(op)
        if op.name == "case":
            return self._case(op)
        if callee_of(op) is not None:
            return self._call(op)
        operands = _union(map(self._of, op.operands))
        if OPS[op.name].family == "collective":
            return [self._collective(op, operands)]
        return [operands] * len(op.results)

    def _collective(self, op: Op, operand: AtomSet) -> AtomSet:
        if op.name == "collective_permute":
            return operand.union(permuted_atoms(self.axes, *permutation_orders(op)))
        refs = axes_attr(op.attrs)
        atoms = self.axes.atoms(refs)
        if op.name == "all_gather" and op.result.type.size == 0:
            return _NONE
        if not self.axes.in_place(refs) and atoms:
            return operand.union(self.axes.default.within(1, self.axes.default.mesh.size))
        return operand.difference(atoms) if op.name in ("all_reduce", "all_gather") else operand.union(atoms)

    def _while(self, op: Op) -> Sequence[AtomSet]:
        """Carried values vary as their first values, as the next ones, and as the number of turns."""
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
        which = self._of(op.operands[0])
        branches = zip(*(map(self._of, region.results) for region in op.regions), strict=True)
        return [which.union(*branch) for branch in branches]

    def _call(self, op: Op) -> Sequence[AtomSet]:
        function = self.program.functions[str(op.attrs["function"])]
        for param, operand in zip(function.params, op.operands, strict=True):
            self._join(param, self._of(operand))
        return [self._of(v) for v in function.body.results]
