"""The SPMD partitioner: a propagated program in, the program of one device out.

`plan` decides how each op is split, `reshard` how a value gets from one sharding to another, `exchange` how boxes of
elements do; `write` walks the program and writes what was decided. Ops whose local form is not the op itself have a
function in the file of their family, in `ops`.
"""

from __future__ import annotations

from ir.diagnostics import Diagnostic
from ir.program import Program
from passes.partition import ops
from passes.partition.options import PartitionOptions
from passes.partition.plan import even_groups, static_starts
from passes.partition.reshard.planner import Resharder
from passes.partition.write import control, loops, manual_regions
from passes.partition.write.writer import Partitioner
from passes.propagation.reasons import Propagated
from passes.sub_axes import find_sub_axes

__all__ = ["control", "even_groups", "loops", "manual_regions", "ops", "partition", "static_starts"]


def partition(propagated: Propagated, policy: PartitionOptions) -> tuple[Program, tuple[Diagnostic, ...]]:
    """The SPMD program, and warnings of data that is gathered for lack of a better way, and of lack of memory."""
    resharder = Resharder(find_sub_axes(propagated.program), policy.machine)
    partitioner = Partitioner(propagated, resharder, policy)
    program = partitioner.run()
    return program, tuple(partitioner.warnings)
