"""Gradients that fit in memory: which blocks of a program the backward pass recomputes, chosen by cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ir.diagnostics import Diagnostic
from ir.program import Program
from ir.verify.program import check
from passes.cost.machine import Machine
from passes.optimize.checkpoints import Block, blocks_of
from passes.optimize.checkpoints import checkpointed as with_checkpoints
from spmdc.api import partition
from spmdc.arguments import program_of, require_memory_limit
from spmdc.frontends.jax.gradients import gradient

_MOST_BLOCKS = 16
"""The most blocks that are tried: for each, the gradient is computed and partitioned."""
_SHOWN = 8
"""The most blocks that a warning names."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The gradient of a program as it is, with the peak memory of its partitioned form on each device, in bytes, and
    its time, in seconds, by the machine's model."""

    gradient: Program
    peak: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """A program with `checkpoint` ops around these `blocks`, by name, and the costs of its gradient with and without
    them."""

    program: Program
    blocks: tuple[str, ...]
    before: Measured
    after: Measured

    def warnings(self, limit: int) -> tuple[Diagnostic, ...]:
        """A warning of what is recomputed (W004), so that no more than `limit` bytes are taken, and whether that is
        enough."""
        before, after = self.before, self.after
        if not self.blocks and after.peak <= limit:
            return ()
        message, notes, help_text = f"the gradient takes {after.peak:,} bytes on each device", [], ""
        if self.blocks:
            rest = [f"and {len(self.blocks) - _SHOWN} others"] if len(self.blocks) > _SHOWN else []
            message += f" instead of {before.peak:,}"
            notes = [f"computed again: {', '.join([*self.blocks[:_SHOWN], *rest])}",
                     f"a run takes {after.seconds:.3g} s instead of {before.seconds:.3g} s"]  # fmt: skip
        if after.peak > limit:
            message += f", and not the {limit:,} that it may"
            notes += [] if self.blocks else ["no loop and no function makes it less if it is computed again"]
            help_text = "split what is largest over more axes, or take more devices"
        return (Diagnostic("W004", message, notes=tuple(notes), help=help_text, severity="warning"),)


def checkpointed(
    program: Program,
    memory_limit: int,
    wrt: str | Sequence[str] = (),
    of: str | None = None,
    *,
    machine: Machine | str = "tpu-v3",
    with_value: bool = False,
) -> Checkpointed:
    """The program with as many of its blocks in checkpoints as are needed for its gradient to take no more than
    `memory_limit` bytes on each device at its peak.

    The blocks are the bodies of loops and the functions that are called, in order of decreasing computed bytes. One
    stays in a checkpoint if that lowers the peak, and if it is still needed with the later ones. `wrt`, `of` and
    `with_value` are as for `gradient`. Raises SpmdcError: E601 for a negative limit, and as `gradient` and `partition`
    do.
    """
    program = program_of(program)
    require_memory_limit(memory_limit)
    machine = Machine.of(machine)

    def measured(blocks: Sequence[Block]) -> tuple[Program, Measured]:
        made = with_checkpoints(program, [op for block in blocks for op in block.ops])
        check(made)
        found = gradient(made, wrt, of, with_value=with_value)
        cost = partition(found, machine=machine, verify=False).cost()
        return made, Measured(found, cost.peak, cost.seconds)

    chosen: list[Block] = []
    now, best = measured(())
    before = best
    for block in blocks_of(program)[:_MOST_BLOCKS]:
        if best.peak <= memory_limit:
            break
        made, found = measured([*chosen, block])
        if found.peak < best.peak:
            chosen, now, best = [*chosen, block], made, found
    for block in chosen[:-1]:
        if best.peak > memory_limit:
            break
        others = [each for each in chosen if each is not block]
        made, found = measured(others)
        if found.peak <= memory_limit and found.seconds <= best.seconds:
            chosen, now, best = others, made, found
    return Checkpointed(now, tuple(block.name for block in chosen), before, best)
