"""The papers' models, each as its whole training step compiled for the papers' machine, which needs no TPU.

`make papers` prints a row for each model of `paper_models.py`; with CASES="2048E 36L" for those that have these words
in their name. With WRITE=1 the rows get into docs/papers.md, which says what the columns are. Of a model that does not
compile, the compiler's reason is printed.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import optax
from jax.sharding import PartitionSpec
from paper_models import MODELS, Model
from table import Row, Table, asked, line, versions

import spmdc
from ir.diagnostics import SpmdcError
from ir.program import Program, Value
from spmdc.api import PartitionedProgram

PAGE = Path("docs/papers.md")
HEAD = ("model", "cores", "weights, 10⁹", "memory, GiB", "of it weights", "step, s", "network, s", "steps / s",
        "paper's", "planned and compiled in, s", "date")  # fmt: skip


def weights_of(model: Program) -> int:
    """How many numbers are trained."""
    return sum(p.type.size for p in model.main.params if p.name in model.weights)


def step_of(model: Program, placed_weights: Mapping[str, tuple[str | None, ...]] | None = None) -> Program:
    """A step of training, with Adafactor as in appendix A.2: the loss, the weights after it, and what is remembered of
    them. Weights may be placed in other ways than the program has them: mesh axes, or None, by dims. Of weights with
    two dims of 64 or more, as the numbers of a head of Switch's, the optimizer remembers means along these."""
    loss = spmdc.as_jax(model)
    rate = optax.schedules.join_schedules([lambda _: 0.01, lambda n: (n + 10000) ** -0.5], [10000])
    optimizer = optax.adafactor(rate, min_dim_size_to_factor=64, decay_rate=0.8, clipping_threshold=1.0, momentum=None)
    weights = {p.name: p for p in model.main.params if p.name in model.weights}
    inputs = {p.name: p for p in model.main.params if p.name not in model.weights}

    def step(weights: Any, memory: Any, batch: Any) -> Any:
        value, slopes = jax.value_and_grad(lambda w: jax.tree.leaves(loss(**w, **batch))[0])(weights)
        updates, memory = optimizer.update(slopes, memory, weights)
        return value, optax.apply_updates(weights, updates), memory

    struct: Any = jax.ShapeDtypeStruct
    arrays, batch = ({n: struct(p.shape, p.dtype.numpy) for n, p in values.items()} for values in (weights, inputs))
    memory = jax.eval_shape(optimizer.init, arrays)
    placed = [{name: _spec(p) for name, p in values.items()} for values in (weights, inputs)]
    placed[0] |= {name: PartitionSpec(*axes) for name, axes in (placed_weights or {}).items()}  # type: ignore[no-untyped-call]
    return spmdc.from_jax(
        step, arrays, memory, batch, mesh=loss.mesh, in_shardings=(placed[0], None, placed[1]),
        out_shardings=(None, placed[0], None),
    )  # fmt: skip


def _spec(value: Value) -> Any:
    dims = value.sharding.dims if value.sharding is not None else ()
    spec: Any = PartitionSpec
    return spec(*(tuple(a.name for a in d.axes) or None for d in dims))


def partitioned(model: Model) -> PartitionedProgram:
    return spmdc.partition(step_of(model.program(), model.placed), machine=model.target)


def measured(model: Model) -> Row:
    """Of one core: the memory that the TPU compiler needs where weights are changed in place, and the seconds of a step
    by our model of the machine."""
    begun = time.perf_counter()
    step = partitioned(model)
    planned = time.perf_counter() - begun
    changed = len(step.program.main.results) - 1
    compiled = step.compile(model.target, donate=[p.name for p in step.program.main.params[:changed]])
    cost, memory = step.cost().total, compiled.memory
    return (
        model.name, f"{step.program.mesh.size:,}", f"{model.billions:g}",
        f"{(memory.total - memory.code) / 2**30:.1f}", f"{memory.arguments / 2**30:.1f}",
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
        if not all(word in model.name for word in words):
            continue
        try:
            row = measured(model)
        except SpmdcError as problem:
            print(f"{model.name}: {problem}", flush=True)
            continue
        print(line(row), flush=True)
        if writes:
            table.put([row])


if __name__ == "__main__":
    main()
