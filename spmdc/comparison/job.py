"""What XLA is to compile, without anything of a program: plain data, which goes from process to process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spmdc.reports.device_memory import DeviceMemory

Spec = tuple[tuple[str, ...] | None, ...]
"""For each dim the names of the axes that split it; None leaves the dim to XLA."""


@dataclass(frozen=True)
class Job:
    """A JAX module and how it is sharded.

    `source` is the module's text, and `entry` the name of its function; there, `annotated(x, i)` is x under the i-th of
    the `annotations`. `params` and `results` have a sharding each, which is given to JAX (`ends`), or else a constraint
    (`inside`). XLA has `most_seconds` of processor time. `devices` are numbers of those of the target: TPUs, or "cpu".
    """

    source: str
    entry: str
    has_64_bits: bool
    axes: tuple[tuple[str, int], ...]
    devices: tuple[int, ...]
    params: tuple[tuple[tuple[int, ...], Any], ...]
    ends: tuple[Spec | None, ...]
    inside: tuple[Spec | None, ...]
    annotations: tuple[Spec, ...]
    most_seconds: float
    target: str = "cpu"


@dataclass(frozen=True)
class Compiled:
    """The optimised HLO module, the seconds that compiling took, the memory on each device; and whether free ends had
    to be whole, since XLA would have split one unevenly."""

    text: str
    seconds: float
    memory: DeviceMemory
    has_whole_ends: bool
