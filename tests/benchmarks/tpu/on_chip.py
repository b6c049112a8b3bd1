"""Times on the chip and memory by our model, as parts of what the TPU compiler estimates, which needs no TPU.

`make bench-onchip` prints a row for each op and program of `chip_cases.py`; with CASES="softmax v3" those that have
`softmax` in their name, on v3. With WRITE=1 the rows of all chips get into docs/tpu.md, with the date and the
versions; rows of other releases of them are dropped there.

Time is that of all ops but collectives, of which the compiler estimates no cycles. Memory is that of arguments, results
and temporaries; on v4 and v5e the compiler does not count what it keeps on the chip.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from chip_cases import PROGRAMS, SINGLE, of_one_op
from table import Row, Table, asked, line, versions

import spmdc
from ir.ops.collective import COLLECTIVES
from ir.program import Program
from passes.cost.machine import Machine, machine
from passes.cost.roofline import roofline

TARGETS = {"v3": "tpu-v3:2x2", "v4": "tpu-v4:2x2x1", "v5e": "tpu-v5e:4x2", "v5p": "tpu-v5p:2x2x2"}
"""Eight devices each."""
IN_MEMORY = ("v3", "v5p")
"""The chips of which memory is compared."""
HEAD = ("case", *TARGETS, *(f"memory {chip}" for chip in IN_MEMORY), "date")
NEAR = 0.25


def device_of(chip: str) -> Machine:
    """The machine that is one device of a target: of v4 a core, half of what the machine is."""
    whole = machine(f"tpu-{chip}")
    if chip != "v4" or whole.kernels is None:
        return whole
    kernels = replace(whole.kernels, bandwidth=whole.kernels.bandwidth / 2, vector=whole.kernels.vector / 2)
    return replace(whole, kernels=kernels, flops=whole.flops / 2, memory_bandwidth=whole.memory_bandwidth / 2)


@dataclass(frozen=True)
class Figures:
    """Cycles, and bytes of memory besides the code."""

    cycles: float
    memory: int


def reckoned(program: Program, chip: str) -> Figures:
    """What an SPMD program takes by our model."""
    device = device_of(chip)
    found = roofline(program, device)
    seconds = sum(each.times * each.time.seconds for each in found.executed if each.op.name not in COLLECTIVES)
    return Figures(seconds * device.clock, found.peak.nbytes)


def compiled(partitioned: spmdc.PartitionedProgram, chip: str) -> Figures:
    """What it takes by the compiler's estimate."""
    found = partitioned.compile(TARGETS[chip])
    return Figures(found.cycles, found.memory.total - found.memory.code)


def row(name: str, ours: dict[str, Figures], theirs: dict[str, Figures]) -> tuple[str, ...]:
    """The cells of a case: our figures as parts of the compiler's."""
    times = [_part(ours[c].cycles, theirs[c].cycles) if c in theirs else "" for c in TARGETS]
    memory = [_part(ours[c].memory, theirs[c].memory) if c in theirs else "" for c in IN_MEMORY]
    return (name, *times, *memory, datetime.date.today().isoformat())


def _part(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if theirs else ""


def measured(name: str, chips: Sequence[str]) -> tuple[str, ...]:
    ours, theirs = dict[str, Figures](), dict[str, Figures]()
    make: Callable[[], Program] = PROGRAMS[name] if name in PROGRAMS else lambda: of_one_op(name)
    for chip in chips:
        partitioned = spmdc.partition(make(), machine=f"tpu-{chip}")
        ours[chip], theirs[chip] = reckoned(partitioned.program, chip), compiled(partitioned, chip)
    return row(name, ours, theirs)


def summary(rows: Iterable[Sequence[str]]) -> str:
    """How many cases of each chip are near the compiler's."""
    kinds: dict[str, list[Sequence[str]]] = {"ops": [], "programs": []}
    for cells in rows:
        kinds["programs" if cells[0] in PROGRAMS else "ops"].append(cells)
    said = []
    for kind, own in kinds.items():
        for i, chip in enumerate(TARGETS, 1):
            known = [float(cells[i]) for cells in own if cells[i]]
            near = sum(abs(part - 1) <= NEAR for part in known)
            said.append(f"{near} of {len(known)} {kind} on {chip}")
    return f"Within a quarter of the compiler's cycles are {', '.join(said)}."


def main() -> None:
    asked_for, writes = asked(__doc__, "what the names of cases have to contain, and chips")
    chips = [word for word in asked_for if word in TARGETS] or list(TARGETS)
    words = [word for word in asked_for if word not in TARGETS]
    table = Table("make bench-onchip WRITE=1", "end of bench-onchip", HEAD, (*SINGLE, *PROGRAMS), summary)
    rows: list[Row] = []
    print(versions(), line(HEAD), sep="\n")
    for name in (*SINGLE, *PROGRAMS):
        if all(word in name for word in words):
            rows.append(measured(name, chips))
            print(line(rows[-1]), flush=True)
            if writes and len(chips) == len(TARGETS):
                table.put(rows[-1:])
    print(summary(rows))


if __name__ == "__main__":
    main()
