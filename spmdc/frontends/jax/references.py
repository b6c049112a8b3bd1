"""Functions that read and change references (`jax.new_ref`) of the surrounding code, as `jax.jit` allows.

The partitioned function takes the values of the references and returns their new values, in addition to the function's
own arguments and results. A call stores these in the references.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.extend.core import jaxpr_as_fun

from lowering.jax.untyped import struct_of
from lowering.jax.versions import (
    is_tracing,
    name_arguments,
    reference_value,
    set_reference_value,
    uses_named_axes,
    with_constants,
)
from spmdc.api import PartitionedProgram
from spmdc.frontends.jax.lowering import placements
from spmdc.frontends.jax.specialisation import Call, Chosen, FunctionTrace, Options, placement

_NONE = Chosen(frozenset(), frozenset())


class ReferringFunction:
    """A traced function that takes references or closes over some, which it may change.

    `jitted` makes the function that is partitioned, of the values of references and of the other leaves.
    """

    def __init__(
        self, trace: FunctionTrace, options: Options, call: Call, jitted: Callable[[Callable[..., Any], Options], Any]
    ) -> None:
        self._trace = trace
        self.traced = trace.lowering.traced
        self.out_info: Any = self.traced.out_info
        self.is_along_axes = uses_named_axes(self.traced.jaxpr.effects)
        self._around = trace.references
        self.captured = (*trace.captured, *(r for r in self._around if isinstance(r, jax.core.Tracer)))
        self._positions = [i for i, leaf in enumerate(call.leaves) if isinstance(leaf, jax.Ref)]
        held: list[Any] = list(map(jax.typeof, self._references(call.leaves)))
        self._kinds = [type.kind for type in held]
        placed = [*(placement(r, call.mesh) for r in self._around), *(call.placed[i] for i in self._positions)]
        others = [i for i in range(len(call.leaves)) if i not in self._positions]
        self._types = [struct_of(t.shape, t.dtype) for t in (*held, *(call.avals[i] for i in others))]
        returned = placements(options.out_shardings, self.out_info, "out_shardings")
        donated = [n for n, i in enumerate(others, len(placed)) if i in call.donated(options)]
        names = trace.names
        function: Any = functools.partial(self._of_values)
        function.__name__ = self.traced.fun_name
        held_names = [*(f"around[{i}]" for i in range(len(self._around))), *(names[i] for i in self._positions)]
        name_arguments(function, [*held_names, *(names[i] for i in others)])
        self.part = jitted(
            function,
            replace(
                options,
                mesh=call.mesh,
                in_shardings=(*placed, *(call.placed[i] for i in others)),
                out_shardings=(*placed, *returned),
                static=_NONE,
                donated=Chosen(frozenset([*range(len(placed)), *donated]), frozenset()),
            ),
        )

    def __call__(self, leaves: Sequence[Any]) -> Any:
        references = self._references(leaves)
        values = [r[...] if is_tracing() else reference_value(r) for r in references]
        results = self.part(*values, *(leaf for leaf in leaves if not isinstance(leaf, jax.Ref)))
        for reference, value in zip(references, results, strict=False):
            set_reference_value(reference, value)
        tree: Any = jax.tree.structure(self.out_info)
        return tree.unflatten(results[len(references) :])

    @functools.cached_property
    def partitioned(self) -> PartitionedProgram:
        """The program: its first parameters and results are the values of references."""
        found: PartitionedProgram = self.part.partitioned(*self._types)
        return found

    def _references(self, leaves: Sequence[Any]) -> list[Any]:
        return [*self._around, *(leaves[i] for i in self._positions)]

    def _of_values(self, *arrays: Any) -> tuple[Any, ...]:
        """From the values of references and the other leaves to the values after the call and the results."""
        count = len(self._kinds)
        references = [jax.new_ref(x, kind=kind) for x, kind in zip(arrays, self._kinds, strict=False)]
        given, others = iter(references), iter(arrays[count:])

        def replaced(values: Sequence[Any]) -> list[Any]:
            return [next(given) if isinstance(x, jax.Ref) else x for x in values]

        traced: Any = self.traced
        around = replaced(self._trace.closed_over)
        function = jaxpr_as_fun(with_constants(traced.jaxpr, replaced(traced.jaxpr.consts)))
        size = len(self._positions) + len(arrays) - count
        leaves = [next(given) if i in self._positions else next(others) for i in range(size)]
        results = function(*around, *leaves)
        return (*(r[...] for r in references), *results)
