"""What a kernel is, and the table of them: one for each op that `ir.ops` declares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from ir.program import Op, Program, Region
from ir.registry import Registry
from ir.types import Array, DType
from lowering.reference.mesh_dims import DeviceGrids

Poison = Callable[[DType], Array]
"""What the padding of tensors of a type repeats."""


class Machine(Protocol):
    """What a kernel may ask of the interpreter that runs it."""

    program: Program
    grids: DeviceGrids
    poison: Poison
    running: Array
    """For which devices what is executed counts, along the device dims: not all may run a branch, or another
    iteration."""

    @property
    def lead(self) -> int:
        """How many leading dims of every array are device dims. The oracle has none."""

    def run(self, region: Region, arrays: Sequence[Array]) -> list[Array]:
        """Executes a region of the op at hand; it sees the values around it."""

    def among(self, devices: Array) -> AbstractContextManager[None]:
        """In which only these devices run, of those that do."""

    def call(self, function: str, arrays: Sequence[Array]) -> list[Array]:
        """Executes a function."""

    def map(self, function: str, arrays: Sequence[Array], rank: int) -> list[Array]:
        """Executes a function of scalars on the elements of arrays whose last `rank` dims are a tensor's."""

    @property
    def devices(self) -> DeviceGrids:
        """The grids of the devices that run manual regions here."""

    def run_on_devices(self, region: Region, arrays: Sequence[Array]) -> list[Array]:
        """Executes a region on `devices`, whose dims lead each array. It sees no values around it."""

    def refuse_collectives(self, op: Op) -> None:
        """Raises InternalError if a region of the op communicates."""


Kernel = Callable[[Op, Sequence[Array], Machine], Sequence[Array]]
"""The op's results from its operands. The first `machine.lead` dims of each array are device dims, of size 1 where
the value is known to be the same along that part of the mesh; the others are those of the value's type."""

KERNELS: Registry[Kernel] = Registry()
"""Every kernel, by the name of its op."""

kernel = KERNELS.of
"""Registers a function as the kernel of these ops."""
