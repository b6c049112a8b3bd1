"""Tests whether a program computes the same on many devices as on one, on random meshes, annotations and inputs.

Each example replaces the program's mesh and annotations by others, partitions it, runs it on its logical devices with
poisoned padding, and compares the results with those of the unpartitioned program: bit for bit if no order of summation
can matter, else within what rounding explains. Hypothesis draws the examples and shrinks the annotations of one that
fails; then the program is shrunk, too (`spmdc.verification.shrink`).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from ir.diagnostics import Diagnostic, SpmdcError, error, require
from ir.manual import NOWHERE, contexts
from ir.mesh import Mesh
from ir.ops import OPS
from ir.ops.control import is_manual
from ir.ops.layout import is_annotation
from ir.program import Function, Program, Result, Value, all_ops, values_within
from ir.sharding import Sharding
from ir.types import Array, dtype_of
from ir.verify.program import verify as find_problems
from passes.cost.machine import TPU_V3, Machine
from passes.rewrite import map_values
from spmdc.api import evaluate, partition
from spmdc.arguments import program_of
from spmdc.frontends.spmd import print_program
from spmdc.inputs import random_inputs
from spmdc.verification.differences import are_same, differences, result_names, same_numbers
from spmdc.verification.exactness import FAULTS, evaluate_watched
from spmdc.verification.random_programs.shardings import shardings
from spmdc.verification.shrink import shrink

Outcome = Literal["equal", "rounding", "sensitive"]

MAX_ELEMENTS = 100 * 2**21
"""Examples whose values have more elements in total take too long to simulate."""
MAX_FLOPS = 100 * 2**29

_MAX_ANNOTATIONS = 4
_MOST_SMALLER = 300
"""The most smaller programs that are tried to show a fault."""
_EPSILON = 1e-6
_AMPLIFIED = 64
"""Changing the inputs by an epsilon moves results less than this many times as far as another order of sums does."""


@dataclass(frozen=True, eq=False)
class Counterexample:
    """An annotated program whose results change when it is partitioned, as small as could be found, with the seed of
    its inputs, and the change."""

    program: Program
    seed: int
    reason: str
    fault: type[Exception] | None = None
    """The class of the exception with which partitioning or running it fails, if any."""

    def text(self) -> str:
        """The program in the .spmd language."""
        return print_program(self.program, locations=False)


@dataclass(frozen=True, eq=False)
class Verification:
    """The numbers of examples that agreed bit for bit, within rounding, or as far as results that depend on rounding
    can."""

    equal: int
    rounding: int
    sensitive: int
    counterexample: Counterexample | None = None

    @property
    def ok(self) -> bool:
        return self.counterexample is None

    @property
    def examples(self) -> int:
        return self.equal + self.rounding + self.sensitive

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """The counterexample as an error."""
        if self.counterexample is None:
            return ()
        message = f"partitioning changes what the program computes: {self.counterexample.reason}"
        notes = (f"inputs are small integers of seed {self.counterexample.seed}",)
        help = "report this, with the annotated program: it is a bug in spmdc"
        return (Diagnostic("E507", message, notes=notes, help=help),)


class _FoundError(Exception):
    """A counterexample, passed out of hypothesis."""

    def __init__(self, counterexample: Counterexample) -> None:
        super().__init__(counterexample.reason)
        self.counterexample = counterexample


def verify(
    program: Program,
    examples: int = 100,
    *,
    seed: int = 0,
    machine: Machine | str = TPU_V3,
    on_example: Callable[[], None] = lambda: None,
) -> Verification:
    """Tests the program as it is annotated, then on other meshes with other annotations, `examples` in total.

    Plans are those for `machine`; of the other meshes, those that fit on its network are used. `on_example` is called
    after each example that agrees.

    Raises SpmdcError: E406 for a plan or an SPMD program, E508 if the program is too large, and errors in the program's
    own annotations.
    """
    program = program_of(program)
    if program.stage != "global":
        stage = "a plan" if program.stage == "plan" else "an SPMD program"
        raise error("E406", f"the program is {stage} already", help="verify the program it came from")
    require(isinstance(examples, int) and examples > 0, "there must be at least 1 example", examples)
    require(callable(on_example), "on_example is a function", on_example)
    _check_size(program, examples)
    machine = Machine.of(machine)
    counts: Counter[Outcome] = Counter()
    counterexample: Counterexample | None = None
    try:
        if program.meshes:
            counts[_try(program, seed, machine)] += 1
            on_example()
        if examples > counts.total():
            _try_drawn(program, examples - counts.total(), seed, counts, machine, on_example)
    except _FoundError as found:
        counterexample = _shrunk(found.counterexample, machine)
    return Verification(counts["equal"], counts["rounding"], counts["sensitive"], counterexample)


def _check_size(program: Program, examples: int) -> None:
    elements = sum(v.type.size for op in all_ops(program) for v in op.results)
    elements += sum(p.type.size for p in program.main.params)
    flops = sum(rule(op) for op in all_ops(program) if (rule := OPS[op.name].flops) is not None)
    for what, count, most in (("elements", elements, MAX_ELEMENTS), ("operations", flops, MAX_FLOPS)):
        if count * examples > most:
            fewer = f"at most {most // count} examples, or smaller sizes" if count <= most else "smaller sizes"
            raise error(
                "E508",
                f"the program computes {count} {what} in each of {examples} examples, and {most} in all are the limit",
                help=f"verify it with {fewer}: override its consts by -D name=int",
            )


def _shrunk(found: Counterexample, machine: Machine) -> Counterexample:
    """The counterexample of the smallest program found that has the same fault: its wrong values, or its exception."""
    smallest = found

    def fails(candidate: Program) -> bool:
        nonlocal smallest
        try:
            _try(candidate, found.seed, machine)
        except _FoundError as another:
            if another.counterexample.fault is not found.fault:
                return False
            smallest = another.counterexample
            return True
        except (*FAULTS, SpmdcError):
            return False
        return False

    shrink(found.program, fails, _MOST_SMALLER)
    return smallest


# Examples


def _try_drawn(
    program: Program, count: int, seed: int, counts: Counter[Outcome], machine: Machine, on_example: Callable[[], None]
) -> None:
    """Raises _FoundError with the smallest example that fails."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        phases=(Phase.generate, Phase.shrink),
        database=None,
        deadline=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @hypothesis.given(annotated(program), st.integers(0, 2**16))
    def holds(example: Program, inputs: int) -> None:
        hypothesis.assume(not find_problems(example))
        hypothesis.assume(machine.has_room_for(example.meshes))
        try:
            counts[_try(example, inputs, machine)] += 1
            on_example()
        except SpmdcError as problem:
            reason = f"it is refused: {problem.diagnostics[0].message}"
            raise _FoundError(Counterexample(example, inputs, reason, type(problem))) from problem

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)  # of programs being long
        holds()


def annotated(program: Program) -> st.SearchStrategy[Program]:
    """The program over other meshes, with other annotations of parameters, results and a few values between.

    A program with manual regions keeps its mesh, on which their types depend, and the annotations in the regions.
    """
    kept = {
        v
        for f, around in contexts(program).items()
        if around - {NOWHERE}
        for v in values_within(program.functions[f].body)
    }
    for op in all_ops(program):
        if is_manual(op):
            kept |= {*op.results, *values_within(op.regions[0])}
    placed = [op.result for op in all_ops(program) if is_annotation(op) and op.result not in kept]
    computed = [op for op in program.main.body.ops if not is_annotation(op) and not is_manual(op)]
    between = [v for op in computed for v in op.results]

    @st.composite
    def draw_example(draw: st.DrawFn) -> Program:
        mesh = program.mesh if kept else _mesh(draw)

        def sharding(value: Value | Result) -> Sharding:
            exact = value.type.dtype.is_integer or value.type.dtype.name in ("f32", "c64", "pred")
            return draw(shardings(mesh, value.type, partial=exact))

        chosen = [p for p in program.main.params if draw(st.booleans())]
        if between:
            numbers = st.integers(0, len(between) - 1)
            chosen += [between[i] for i in draw(st.lists(numbers, max_size=_MAX_ANNOTATIONS, unique=True))]
        drawn = {value: sharding(value) for value in (*chosen, *placed)}
        results = [sharding(r) if draw(st.booleans()) else None for r in program.main.results]
        meshes = program.meshes if kept else (mesh,)
        return _with_annotations(program, meshes, {v: v.sharding for v in kept} | drawn, results)

    return draw_example()


def _mesh(draw: st.DrawFn) -> Mesh:
    """One to three axes of sizes 1 to 4, with the devices in any order."""
    sizes = draw(st.lists(st.sampled_from((2, 3, 4, 1)), min_size=1, max_size=3))
    mesh = Mesh(tuple(zip("xyz", sizes, strict=False)))
    return Mesh(mesh.axes, tuple(draw(st.permutations(range(mesh.size))))) if draw(st.booleans()) else mesh


def _with_annotations(
    program: Program,
    meshes: tuple[Mesh, ...],
    drawn: Mapping[Value, Sharding | None],
    results: Sequence[Sharding | None],
) -> Program:
    """The program over these meshes with these annotations instead of its own."""

    def result(function: Function, i: int) -> Result:
        mine = function.name == program.entry
        return replace(function.results[i], sharding=results[i] if mine else None)

    moved = map_values(program, lambda v: replace(v, sharding=drawn.get(v)), result)
    return replace(moved, meshes=meshes)


# One example


def _try(program: Program, seed: int, machine: Machine) -> Outcome:
    """How well the partitioned program agrees. Raises _FoundError if it does not or a pass fails, and SpmdcError for
    other errors."""
    arrays = random_inputs(program, seed, integers=True)
    expected, exact = evaluate_watched(program, arrays)
    try:
        got = partition(program, machine=machine).simulate(*arrays)
    except FAULTS as problem:
        (first, *_) = f"{type(problem).__name__}: {problem}".splitlines()
        raise _FoundError(Counterexample(program, seed, f"it fails with {first}", type(problem))) from problem
    unequal = [i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if not same_numbers(a, b)]
    if not unequal:
        return "equal"
    apart = differences(program, got, expected)
    far = unequal if exact else [i for i in unequal if not apart[i].is_rounding]
    if not far:
        return "rounding"
    if not exact and _hangs_on_rounding(program, arrays, expected, got):
        return "sensitive"
    name = result_names(program.main.results)[far[0]]
    raise _FoundError(Counterexample(program, seed, _telling(name, expected[far[0]], got[far[0]])))


def _hangs_on_rounding(
    program: Program, arrays: Sequence[Array], expected: Sequence[Array], got: Sequence[Array]
) -> bool:
    """Whether a change of the inputs by little more than rounding moves the unpartitioned results as far.

    That is so if large terms cancel, or if near ties decide (argmax, floor, compare).
    """
    moved = [0.0] * len(expected)
    rng = np.random.default_rng(0)
    for _ in range(4):
        other = evaluate(program, *(_nudged(rng, x) for x in arrays))
        moved = [max(m, d.largest) for m, d in zip(moved, differences(program, other, expected), strict=True)]
    apart = differences(program, got, expected)
    return all(d.is_rounding or d.largest <= _AMPLIFIED * m for d, m in zip(apart, moved, strict=True))


def _nudged(rng: np.random.Generator, x: Array) -> Array:
    dtype = dtype_of(x.dtype)
    if not dtype.is_continuous:
        return x
    wide = x.astype(np.complex128 if dtype.is_complex else np.float64)
    epsilon = _EPSILON if dtype.bits > 16 else 2.0 ** -(dtype.format.mantissa_bits + 1)
    return (wide + epsilon * rng.choice((-1.0, 1.0), x.shape) * np.maximum(np.abs(wide), 1)).astype(x.dtype)


def _telling(name: str, expected: Array, got: Array) -> str:
    """The position of the first difference in a result."""
    place = tuple(int(i) for i in np.argwhere(~are_same(expected, got))[0])
    where = f"{name}[{', '.join(map(str, place))}]" if place else name
    return f"{where} is {got[place]} partitioned and {expected[place]} unpartitioned"
