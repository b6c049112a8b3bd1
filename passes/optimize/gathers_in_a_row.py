"""A small tensor that is gathered several times, along any dims, is gathered by one message.

Each gather waits for the one before. One over all of their axes receives as many bytes, with each device's part as a
row, and the parts are then moved to their places:

    all_gather(all_gather(x, axes=(x), dim=0), axes=(y), dim=1)
        ->  reshape(transpose(reshape(all_gather(reshape(x), axes=(x, y), dim=0))))

Gathers that may be joined with those of other tensors (`joining.py`) stay as they are, unless these become one in the
same way: there would be more messages, not fewer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence

from ir.builder import Names, RegionBuilder
from ir.dataflow import uses_of
from ir.mesh import Axes
from ir.ops.collective import axes_attr, collective_group
from ir.ops.rule_helpers import int_attr
from ir.program import Op, Program, all_regions
from passes.cost.machine import Machine
from passes.cost.model import ROUNDING, communication_seconds, memory_seconds, sent_bytes
from passes.optimize.joining import is_small, joined_cause, kind_of, rearranged, reshaped
from passes.rewrite import map_program

Chain = tuple[Op, ...]
"""Gathers, of which each is of the result of the one before, in order."""


def gather_at_once(program: Program, machine: Machine) -> Program:
    """The SPMD program with each such chain of small gathers (`is_small`) as one, if that one takes no longer. Gathers
    that the user wrote stay as they are."""
    chains = _chains(program, machine)
    if not chains:
        return program
    names = Names.beside(*program.functions.values())
    inside = {op for chain in chains.values() for op in chain}

    def rewritten(op: Op) -> Iterable[Op]:
        return _at_once(program, chains[op], names) if op in chains else () if op in inside else (op,)

    return map_program(program, rewritten)


def _chains(program: Program, machine: Machine) -> Mapping[Op, Chain]:
    """The chains, each as long as possible, by their last gathers; without those that would take longer as one, or
    share messages with other gathers."""
    uses, chains = uses_of(program), dict[Op, Chain]()
    for region in all_regions(program):
        found: dict[Op, Chain] = {}
        for op in region.ops:
            if op.name == "all_gather" and op.cause is not None and op.cause.is_decided and is_small(machine, op):
                before = uses.makers.get(op.operands[0]) if uses.count(op.operands[0]) == 1 else None
                found[op] = (*(found.pop(before, ()) if before is not None else ()), op)
        chains.update((chain[-1], chain) for chain in _apart(found.values(), machine))
    return chains


def _apart(found: Iterable[Chain], machine: Machine) -> Iterable[Chain]:
    """The chains of a region that are faster as one, with no gathers that others might be joined with but those of
    chains over the same axes."""
    over = {chain: frozenset(_axes(chain)) for chain in found}
    kept = dict.fromkeys(chain for chain in over if len(chain) > 1 and _is_as_fast(machine, chain))
    while True:
        become: dict[object, set[object]] = {}
        for chain, axes in over.items():
            for op in chain:
                become.setdefault(kind_of(op), set()).add(axes if chain in kept else None)
        left = dict.fromkeys(c for c in kept if all(become[kind_of(op)] == {over[c]} for op in c))
        if len(left) == len(kept):
            return kept
        kept = left


def _axes(gathers: Sequence[Op]) -> Axes:
    return tuple([axis for op in gathers for axis in axes_attr(op.attrs)])


def _is_as_fast(machine: Machine, chain: Chain) -> bool:
    """Whether one gather takes no longer than the chain. It does take longer where some axes have slower links: all
    bytes then travel at the rate of the slowest. On a network, the copies count too."""
    apart = sum(communication_seconds(machine, op.name, axes_attr(op.attrs), sent_bytes(op)) for op in chain)
    together = communication_seconds(machine, "all_gather", _axes(chain), sent_bytes(chain[0]))
    if machine.network:
        launches = machine.kernels.launch if machine.kernels is not None else 0.0
        together += launches + memory_seconds(machine, 2 * chain[-1].result.type.nbytes)
    return together <= apart * ROUNDING


def _at_once(program: Program, chain: Chain, names: Names) -> Sequence[Op]:
    """One gather over all axes, in the order of the mesh, whatever dims they are along: so that such gathers may be
    joined."""
    last, x, ranks = chain[-1], chain[0].operands[0], program.mesh.names
    b, name = RegionBuilder(names, span=last.span, cause=joined_cause(chain)), last.result.name
    gathers = sorted(chain, key=lambda op: ranks.index(axes_attr(op.attrs)[0].name))
    rows = b.op("all_gather", reshaped(b, name, x, (1, x.type.size)), name=name, axes=_axes(gathers), dim=0)

    outer_first = sorted(chain, key=lambda op: (_dim(op), -chain.index(op)))
    cuts = [0, *map(_dim, outer_first), x.type.rank]
    sizes = [math.prod(x.shape[start:end]) for start, end in itertools.pairwise(cuts)]
    count = len(chain)
    places = [(gathers.index(op), count + 1 + i) for i, op in enumerate(outer_first)]
    order = (count, *(d for place in places for d in place))
    rearranged(b, name, rows, (*map(collective_group, gathers), *sizes), order, last.result.shape)
    return b.in_place_of(last)


def _dim(op: Op) -> int:
    return int_attr(op.attrs, "dim")
