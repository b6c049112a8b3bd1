"""Hypothesis strategies for meshes, shardings and whole programs, and the property they are for.

    @given(spmdc.testing.programs())
    def test_partitioning_changes_nothing(program):
        spmdc.testing.check_equivalence(program)

Values are integers, also in floating-point types, and stay small enough to be exact there, so that sums in any order
agree and equality is bit for bit. Programs of `anything` take any numbers (NaN, infinities, both zeros, the extremes of
integers) and compute only what depends on no order. The first of the choices at every draw is the simplest, and what a
program leaves out takes no draws, so that a failing program shrinks to a few ops over one axis.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from ir.diagnostics import SpmdcError
from ir.mesh import Mesh
from ir.program import Program
from ir.types import Array, DType, TensorType, bf16, c64, f16, f32, pred, s8, s32, u8, u32
from lowering.jax import compile_in_one
from lowering.reference.shards import same_bits
from passes.cost.machine import TPU_V3, Machine
from passes.optimize.dce import eliminate_dead_code
from passes.partition import Decide
from passes.partition.options import WindowedEinsum
from passes.partition.plan.decisions import Decision
from passes.partition.plan.sides import StrategyQuery
from passes.partition.plan.strategies import StrategySelector
from spmdc.api import PartitionedProgram, evaluate, partition, plan
from spmdc.frontends.spmd import print_program
from spmdc.verification.differences import same_numbers, without_subnormals
from spmdc.verification.exactness import FAULTS, evaluate_watched
from spmdc.verification.random_programs import (
    control,
    creation,
    elementwise,
    indexing,
    layout,
    linalg,
    loops,
    manual,
    reduction,
    window,
)
from spmdc.verification.random_programs.shardings import (
    DIMS,
    LARGE_DIMS,
    Divisions,
    divisions,
    meshes,
    other_meshes,
    partial_kinds,
    seldom,
    shardings,
)
from spmdc.verification.random_programs.writer import INPUT_BOUND, Choices, Helper, Write, Writer
from spmdc.verification.shrink import shrink as shrink_program

__all__ = [
    "DIMS",
    "FAMILIES",
    "Divisions",
    "NotEquivalentError",
    "check_equivalence",
    "divisions",
    "inputs_for",
    "meshes",
    "other_meshes",
    "partial_kinds",
    "programs",
    "shardings",
    "surroundings",
]

_DTYPES = (s32, f32, bf16, f16, u8, s8, u32, pred, c64)

FAMILIES: Mapping[str, tuple[Write, ...]] = {
    "control": (*control.WRITERS, *loops.WRITERS, *manual.WRITERS),
    "elementwise": elementwise.WRITERS,
    "indexing": indexing.WRITERS,
    "layout": layout.WRITERS,
    "linalg": linalg.WRITERS,
    "numbers": creation.WRITERS,
    "reductions": reduction.WRITERS,
    "sorting": indexing.SORTING,
    "windows": window.WRITERS,
}
"""The functions that draw the ops of each family."""

_LIKELY = (layout.shard, layout.shard, elementwise.binary)

Surroundings = tuple[tuple[Mesh, ...], Divisions]


@st.composite
def surroundings(draw: st.DrawFn, max_devices: int) -> Surroundings:
    """The meshes of a program, and how its shardings cut their axes."""
    mesh = draw(meshes(max_devices=max_devices))
    all_meshes = (mesh, draw(other_meshes(mesh))) if mesh.size > 1 and seldom(draw, 3) else (mesh,)
    return all_meshes, draw(divisions(*all_meshes))


@st.composite
def programs(
    draw: st.DrawFn,
    max_ops: int = 10,
    dtypes: Sequence[DType] | None = None,
    max_devices: int = 64,
    *,
    family: str | None = None,
    anything: bool = False,
    functions: bool = True,
    around: Surroundings | None = None,
) -> Program:
    """Valid global programs of the whole op set over random meshes, with random annotations, functions and loops.

    About every second op is of the `family`, if one is given. Programs of `anything` are to be run on arbitrary
    numbers; with `functions`, they have functions that two machines round differently, such as sine. They are over the
    meshes of `around`, or over new ones by default.
    """
    all_meshes, divided = around or draw(surroundings(max_devices))
    few = [draw(st.sampled_from(tuple(dtypes) if dtypes is not None else _DTYPES)) for _ in range(2)]
    sizes = [draw(st.sampled_from(choice)) for choice in (DIMS, DIMS, (0,) if seldom(draw, 15) else DIMS + LARGE_DIMS)]
    shapes = tuple(tuple(draw(st.permutations(sizes))[: draw(st.sampled_from((2, 1, 3, 0)))]) for _ in range(3))
    types = tuple(dict.fromkeys((f32, *few)))
    ops = _ops(family, anything=anything, functions=functions)
    choices = Choices(all_meshes, divided, shapes, types, ops, anything)
    helper = None
    if draw(st.booleans()):
        writer = Writer(draw, choices)
        function = writer.function("helper", 3)
        helper = Helper(function, tuple(writer.bounds[v] for v in function.body.results))
    scalars = control.scalar_function(draw(st.sampled_from((f32, s32)))) if draw(st.booleans()) else None
    main = Writer(draw, choices, helper, scalars).function("main", max_ops)
    made = (helper.function if helper else None, scalars, main)
    return eliminate_dead_code(Program(all_meshes, {f.name: f for f in made if f is not None}))


def _ops(family: str | None, *, anything: bool, functions: bool) -> tuple[Write, ...]:
    families = {name: ops for name, ops in FAMILIES.items() if name != "linalg" or not anything}
    if anything and functions:
        families["elementwise"] += elementwise.FUNCTIONS
    every = (*(op for ops in families.values() for op in ops), *_LIKELY)
    stressed = families.get(family, ()) if family is not None else ()
    return every + stressed * (len(every) // len(stressed)) if stressed else every


def inputs_for(program: Program, seed: int = 0, *, anything: bool = False) -> tuple[Array, ...]:
    """Small integers in the type of each parameter, also as the parts of complex numbers.

    They are from -3 to 3; with a seed other than 0, those of some parameters are all negative, or the least and
    greatest of their integer type. With `anything`, they include NaN, infinities, zeros of both signs and extremes. The
    numbers of a parameter depend on its name and type only.
    """

    def draw(rng: np.random.Generator, type: TensorType) -> Array:
        if type.dtype.is_complex:
            part = type.with_dtype(type.dtype.component)
            result = np.empty(type.shape, type.dtype.numpy)
            result.real, result.imag = draw(rng, part), draw(rng, part)
            return result
        manner = rng.choice(("mixed", "negative", "extreme")) if seed else "mixed"
        if anything and manner != "negative":
            return rng.choice(_remarkable(type.dtype), type.shape)
        if manner == "extreme" and type.dtype.is_integer:
            ends = np.array([type.dtype.lowest, type.dtype.highest, 0], type.dtype.numpy)
            return rng.choice(ends, type.shape)
        if not type.dtype.has_zero:
            return np.exp2(rng.integers(0, 2, type.shape)).astype(type.dtype.numpy)
        low, high = (
            int(n) for n in np.clip((-INPUT_BOUND, INPUT_BOUND), float(type.dtype.lowest), float(type.dtype.highest))
        )
        high = -1 if manner == "negative" and low < 0 else high
        return rng.integers(low, high + 1, type.shape).astype(type.dtype.computed.numpy).astype(type.dtype.numpy)

    return tuple(draw(np.random.default_rng((seed, zlib.crc32(p.name.encode()))), p.type) for p in program.main.params)


def _remarkable(dtype: DType) -> Array:
    """Special numbers of that type, without subnormal ones, which some machines flush to zero."""
    if dtype == pred:
        return np.array([False, True])
    if dtype.is_integer:
        near = np.array([0, 1, 2, 3, 5]).astype(dtype.computed.numpy)
        ends = np.array([dtype.lowest, dtype.highest], near.dtype)
        return np.concatenate([near, ends, ~near]).astype(dtype.numpy)
    largest, smallest = dtype.format.highest, dtype.format.smallest
    numbers = [np.nan, np.inf, -np.inf, 0.0, -0.0, 0.0, -0.0, 1.0, -1.0, 2.5, 3.0]
    return np.array([*numbers, largest, -largest, smallest, -smallest]).astype(dtype.numpy)


class NotEquivalentError(AssertionError):
    """Partitioning changes what a program computes on the inputs of a seed. `reason` is the exception that it raises,
    or the first result that differs."""

    def __init__(self, program: Program, seed: int, reason: str) -> None:
        text = print_program(program, locations=False)
        super().__init__(f"with the inputs of seed {seed}, {reason}\n\n{text}")
        self.program = program
        self.seed = seed
        self.reason = reason


def check_equivalence(
    program: Program,
    *,
    jax: bool = False,
    seed: int = 0,
    anything: bool = False,
    shrink: bool = False,
    machine: Machine = TPU_V3,
    windowed_einsum: WindowedEinsum = "auto",
    any_strategies: bool = False,
) -> None:
    """Partitions the program, runs it on its logical devices with poisoned padding, and compares bit for bit.

    The seed draws the inputs and the contents of padding. Programs of `anything` are run on arbitrary numbers, and
    zeros must have the same sign. With `jax`, runs the JAX lowering instead of the simulator; then zeros are equal,
    because sums over devices begin with 0.0, and subnormal numbers, which XLA's CPU treats as 0, count as zeros.
    `machine` and `windowed_einsum` are as for `spmdc.partition`. Raises NotEquivalentError, with the smallest program
    that could be found if `shrink`; hypothesis's own shrinking is then best turned off.
    """

    decide = _random_strategies(seed) if any_strategies else None

    def split(of: Program) -> PartitionedProgram:
        return partition(plan(of, machine=machine, windowed_einsum=windowed_einsum, decide=decide))

    def find(of: Program) -> _Failure | None:
        return _failure(of, split, jax=jax, seed=seed, anything=anything)

    found = find(program)
    if found is None:
        return
    if shrink:
        program = _shrunk(program, find, found.manner, None if anything else seed)
        found = find(program) or found
    raise NotEquivalentError(program, seed, found.reason) from found.cause


@dataclass(frozen=True)
class _Failure:
    reason: str
    cause: Exception | None = None

    @property
    def manner(self) -> type:
        """What a smaller program's failure must have in common with this one."""
        return type(self.cause)


def _failure(
    program: Program, split: Callable[[Program], PartitionedProgram], *, jax: bool, seed: int, anything: bool
) -> _Failure | None:
    """The failure, if there is one."""
    arrays = inputs_for(program, seed, anything=anything)
    expected = evaluate(program, *arrays)
    try:
        partitioned = split(program)
        run = compile_in_one(partitioned.with_even_results().program) if jax else None
        actual = run(*arrays) if run is not None else partitioned.simulate(*arrays, seed=seed)
    except (*FAULTS, SpmdcError, RuntimeError) as problem:
        return _Failure(f"{type(problem).__name__}: {problem}", problem)
    alike = _alike_on_devices if jax else same_bits if anything else same_numbers
    for result, want, got in zip(program.main.results, expected, map(np.asarray, actual), strict=True):
        if want.dtype != got.dtype or want.shape != got.shape or not alike(want, got):
            return _Failure(f"{result.name} differs: {want.tolist()} unpartitioned, {got.tolist()} partitioned")
    return None


def _alike_on_devices(want: Array, got: Array) -> bool:
    return same_numbers(without_subnormals(want), without_subnormals(got))


def _shrunk(
    program: Program, find: Callable[[Program], _Failure | None], manner: type, small_of: int | None
) -> Program:
    """The smallest program found that fails in the same way. It must also be exact if the inputs are a seed's small
    ones."""

    def fails(candidate: Program) -> bool:
        try:
            found = find(candidate)
        except FAULTS:
            return False
        if found is None or found.manner is not manner:
            return False
        return small_of is None or evaluate_watched(candidate, inputs_for(candidate, small_of))[1]

    return shrink_program(program, fails)


def _random_strategies(seed: int) -> Decide:
    """Decides for every op at random, not only between the cheapest strategies; equal seeds decide equally."""

    def decide(selector: StrategySelector, queries: Sequence[StrategyQuery]) -> Decision | None:
        op = queries[0].op
        found = [(query.rule, each) for query in queries for each in selector.candidates(query)]
        return found[zlib.crc32(f"{seed} {op.label}".encode()) % len(found)] if found else None

    return decide
