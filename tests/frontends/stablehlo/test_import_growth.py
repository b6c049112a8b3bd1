"""What is done for a module, to import and to partition it, grows with it and no faster: counted, not timed."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import mlp
import pytest
import transformer
from jax.sharding import PartitionSpec

import spmdc
from ir.program import all_ops
from passes.optimize.fold.rewriter import Rewriter
from passes.partition.plan.strategies import StrategySelector
from passes.partition.reshard.planner import Resharder
from passes.propagation.propagate import propagate

P: Any = PartitionSpec


def counted(counts: Counter[str], owner: type, name: str) -> Any:
    """Counts how often a method is called."""
    original: Callable[..., Any] = getattr(owner, name)

    def method(self: Any, *args: Any) -> Any:
        counts[name] += 1
        return original(self, *args)

    return patch.object(owner, name, method)


def work(layers: int) -> Counter[str]:
    """What a training step of a Transformer of that many layers takes: ops made simple, visits of propagation,
    choices, those searched for and reshards searched for; and the ops that come out."""
    sizes = {"vocabulary": 64, "width": 32, "heads": 8, "hidden": 64, "layers": layers}
    params = jax.eval_shape(functools.partial(transformer.init, **sizes), jax.random.key(0))
    heads = {"wq": P(None, "m"), "wk": P(None, "m"), "wv": P(None, "m"), "wo": P("m")}
    layer = {"norm1": P(), **heads, "norm2": P(), "up": P(None, "m"), "down": P("m")}
    specs: Any = {"embedding": P("m"), "layers": [layer] * layers, "norm": P()}
    state = jax.eval_shape(mlp.adam_state, params)
    tokens = jax.eval_shape(lambda: jnp.zeros((8, 17), jnp.int32))
    counts: Counter[str] = Counter()
    with (
        counted(counts, Rewriter, "_settled"),
        counted(counts, StrategySelector, "choose"),
        counted(counts, StrategySelector, "_search"),
        counted(counts, Resharder, "_plan"),
    ):
        program = spmdc.from_jax(
            transformer.train_step(mlp.adam), params, state, tokens,
            mesh={"d": 2, "m": 4}, in_shardings=(specs, (specs, specs, P()), P("d")),
        )  # fmt: skip
        partitioned = spmdc.partition(program, verify=False)
    counts["ops"] = sum(1 for _ in all_ops(partitioned.program))
    counts["visits"] = propagate(program).steps
    return counts


@pytest.fixture(scope="module")
def of_layers() -> dict[int, Counter[str]]:
    return {layers: work(layers) for layers in (1, 2, 4, 8)}


@pytest.mark.parametrize("what", ["_settled", "visits", "ops"])
def test_each_layer_adds_as_much_work_as_the_one_before(what: str, of_layers: dict[int, Counter[str]]) -> None:
    counts = {layers: found[what] for layers, found in of_layers.items()}
    assert counts[2] > counts[1]
    assert counts[8] - counts[4] <= 1.05 * 2 * (counts[4] - counts[2])


@pytest.mark.parametrize("what", ["choose", "_search", "_plan"])
def test_layers_that_are_alike_are_searched_once(what: str, of_layers: dict[int, Counter[str]]) -> None:
    counts = {layers: found[what] for layers, found in of_layers.items()}
    assert counts[8] == counts[4] > 0


def test_equal_scalars_of_a_region_are_one_constant() -> None:
    """JAX writes a constant for each use. 0.0 and -0.0 are different, and a loop has constants of its own."""

    def f(x: Any) -> Any:
        for _ in range(5):
            x = (x * jnp.float32(2.0) + jnp.float32(0.0)) / jnp.float32(-0.0)
        return jax.lax.fori_loop(0, 3, lambda i, v: (v * jnp.float32(2.0)) * jnp.float32(2.0) + i, x)

    program = spmdc.from_jax(f, jnp.float32(1.0), mesh={"x": 1})
    values = [repr(op.attrs["value"]) for op in program.main.body.ops if op.name == "constant"]
    assert sorted(values) == ["-0.0", "0", "0.0", "2.0"]
    (loop,) = (op for op in program.main.body.ops if op.name == "while")
    assert [repr(op.attrs["value"]) for op in loop.regions[1].ops if op.name == "constant"].count("2.0") == 1
