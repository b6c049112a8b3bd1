"""Programs partitioned by spmdc and by XLA, both compiled by the TPU compiler, which needs no TPU: what a run takes.

`make bench-tpu` prints a row for each program, target and direction; `make bench-tpu CASES="moe v3:4x4"` those whose
names have all of these words. With WRITE=1 the rows take the place of those of docs/tpu.md, or are added to them, with
the date and the versions; rows of other releases of them are dropped there.

Time is the compiler's cycles by the chip's clock and the network's by model, one collective after the other.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paper_models import Model, sparse
from papers import step_of
from table import Row, Table, asked, line, versions

import spmdc
from ir.diagnostics import SpmdcError
from ir.program import Program
from passes.cost.machine import machine
from spmdc.comparison.on_target import Side, TargetComparison, compare_on

HERE = Path(__file__).parent
SHIPPED = Path(spmdc.__file__).parent / "programs"
HEAD = ("case", "time, µs", "of XLA's", "cycles", "network", "temporaries", "bytes", "date")


@dataclass(frozen=True)
class Case:
    """A program with consts, on targets."""

    name: str
    path: Path
    targets: tuple[str, ...]
    consts: dict[str, int] = field(default_factory=dict)
    directions = ("forward", "gradient")

    def program(self, direction: str) -> Program:
        """Forward, or the gradient of the first result with respect to all parameters that are floats."""
        program = spmdc.load(self.path, self.consts)
        if direction == "forward":
            return program
        main = program.main
        return spmdc.gradient(program, [p.name for p in main.params if p.dtype.is_float], main.results[0].name)


@dataclass(frozen=True)
class Training:
    """A step of training of a paper's model, on the paper's machine."""

    name: str
    model: Model
    directions = ("step",)

    @property
    def targets(self) -> tuple[str, ...]:
        return (self.model.target,)

    def program(self, direction: str) -> Program:
        del direction
        return step_of(self.model.program(), self.model.placed)


def experts(devices: int, *targets: str) -> Case:
    sizes = {"D": devices, "S": 1024, "M": 1024, "H": 8192}
    return Case("moe", SHIPPED / "moe_layer.spmd", targets, sizes)


def block(x: int, y: int, batch: int, *targets: str) -> Case:
    """The layer of 64 billion parameters of GShard (ICLR), appendix A.4."""
    sizes = {"X": x, "Y": y, "B": batch, "L": 1024, "M": 8192, "H": 65536, "N": 128, "K": 128}
    return Case("dense", SHIPPED / "transformer_block.spmd", targets, sizes)


SMALL = ("tpu-v3:2x2", "tpu-v5e:4x2", "tpu-v5p:2x2x2")
"""Eight devices each."""


def split(name: str, path: str, x: int, y: int) -> Case:
    return Case(name, HERE / path, SMALL, {"X": x, "Y": y})


CASES: tuple[Case | Training, ...] = (
    experts(32, "tpu-v3:4x4", "tpu-v5e:4x8", "tpu-v5p:4x4x2"),
    experts(128, "tpu-v3:8x8"),
    experts(512, "tpu-v3:16x16"),
    experts(2048, "tpu-v3:32x32"),
    Training("moe-36-layers", sparse(2048, 36, 600, "tpu-v3:32x32", 2**19, None)),
    block(32, 64, 512, "tpu-v3:32x32"),
    block(4, 8, 32, "tpu-v5e:4x8", "tpu-v5p:4x4x2"),
    Case("block", SHIPPED / "transformer_block.spmd", SMALL),
    split("attention-heads", "attention.spmd", 8, 1),
    split("attention-sequence", "attention.spmd", 1, 8),
    split("attention-both", "attention.spmd", 2, 4),
    split("vocabulary", "vocabulary.spmd", 1, 8),
    split("vocabulary-both", "vocabulary.spmd", 2, 4),
    split("convolutions", "convolutions.spmd", 8, 1),
    split("convolutions-both", "convolutions.spmd", 2, 4),
)


def selected(words: Sequence[str]) -> Iterator[tuple[str, Case | Training, str, str]]:
    """The rows whose name has all of these words: the name, the case, the target and the direction."""
    for case in CASES:
        for target in case.targets:
            for direction in case.directions:
                name = f"{case.name} {target} {direction}"
                if all(word in name for word in words):
                    yield name, case, target, direction


def measured(name: str, case: Case | Training, target: str, direction: str) -> Row:
    today = datetime.date.today().isoformat()
    try:
        partitioned = spmdc.partition(case.program(direction), machine=machine(target))
        return name, *_cells(compare_on(partitioned, target)), today
    except SpmdcError as problem:
        (found, *_) = problem.diagnostics
        side = "XLA's does not compile" if found.code == "E515" else f"{found.code}: ours does not compile"
        return name, "", side, "", "", "", "", today


def _cells(found: TargetComparison) -> tuple[str, ...]:
    def both(of: Side) -> tuple[float, ...]:
        return of.cycles, of.network, of.memory.temporaries, of.received_bytes

    ratios = [_ratio(ours, theirs) for ours, theirs in zip(both(found.ours), both(found.xla), strict=True)]
    times = found.ours.time, found.xla.time
    return f"{times[0] * 1e6:,.0f} / {times[1] * 1e6:,.0f}", _ratio(*times), *ratios


def _ratio(ours: float, theirs: float) -> str:
    if not theirs:
        return f"{ours:,.0f} / 0" if ours else "1.000"
    return f"{ours / theirs:.3f}"


def summary(rows: Sequence[Row]) -> str:
    """Of our time as a part of XLA's, where both compile."""
    found = [(float(time), name) for name, _, time, *_ in rows if re.fullmatch(r"[\d.]+", time)]
    if not found:
        return "No case compiles on both sides."
    mean = math.exp(sum(math.log(ratio) for ratio, _ in found) / len(found))
    worst, name = max(found)
    return f"Of {len(found)} cases the geometric mean of time is {mean:.3f} of XLA's, the worst {worst:.3f} ({name})."


def main() -> None:
    words, writes = asked(__doc__, "what the names of rows have to contain")
    table = Table("make bench-tpu WRITE=1", "end", HEAD, [name for name, *_ in selected(())], summary)
    rows: list[Row] = []
    print(versions(), line(HEAD), sep="\n")
    for row in selected(words):
        rows.append(measured(*row))
        print(line(rows[-1]), flush=True)
        if writes:
            table.put(rows[-1:])
    print(summary(rows))


if __name__ == "__main__":
    main()
