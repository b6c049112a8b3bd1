"""Every program that comes with spmdc, in 64 bits, has gradients for all of its floats: their slopes, on shards too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from drawn import examples
from hypothesis import Phase, given, settings

import spmdc
from ir.ops import OPS
from ir.program import Op, Program, Region, Value, all_ops
from ir.types import DTYPES, TensorType
from ir.verify.program import verify
from spmdc.testing import inputs_for, programs

Array = npt.NDArray[Any]

_STEP = 1e-6
_FOLDERS = (Path(spmdc.__file__).parent / "programs", Path(__file__).parents[2] / "programs")
_SMALL = {
    "dense_transformer": {"LAYERS": 2, "B": 2, "T": 4, "V": 8, "M": 8, "K": 2, "H": 8},
    "matmul_cases": {"F": 4, "M": 8, "S": 4},
    "moe_layer": {"S": 8, "M": 4, "H": 6},
    "moe_gather": {"S": 8, "M": 4, "H": 6},
    "moe_transformer": {"D": 2, "LAYERS": 2, "T": 4, "V": 8, "W": 6, "M": 8, "N": 2, "K": 4, "H": 8},
    "moe_translation": {"D": 2, "B": 2, "T": 4, "V": 8, "M": 4, "N": 2, "K": 2, "H": 4},
    "switch_transformer": {"DATA": 1, "EXPERT": 2, "LAYERS": 2, "B": 2, "T": 3, "V": 4, "M": 4, "N": 2, "K": 2, "H": 2},
    "transformer_block": {"L": 4, "M": 8, "K": 2, "H": 16},
}
"""Consts with which the larger programs are run."""


_WIDER = {"f32": "f64", "bf16": "f64", "f16": "f64", "c64": "c128"}


def files() -> list[Path]:
    """Those that are no search, through whose choices there is no slope."""
    found = [path for folder in _FOLDERS for path in sorted(folder.glob("*.spmd"))]
    return [path for path in found if path.stem != "translate_by_beam"]


def wide(program: Program) -> Program:
    """The program with all floats in 64 bits, but for those whose bits are looked at."""
    functions = {
        name: replace(
            f, body=wide_region(f.body, {}), results=tuple(replace(r, type=widened(r.type)) for r in f.results)
        )
        for name, f in program.functions.items()
    }
    return replace(program, functions=functions)


def wide_region(region: Region, copies: dict[Value, Value]) -> Region:
    def copied(value: Value) -> Value:
        copies[value] = replace(value, type=widened(value.type), of=widened(value.of))
        return copies[value]

    params, ops = tuple(map(copied, region.params)), list[Op]()
    for op in region.ops:
        operands, regions = tuple(copies[v] for v in op.operands), tuple(wide_region(r, copies) for r in op.regions)
        if op.name == "bitcast_convert":
            narrow = replace(op.result, name=f"{op.result.name}.bits")
            ops.append(replace(op, operands=operands, results=(narrow,)))
            ops.append(Op("convert", (narrow,), (copied(op.result),), {"dtype": copies[op.result].dtype}, (), op.span))
            continue
        attrs = {name: widened(a) if name in ("dtype", "type") else a for name, a in op.attrs.items()}
        results = tuple(map(copied, op.results))
        ops.append(replace(op, operands=operands, results=results, attrs=attrs, regions=regions))
    return Region(params, tuple(ops), tuple(copies[v] for v in region.results))


def widened(type: Any) -> Any:
    if isinstance(type, TensorType):
        return type.with_dtype(widened(type.dtype))
    return type if type is None else DTYPES[_WIDER.get(type.name, type.name)]


def moves(value: Any) -> bool:
    return bool(value.type.dtype.is_float or value.type.dtype.is_complex)


def drawn(values: tuple[Value, ...], program: Program) -> list[Array]:
    """Floats of which no two are equal; a few turns of each loop."""
    rng = np.random.default_rng(len(values))
    arrays = list(inputs_for(program, 0))
    for i, value in enumerate(values):
        if moves(value):
            arrays[i] = np.asarray(rng.uniform(-1, 1, value.shape), value.dtype.numpy)
        elif not value.shape:
            arrays[i] = np.asarray(2, value.dtype.numpy)
    return arrays


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_the_gradients_of_a_program_are_its_slopes(path: Path) -> None:
    program = wide(spmdc.load(path, defines=_SMALL.get(path.stem)))
    params, results = program.main.params, [r for r in program.main.results if r.type.dtype.is_float]
    # Of models only the first, the loss: the others are what it is made of.
    results = results[:1] if path.stem in _SMALL else results
    floats = [i for i, p in enumerate(params) if moves(p)]
    inputs, rng = drawn(params, program), np.random.default_rng(0)
    for result in results if floats else ():
        gradient = spmdc.gradient(program, [params[i].name for i in floats], of=result.name)
        position = program.main.results.index(result)
        cotangent = rng.uniform(0.5, 1.0, result.type.shape)
        given = (*inputs, *([cotangent] if result.type.shape else []))
        got = spmdc.evaluate(gradient, *given)
        for i, d in zip(floats, got, strict=True):
            way = np.asarray(rng.uniform(-1, 1, params[i].shape))
            ends: list[Array] = []
            for sign in (1, -1):
                moved = [x + sign * _STEP * way if j == i else x for j, x in enumerate(inputs)]
                ends.append(spmdc.evaluate(program, *moved)[position])
            above, below = (np.nan_to_num(end, posinf=0, neginf=0) for end in ends)
            slope = np.sum((above - below) * (cotangent if result.type.shape else 1.0)) / (2 * _STEP)
            assert np.isclose(np.sum(d * way).real, slope, rtol=1e-4, atol=1e-6), (result.name, params[i].name)
        if program.meshes:
            for d, whole in zip(spmdc.partition(gradient).simulate(*given), got, strict=True):
                np.testing.assert_allclose(d, whole, rtol=1e-9, atol=1e-9)


@settings(
    settings.get_profile(settings.get_current_profile_name()), max_examples=examples(30), phases=(Phase.generate,)
)
@given(programs(max_ops=8, max_devices=8))
def test_the_gradient_of_any_program_is_the_same_on_shards(program: Program) -> None:
    params = [p.name for p in program.main.params if moves(p)]
    result = next((r for r in program.main.results if r.type.dtype.is_float), None)
    if not params or result is None or any(OPS[op.name].family in ("opaque", "host") for op in all_ops(program)):
        return
    program = wide(program)
    gradient = spmdc.gradient(program, params, of=result.name)
    assert not verify(gradient)
    inputs = drawn(program.main.params, program)
    given = (*inputs, *([np.ones(result.type.shape)] if result.type.shape else []))
    with np.errstate(all="ignore"):
        whole = spmdc.evaluate(gradient, *given)
        for d, w in zip(spmdc.partition(gradient).simulate(*given), whole, strict=True):
            np.testing.assert_allclose(d, w, rtol=1e-8, atol=1e-8 * max(1.0, np.abs(w[np.isfinite(w)]).max(initial=0)))
