"""The gradient of every op that takes floats and gives floats is its slope, found by moving the operands."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import spmdc
from ir.builder import Names, RegionBuilder
from ir.ops import OPS
from ir.program import Attr, Program
from ir.types import DTYPES, TensorType
from spmdc.verification.op_instances import Instance, instances_of

Array = npt.NDArray[Any]

_WIDE = {"c64": "c128", **{t.name: "f64" for t in DTYPES.values() if t.is_float}}
_STEP = 1e-6

NO_DERIVATIVE = {
    "and", "axis_index", "bitcast_convert", "compare", "constant", "count_leading_zeros", "iota", "is_finite", "not",
    "or", "popcnt", "random_bits", "rng_bit_generator", "shift_left", "shift_right_arithmetic", "shift_right_logical",
    "undefined", "xor",
}  # fmt: skip
"""What takes no floats, or gives none: none of it moves with a float parameter."""

STRAIGHT_THROUGH = {"reduce_precision"}
"""What rounds has slope 0 or none; its gradient is that of not rounding."""

ELSEWHERE = {
    "all_gather", "all_reduce", "all_to_all", "await_callbacks", "box_permute", "box_permutes", "call", "callback",
    "case", "checkpoint", "collective_permute", "inspect", "manual", "map", "opaque", "reduce_scatter", "reshard",
    "stop_gradient", "while",
}  # fmt: skip
"""What stands in regions, or has them, or has a derivative that is not its slope or that nobody knows: see
test_gradients.py."""

CONVOLUTION: dict[str, Attr] = {
    "lhs_batch": 0, "lhs_feature": 3, "lhs_spatial": (1, 2),
    "rhs_input": 2, "rhs_output": 3, "rhs_spatial": (0, 1),
    "out_batch": 0, "out_feature": 3, "out_spatial": (1, 2),
}  # fmt: skip
CONVOLVED: tuple[dict[str, Attr], ...] = (
    {"stride": (2, 3)},
    {"lhs_dilation": (2, 3)},
    {"rhs_dilation": (2, 1)},
    {"padding_low": (-1, 2), "padding_high": (0, -1)},
    {"stride": (2, 1), "lhs_dilation": (3, 1), "rhs_dilation": (1, 2), "padding_low": (2, 1), "padding_high": (1, 2)},
)
GROUPS: tuple[tuple[str, dict[str, Attr]], ...] = (
    ("f32[3,7,5,2] f32[3,3,2,5]", {}),
    ("f32[3,7,5,6] f32[3,3,3,4]", {"feature_group_count": 2}),
    ("f32[6,7,5,3] f32[3,3,3,4]", {"batch_group_count": 2}),
)
WINDOWS: tuple[dict[str, Attr], ...] = (
    {"window": (2, 3), "stride": (1, 2)},
    {"window": (2, 3), "padding_low": (1, 0), "padding_high": (0, 2)},
    {"window": (2, 2), "base_dilation": (2, 1), "padding_low": (1, 1), "padding_high": (1, 1)},
    {"window": (2, 2), "window_dilation": (2, 3)},
    {"window": (1, 1), "padding_low": (-1, 0), "padding_high": (0, -2)},
    {"window": (2, 2), "padding_low": (-1, 1), "padding_high": (0, -1), "window_dilation": (2, 2), "stride": (2, 1)},
)
ROWS: dict[str, Attr] = {
    "update_window_dims": (1,), "inserted_window_dims": (0,), "scatter_dims_to_operand_dims": (0,),
    "index_vector_dim": 1,
}  # fmt: skip


def on(op: str, operands: str, **attrs: Attr) -> Instance:
    definite = bool(attrs.pop("definite", False))
    types = [text.split("[") for text in operands.split()]
    sizes = [tuple(map(int, re.findall(r"\d+", dims))) for _, dims in types]
    return Instance(
        op, tuple(TensorType(n, DTYPES[name]) for n, (name, _) in zip(sizes, types, strict=True)), attrs, definite
    )


SETTINGS: tuple[Instance, ...] = (
    *(on("reduce", "f32[5,7,3] s32[5,7,3]", dims=(0, 2), kind=k) for k in ("argmax", "argmin")),
    *(on("cumprod", "f32[5,7]", dim=d, reverse=r) for d, r in ((1, False), (0, True))),
    *(on(op, "f32[5,7]", dim=0, reverse=True) for op in ("cumsum", "cummax", "cummin")),
    *(on("reduce_window", "f32[7,9]", kind=k, **w) for k in ("sum", "prod", "max", "min") for w in WINDOWS),
    *(on("select_and_scatter", "f32[7,8] f32[3,3]", window=(2, 3), stride=(2, 2), select=s) for s in ("GE", "LT")),
    *(
        on("select_and_scatter", "f32[7,8] f32[7,8]", window=(2, 2), padding_low=(1, 0), padding_high=(0, 1), select=s)
        for s in ("GT", "LE")
    ),
    *(on("convolution", types, **CONVOLUTION, **g, **c) for types, g in GROUPS for c in CONVOLVED),
    *(
        on("scatter", "f32[7,5] s32[3,1] f32[3,5]", kind=k, unique_indices=u, **ROWS)
        for k, u in (*((k, False) for k in ("sum", "replace", "max", "min", "prod")), ("prod", True))
    ),
    on("sort", "f32[5,7] f32[5,7] s32[5,7]", dim=1, num_keys=2),
    on("sort", "s32[5,7] f32[5,7]", dim=1, stable=False),
    on("clamp", "f32[5,7] f32[5,7] f32[5,7]"),
    on("fft", "f32[4,6]", kind="RFFT", length=(4, 6)),
    on("fft", "c64[4,4]", kind="IRFFT", length=(4, 6)),
    on("cholesky", "c64[3,3]", definite=True),
    on("triangular_solve", "c64[3,3] c64[3,7]", definite=True, transpose="C"),
    on("triangular_solve", "f32[3,3] f32[3,7]", definite=True, unit_diagonal=True, lower=False),
    *(on(op, "c64[5,7] c64[5,7]") for op in ("multiply", "divide", "power")),
    on("optimization_barrier", "f32[5] s32[5] f32[3]"),
    on("concatenate", "f32[5,2] f32[5,3] f32[5,1]", dim=1),
)
"""What the rules of ops need no instances for, and gradients do."""


def instances(op: str) -> list[Instance]:
    """The op's instances in 64 bits, with float operands and results."""
    found = [wide(i) for i in (*instances_of(op), *(i for i in SETTINGS if i.op == op))]
    return [i for i in found if any(map(moves, i.operands)) and any(moves(r.type) for r in program_of(i).main.results)]


def wide(instance: Instance) -> Instance:
    types = {"dtype", "type"} & instance.attrs.keys() if instance.op != "bitcast_convert" else set[str]()
    attrs = {name: widened(value) if name in types else value for name, value in instance.attrs.items()}
    return Instance(instance.op, tuple(map(widened, instance.operands)), attrs, instance.definite)


def widened(type: Any) -> Any:
    if isinstance(type, TensorType):
        return type.with_dtype(widened(type.dtype))
    return DTYPES[_WIDE.get(type.name, type.name)]


def moves(type: TensorType) -> bool:
    return type.dtype.is_float or type.dtype.is_complex


def program_of(instance: Instance) -> Program:
    """A program of the op; of complex results, the sum of both parts."""
    b = RegionBuilder(Names())
    params = [b.param(f"a{i}", t) for i, t in enumerate(instance.operands)]
    results = list(b.append(instance.op, params, dict(instance.attrs)))
    for i, v in enumerate(results):
        if v.dtype.is_complex:
            results[i] = b.op("add", b.op("real", v), b.op("imag", v))
    return Program((), {"main": b.function("main", results)})


def drawn(instance: Instance, rng: np.random.Generator) -> list[Array]:
    """Numbers of which no two are equal, away from where functions have corners or are not defined; few indices."""
    arrays = [one(t, rng) for t in instance.operands]
    if instance.op in ("log", "log_plus_one", "sqrt", "rsqrt", "power", "cbrt"):
        arrays = [np.abs(x) if not np.iscomplexobj(x) else x for x in arrays]
    if instance.attrs.get("unique_indices"):
        arrays[1] = rng.permutation(arrays[0].shape[0])[: arrays[1].size].reshape(arrays[1].shape).astype("i4")
    if instance.definite:
        lower = np.tril(arrays[0]) + 4 * np.eye(arrays[0].shape[-1])
        arrays[0] = lower @ np.conj(np.swapaxes(lower, -1, -2))
    return arrays


def one(type: TensorType, rng: np.random.Generator) -> Array:
    if type.dtype.is_complex:
        part = type.with_dtype(type.dtype.component)
        return np.asarray(one(part, rng) + 1j * one(part, rng), type.dtype.numpy)
    if type.dtype.is_float:
        return np.asarray(rng.uniform(0.1, 0.4, type.shape) + rng.integers(-3, 3, type.shape), type.dtype.numpy)
    return np.asarray(rng.integers(0, 2 if type.dtype.kind == "pred" else 4, type.shape), type.dtype.numpy)


def slope(program: Program, result: int, at: list[Array], param: int, way: Array, cotangent: Array) -> float:
    """How fast the result moves, weighed by the cotangent, as the parameter moves that way."""
    ends: list[float] = []
    for sign in (1, -1):
        moved = [x + sign * _STEP * way if i == param else x for i, x in enumerate(at)]
        ends.append(float(np.nansum(cotangent * spmdc.evaluate(program, *moved)[result])))
    return (ends[0] - ends[1]) / (2 * _STEP)


@pytest.mark.parametrize("op", sorted(OPS.keys() - NO_DERIVATIVE - STRAIGHT_THROUGH - ELSEWHERE))
def test_the_gradient_of_an_op_is_its_slope(op: str) -> None:
    tried = instances(op)
    assert tried
    for instance in tried:
        rng = np.random.default_rng(len(str(instance)))
        program, inputs = program_of(instance), drawn(instance, rng)
        params = [i for i, p in enumerate(program.main.params) if moves(p.type)]
        for position, result in enumerate(program.main.results):
            if not moves(result.type):
                continue
            gradient = spmdc.gradient(program, [f"a{i}" for i in params], of=result.name)
            cotangent = rng.uniform(1, 3, result.type.shape)
            got = spmdc.evaluate(gradient, *inputs, *([cotangent] if result.type.shape else []))
            seed = cotangent if result.type.shape else np.ones(())
            for i, d in zip(params, got, strict=True):
                way = one(program.main.params[i].type, rng)
                expected = slope(program, position, inputs, i, way, seed)
                assert np.isclose(np.sum(d * way).real, expected, rtol=1e-4, atol=1e-5), (instance, instance.attrs, i)


def test_every_other_op_takes_no_floats_or_gives_none() -> None:
    assert not [op for op in NO_DERIVATIVE if instances(op)]


def test_rounding_to_fewer_bits_passes_gradients_straight_through() -> None:
    (instance,) = instances("reduce_precision")
    gradient = spmdc.gradient(program_of(instance), ["a0"], of="reduce_precision")
    cotangent = np.arange(35.0).reshape(5, 7)
    np.testing.assert_array_equal(spmdc.evaluate(gradient, np.ones((5, 7)), cotangent)[0], cotangent)


def test_a_product_of_numbers_scattered_to_one_place_has_a_gradient_where_some_are_zero() -> None:
    instance = wide(on("scatter", "f32[3] s32[5,1] f32[5]", kind="prod", update_window_dims=(), **{
        k: v for k, v in ROWS.items() if k != "update_window_dims"
    }))  # fmt: skip
    program = program_of(instance)
    indices = np.array([[0], [0], [1], [1], [1]], "i4")
    updates = np.array([2.0, 0.0, 0.0, 0.0, 5.0])
    x, u = spmdc.evaluate(spmdc.gradient(program, ["a0", "a2"], of="scatter"), np.array([3.0, 7.0, 9.0]), indices,
                          updates, np.ones(3))  # fmt: skip
    np.testing.assert_array_equal(x, [0.0, 0.0, 1.0])
    np.testing.assert_array_equal(u, [0.0, 6.0, 0.0, 0.0, 0.0])
