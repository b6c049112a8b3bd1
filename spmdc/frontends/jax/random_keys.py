"""Values of JAX that are other numbers in programs: random keys (`jax.random.key`) as the words that they consist of,
and values without numbers (`float0`)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core.primitives import convert_element_type_p


def is_key(x: Any) -> bool:
    """Whether it is an array, a tracer or the type of keys."""
    return hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def is_nothing(x: Any) -> bool:
    """Whether it has no numbers (`float0`), like tangents of integers. Programs, which have no such type, have False
    instead."""
    return hasattr(x, "dtype") and x.dtype == jax.dtypes.float0


def words(x: Any) -> Any:
    """The words of keys, with one more dim; any other array of numbers unchanged."""
    if is_nothing(x):
        return jnp.zeros(x.shape, bool)
    return jax.random.key_data(x) if is_key(x) else x


def words_type(type: Any) -> Any:
    """The type of the words of keys; any other type of numbers unchanged."""
    return jax.eval_shape(words, type) if is_key(type) or is_nothing(type) else type


def from_words(x: Any, type: Any) -> Any:
    """A value of that type: keys made from words, or any other value unchanged."""
    if is_nothing(type):
        return np.zeros(type.shape, jax.dtypes.float0)
    return jax.random.wrap_key_data(x, impl=_generator(type)) if is_key(type) else x


def restored(x: Any, type: Any) -> Any:
    """An array of numbers as a value of that type: keys, or numbers that are weakly typed, like Python's."""
    weak = convert_element_type_p.bind(x, new_dtype=x.dtype, weak_type=True, sharding=None) if type.weak_type else x
    return from_words(weak, type)


def _generator(type: Any) -> Any:
    """The random number generator that keys are for."""
    found: list[Any] = []
    jax.eval_shape(lambda keys: found.append(jax.random.key_impl(keys)), type)
    return found[0]
