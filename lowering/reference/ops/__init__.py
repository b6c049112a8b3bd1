"""A numpy kernel for each op, in a file for each family. Importing this package registers them all."""

from ir.families import import_families
from lowering.reference.interpreter import KERNELS

__all__ = ["KERNELS"]

import_families(__name__, __path__)
