"""A numpy kernel for each op, in a file for each family. Importing this package registers them all."""

from lowering.reference.ops import (
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
    opaque,
    reduction,
    sorting,
    window,
)
from lowering.reference.registry import KERNELS

__all__ = [
    "KERNELS",
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
    "opaque",
    "reduction",
    "sorting",
    "window",
]
