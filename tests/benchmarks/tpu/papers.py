"""GShard's models, each as its whole training step compiled for the paper's machine, which needs no TPU.

`make papers` prints a row for each model of Tables 1 and 3; with CASES="2048E 36L" for those that have these words in
their name. With WRITE=1 the rows get into docs/papers.md, which says what the columns are.
"""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import optax
from jax.sharding import PartitionSpec
from table import Row, Table, asked, line, versions

import spmdc
from ir.program import Program, Value


@dataclass(frozen=True)
class Model:
    """A row of Table 1, with the tokens of a batch and the steps a second of Table 3, where it is there."""

    experts: int
    layers: int
    billions: float
    target: str
    tokens: int
    steps: float | None
    is_split: bool = False
    """Whether the weights outside of experts are split over the cores, too, and gathered layer by layer."""

    @property
    def name(self) -> str:
        return f"MoE({self.experts}E, {self.layers}L)"


PAGE = Path("docs/papers.md")
HEAD = ("model", "cores", "weights, 10⁹", "memory, GiB", "of it weights", "step, s", "network, s", "steps / s",
        "paper's", "planned and compiled in, s", "date")  # fmt: skip
LENGTH = 128
"""Tokens of a sentence, of which the paper says nothing."""
MODELS = (
    Model(128, 12, 12.5, "tpu-v3:8x8", 2**20, 2.16),
    Model(512, 12, 50, "tpu-v3:16x16", 2**20, 3.28),
    Model(2048, 12, 200, "tpu-v3:32x32", 2**22, 2.15),
    Model(128, 36, 37, "tpu-v3:8x8", 2**20, 0.67),
    Model(512, 36, 150, "tpu-v3:16x16", 2**20, 1.05),
    Model(2048, 36, 600, "tpu-v3:32x32", 2**22, 0.72),
    Model(2048, 60, 1000, "tpu-v3:32x32", 2**22, None, is_split=True),
)


def program(model: Model) -> Program:
    """The model in the language: sizes, vocabularies and dropout of appendix A.2."""
    consts = {
        "D": model.experts, "LAYERS": model.layers // 2, "B": model.tokens // LENGTH, "T": LENGTH, "V": 64000,
        "W": 32000, "M": 1024, "N": 16, "K": 128, "H": 8192, "TIED": 0, "DROPOUT": 10,
        "RECOMPUTE": int(model.layers > 12 or model.tokens > 2048 * model.experts),
    }  # fmt: skip
    return spmdc.load(str(files("spmdc") / "programs" / "moe_transformer.spmd"), consts)


SPLIT = {
    "source_embedding": 0, "target_embedding": 0, "out": 0, "enc_attention": 2, "dec_attention": 2,
    "cross_attention": 2, "enc_dense": 3, "dec_dense": 3,
}  # fmt: skip
"""The dims along which weights outside of experts are split, if they are."""


def step_of(model: Program, *, is_split: bool = False) -> Program:
    """A step of training, with Adafactor as in appendix A.2: the loss, the weights after it, and what is remembered of
    them."""
    loss = spmdc.as_jax(model)
    rate = optax.schedules.join_schedules([lambda _: 0.01, lambda n: (n + 10000) ** -0.5], [10000])
    optimizer = optax.adafactor(rate, decay_rate=0.8, clipping_threshold=1.0, momentum=None)
    weights = {p.name: p for p in model.main.params if p.name in model.weights}
    inputs = {p.name: p for p in model.main.params if p.name not in model.weights}

    def step(weights: Any, memory: Any, batch: Any) -> Any:
        value, slopes = jax.value_and_grad(lambda w: loss(**w, **batch)[0])(weights)
        updates, memory = optimizer.update(slopes, memory, weights)
        return value, optax.apply_updates(weights, updates), memory

    struct: Any = jax.ShapeDtypeStruct
    arrays, batch = ({n: struct(p.shape, p.dtype.numpy) for n, p in values.items()} for values in (weights, inputs))
    memory = jax.eval_shape(optimizer.init, arrays)
    placed = [{name: _spec(p) for name, p in values.items()} for values in (weights, inputs)]
    if is_split:
        placed[0] |= {name: _split(dim) for name, dim in SPLIT.items()}
    return spmdc.from_jax(
        step, arrays, memory, batch, mesh=loss.mesh, in_shardings=(placed[0], None, placed[1]),
        out_shardings=(None, placed[0], None),
    )  # fmt: skip


def _spec(value: Value) -> Any:
    dims = value.sharding.dims if value.sharding is not None else ()
    spec: Any = PartitionSpec
    return spec(*(tuple(a.name for a in d.axes) or None for d in dims))


def _split(dim: int) -> Any:
    spec: Any = PartitionSpec
    return spec(*[None] * dim, "d")


def measured(model: Model) -> Row:
    """Of one core: the memory that the TPU compiler needs where weights are changed in place, and the seconds of a step
    by our model of the machine."""
    begun = time.perf_counter()
    step = step_of(program(model), is_split=model.is_split)
    partitioned = spmdc.partition(step, machine=model.target)
    planned = time.perf_counter() - begun
    compiled = partitioned.compile(model.target)
    cost, memory = partitioned.cost().total, compiled.memory
    return (
        model.name, f"{model.experts:,}", f"{model.billions:g}",
        f"{(memory.arguments + memory.temporaries) / 2**30:.1f}", f"{memory.arguments / 2**30:.1f}",
        f"{cost.seconds:.2f}", f"{cost.network:.2f}", f"{1 / cost.seconds:.2f}",
        "-" if model.steps is None else f"{model.steps:.2f}",
        f"{planned:.0f} + {compiled.seconds:.0f}", datetime.datetime.now(datetime.UTC).date().isoformat(),
    )  # fmt: skip


def main() -> None:
    words, writes = asked(__doc__, "what the names of models have to contain", PAGE)
    names = [model.name for model in MODELS]
    table = Table("make papers WRITE=1", "end of papers", HEAD, names, lambda rows: f"{len(rows)} models.", PAGE)
    print(versions(), line(HEAD), sep="\n")
    for model in MODELS:
        if all(word in model.name for word in words):
            row = measured(model)
            print(line(row), flush=True)
            if writes:
                table.put([row])


if __name__ == "__main__":
    main()
