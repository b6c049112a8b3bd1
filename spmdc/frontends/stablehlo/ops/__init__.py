"""A converter for each op of StableHLO, CHLO and Shardy, by family. Importing this package registers them all."""

from ir.families import import_families
from spmdc.frontends.stablehlo.scope import CONVERTERS

__all__ = ["CONVERTERS"]

import_families(__name__, __path__)
