"""Executes a program with one kernel for each op that `ir.ops` declares. Every value is dropped after its last use."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ir.dataflow import last_uses
from ir.diagnostics import InternalError
from ir.ops.collective import COLLECTIVES
from ir.ops.control import is_loop
from ir.program import Op, Program, Region, Value, callee_of, walk
from ir.registry import Registry, unregistered
from ir.types import Array
from lowering.reference.mesh_dims import DeviceGrids, grids_of
from lowering.reference.poison import Poison


@dataclass
class Shared:
    """The state that all activations of a program's functions share: the contents of padding, and the devices."""

    program: Program
    poison: Poison

    @cached_property
    def devices(self) -> DeviceGrids:
        """The grids of the program's meshes."""
        return grids_of(self.program)


class Interpreter:
    """One activation of a function. Regions inside it share its values.

    `mapped` is the number of dims that it is mapped over, which are additional device dims to its kernels. `lead` is
    the number of all leading dims of every array that are device dims. The oracle has none. `running` says, along the
    device dims, for which devices the current execution counts: not all may run a branch, or another iteration.
    """

    def __init__(self, shared: Shared, grids: DeviceGrids, mapped: int = 0, running: Array | None = None) -> None:
        self.mapped = mapped
        self.lead = grids.default.rank + mapped
        self.running: Array = np.ones((1,) * self.lead, np.bool_) if running is None else running
        self.program = shared.program
        self.poison = shared.poison
        self.grids = grids
        self.values: dict[Value, Array] = {}
        self._shared = shared
        self._sizes = grids.default.shape

    def run(self, region: Region, arrays: Sequence[Array]) -> list[Array]:
        """The region's results. It sees the values around it. The values that it defines are dropped afterwards."""
        self.values.update(zip(region.params, arrays, strict=True))
        del arrays
        for op, unneeded in zip(region.ops, last_uses(region), strict=True):
            self._execute(op)
            for value in unneeded:
                self.values.pop(value, None)
        results = [self.values[v] for v in region.results]
        for value in (*region.params, *(v for op in region.ops for v in op.results)):
            self.values.pop(value, None)
        return results

    @contextmanager
    def among(self, devices: Array) -> Iterator[None]:
        """A context in which only these devices run, of those that do."""
        before = self.running
        self.running = before & devices
        yield
        self.running = before

    def inner(self, grids: DeviceGrids, mapped: int = 0) -> Interpreter:
        """An interpreter for a region or function that sees none of the values here, on the devices that run."""
        rank = grids.default.rank + mapped
        running = self.running.reshape((*self.running.shape, *(1,) * (rank - self.running.ndim)))
        return Interpreter(self._shared, grids, mapped, running)

    def call(self, function: str, arrays: Sequence[Array]) -> list[Array]:
        """The function's results."""
        body = self.program.functions[function].body
        return self.inner(self.grids, self.mapped).run(body, arrays)

    def map(self, function: str, arrays: Sequence[Array], rank: int) -> list[Array]:
        """The function's results on the elements of arrays whose last `rank` dims are a tensor's."""
        body = self.program.functions[function].body
        return self.inner(self.grids, self.mapped + rank).run(body, arrays)

    @property
    def devices(self) -> DeviceGrids:
        """The grids of the devices of manual regions: outside of one, those of the program's meshes."""
        return self.grids if self.grids.default.rank else self._shared.devices

    def run_on_devices(self, region: Region, arrays: Sequence[Array]) -> list[Array]:
        """Executes a region on `devices`, whose dims lead each array. It sees no values around it."""
        return self.inner(self.devices).run(region, arrays)

    def refuse_collectives(self, op: Op) -> None:
        """Raises InternalError if a region of the op communicates."""
        if any(self._communicates(region) for region in op.regions):
            way = "leave the loop at different times" if is_loop(op) else "take different branches"
            raise InternalError(f"devices {way} that makes {op.results[0].name!r}, and it communicates")

    def _communicates(self, region: Region) -> bool:
        for op in walk(region):
            if op.name in COLLECTIVES:
                return True
            callee = callee_of(op)
            if callee is not None and self._communicates(self.program.functions[callee].body):
                return True
        return False

    def _execute(self, op: Op) -> None:
        kernel = KERNELS.get(op.name)
        if kernel is None:
            raise unregistered(op, "kernel", "lowering/reference/ops")
        results = kernel(op, [self.values[v] for v in op.operands], self)
        for value, result in zip(op.results, results, strict=True):
            self.values[value] = self._checked(op, value, np.asarray(result))

    def _checked(self, op: Op, value: Value, array: Array) -> Array:
        type, lead = value.type, self.lead
        if (
            array.dtype != type.dtype.numpy
            or array.ndim != lead + type.rank
            or array.shape[lead:] != type.shape
            or any(n not in (1, size) for n, size in zip(array.shape, self._sizes, strict=False))
        ):
            raise InternalError(
                f"{op.name} gave {array.dtype}{list(array.shape)} for {value.name!r}, which is {value.type} "
                f"on devices {list(self._sizes)}"
            )
        return array


Kernel = Callable[[Op, Sequence[Array], Interpreter], Sequence[Array]]
"""The op's results from its operands. The first `lead` dims of each array are device dims, of size 1 where the value is
known to be the same along that part of the mesh; the others are those of the value's type."""

KERNELS: Registry[Kernel] = Registry()
"""Every kernel, by the name of its op."""

kernel = KERNELS.of
"""Registers a function as the kernel of these ops."""


def execute(program: Program, arrays: Sequence[Array], grids: DeviceGrids, poison: Poison) -> list[Array]:
    """The results of the entry function. `poison` fills the padding that the program creates."""
    with np.errstate(all="ignore"):
        return Interpreter(Shared(program, poison), grids).run(program.main.body, arrays)
