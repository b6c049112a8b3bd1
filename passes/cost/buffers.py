"""How much of a device's memory an SPMD program takes once its ops are fused: only what a kernel stores has a buffer.

A buffer is alive from the kernel, collective or loop that makes it to the last one that reads it, in program order. A
pass over elements may write over a buffer that it reads for the last time; so may an update of a part, a reduction over
devices, and a loop with what it carries. The entry's arguments belong to the caller and stay alive.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ir.diagnostics import Diagnostic
from ir.ops.collective import COLLECTIVES
from ir.ops.contraction import dims_of_product, is_matrix_product
from ir.ops.control import is_call, is_loop
from ir.ops.declaration import InKernels
from ir.program import Op, Program, Region, Value, callee_of, used_around, values_within
from ir.records import record
from ir.types import TensorType
from passes.cost.fusion import Fuse, Fusion, Kernel, fusing, role_of
from passes.cost.kernels import NARROW, Kernels, in_tiles
from passes.cost.machine import Machine

_ACROSS = frozenset({"all_reduce"})
"""Collectives that may write their result over their operand."""

_SHOWN = 8
"""How many of the values that are alive at the peak a warning lists."""


@dataclass(frozen=True, slots=True)
class Peak:
    """The most bytes that a program takes at one time, the op that runs then, and the values that are alive then with
    their bytes, the largest first."""

    nbytes: int
    op: Op | None
    alive: tuple[tuple[Value, int], ...]


@record(eq=False)
class _Step:
    """A kernel, collective or other op that runs by itself: the buffers that it `reads` and `makes`, and the bytes that
    it takes `inside` besides. If it `overwrites`, it may write over buffers of the same size that it reads for the last
    time, except those that are `spared`: the operands of a product."""

    op: Op
    reads: frozenset[Value]
    makes: tuple[Value, ...]
    inside: int = 0
    overwrites: bool = False
    spared: frozenset[Value] = frozenset()


def peak_of(program: Program, kernels: Kernels | None, fuse: Fuse | None = None) -> Peak:
    """The peak of an SPMD program whose kernels are as `kernels` describes. `fuse` may hold fusions that were found
    before."""
    return _Buffers(program, kernels, fuse or fusing(kernels)).region(program.main.body, program.main.params)


def beyond_memory(program: Program, machine: Machine) -> tuple[Diagnostic, ...]:
    """A warning (W003) if the peak of an SPMD program exceeds the machine's memory."""
    tile = machine.kernels.tile if machine.kernels is not None else (1, 1)
    values = itertools.chain(*(values_within(function.body) for function in program.functions.values()))
    if sum(padded_bytes(value.type, tile) for value in values) <= machine.memory:
        return ()
    peak = peak_of(program, machine.kernels)
    if peak.nbytes <= machine.memory:
        return ()
    largest = [f"{value.name}: {value.type}, {nbytes:,} bytes" for value, nbytes in peak.alive[:_SHOWN]]
    rest = peak.alive[_SHOWN:]
    if rest:
        largest.append(f"{len(rest)} others, {sum(nbytes for _, nbytes in rest):,} bytes")
    message = f"the program takes {peak.nbytes:,} bytes on each device, and {machine.name} has {machine.memory:,}"
    notes = ("alive at the peak, on each device:", *largest)
    span = peak.op.span if peak.op is not None else None
    help_text = "split what is largest over more axes, or recompute it where it is needed again"
    return (Diagnostic("W003", message, span, notes=notes, help=help_text, severity="warning"),)


@functools.lru_cache(maxsize=2**14)
def padded_bytes(of: TensorType, tile: tuple[int, int]) -> int:
    """The bytes of a tensor whose last two dims in memory are padded to whole tiles. The two dims are those for which
    it takes least."""
    if tile == (1, 1) or len(of.shape) < 2 or not of.nbytes:
        return of.nbytes
    height, width = tile
    size = of.size
    return math.ceil(
        min(
            size / (of.shape[i] * of.shape[j]) * in_tiles(of.shape[i], height) * in_tiles(of.shape[j], width)
            for i, j in itertools.permutations(range(len(of.shape)), 2)
        )
        * (of.nbytes / size)
    )


class _Buffers:
    def __init__(self, program: Program, kernels: Kernels | None, fuse: Fuse) -> None:
        self.program = program
        self.fuse = fuse
        self.how = kernels or Kernels(math.inf)
        self.functions: dict[str, int] = {}

    def region(self, region: Region, kept: Iterable[Value] = ()) -> Peak:
        """The peak of the values that a region defines, parameters included. Those that are `kept` stay alive to its
        end."""
        fusion = self.fuse(region)
        buffers = _places(fusion)
        steps = list(self._steps(region, fusion, buffers))
        returned = [buffers(value) for value in region.results]
        copied = sum(value.type.nbytes for value in set(kept).intersection(returned))
        lasting = {*kept, *returned}
        last: dict[Value, int] = {}
        for i, step in enumerate(steps):
            last.update(dict.fromkeys((*step.makes, *step.reads), i))
        size = {value: self._bytes(fusion, value) for value in (*last, *region.params, *region.results)}
        since = dict.fromkeys(region.params, -1)
        total = sum(size[value] for value in region.params) + copied
        best, at = total, -1
        for i, step in enumerate(steps):
            dying = [v for v in step.reads if last[v] == i and v in since and v not in lasting]
            made = sum(size[value] for value in step.makes)
            free = [size[value] for value in dying if value not in step.spared]
            reused = _reused(step, free, [size[value] for value in step.makes])
            if total + made - reused + step.inside > best:
                best, at = total + made - reused + step.inside, i
            since.update(dict.fromkeys(step.makes, i))
            gone = [*dying, *(v for v in step.makes if last[v] == i and v not in lasting)]
            total += made - sum(size[value] for value in gone)
        there = [v for v, i in since.items() if i <= at and (v in lasting or last.get(v, -1) >= at)]
        alive = sorted(((value, size[value]) for value in there), key=lambda pair: -pair[1])
        return Peak(best, steps[at].op if at >= 0 else None, tuple(alive))

    def _steps(self, region: Region, fusion: Fusion, buffers: _Places) -> Iterator[_Step]:
        """The steps of a region, in program order."""
        kernels = {kernel.root: kernel for kernel in fusion.kernels}
        returned = frozenset(map(buffers, region.results))
        for op in region.ops:
            kernel = kernels.get(op)
            if kernel is not None:
                reads = frozenset(map(buffers, kernel.reads))
                makes = tuple(value for value in kernel.writes if buffers(value) is value)
                inside = sum(kernel.copied) + self._workspace(kernel)
                spared = frozenset(map(buffers, kernel.multiplied))
                writes_over = not kernel.keeps_rows and (self.how.overwrites or not returned.isdisjoint(makes))
                yield _Step(op, reads, makes, inside, writes_over, spared)
            elif op.name in COLLECTIVES or op.regions or is_call(op):
                inner = used_around(op) if op.regions else ()
                reads = frozenset(buffers(value) for value in (*op.operands, *inner))
                inside = self._inside(op) + (self._rounded(op, inner) if is_loop(op) else 0)
                yield _Step(op, reads, op.results, inside, op.name in _ACROSS or is_loop(op))

    def _workspace(self, kernel: Kernel) -> int:
        """The bytes that a library takes besides for a kernel's product."""
        product = kernel.heart
        if self.how.workspace and is_matrix_product(product) and min(dims_of_product(product)) >= NARROW:
            return self.how.workspace
        return 0

    def _inside(self, op: Op) -> int:
        """The bytes that the regions or the callee of an op take beyond its operands and results."""
        results = sum(value.type.nbytes for value in op.results)
        if is_call(op):
            callee = self.program.functions[callee_of(op) or ""]
            if callee.name not in self.functions:
                self.functions[callee.name] = self.region(callee.body, callee.params).nbytes
            own = sum(value.type.nbytes for value in callee.params)
            return max(self.functions[callee.name] - own - results, 0)
        return max((max(self.region(inner).nbytes - results, 0) for inner in op.regions), default=0)

    def _rounded(self, loop: Op, around: Iterable[Value]) -> int:
        """The bytes of the narrowed copies of values from outside a loop that only products in it read: they are
        rounded once, before the loop, to the type that products take."""
        if not self.how.narrow:
            return 0
        inside = [self.fuse(region) for region in loop.regions]
        wide = [v for v in around if v.dtype.name == "f32" and all(body.only_multiplies(v) for body in inside)]
        return sum(padded_bytes(value.type, self.how.tile) // 2 for value in wide)

    def _bytes(self, fusion: Fusion, value: Value) -> int:
        padded = padded_bytes(value.type, self.how.tile)
        return padded // 2 if fusion.stored_bytes(value) < value.type.nbytes else padded


@dataclass(frozen=True, slots=True, eq=False)
class _Places:
    """The value whose buffer a value is in: for a view or an update in place, the operand."""

    fusion: Fusion
    updated: Mapping[Value, Value]

    def __call__(self, value: Value) -> Value:
        source = self.fusion.source(value)
        return self.updated.get(source, source)


def _places(fusion: Fusion) -> _Places:
    updated: dict[Value, Value] = {}
    places = _Places(fusion, updated)
    for update in (kernel.root for kernel in fusion.kernels):
        if role_of(update) is InKernels.UPDATE and fusion.is_in_place(update):
            updated[update.result] = places(update.operands[0])
    return places


def _reused(step: _Step, dying: list[int], made: list[int]) -> int:
    """The bytes of a step's results that are written over buffers that it reads for the last time."""
    if not step.overwrites:
        return 0
    found = 0
    for nbytes in made:
        if nbytes in dying:
            dying.remove(nbytes)
            found += nbytes
    return found
