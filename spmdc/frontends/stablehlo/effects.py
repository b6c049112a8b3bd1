"""Host callbacks and code with effects in a module, and the token that is threaded through them.

Whatever order a module specifies for effects, here they happen in the order in which they are written: one token is
passed from each to the next, into and out of every loop, choice, function and manual region with effects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jaxlib.mlir import ir as mlir

from ir.builder import Names
from ir.host import HostFunction
from ir.mesh import AxisRef
from ir.ops.collective import axes_attr
from ir.program import Function, Op, Region, Value, walk
from ir.types import dtype_of, pred
from spmdc.frontends.stablehlo.attributes import dictionary, flag, int_of, is_token, text_of
from spmdc.frontends.stablehlo.hlo_words import INTO_REGION, OUT_OF_REGION

TARGETS = frozenset({"xla_ffi_python_cpu_callback", "xla_ffi_partitioned_python_cpu_callback"})
"""JAX's names for calls of Python functions on the CPU."""


@dataclass
class Effects:
    """The Python functions that a module calls, by number, and which of its functions have effects."""

    sources: Mapping[str, mlir.Operation]
    callbacks: Sequence[Callable[..., Any]]
    is_pure: bool = False
    """Whether it is known that nothing in the module has effects."""
    _names: Names = field(default_factory=Names)
    _functions: dict[int, HostFunction] = field(default_factory=dict[int, HostFunction])
    _known: dict[str, bool] = field(default_factory=dict[str, bool])

    def function(self, op: mlir.Operation, name: str) -> HostFunction | None:
        """The function that a custom call names; None if it is not available, as for a module from a file."""
        given = dictionary(op, "mhlo.backend_config")
        index = int_of(given["index"]) if "index" in given else -1
        if not 0 <= index < len(self.callbacks):
            return None
        if index not in self._functions:
            callback = self.callbacks[index]
            ordered = any(map(is_token, op.operands))
            function = functools.partial(_called, callback, ordered=ordered) if is_callback(op) else callback
            self._functions[index] = HostFunction(self._names.fresh(name).replace(".", "_"), function)
        return self._functions[index]

    def in_function(self, name: str) -> bool:
        """Whether a function of the module has effects."""
        if self.is_pure:
            return False
        if name not in self._known:
            self._known[name] = False
            self._known[name] = self.inside(self.sources[name].regions)
        return self._known[name]

    def inside(self, regions: Sequence[mlir.Region] | mlir.RegionSequence) -> bool:
        """Whether any op of these regions has effects."""
        if self.is_pure:
            return False
        return any(self._has_effect(view.operation) for r in regions for b in r.blocks for view in b.operations)

    def _has_effect(self, op: mlir.Operation) -> bool:
        attributes = op.attributes
        if op.name == "stablehlo.custom_call":
            return has_side_effect(op)
        called = next(
            (attributes[name] for name in ("callee", "decomposition", "called_computation") if name in attributes), None
        )
        if called is not None:
            return self.in_function(text_of(called))
        return len(op.regions) > 0 and self.inside(op.regions)


def _share_bytes(dtype: np.dtype[Any]) -> bool:
    return dtype_of(dtype) != pred and dtype_of(dtype).bits < 8


class _OfTheHost(np.ndarray[Any, Any]):
    """An array that JAX passes on unchanged, because to JAX it looks like a tree without arrays."""


_register: Any = jax.tree_util.register_pytree_node
_register(_OfTheHost, lambda array: ((), array), lambda array, _: array)


def _called(callback: Callable[..., Sequence[Any]], *arrays: Any, ordered: bool) -> Sequence[Any]:
    """The results of one of JAX's callbacks; one that is `ordered` passes a token on as its first argument and result.

    JAX converts the arguments of the user's function to its own arrays. To pack elements that share a byte, XLA would
    wait for a thread, while all threads wait for devices, one of which waits for this function.
    """
    given = [x.view(_OfTheHost) if _share_bytes(x.dtype) else x for x in map(np.asarray, arrays)]
    return callback(None, *given)[1:] if ordered else callback(*given)


def is_callback(op: mlir.Operation) -> bool:
    """Whether an op calls a Python function on the host."""
    return op.name == "stablehlo.custom_call" and text_of(op.attributes["call_target_name"]) in TARGETS


def has_side_effect(op: mlir.Operation) -> bool:
    """Whether a custom call does more than return results. Those at the boundary of a manual region are marked as if
    they did."""
    around_a_region = text_of(op.attributes["call_target_name"]) in INTO_REGION | OUT_OF_REGION
    return flag(op, "has_side_effect") and not around_a_region


def with_end(main: Function, functions: Sequence[Function], token: Value | None) -> Function:
    """The entry, with an `await_callbacks` at its end if the functions have callbacks or other calls with effects."""
    ops = [op for f in functions for op in walk(f.body)]
    callbacks = [op for op in ops if op.name == "callback"]
    if not callbacks:
        last = next((op for op in reversed(ops) if op.name == "inspect" or op.attrs.get("effect")), None)
        if last is None or token is None:
            return main
        end = Op("await_callbacks", (token,), (), {"each": ()}, span=last.span)
        return replace(main, body=Region(main.params, (*main.body.ops, end), main.body.results))
    each: dict[AxisRef, None] = dict.fromkeys(axis for op in callbacks for axis in axes_attr(op.attrs, "each"))
    awaited = dict.fromkeys((*main.body.results, *([token] if token is not None else [])))
    end = Op("await_callbacks", tuple(awaited), (), {"each": tuple(each)}, span=callbacks[-1].span)
    return replace(main, body=Region(main.params, (*main.body.ops, end), main.body.results))
