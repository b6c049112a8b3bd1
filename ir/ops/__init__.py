"""Every op, declared once: a file for each family. Importing this package registers them all."""

from ir.families import import_families
from ir.ops.declaration import OPS, AttrDef, Factor, FactorKind, FactorRule, Linearity, OpDef, TypeRuleError

__all__ = ["OPS", "AttrDef", "Factor", "FactorKind", "FactorRule", "Linearity", "OpDef", "TypeRuleError"]

import_families(__name__, __path__)
