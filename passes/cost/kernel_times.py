"""The time of each kernel of an SPMD program on a machine.

The constants are fitted to the estimates that libtpu 0.0.42 makes of kernels (docs/tpu.md says how well).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Set

from ir.ops.collective import COLLECTIVES
from ir.ops.contraction import dims_of_product, is_matrix_product
from ir.ops.declaration import InKernels
from ir.ops.rule_helpers import ints_attr
from ir.program import Op, Program, Region, Value
from passes.cost.fusion import Fuse, Kernel, fusing, role_of
from passes.cost.kernels import BLOCK, Kernels, in_tiles
from passes.cost.machine import Machine
from passes.cost.model import OpTime, arithmetic_of, dtype_of_arithmetic, memory_seconds, time_of

_NOTHING = OpTime(0.0, 0.0, 0.0, 0, 0, 0)
_DRAINS = 0.1
"""The fraction of its arithmetic time that a product which is bound by memory waits for arithmetic."""
_SCAN_PASSES = 3
"""How often a scan goes over memory: once in blocks, then over their totals."""
_STEPS: Mapping[InKernels | None, int] = {InKernels.SCAN: 64, InKernels.DRAW: 110}
"""How many operations an element takes where it is not one. A random number takes the 20 rounds of Threefry."""
_ORDERING = frozenset({InKernels.TRANSPOSITION, InKernels.CONCATENATION})
"""Ops that only reorder elements."""
_NESTED = 1.15
"""How much longer two products take in one kernel than separately."""


def kernel_times(program: Program, machine: Machine, fuse: Fuse | None = None) -> dict[Op, OpTime]:
    """The time of each op that runs by itself, collectives included, and of each kernel, as the time of its heart: the
    other ops of a kernel take no time. `fuse` may hold fusions that were found before."""
    fuse = fuse or fusing(machine.kernels)
    found: dict[Op, OpTime] = {}
    for function in program.functions.values():
        _find(function.body, machine, fuse, found)
    return found


def _find(region: Region, machine: Machine, fuse: Fuse, found: dict[Op, OpTime]) -> None:
    kernels = machine.kernels or Kernels(machine.memory_bandwidth)
    fused = fuse(region).kernels
    for kernel in fused:
        for op in kernel.ops:
            if op not in found:
                found[op] = OpTime(0.0, 0.0, 0.0, arithmetic_of(op), 0, 0)
    near = {value for op in region.ops for value in op.results if value.type.nbytes <= kernels.near}
    near.difference_update(region.results)
    alike: dict[object, OpTime] = {}
    repeated = {attrs for attrs, n in Counter(id(kernel.heart.attrs) for kernel in fused).items() if n > 1}
    for kernel in fused:
        kind = _kind(kernel, near) if id(kernel.heart.attrs) in repeated else kernel
        time = alike.get(kind)
        if time is None:
            time = alike[kind] = _time_of(kernel, machine, kernels, near, found)
        found[kernel.heart] = time
    for op in region.ops:
        for inner in op.regions:
            _find(inner, machine, fuse, found)
        if op.name in COLLECTIVES:
            found[op] = time_of(machine, op)
        else:
            found.setdefault(op, _NOTHING)


def _kind(kernel: Kernel, near: Set[Value]) -> object:
    """All that the time of a kernel depends on: its ops with their attributes and types, which one is the heart, and
    the bytes that it reads and stores, in memory or near."""
    ops = [(op.name, id(op.attrs), *[id(v.type) for v in (*op.operands, *op.results)]) for op in kernel.ops]
    read = [(nbytes, value in near) for value, nbytes in kernel.reads.items()]
    written = [(nbytes, value in near) for value, nbytes in kernel.writes.items()]
    return tuple(ops), kernel.ops.index(kernel.heart), tuple(read), tuple(written), kernel.copied


def _time_of(
    kernel: Kernel, machine: Machine, kernels: Kernels, near: Set[Value], found: Mapping[Op, OpTime]
) -> OpTime:
    """The time of a kernel, as that of its heart, with the heart's own number of operations, as `found` has it for each
    op. Products read the values `near`, and leave them, in on-chip memory."""
    read, written = sum(kernel.reads.values()), sum(kernel.writes.values())
    moved = (read + written) * (_SCAN_PASSES if role_of(kernel.heart) is InKernels.SCAN else 1)
    largest = max(kernel.reads.values(), default=0)
    compute = sum([found[op].flops / machine.flops_of(dtype_of_arithmetic(op)) for op in kernel.ops])
    vector = sum(map(_vector_steps, kernel.ops)) / kernels.vector
    memory = kernels.seconds(moved)
    busy, overhead = 0.0, kernels.launch
    if kernel.is_product:
        moved -= sum(n for tensors in (kernel.reads, kernel.writes) for value, n in tensors.items() if value in near)
        memory = kernels.seconds(moved)
        products = [
            _product_seconds(machine, kernels.tile, op) for op in kernel.ops if role_of(op) is InKernels.PRODUCT
        ]
        product = sum(products) / kernels.products * (1 if len(products) == 1 else _NESTED)
        busy = max(product + kernels.waits * memory, memory + _DRAINS * product)
        overhead += kernels.fill + sum([kernels.launch + kernels.seconds(2 * nbytes) for nbytes in kernel.copied])
    elif role_of(kernel.heart) in _ORDERING:
        memory /= kernels.reorders
    elif role_of(kernel.heart) is not InKernels.WINDOW:
        memory = max(memory, kernels.seconds(largest / kernels.reads))
        if len(kernel.ops) == 1:
            overhead += kernels.lone * (max(kernel.heart.results[0].type.size, largest // 4) // BLOCK)
    whole = max(busy, vector, memory) + overhead
    at_least = min(memory_seconds(machine, moved), kernels.seconds(moved))
    return OpTime(compute, at_least, 0.0, found[kernel.heart].flops, moved, 0, max(whole - max(compute, at_least), 0.0))


def _vector_steps(op: Op) -> float:
    """The number of elementwise operations of an op."""
    role = role_of(op)
    if role is InKernels.PRODUCT:
        return 0.0
    values = op.operands if role in (InKernels.REDUCTION, InKernels.WINDOW) else op.results
    return _STEPS.get(role, 1) * max(value.type.size for value in values)


def _product_seconds(machine: Machine, tile: tuple[int, int], op: Op) -> float:
    """The time of a product's arithmetic, in whole tiles of a matrix unit."""
    rate = machine.flops_of(dtype_of_arithmetic(op))
    return arithmetic_of(op) / rate if not is_matrix_product(op) else tiled_flops(op, tile) / rate


def tiled_flops(dot: Op, tile: tuple[int, int]) -> int:
    """The operations of a dot_general with rows, columns and summed dims padded to whole tiles."""
    batch = math.prod(dot.operands[0].shape[d] for d in ints_attr(dot.attrs, "lhs_batch"))
    rows, columns, summed = dims_of_product(dot)
    height, width = tile
    area = min(in_tiles(rows, height) * in_tiles(columns, width), in_tiles(rows, width) * in_tiles(columns, height))
    return 2 * batch * in_tiles(summed, width if summed > height else height) * area
