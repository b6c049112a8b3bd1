"""Compositions: functions of the language that expand to ops, such as einsum, softmax and rng.

Importing this package declares them all.
"""

from ir.families import import_families
from spmdc.frontends.spmd.library.declare import COMPOSITIONS

__all__ = ["COMPOSITIONS"]

import_families(__name__, __path__)
