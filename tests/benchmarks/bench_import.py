"""How long modules of JAX programs take to import, propagate and partition. Run with `make bench`; prints every figure.

Processor time is measured, so that other work on the machine does not count.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import mlp
import numpy as np
import pytest
import transformer
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import spmdc
from ir.program import Program
from lowering.jax import ensure_devices

T = TypeVar("T")
P: Any = PartitionSpec
SIZES = (1_000, 3_000, 10_000)
_OP = re.compile(r"^\s+(?:ROOT )?%?[\w.:#\-]+ = ", re.MULTILINE)
WIDTHS = {"vocabulary": 64, "width": 32, "heads": 8, "hidden": 64}


def seconds(work: Callable[[], T], repeats: int = 3) -> tuple[float, T]:
    """The least processor time of a few runs, and the last result."""
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        result = work()
        best = min(best, time.process_time() - start)
    return best, result


def lowered(layers: int, *, training: bool) -> jax.stages.Lowered:
    """The Transformer of the tests, its batch split over one axis, heads and hidden features over the other."""
    params = jax.eval_shape(functools.partial(transformer.init, **WIDTHS, layers=layers), jax.random.key(0))
    heads = {"wq": P(None, "m"), "wk": P(None, "m"), "wv": P(None, "m"), "wo": P("m")}
    layer = {"norm1": P(), **heads, "norm2": P(), "up": P(None, "m"), "down": P("m")}
    specs: Any = {"embedding": P("m"), "layers": [layer] * layers, "norm": P()}
    tokens = jax.eval_shape(lambda: jnp.zeros((8, 17), jnp.int32))
    function: Callable[..., Any] = transformer.forward
    args: tuple[Any, ...] = (params, tokens)
    places: tuple[Any, ...] = (specs, P("d"))
    if training:
        state = jax.eval_shape(mlp.adam_state, params)
        function, args = transformer.train_step(mlp.adam), (params, state, tokens)
        places = (specs, (specs, specs, P()), P("d"))
    mesh = Mesh(np.array(ensure_devices(8), dtype=object).reshape(2, 4), ("d", "m"))
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), places, is_leaf=lambda s: isinstance(s, P))
    return jax.jit(function, in_shardings=shardings, keep_unused=True).lower(*args)


def stablehlo_text(module: jax.stages.Lowered) -> str:
    return module.as_text(debug_info=True)


def hlo_text(module: jax.stages.Lowered) -> str:
    hlo: Any = module.compiler_ir("hlo")
    return str(hlo.as_hlo_text(print_large_constants=True))


def op_count(text: str) -> int:
    """How many ops of a module have results, in MLIR or HLO."""
    return sum(1 for _ in _OP.finditer(text))


@dataclass(frozen=True)
class Figures:
    """Of one module: its ops as they stand in the text, and seconds."""

    ops: int
    load: float
    propagate: float
    partition: float

    def __str__(self) -> str:
        steps = {"import": self.load, "propagate": self.propagate, "propagate + partition": self.partition}
        return f"{self.ops:>6} ops: " + "  ".join(
            f"{step} {taken:.2f} s ({1e6 * taken / self.ops:.0f} us an op)" for step, taken in steps.items()
        )


def measured(text: str, load: Callable[[str], Program], repeats: int) -> Figures:
    loading, program = seconds(lambda: load(text), repeats)
    propagating, _ = seconds(lambda: spmdc.propagate(program), repeats)
    partitioning, _ = seconds(lambda: spmdc.partition(program, verify=False), repeats)
    return Figures(op_count(text), loading, propagating, partitioning)


@pytest.mark.parametrize("training", [False, True], ids=["forward", "step"])
@pytest.mark.parametrize(("write", "load"), [(stablehlo_text, spmdc.from_mlir), (hlo_text, spmdc.from_hlo)])
def test_10000_ops_are_imported_in_3_seconds_and_partitioned_in_5(
    training: bool, write: Callable[[jax.stages.Lowered], str], load: Callable[[str], Program]
) -> None:
    few, more = (op_count(write(lowered(n, training=training))) for n in (1, 2))
    figures: list[Figures] = []
    for size in SIZES:
        text = write(lowered(round((size - few) / (more - few)) + 1, training=training))
        figures.append(measured(text, load, 3 if size == SIZES[-1] else 6))
        print(f"\n{figures[-1]}", end="")
    print()
    small, large = figures[0], figures[-1]
    assert large.load * 10_000 / large.ops < 3
    assert large.partition * 10_000 / large.ops < 5
    assert large.load / large.ops < 1.5 * small.load / small.ops
    assert large.partition / large.ops < 1.5 * small.partition / small.ops
