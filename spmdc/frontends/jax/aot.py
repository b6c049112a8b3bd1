"""Ahead-of-time compilation: the stages of a function of `spmdc.jit`, as in `jax.jit`.

`Traced` is the function as JAX has traced it, `Lowered` what the devices are to run, `Compiled` the executable that
calls of the function run too. Attributes that are not defined here are those of JAX's stage of the same name: of the
trace of the function itself for `Traced`, of the partitioned program for the other two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from ir.diagnostics import SpmdcError
from ir.garbage import uncollected
from lowering.jax.untyped import struct_of
from lowering.jax.versions import is_tracing
from spmdc.api import PartitionedProgram
from spmdc.frontends.jax.execution import Execution, are_arrays, types_and_shardings
from spmdc.frontends.jax.shardings import divides
from spmdc.frontends.jax.specialisation import Specialisation


class _Stage:
    """The common part of all stages: attributes that are not defined here are those of JAX's own stage."""

    def __init__(self, specialisation: Specialisation, jax_stage: Any) -> None:
        self._specialisation = specialisation
        self._stage = jax_stage
        self.in_tree, self.out_tree = specialisation.signature.tree, specialisation.signature.out_tree

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(object.__getattribute__(self, "_stage"), name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._stage)})

    @property
    def args_info(self) -> Any:
        """The shape and type of each leaf of the dynamic arguments, positional and by name, and whether it is
        donated."""
        infos = jax.tree.leaves(self._specialisation.traced.args_info)
        donated = self._specialisation.signature.donated
        return self.in_tree.unflatten([replace(info, donated=i in donated) for i, info in enumerate(infos)])

    @property
    def donate_argnums(self) -> tuple[int, ...]:
        """The leaves that are donated, by position."""
        return self._specialisation.signature.donated

    @property
    def in_avals(self) -> Any:
        """The types of the dynamic arguments, in their tree."""
        return self.in_tree.unflatten(self._specialisation.signature.avals)


class Traced(_Stage):
    """A function traced by JAX for arguments of some shapes."""

    def __init__(self, specialisation: Specialisation) -> None:
        super().__init__(specialisation, specialisation.traced)

    @uncollected()
    def lower(self, **options: Any) -> Lowered:
        """The function partitioned, and lowered for the devices of its mesh. The options are those of JAX's `lower`,
        such as `lowering_platforms`."""
        execution = self._specialisation.execution
        lowered = execution.lower(**options) if options else execution.lowered
        return Lowered(self._specialisation, lowered)


class _Partitioned(_Stage):
    @property
    def partitioned(self) -> PartitionedProgram:
        """The program, with its text in the .spmd language, its collectives and its reasons."""
        return self._specialisation.part.partitioned

    @property
    def out_info(self) -> Any:
        """The shape, type and sharding of each result."""
        infos = jax.tree.leaves(self._specialisation.out_info)
        places = jax.tree.leaves(self._execution.out_shardings)
        return self.out_tree.unflatten(
            [struct_of(i.shape, i.dtype, weak_type=i.weak_type, sharding=s) if divides(s, i.shape) else i
             for i, s in zip(infos, places, strict=True)]
        )  # fmt: skip

    @property
    def _execution(self) -> Execution:
        return self._specialisation.execution


class Lowered(_Partitioned):
    """A function partitioned for arguments of some shapes, and lowered by JAX: the input of `compile`."""

    def compile(self, compiler_options: Any = None, **options: Any) -> Compiled:
        """The function compiled for exactly these shapes. Calls of the function run the same executable, unless options
        are given."""
        execution = self._execution
        if self._stage is execution.lowered and not compiler_options and not options:
            return Compiled(self._specialisation, execution.compiled)
        return Compiled(self._specialisation, self._stage.compile(compiler_options, **options))


class Compiled(_Partitioned):
    """A function compiled for arguments of some shapes. Static arguments are fixed, and are not passed in a call."""

    def __init__(self, specialisation: Specialisation, jax_stage: Any) -> None:
        super().__init__(specialisation, jax_stage)
        self._in_place = False
        """Whether the leaves of the previous call were on the devices on which the executable takes them."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the function. Raises TypeError for arguments of other structures, shapes or types."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        execution = self._execution
        if self._in_place and not is_tracing() and tree == self.in_tree and are_arrays(leaves):
            execution.check_donated(leaves)
            try:
                return execution.called(self._stage, leaves)
            except SpmdcError:
                raise
            except (TypeError, ValueError):
                self._in_place = False  # JAX's own error: it checks types and shardings before it runs anything.
        if tree != self.in_tree:
            raise TypeError(f"the function was compiled for arguments {self.in_tree}, and called with {tree}")
        self._check(leaves)
        execution.check_memory()
        misplaced = execution.misplaced(leaves)
        self._in_place = execution.is_plain and not misplaced
        return execution.run(leaves, misplaced, self._stage)

    def _check(self, leaves: Sequence[Any]) -> None:
        """Raises TypeError for leaves of other types, RuntimeError for arrays that were donated."""
        if not is_tracing():
            types_and_shardings(leaves)
        for i, (leaf, expected) in enumerate(zip(leaves, self._specialisation.signature.avals, strict=True)):
            if isinstance(leaf, jax.core.Tracer):
                raise TypeError("what is compiled ahead of time cannot be transformed or traced by JAX")
            given = jax.typeof(leaf)
            if (given.shape, given.dtype) != (expected.shape, expected.dtype):
                wanted = f"{expected.dtype}{list(expected.shape)}"
                raise TypeError(f"argument {i} is {given.dtype}{list(given.shape)}, and compiled for is {wanted}")

    call = __call__

    @property
    def input_shardings(self) -> Any:
        """The shardings of the arguments, positional and by name. Uneven dims are padded first."""
        return self._execution.in_shardings

    @property
    def input_formats(self) -> Any:
        """The memory layouts of the arguments, and their shardings, positional and by name."""
        return self.in_tree.unflatten(jax.tree.leaves(self._stage.input_formats))

    @property
    def output_shardings(self) -> Any:
        """The shardings of the results. Dims that do not divide evenly are unsplit."""
        return self._execution.out_shardings
