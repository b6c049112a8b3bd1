"""What propagation gives the values of a program."""

from __future__ import annotations

import spmdc
from ir.spelling.printer import print_type


def shardings(text: str) -> dict[str, str]:
    """The type of each value of main after propagation, as printed."""
    program = spmdc.propagate(spmdc.parse(text)).program
    values = [*program.main.params, *(v for op in program.main.body.ops for v in op.results)]
    return {v.name: print_type(v.type, v.sharding) for v in values}
