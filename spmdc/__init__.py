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
    from ir.host import register_callback
    from passes.cost.machine import TPU_V3, Machine, machine
    from passes.cost.network import Link
    from spmdc.api import (
        PartitionedProgram,
        PropagatedProgram,
        evaluate,
        partition,
        pipeline,
        plan,
        propagate,
        random_inputs,
    )
    from spmdc.checkpointing import checkpointed
    from spmdc.choices import strategies
    from spmdc.comparison.compare import compare
    from spmdc.custom_calls import register_rule
    from spmdc.frontends.jax.annotations import replicate, shard, split
    from spmdc.frontends.jax.gradients import gradient
    from spmdc.frontends.jax.jit import jit
    from spmdc.frontends.jax.programs import as_jax
    from spmdc.frontends.jax.weights import initial_values
    from spmdc.pictures.picture import picture
    from spmdc.plans import Plan
    from spmdc.reading import from_hlo, from_jax, from_mlir, load, parse
    from spmdc.reports.collectives import Collective
    from spmdc.verification.equivalence import verify
else:
    import importlib

    _HOMES = {
        "TPU_V3": "passes.cost.machine",
        "Collective": "spmdc.reports.collectives",
        "Link": "passes.cost.network",
        "Machine": "passes.cost.machine",
        "PartitionedProgram": "spmdc.api",
        "Plan": "spmdc.plans",
        "PropagatedProgram": "spmdc.api",
        "SpmdcError": "ir.diagnostics",
        "as_jax": "spmdc.frontends.jax.programs",
        "checkpointed": "spmdc.checkpointing",
        "compare": "spmdc.comparison.compare",
        "evaluate": "spmdc.api",
        "from_hlo": "spmdc.reading",
        "from_jax": "spmdc.reading",
        "from_mlir": "spmdc.reading",
        "gradient": "spmdc.frontends.jax.gradients",
        "initial_values": "spmdc.frontends.jax.weights",
        "jit": "spmdc.frontends.jax.jit",
        "load": "spmdc.reading",
        "machine": "passes.cost.machine",
        "parse": "spmdc.reading",
        "partition": "spmdc.api",
        "picture": "spmdc.pictures.picture",
        "pipeline": "spmdc.api",
        "plan": "spmdc.api",
        "propagate": "spmdc.api",
        "random_inputs": "spmdc.api",
        "register_callback": "ir.host",
        "register_rule": "spmdc.custom_calls",
        "replicate": "spmdc.frontends.jax.annotations",
        "shard": "spmdc.frontends.jax.annotations",
        "split": "spmdc.frontends.jax.annotations",
        "strategies": "spmdc.choices",
        "verify": "spmdc.verification.equivalence",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        importlib.import_module("spmdc.pictures.pages")  # draws programs and shardings in notebooks
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


__version__ = "0.1.0"

__all__ = [
    "TPU_V3",
    "Collective",
    "Link",
    "Machine",
    "PartitionedProgram",
    "Plan",
    "PropagatedProgram",
    "SpmdcError",
    "__version__",
    "as_jax",
    "checkpointed",
    "compare",
    "evaluate",
    "from_hlo",
    "from_jax",
    "from_mlir",
    "gradient",
    "initial_values",
    "jit",
    "load",
    "machine",
    "parse",
    "partition",
    "picture",
    "pipeline",
    "plan",
    "propagate",
    "random_inputs",
    "register_callback",
    "register_rule",
    "replicate",
    "shard",
    "split",
    "strategies",
    "verify",
]
