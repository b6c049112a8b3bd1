"""What each op is in JAX: a line, or a few, of the module that is written. A file for each
family; importing this package registers them all."""

from lowering.jax.ops import (
    collective,
    complex_numbers,
    contraction,
    control,
    convolution,
    creation,
    elementwise,
    host,
    indexing,
    layout,
    linalg,
    manual,
    opaque,
    reduction,
    sorting,
    window,
)
from lowering.jax.writer import EMITTERS

__all__ = [
    "EMITTERS",
    "collective",
    "complex_numbers",
    "contraction",
    "control",
    "convolution",
    "creation",
    "elementwise",
    "host",
    "indexing",
    "layout",
    "linalg",
    "manual",
    "opaque",
    "reduction",
    "sorting",
    "window",
]
