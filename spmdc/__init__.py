"""spmdc: a standalone SPMD partitioner.

    p = spmdc.load("moe_layer.spmd")
    q = spmdc.partition(p)
    print(q.text())
    outputs = q.simulate(*spmdc.random_inputs(p))

The names below are the public API; docs/architecture.md says how the packages behind it fit together.
"""

from spmdc.api import (
    Collective,
    PartitionedProgram,
    PropagatedProgram,
    evaluate,
    load,
    parse,
    partition,
    propagate,
    random_inputs,
)

__version__ = "0.1.0"

__all__ = [
    "Collective",
    "PartitionedProgram",
    "PropagatedProgram",
    "__version__",
    "evaluate",
    "load",
    "parse",
    "partition",
    "propagate",
    "random_inputs",
]
