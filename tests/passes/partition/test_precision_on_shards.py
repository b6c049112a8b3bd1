"""Programs that compute in bf16 send half of the bytes, and on shards compute what they do on one device."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

import spmdc
from ir.program import Program, all_ops

FOLDER = Path(str(files("spmdc"))) / "programs"
SPARSE = {
    "switch_transformer": {"LAYERS": 2, "T": 4, "V": 8, "M": 8, "N": 4, "K": 2, "H": 8, "DATA": 1, "EXPERT": 4},
    "moe_transformer": {"D": 4, "LAYERS": 2, "T": 4, "V": 8, "W": 6, "M": 8, "N": 2, "K": 4, "H": 8},
}
MODELS = {
    **SPARSE,
    "dense_transformer": {"X": 2, "Y": 2, "LAYERS": 2, "T": 4, "V": 16, "M": 8, "K": 2, "H": 8, "FAR": 3, "BUCKETS": 3},
}
SPLIT_WEIGHTS = """const SHORT = 1, A = where(SHORT, bf16, f32)
mesh (d=4)
precision (A)

def main(x: A[64@d, 32], w: f32[3, 32@d, 32] = normal(0.2), v: f32[32@d, 32] = normal(0.2)) -> (loss: f32[]) {
  y = loop l < 3 (h = x) { return h + relu(matmul(h, w[l])) }
  z = matmul(y, v)
  return precision(f32) { return mean(square(z)) }
}"""
_ROUNDING = 2.0**-8
"""How far a number may be from the bf16 next to it, relative to it."""


def sent(program: Program, kind: str) -> list[int]:
    return [(c.bytes or 0) * (c.count or 1) for c in spmdc.partition(program).collectives() if c.kind == kind]


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("switch_transformer", "all_to_all"),
        ("moe_transformer", "all_to_all"),
        ("dense_transformer", "all_gather"),
        ("dense_transformer", "reduce_scatter"),
    ],
)
def test_what_layers_send_has_two_bytes_a_number(model: str, kind: str) -> None:
    wide, short = (spmdc.load(FOLDER / f"{model}.spmd", {**MODELS[model], "BF16": n}) for n in (0, 1))
    assert sent(wide, kind)
    assert [2 * n for n in sent(short, kind)] == sent(wide, kind)


@pytest.mark.parametrize(
    ("model", "split"),
    [
        ("switch_transformer", {}),
        ("switch_transformer", {"EXPERT": 2, "MODEL": 2}),
        ("moe_transformer", {}),
        ("dense_transformer", {}),
        ("dense_transformer", {"X": 4, "Y": 1}),
    ],
)
def test_losses_in_bf16_are_the_same_on_shards_but_for_rounding(model: str, split: dict[str, int]) -> None:
    program = spmdc.load(FOLDER / f"{model}.spmd", {**MODELS[model], **split, "BF16": 1})
    inputs = spmdc.random_inputs(program)
    for want, got in zip(spmdc.evaluate(program, *inputs), spmdc.partition(program).simulate(*inputs), strict=True):
        np.testing.assert_allclose(got, want, rtol=_ROUNDING)


@pytest.mark.parametrize("model", SPARSE)
def test_the_router_of_a_model_in_bf16_is_computed_in_f32(model: str) -> None:
    program = spmdc.load(FOLDER / f"{model}.spmd", {**MODELS[model], "BF16": 1})
    experts = 4
    products = [op for op in all_ops(program) if op.name == "dot_general"]
    routers = [op for op in products if op.operands[1].shape == (MODELS[model]["M"], experts)]
    assert routers
    assert {op.result.dtype.name for op in routers} == {"f32"}


@pytest.mark.parametrize("model", MODELS)
def test_the_losses_of_a_model_in_bf16_and_all_logarithms_are_computed_in_f32(model: str) -> None:
    program = spmdc.load(FOLDER / f"{model}.spmd", {**MODELS[model], "BF16": 1})
    assert {op.operands[0].dtype.name for op in all_ops(program) if op.name == "log"} == {"f32"}
    assert {r.type.dtype.name for r in program.main.results} == {"f32"}


def test_split_weights_are_gathered_and_their_gradients_reduced_in_two_bytes() -> None:
    wide, short = (spmdc.parse(SPLIT_WEIGHTS, defines={"SHORT": n}) for n in (0, 1))
    for kind in ("all_gather", "reduce_scatter"):
        of_wide, of_short = (sent(spmdc.gradient(program), kind) for program in (wide, short))
        assert of_wide
        assert [2 * n for n in of_short] == of_wide


def test_the_gradient_of_a_weight_is_of_its_type_and_near_that_in_f32() -> None:
    wide, short = (spmdc.parse(SPLIT_WEIGHTS, defines={"SHORT": n}) for n in (0, 1))
    gradient = spmdc.gradient(short)
    assert [str(r.type) for r in gradient.main.results] == ["f32[3, 32, 32]", "f32[32, 32]"]
    inputs = spmdc.random_inputs(gradient)
    on_shards = spmdc.partition(gradient).simulate(*inputs)
    of_wide = spmdc.evaluate(spmdc.gradient(wide), *(np.asarray(x, np.float32) for x in inputs))
    for whole, part, exact in zip(spmdc.evaluate(gradient, *inputs), on_shards, of_wide, strict=True):
        largest = np.abs(exact).max()
        np.testing.assert_allclose(part, whole, atol=4 * _ROUNDING * largest)
        np.testing.assert_allclose(whole, exact, atol=16 * _ROUNDING * largest)
