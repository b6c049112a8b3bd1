"""A small tensor that is gathered along one dim and then along another is gathered by one message.

The second gather waits for the first. One over all of their axes receives as many bytes, with each device's part as a
row, and the parts are then moved to their places:

    all_gather(all_gather(x, axes=(x), dim=0), axes=(y), dim=1)
        ->  reshape(transpose(reshape(all_gather(reshape(x), axes=(x, y), dim=0))))
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ir.builder import Names, RegionBuilder
from ir.dataflow import uses_of
from ir.ops.collective import axes_attr, collective_group
from ir.ops.rule_helpers import int_attr
from ir.program import Op, Program, all_regions, values_within
from passes.cost.machine import Machine
from passes.cost.model import communication_seconds, sent_bytes
from passes.optimize.joining import is_small, joined_cause, rearranged, reshaped
from passes.rewrite import map_program

_ROUNDING = 1 + 1e-9
"""The relative difference between sums of seconds that is due to the order of addition only."""

Chain = Sequence[Op]
"""Gathers, of which each is of the result of the one before, in order."""


def gather_at_once(program: Program, machine: Machine) -> Program:
    """The SPMD program with each such chain of gathers as one, if moving the parts takes less time than a message.
    Gathers that the user wrote stay as they are."""
    chains = _chains(program, machine)
    if not chains:
        return program
    names = Names({v.name for f in program.functions.values() for v in values_within(f.body)})
    inside = {op for chain in chains.values() for op in chain}

    def rewritten(op: Op) -> Iterable[Op]:
        return _at_once(program, chains[op], names) if op in chains else () if op in inside else (op,)

    return map_program(program, rewritten)


def _chains(program: Program, machine: Machine) -> Mapping[Op, Chain]:
    """The longest chains that take no longer as one gather, by their last gathers."""
    uses, found = uses_of(program), dict[Op, list[Op]]()
    for region in all_regions(program):
        here = set(region.ops)
        for op in region.ops:
            if not _is_small_gather(machine, op):
                continue
            before = uses.makers.get(op.operands[0])
            is_chained = before in found and before in here and uses.count(op.operands[0]) == 1
            found[op] = [*(found.pop(before) if before is not None and is_chained else ()), op]
    return {last: chain for last, chain in found.items() if len(chain) > 1 and _is_as_fast(machine, chain)}


def _is_small_gather(machine: Machine, op: Op) -> bool:
    return op.name == "all_gather" and op.cause is not None and op.cause.is_decided and is_small(machine, op)


def _is_as_fast(machine: Machine, chain: Chain) -> bool:
    """Whether one gather takes no longer, even if latencies add up: it does where some axes have slower links."""
    axes = tuple([axis for op in chain for axis in axes_attr(op.attrs)])
    apart = sum(communication_seconds(machine, op.name, axes_attr(op.attrs), sent_bytes(op)) for op in chain)
    return communication_seconds(machine, "all_gather", axes, sent_bytes(chain[0])) <= apart * _ROUNDING


def _at_once(program: Program, chain: Chain, names: Names) -> Iterator[Op]:
    """One gather over all axes, in the order of the mesh, whatever dims they are along: so that such gathers may be
    joined."""
    last, x, ranks = chain[-1], chain[0].operands[0], program.mesh.names
    b, name = RegionBuilder(names, span=last.span, cause=joined_cause(chain)), last.result.name
    gathers = sorted(chain, key=lambda op: ranks.index(axes_attr(op.attrs)[0].name))
    axes = tuple([axis for op in gathers for axis in axes_attr(op.attrs)])
    rows = b.op("all_gather", reshaped(b, name, x, (1, x.type.size)), name=name, axes=axes, dim=0)

    outer_first = sorted(chain, key=lambda op: (_dim(op), -chain.index(op)))
    cuts = [0, *map(_dim, outer_first), x.type.rank]
    sizes = [math.prod(x.shape[start:end]) for start, end in itertools.pairwise(cuts)]
    count = len(chain)
    places = [(gathers.index(op), count + 1 + i) for i, op in enumerate(outer_first)]
    order = (count, *(d for place in places for d in place))
    rearranged(b, name, rows, (*map(collective_group, gathers), *sizes), order, last.result.shape)
    yield from b.ops[:-1]
    yield replace(b.ops[-1], results=last.results)


def _dim(op: Op) -> int:
    return int_attr(op.attrs, "dim")
