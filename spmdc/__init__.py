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
    from passes.cost.machine import TPU_V3, Link, Machine, machine
    from spmdc.api import (
        Collective,
        PartitionedProgram,
        Plan,
        PropagatedProgram,
        evaluate,
        partition,
        pipeline,
        plan,
        propagate,
        random_inputs,
        register_callback,
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
    from spmdc.reading import from_hlo, from_jax, from_mlir, load, parse
    from spmdc.verification.equivalence import verify
else:
    import importlib

    _ELSEWHERE = {
        "as_jax": "frontends.jax.programs",
        "checkpointed": "checkpointing",
        "compare": "comparison.compare",
        "from_hlo": "reading",
        "from_jax": "reading",
        "from_mlir": "reading",
        "gradient": "frontends.jax.gradients",
        "initial_values": "frontends.jax.weights",
        "jit": "frontends.jax.jit",
        "load": "reading",
        "parse": "reading",
        "picture": "pictures.picture",
        "register_rule": "custom_calls",
        "replicate": "frontends.jax.annotations",
        "shard": "frontends.jax.annotations",
        "split": "frontends.jax.annotations",
        "strategies": "choices",
        "verify": "verification.equivalence",
    }

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        importlib.import_module("spmdc.pictures.pages")  # draws programs and shardings in notebooks
        module = importlib.import_module(f"spmdc.{_ELSEWHERE.get(name, 'api')}")
        value = globals()[name] = getattr(module, name)
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
