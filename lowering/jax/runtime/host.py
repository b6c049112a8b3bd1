"""Functions that generated modules use to call the host; see `runtime`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import io_callback

CALLBACKS: dict[str, Callable[..., Any]] = {}
FAILURES: dict[int, Exception] = {}


def call_host(
    name: str,
    types: Sequence[Any],
    operands: Sequence[jax.Array],
    *,
    place: jax.Array,
    once: Sequence[str] = (),
    varying: Sequence[str] = (),
    has_token: bool = False,
) -> tuple[jax.Array, ...]:
    """What CALLBACKS[name] returns, each of a shape and element type, called by the devices that are first along
    `once`.

    The others get zeros. What the function raises is kept in FAILURES for `raise_failures`; that call and those after
    it give zeros too, so that no device waits for one that stopped. With `has_token` the last operand and result are
    tokens.
    """
    shapes = [words_shape(*type) for type in types] + [words_shape((), np.uint32)] * has_token
    forms = [(x.shape, x.dtype) for x in operands[: len(operands) - has_token]]

    def called(place: Any, *words: Any) -> list[Any]:
        results = [np.zeros(form.shape, form.dtype) for form in shapes]
        if int(place) in FAILURES:
            return results
        try:
            given = CALLBACKS[name](*(host_array(x, *form) for x, form in zip(words, forms, strict=False)))
            arrays = host_results(name, given, types)
        except Exception as problem:
            FAILURES[int(place)] = problem
            return results
        return [host_words(x, form) for x, form in zip(arrays, shapes, strict=False)] + results[len(types) :]

    def call() -> list[jax.Array]:
        given = io_callback(called, shapes, place, *map(words_of, operands))
        results = [of_words(x, *type) for x, type in zip(given, types, strict=False)] + given[len(types) :]
        return [lax.pcast(x, tuple(varying), to="varying") if varying else x for x in results]

    def skip() -> list[jax.Array]:
        zeros = [jnp.zeros(*type) for type in types] + [jnp.uint32(0)] * has_token
        return [lax.pcast(x, tuple(varying), to="varying") if varying else x for x in zeros]

    return tuple(lax.cond(is_first(once), call, skip) if once else call())


def raise_failures(values: Sequence[jax.Array], *, place: jax.Array, once: Sequence[str] = ()) -> None:
    """Once the values are there, raises what a callback of this device raised."""

    def check(place: Any, *_: Any) -> Any:
        problem = FAILURES.pop(int(place), None)
        if problem is not None:
            raise problem
        return np.uint32(0)

    barrier: Any = lax.optimization_barrier
    seen = [lax.convert_element_type(jnp.ravel(x)[:1] != 0, jnp.uint8) for x in barrier(tuple(values))]

    def call() -> Any:
        return io_callback(check, words_shape((), np.uint32), place, *seen)

    if once:
        lax.cond(is_first(once), call, lambda: jnp.uint32(0))
    else:
        call()


def call_host_of_jax(
    name: str, types: Sequence[Any], operands: Sequence[jax.Array], *, has_token: bool = False
) -> tuple[jax.Array, ...]:
    """What CALLBACKS[name] returns, as a callback of JAX's own, which knows when it has no derivative. With `has_token`
    the last operand and result are tokens."""
    shapes = [words_shape(*type) for type in types]
    tensors = operands[: len(operands) - has_token]
    forms = [(x.shape, x.dtype) for x in tensors]

    def called(*words: Any) -> list[Any]:
        given = CALLBACKS[name](*(host_array(x, *form) for x, form in zip(words, forms, strict=True)))
        return [host_words(x, form) for x, form in zip(host_results(name, given, types), shapes, strict=True)]

    def noted(*words: Any) -> None:
        called(*words)

    words = list(map(words_of, tensors))
    if not types:
        jax.debug.callback(noted, *words)
        return tuple(operands[len(tensors) :])
    found = io_callback(called, shapes, *words) if has_token else jax.pure_callback(called, shapes, *words)
    return (*(of_words(x, *type) for x, type in zip(found, types, strict=True)), *operands[len(tensors) :])


def is_first(axes: Sequence[str]) -> jax.Array:
    """Whether the device is the first along all of these axes."""
    return lax.axis_index(tuple(axes)) == 0


def host_results(name: str, given: Any, types: Sequence[Any]) -> list[Any]:
    """On the host, what a function gave, as arrays of these types. Raises ValueError if it gave something else."""
    found = [] if not types else list(given) if isinstance(given, (tuple, list)) else [given]
    if len(found) != len(types):
        raise ValueError(f"{name} gave {len(found)} results, and the program takes {len(types)}")
    for x, (shape, dtype) in zip(map(np.asarray, found), types, strict=True):
        if x.shape != shape or not np.can_cast(x.dtype, dtype, "same_kind"):
            raise ValueError(
                f"{name} gave {x.dtype}{list(x.shape)}, and the program takes {np.dtype(dtype)}{list(shape)}"
            )
    return [np.asarray(x).astype(dtype, copy=False) for x, (_, dtype) in zip(found, types, strict=True)]


def words_shape(shape: Sequence[int], dtype: Any) -> Any:
    """What crosses to the host for a tensor. What has 64 bits crosses as words, which no setting of JAX's narrows, and
    elements that share a byte have one each: to unpack those, XLA needs a thread, and devices that wait leave none."""
    size = jnp.dtype(dtype).itemsize
    struct: Any = jax.ShapeDtypeStruct
    return struct((*shape, size // 4), np.uint32) if size > 4 else struct(shape, apart_type(dtype))


def apart_type(dtype: Any) -> Any:
    """The element type; of one whose elements share a byte, one that has all of its numbers and does not."""
    dtype = jnp.dtype(dtype)
    is_float = jnp.issubdtype(dtype, jnp.floating)
    if not (is_float or jnp.issubdtype(dtype, jnp.integer)):
        return dtype
    about: Any = jnp.finfo if is_float else jnp.iinfo
    if about(dtype).bits >= 8:
        return dtype
    return np.dtype(np.float32) if is_float else np.dtype(np.int8)


def words_of(x: jax.Array) -> jax.Array:
    """The tensor in the form of `words_shape`."""
    if x.dtype.itemsize <= 4:
        return x.astype(apart_type(x.dtype))
    if not jnp.issubdtype(x.dtype, jnp.complexfloating):
        return lax.bitcast_convert_type(x, jnp.uint32)
    words = lax.bitcast_convert_type(jnp.stack([x.real, x.imag], -1), jnp.uint32)
    return words.reshape((*x.shape, x.dtype.itemsize // 4))


def of_words(words: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
    """The tensor that crossed in the form of `words_shape`."""
    dtype = jnp.dtype(dtype)
    if dtype.itemsize <= 4:
        return words.astype(dtype)
    if not jnp.issubdtype(dtype, jnp.complexfloating):
        return lax.bitcast_convert_type(words, dtype)
    part = np.zeros((), dtype).real.dtype
    parts = lax.bitcast_convert_type(words.reshape((*shape, 2, -1)) if part.itemsize > 4 else words, part)
    return lax.complex(parts[..., 0], parts[..., 1])


def host_array(words: Any, shape: Sequence[int], dtype: Any) -> Any:
    """On the host, the array that crossed in the form of `words_shape`."""
    array = np.asarray(words)
    dtype = jnp.dtype(dtype)
    return np.ascontiguousarray(array).view(dtype).reshape(shape) if dtype.itemsize > 4 else array.astype(dtype)


def host_words(array: Any, form: Any) -> Any:
    """On the host, an array in the form of `words_shape`."""
    if array.dtype == form.dtype:
        return array.reshape(form.shape)
    if array.dtype.itemsize <= 4:
        return array.astype(form.dtype)
    return np.ascontiguousarray(array).view(np.uint32).reshape(form.shape)
