"""The emitters: each op as a line, or a few, of the generated module. A file for each family; importing this package
registers them all."""

from ir.families import import_families
from lowering.jax.writer import EMITTERS

__all__ = ["EMITTERS"]

import_families(__name__, __path__)
