"""A compilation job for XLA as plain data, which can be sent to another process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spmdc.reports.device_memory import DeviceMemory

Spec = tuple[tuple[str, ...] | None, ...]
"""For each dim the names of the axes that split it; None leaves the dim to XLA."""


@dataclass(frozen=True)
class Job:
    """A JAX module and how it is sharded.

    `source` is the module's text, and `entry` the name of its function; in it, `annotated(x, i)` is x with the i-th of
    the `annotations`. Each of `params` and `results` has a sharding that is passed to JAX (`ends`), or else a
    constraint (`inside`). XLA may take `most_seconds` of processor time. `devices` are device numbers of the target:
    TPUs, or "cpu".
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
    """The optimised HLO module, the seconds of compiling, the memory on each device, and whether free parameters and
    results had to be replicated, because XLA would have split one unevenly."""

    text: str
    seconds: float
    memory: DeviceMemory
    has_whole_ends: bool
