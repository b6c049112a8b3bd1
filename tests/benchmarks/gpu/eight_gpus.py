"""Programs on eight GPUs, of which one is enough, beside XLA's partitioner: what each device receives, the memory of
temporaries, and the time of all but the network.

`make bench-eight-gpus` prints a row for each program of `chip_cases.py`; with CASES="mlp" those that have `mlp` in
their name. With WRITE=1 the rows get into docs/gpu.md, with the date and the versions. JAX compiles for eight hosts
with a GPU each, and runs the first one's part: its collectives return at once, with numbers of no meaning. `--host`
does the same with eight devices of the host's CPU, whose collectives take time.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parents[2] / folder) for folder in ("benchmarks/tpu", "support", ".."))

import jax
import numpy as np
from chip_cases import PROGRAMS
from hlo_texts import received_in_hlo
from table import Row, Table, line, versions
from timed import least_times

import spmdc
from lowering.jax.running import compile_program
from spmdc.comparison.compare import xla_job
from spmdc.comparison.xla_compile import executable_of

DEVICES, ROUNDS = 8, 10
HEAD = ("program", "received", "by XLA's", "ratio", "temporaries, ratio", "time, ratio", "date")
NAMES = tuple(name for name in PROGRAMS if name not in ("moe_gather", "moe_transformer"))
"""Programs without manual regions, which XLA's partitioner does not take, and whose arguments are all used: JAX leaves
out others."""
ALONE = "--xla_gpu_shard_autotuning=false"
"""Without it, each host would wait for what the others find out about kernels."""

_config: Any = jax.config


def compiled_by_both(name: str, machine: str) -> tuple[Any, Any]:
    """A program as compiled from ours, and from XLA's partitioner."""
    program, devices, is_host = PROGRAMS[name](), jax.devices(), jax.default_backend() == "cpu"
    partitioned = spmdc.partition(program, machine=machine).with_even_results()
    job, _ = xla_job(program, keeps_bf16=not is_host)
    names: dict[str, Any] = {"__name__": "compared"}
    exec(compile(job.source, name, "exec"), names)
    return compile_program(partitioned.program, devices).ahead(), executable_of(job, names, devices)[0]


def arguments(compiled: Any) -> list[Any]:
    """Arrays of small numbers for a compiled program, on the devices that this process has."""

    def part(shape: Sequence[int], dtype: np.dtype[Any], index: Sequence[slice]) -> Any:
        own = [len(range(*where.indices(size))) for where, size in zip(index, shape, strict=True)]
        if dtype.kind in "iub":
            return np.ones(own, dtype)
        return (np.random.default_rng(0).standard_normal(own, np.float32) * 0.1).astype(dtype)

    found: list[Any] = []
    for aval, sharding in zip(
        jax.tree.leaves(compiled.args_info), jax.tree.leaves(compiled.input_shardings[0]), strict=True
    ):
        shape, dtype = aval.shape, np.dtype(aval.dtype)
        make: Any = jax.make_array_from_callback
        found.append(make(shape, sharding, lambda index, s=shape, d=dtype: part(s, d, index)))
    return found


def row(name: str, machine: str) -> Row:
    both = compiled_by_both(name, machine)
    given = [arguments(each) for each in both]
    ours, theirs = least_times(ROUNDS, lambda: both[0](*given[0]), lambda: both[1](*given[1]))
    received = [received_in_hlo(each.as_text()) for each in both]
    temporaries = [each.memory_analysis().temp_size_in_bytes for each in both]
    return (
        name,
        *(f"{count:,}" for count in received),
        _ratio(*received),
        _ratio(*temporaries),
        _ratio(ours, theirs),
        datetime.date.today().isoformat(),
    )


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if theirs else "1.00" if not ours else ""


def summary(rows: Iterable[Row]) -> str:
    """Geometric means of the ratios that are known, and not 0."""
    found = list(rows)
    known = [[float(r[i]) for r in found if float(r[i] or 0)] for i in (3, 4, 5)]
    means = [math.exp(sum(map(math.log, each)) / max(len(each), 1)) for each in known]
    return "Geometric means: {:.2f} of the bytes, {:.2f} of the temporaries, {:.2f} of the time.".format(*means)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("words", nargs="*", help="what the names of programs have to contain")
    options.add_argument("--machine", default="h100", help="what plans are made for")
    options.add_argument("--write", action="store_true", help="put the rows into docs/gpu.md")
    options.add_argument("--host", action="store_true", help="on the host's CPU")
    asked = options.parse_args()
    if asked.host:
        _config.update("jax_platforms", "cpu")
        _config.update("jax_num_cpu_devices", DEVICES)
    else:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ALONE}"
        _config.update("jax_mock_gpu_topology", f"1x{DEVICES}x1")
    if len(jax.devices()) != DEVICES:
        sys.exit("JAX has no GPU here: pip install 'jax[cuda13]', or 'jax[cuda12]'; or take --host")
    said = versions("jax", "jaxlib")
    page = Path("docs/gpu.md")
    table = Table("make bench-eight-gpus WRITE=1", "end of bench-eight-gpus", HEAD, NAMES, summary, page, said)
    print(said, line(HEAD), sep="\n")
    rows: list[Row] = []
    for name in NAMES:
        if all(word in name for word in asked.words):
            rows.append(row(name, asked.machine))
            print(line(rows[-1]), flush=True)
    print(summary(rows))
    if asked.write:
        table.put(rows)


if __name__ == "__main__":
    main()
