"""Ops whose local form is more than the op itself on shards, in a file for each family.

Importing this package registers them all.
"""

from passes.partition.ops import (
    contraction,
    convolution,
    creation,
    host,
    indexing,
    layout,
    opaque,
    reduction,
    sorting,
    window,
)

__all__ = [
    "contraction",
    "convolution",
    "creation",
    "host",
    "indexing",
    "layout",
    "opaque",
    "reduction",
    "sorting",
    "window",
]
