"""`spmdc run`: executes a program, on given or random inputs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import spmdc
from ir.diagnostics import Diagnostic, error
from ir.program import Program, Result, all_ops, values_of
from ir.types import Array, TensorType, dtype_of
from lowering.jax import compile
from lowering.reference import simulate
from spmdc.commands.shared.arrays import read_inputs, write_results
from spmdc.commands.shared.failures import print_diagnostics
from spmdc.commands.shared.options import Options
from spmdc.commands.shared.pages import Table, finish
from spmdc.commands.shared.programs import handing_on, is_partitioned, load_program, partition_program
from spmdc.commands.shared.terminal import Stopwatch, interruptible
from spmdc.verification.differences import Difference, differences, result_names

_CANCELLED = "sums of large terms that cancel can do this: try --integers, which draws inputs whose sums are exact"
_CHOSEN_OTHERWISE = (
    "argmax, top_k or a comparison of nearly equal floats may fall either way: try --integers, which draws inputs "
    "whose sums are exact"
)
_OFF_ON_INTEGERS = (
    "sums of small integers are exact, but not divisions, softmax and other functions, nor sums and products too large "
    "for the element type; behind those, argmax, top_k or a comparison of nearly equal values may fall either way. If "
    "the program has such ops, try without --integers, where such ties are rare; if it has none, report this"
)
_MORE_EXACT = (
    "XLA leaves out the rounding of a float of few bits that is widened again, as under jax.jit: with the environment "
    "variable XLA_FLAGS=--xla_allow_excess_precision=false it rounds wherever the program does"
)

_FEW = 8
"""The most elements of a result that is printed whole."""


def run(
    options: Options, *, file: str, inputs: Sequence[str], backend: str, check: bool, out: str | None, integers: bool
) -> int:
    """Runs the program; with `check`, also unpartitioned, and exits with 1 if they differ by more than rounding."""
    watch = Stopwatch()
    program = load_program(file, options, watch)
    if is_partitioned(program) and (check or backend == "reference"):
        what = "--check" if check else "--backend reference"
        raise error(
            "E601",
            f"{what} needs the unpartitioned program, and {file} is an SPMD program",
            help="give the program that it was partitioned from; --backend jax runs this one",
        )
    arrays = _arrays(program, inputs, options.seed, integers=integers)
    executable, warnings = _prepare(program, backend, options, watch)
    with watch.step(backend):
        got = _execute(executable, backend, arrays, options)
    apart: list[Difference] = []
    if check:
        with watch.step("reference"):
            expected = spmdc.evaluate(program, *arrays)
        apart = differences(program, got, expected)
    if out is not None:
        write_results(out, dict(zip(result_names(program.main.results), got, strict=True)))
    compared = zip(program.main.results, apart, strict=check)
    problems = [_too_far(r, d, program, backend, integers) for r, d in compared if not d.is_rounding]
    results = program.main.results
    figures = {"backend": backend, "results": _figures(results, got, apart)} if options.json else {}
    found = (*warnings, *(problems if options.json else ()))
    finish(options, watch, _table(results, got, apart), figures, found, out)
    if not options.json:
        print_diagnostics(problems)
    return 1 if problems else 0


def _arrays(program: Program, inputs: Sequence[str], seed: int, *, integers: bool) -> tuple[Array, ...]:
    """The arrays of the files, or random inputs. Weights have their initial values, unless they are to be integers."""
    if integers and not inputs:
        return spmdc.random_inputs(program, seed, integers)
    weights = {n: np.asarray(x) for n, x in spmdc.initial_values(program, seed).items()} if program.weights else {}
    if inputs:
        return read_inputs(program.main.params, inputs, weights)
    drawn = zip(program.main.params, spmdc.random_inputs(program, seed), strict=True)
    return tuple(weights.get(param.name, array) for param, array in drawn)


def _prepare(
    program: Program, backend: str, options: Options, watch: Stopwatch
) -> tuple[Program, tuple[Diagnostic, ...]]:
    """The program that the backend executes, and the warnings of its compilation."""
    if backend == "reference" or is_partitioned(program):
        return program, ()
    partitioned = partition_program(program, options, watch)
    return partitioned.program, partitioned.warnings


def _execute(program: Program, backend: str, arrays: Sequence[Array], options: Options) -> tuple[Array, ...]:
    if backend == "reference":
        return spmdc.evaluate(program, *arrays)
    if backend == "simulate":
        return simulate(program, *arrays)
    with interruptible():
        return tuple(np.asarray(x) for x in compile(handing_on(program, options))(*arrays))


def _too_far(result: Result, difference: Difference, program: Program, backend: str, integers: bool) -> Diagnostic:
    name, bug = difference.name, f"report this: {backend} and reference must agree"
    if difference.shapes is not None:
        got, expected = map(list, difference.shapes)
        message = f"{name} has shape {got}, and in the unpartitioned program {expected}"
        return Diagnostic("E504", message, help=f"{bug} on shapes")
    is_exact = not (result.type.dtype.is_continuous)
    most = f"rounding explains at most {difference.tolerance:.3g}"
    if not _has_floats(program):
        advice = f"{bug} on integers"
    elif backend == "jax" and _widens(program):
        advice = _MORE_EXACT
    elif integers:
        advice = _OFF_ON_INTEGERS
    else:
        advice = _CHOSEN_OTHERWISE if is_exact else _CANCELLED
    message = f"{name} is off by {difference.largest:.3g} from the unpartitioned program, where {_scale(difference)}"
    notes = ("integers and booleans must be equal" if is_exact else most,)
    return Diagnostic("E504", message, notes=notes, help=advice)


def _has_floats(program: Program) -> bool:
    """Whether any value that the program computes can be rounded."""
    params = (p for f in program.functions.values() for p in f.params)
    values = (*params, *(v for op in all_ops(program) for v in values_of(op)))
    return any(v.dtype.is_continuous for v in values)


def _widens(program: Program) -> bool:
    """Whether the program converts floats to floats of more bits."""
    converts = (op for op in all_ops(program) if op.name == "convert")
    pairs = ((op.operands[0].dtype, op.results[0].dtype) for op in converts)
    return any(old.is_continuous and new.is_continuous and old.bits < new.bits for old, new in pairs)


def _table(results: Sequence[Result], arrays: Sequence[Array], apart: Sequence[Difference]) -> Table:
    names = result_names(results)
    rows = [[f"{n}: {_type(r)}", _summary(a)] for n, r, a in zip(names, results, arrays, strict=True)]
    for row, difference in zip(rows, apart, strict=False):
        row.append(_verdict(difference))
    return Table((), rows)


def _verdict(difference: Difference) -> str:
    if difference.shapes is not None:
        return "of another shape than the unpartitioned run"
    if not difference.largest:
        return "equal to the unpartitioned run"
    return f"off by {difference.largest:.3g} where {_scale(difference)} (rounding explains {difference.tolerance:.2g})"


def _scale(difference: Difference) -> str:
    return f"numbers go up to {difference.scale:.3g}"


def _type(result: Result) -> TensorType:
    return result.of or result.type


def _summary(array: Array) -> str:
    if array.size == 0:
        return "empty"
    if array.size <= _FEW:
        text = np.array2string(array.astype(_printable(array)), separator=", ", precision=6, max_line_width=10_000)
        return " ".join(text.split())
    if array.dtype == np.bool_:
        return f"true {int(array.sum())} of {array.size}"
    if array.dtype.kind == "c":
        return f"magnitude {_summary(np.abs(array))}"
    wide = array.astype(_printable(array))
    missing = int(np.isnan(wide).sum()) if wide.dtype.kind == "f" else 0
    known = wide[~np.isnan(wide)] if missing else wide
    if known.size == 0:
        return "all nan"
    text = f"min {known.min():.6g}  mean {known.mean():.6g}  max {known.max():.6g}"
    return f"{text}  nan {missing}" if missing else text


def _printable(array: Array) -> npt.DTypeLike:
    """A dtype that numpy can print and average: wide floats for every float, 8 bits for shorter integers."""
    dtype = dtype_of(array.dtype)
    return np.dtype(np.float64) if dtype.is_float else dtype.computed.numpy


def _plain(array: Array) -> object:
    """The elements as nested lists; a complex number is the pair of its parts."""
    pairs = np.stack([array.real, array.imag], -1) if array.dtype.kind == "c" else array
    return pairs.astype(_printable(pairs)).tolist()


def _figures(
    results: Sequence[Result], arrays: Sequence[Array], apart: Sequence[Difference]
) -> list[dict[str, object]]:
    shown: list[dict[str, object]] = []
    for name, result, array in zip(result_names(results), results, arrays, strict=True):
        entry: dict[str, object] = {"name": name, "type": str(_type(result))}
        wide = np.abs(array) if array.dtype.kind == "c" else array.astype(np.float64)
        if array.size:
            entry |= {"min": float(np.min(wide)), "mean": float(np.mean(wide)), "max": float(np.max(wide))}
        if array.size <= _FEW:
            entry["value"] = _plain(array)
        shown.append(entry)
    for entry, difference in zip(shown, apart, strict=False):
        entry |= {"difference": difference.largest, "scale": difference.scale, "tolerance": difference.tolerance}
    return shown
