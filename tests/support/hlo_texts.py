"""What optimised HLO modules communicate, from their texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from spmdc.reports.hlo_collectives import XlaCollective, collectives_in, received_by_the_worst
from spmdc.reports.optimised_module import read_module


def collectives_of_hlo(text: str, *, literally: bool = False) -> list[XlaCollective]:
    """The collectives that the entry of a module runs, as in `collectives_in`."""
    return collectives_in(read_module(text), literally=literally)


def received_in_hlo(text: str, runs: Mapping[str, int] | None = None) -> int:
    """Bytes that the worst device receives in one run of a module. `runs` says how often each instruction ran; without
    it, loops of unknown trip count count once."""
    found = collectives_of_hlo(text)
    return received_by_the_worst(found if runs is None else [replace(c, count=runs.get(c.name, 0)) for c in found])


def has_unknown_trips(text: str) -> bool:
    """Whether a module has a loop of which nothing says how often it runs."""
    return read_module(text).has_unknown_trips()
