"""Every op, declared once: a file for each family. Importing this package registers them all."""

from ir.ops import (
    collective,
    complex_numbers,
    contraction,
    control,
    convolution,
    creation,
    elementwise,
    indexing,
    layout,
    reduction,
    sorting,
    window,
)
from ir.ops.opdef import (
    OPS,
    AttrDef,
    Factor,
    FactorKind,
    FactorRule,
    Linearity,
    OpDef,
    TypeRuleError,
)

__all__ = [
    "OPS",
    "AttrDef",
    "Factor",
    "FactorKind",
    "FactorRule",
    "Linearity",
    "OpDef",
    "TypeRuleError",
    "collective",
    "complex_numbers",
    "contraction",
    "control",
    "convolution",
    "creation",
    "elementwise",
    "indexing",
    "layout",
    "reduction",
    "sorting",
    "window",
]
