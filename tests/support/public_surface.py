"""JAX's public functions, found by looking into its modules, each with small arguments to call it on.

Most calls are constructed by rule: every argument without a default is an array, of the first kind that the function
accepts, or what its name implies (`axis`, `shape`, `key`). The others are in `tests/support/public_calls.py`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy
import numpy as np
from public_calls import CALLS, FLOATS, INTEGERS, MATRICES, NUMBERS, TRIPLES, VECTOR

Function = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """A function with its array arguments."""

    function: Function
    arrays: tuple[np.ndarray[Any, Any], ...]


@functools.cache
def public_functions() -> dict[str, Function]:
    """All functions in JAX's array modules, each under its first name."""
    modules = [jnp, jnp.linalg, jnp.fft, jax.lax, jax.lax.linalg, jax.nn, jax.nn.initializers, jax.random]
    names = sorted(m.name for m in pkgutil.walk_packages(jax.scipy.__path__, "jax.scipy."))
    modules += [importlib.import_module(name) for name in names]
    found: dict[int, tuple[str, Function]] = {}
    for module in modules:
        for name, member in sorted(vars(module).items()):
            if name.startswith("_") or not callable(member) or isinstance(member, type | types.ModuleType):
                continue
            if typing.get_origin(member) is not None:
                continue
            found.setdefault(id(member), (f"{module.__name__}.{name}", member))
    return dict(found.values())


@functools.cache
def call_of(name: str) -> Call:
    """A call of the function. Raises AssertionError if no rule constructs one."""
    call = Call(*CALLS[name]) if name in CALLS else _by_rule(public_functions()[name])
    assert call is not None, f"tests/support/public_calls.py needs a call of {name}, or a reason against it"
    return call


_BY_NAME: Mapping[str, Any] = {
    "axes": (0,), "axis": 0, "axis1": 0, "axis2": 1, "broadcast_dimensions": (0, 1), "deg": 2, "destination": 1,
    "d": 3, "df": 3.0,
    "dim": 0, "dimension": 0, "dimensions": (0,), "dims": (0,), "dtype": np.float32, "exponent_bits": 8,
    "fft_lengths": (8,), "fft_type": "FFT", "fill_value": 2.0, "index_dtype": np.int32, "indices_or_sections": 2,
    "k": 2, "length": 8, "limit_index": 6, "limit_indices": (6, 6), "m": 3, "mantissa_bits": 7, "maxval": 10,
    "minval": 0, "M": 8, "n": 4, "N": 8, "n_max": 3, "new_dtype": np.float32, "new_sizes": (4, 16), "newshape": (64,),
    "num": 5, "num_classes": 8, "offset": 0, "pad_width": 1, "permutation": (1, 0), "q": 0.5,
    "rank": 3, "repeats": 2, "reps": 2,
    "shape": (8, 8), "shift": 1, "size": 8, "sizes": (8, 8), "slice_size": 3, "slice_sizes": (3, 3), "source": 0,
    "start": 0, "start_index": 0, "start_indices": (0, 0), "stop": 5,
}  # fmt: skip
_KINDS = (FLOATS, MATRICES, INTEGERS, VECTOR, NUMBERS, TRIPLES)


def _by_rule(function: Function) -> Call | None:
    """The first call that JAX can trace: first with arrays of one kind only, then with other arguments by their
    names."""
    parameters = inspect.signature(function).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    for known in (_BY_NAME, {}):
        for kind in _KINDS:
            call = _call(function, needed, kind, known)
            if is_traceable(call):
                return call
    lists = Call(lambda a, b: function([a, b]), (FLOATS, FLOATS))
    return lists if len(needed) == 1 and is_traceable(lists) else None


def _call(
    function: Function, needed: Sequence[inspect.Parameter], kind: np.ndarray[Any, Any], known: Mapping[str, Any]
) -> Call:
    given = [p for p in needed if p.name != "key" and p.name not in known]

    def apply(*arrays: Any) -> Any:
        rest = iter(arrays)
        values = {p.name: jax.random.key(7) if p.name == "key" else known.get(p.name) for p in needed}
        values |= {p.name: next(rest) for p in given}
        by_name = {p.name: values[p.name] for p in needed if p.kind is p.KEYWORD_ONLY}
        return function(*(values[p.name] for p in needed if p.name not in by_name), **by_name)

    return Call(apply, (kind,) * len(given))


def is_traceable(call: Call) -> bool:
    """Whether JAX can trace the call, and it returns arrays."""
    try:
        results = jax.tree.leaves(jax.eval_shape(call.function, *call.arrays))
    except Exception:
        return False
    return bool(results) and all(isinstance(r, jax.ShapeDtypeStruct) for r in results)
