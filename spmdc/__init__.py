"""spmdc: a standalone SPMD partitioner.

    p = spmdc.load("moe_layer.spmd")
    q = spmdc.partition(p)
    print(q.text())
    outputs = q.simulate(*spmdc.random_inputs(p))

The names below are the public API; docs/architecture.md says how the packages behind it fit together. They are imported
when first used, so that `spmdc --help` answers at once.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ir.diagnostics import SpmdcError
    from spmdc.api import (
        Collective,
        PartitionedProgram,
        PropagatedProgram,
        evaluate,
        from_hlo,
        from_jax,
        from_mlir,
        load,
        parse,
        partition,
        propagate,
        random_inputs,
    )
    from spmdc.verification import verify
else:

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from spmdc import api, verification

        value = globals()[name] = getattr(verification if name == "verify" else api, name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


__version__ = "0.1.0"

__all__ = [
    "Collective",
    "PartitionedProgram",
    "PropagatedProgram",
    "SpmdcError",
    "__version__",
    "evaluate",
    "from_hlo",
    "from_jax",
    "from_mlir",
    "load",
    "parse",
    "partition",
    "propagate",
    "random_inputs",
    "verify",
]
