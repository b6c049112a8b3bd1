"""Ops that are replaced, as they are planned, by others that compute the same and can be split in more ways.

Importing this package registers them all.
"""

from passes.partition.rewrites import cut_first, even_groups, static_starts

__all__ = ["cut_first", "even_groups", "static_starts"]
