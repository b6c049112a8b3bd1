"""Ahead of time: what `lower` of a function of `spmdc.jit` gives, as `jax.jit` has it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax

from spmdc.api import PartitionedProgram

if TYPE_CHECKING:
    from spmdc.frontends.jit import Specialisation


class Lowered:
    """A function for arguments of some shapes, partitioned when that is first asked for."""

    def __init__(self, specialisation: Specialisation) -> None:
        self._specialisation = specialisation
        self.in_tree, self.out_tree = specialisation.trees

    @property
    def partitioned(self) -> PartitionedProgram:
        """The program: its text in our language, its collectives, its reasons."""
        return self._specialisation.part.partitioned

    @property
    def args_info(self) -> Any:
        """The shapes and types of the dynamic arguments, positional and by name."""
        return self._specialisation.args_info

    @property
    def out_info(self) -> Any:
        """The shapes and types of what the function returns."""
        return self._specialisation.out_info

    def as_text(self, dialect: str | None = None) -> str:
        """What one device runs, as a "stablehlo" module (the default), or as an "hlo" one."""
        if dialect not in (None, "stablehlo", "hlo"):
            raise ValueError(f"the dialect is stablehlo or hlo, and not {dialect!r}")
        return self.partitioned.hlo_text() if dialect == "hlo" else self.partitioned.stablehlo_text()

    def compile(self) -> Compiled:
        """The function for exactly these shapes."""
        return Compiled(self)


class Compiled:
    """A function compiled for arguments of some shapes. Static arguments are fixed, and left out of a call."""

    def __init__(self, lowered: Lowered) -> None:
        self._lowered = lowered
        self._specialisation = lowered._specialisation
        self.in_tree, self.out_tree = lowered.in_tree, lowered.out_tree
        self._run = self._specialisation.part.compiled

    @property
    def partitioned(self) -> PartitionedProgram:
        """The program that runs."""
        return self._lowered.partitioned

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function. Raises TypeError for arguments of other structures, shapes or types."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        if tree != self.in_tree:
            raise TypeError(f"the function was compiled for arguments {self.in_tree}, and called with {tree}")
        for i, (leaf, expected) in enumerate(zip(leaves, jax.tree.leaves(self._lowered.args_info), strict=True)):
            given = jax.typeof(leaf)
            if (given.shape, given.dtype) != (expected.shape, expected.dtype):
                wanted = f"{expected.dtype}{list(expected.shape)}"
                raise TypeError(f"argument {i} is {given.dtype}{list(given.shape)}, and compiled for is {wanted}")
        return self._specialisation(leaves)

    def as_text(self) -> str:
        """The optimised HLO module that XLA runs."""
        return str(self._executable.as_text())

    def cost_analysis(self) -> Any:
        """XLA's estimate of what a run costs."""
        return self._executable.cost_analysis()

    def memory_analysis(self) -> Any:
        """XLA's account of the memory that a device needs."""
        return self._executable.memory_analysis()

    @functools.cached_property
    def _executable(self) -> Any:
        part = self._specialisation.part
        with part.context():
            return jax.jit(lambda *arrays: self._run(*arrays)).lower(*part.avals).compile()
