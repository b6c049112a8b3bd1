"""The SPMD partitioner: a propagated program in, the program of one device out.

`choose` decides how each op is split, `reshard` how a value gets from one layout to another, `emit` and `padding`
write that as ops, `partitioner` walks the program. Ops whose local form is not the op itself have a function in the
file of their family.
"""

from __future__ import annotations

from ir.diagnostics import Diagnostic
from ir.program import Program
from passes.partition.context import Localize
from passes.partition.exchange.halo import SCANS
from passes.partition.ops import contraction as einsum
from passes.partition.ops import convolution, creation, host, indexing, layout, opaque, reduction, sorting, window
from passes.partition.options import Policy
from passes.partition.reshard.planner import Resharder
from passes.partition.write import control, loops
from passes.partition.write import manual_regions as manual
from passes.partition.write.writer import Control, Partitioner, ReadsNoPadding
from passes.propagation.propagate import Propagated
from passes.sub_axes import find_atoms

LOCALIZERS: dict[str, Localize] = {
    "callback": host.callback,
    "broadcast_in_dim": layout.broadcast_in_dim,
    "concatenate": layout.concatenate,
    "constant": creation.constant,
    "convolution": convolution.convolution,
    "dot_general": einsum.dot_general,
    "dynamic_slice": ReadsNoPadding(indexing.dynamic_slice, (0,)),
    "dynamic_update_slice": indexing.dynamic_update_slice,
    "gather": ReadsNoPadding(indexing.gather, (0,)),
    "iota": creation.iota,
    "map": control.map_,
    **dict.fromkeys(SCANS, reduction.scan),
    "opaque": opaque.opaque,
    "pad": layout.pad,
    "random_bits": creation.random_bits,
    "rng_bit_generator": creation.rng_bit_generator,
    "reduce": reduction.reduce,
    "reduce_window": window.reduce_window,
    "reshape": layout.reshape,
    "reverse": layout.reverse,
    "scatter": indexing.scatter,
    "select_and_scatter": window.select_and_scatter,
    "slice": layout.slice_,
    "sort": sorting.sort,
    "top_k": sorting.top_k,
}
"""Ops that need more than themselves on local operands."""

CONTROL: dict[str, Control] = {
    "await_callbacks": host.await_callbacks,
    "call": control.call,
    "case": control.case,
    "manual": manual.manual,
    "optimization_barrier": control.barrier,
    "while": loops.while_,
}
"""Ops that hold regions or name functions, and those whose operands have nothing to do with one another."""


def partition(propagated: Propagated, policy: Policy | None = None) -> tuple[Program, tuple[Diagnostic, ...]]:
    """The SPMD program, and warnings of data that is gathered for lack of a better way, and of lack of memory."""
    resharder = Resharder(find_atoms(propagated.program))
    partitioner = Partitioner(propagated, resharder, LOCALIZERS, CONTROL, policy or Policy())
    program = partitioner.run()
    return program, tuple(partitioner.warnings)
