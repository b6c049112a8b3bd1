"""The single ops and the programs of which the model's times are compared with the TPU compiler's estimates, and with
times measured on GPUs.

Gathers, scatters, sorts and reversals are not among them, nor what only changes the order in memory of arguments and
results: of some of their kernels the compiler estimates nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files

import spmdc
from ir.program import Program

SINGLE: dict[str, tuple[str, str, str]] = {
    "matmul 1024": ("a: f32[1024, 1024], b: f32[1024, 1024]", "f32[1024, 1024]", "matmul(a, b)"),
    "matmul 4096": ("a: f32[4096, 4096], b: f32[4096, 4096]", "f32[4096, 4096]", "matmul(a, b)"),
    "matmul bf16": ("a: bf16[2048, 2048], b: bf16[2048, 2048]", "bf16[2048, 2048]", "matmul(a, b)"),
    "matmul tall": ("a: f32[16384, 512], b: f32[512, 512]", "f32[16384, 512]", "matmul(a, b)"),
    "matmul narrow out": ("a: f32[8192, 2048], b: f32[2048, 64]", "f32[8192, 64]", "matmul(a, b)"),
    "matmul narrow k": ("a: f32[4096, 32], b: f32[32, 4096]", "f32[4096, 4096]", "matmul(a, b)"),
    "matmul few rows": ("a: f32[16, 4096], b: f32[4096, 4096]", "f32[16, 4096]", "matmul(a, b)"),
    "matmul batched": ("a: f32[32, 512, 512], b: f32[32, 512, 512]", "f32[32, 512, 512]", "matmul(a, b)"),
    "matmul batched narrow": ("a: f32[128, 256, 64], b: f32[128, 64, 256]", "f32[128, 256, 256]", "matmul(a, b)"),
    "matmul transposed": ("a: f32[2048, 2048], b: f32[2048, 2048]", "f32[2048, 2048]", 'einsum("ki,kj->ij", a, b)'),
    "matmul relu": ("a: f32[2048, 2048], b: f32[2048, 2048]", "f32[2048, 2048]", "relu(matmul(a, b))"),
    "matmul bias": ("a: f32[2048, 1024], b: f32[1024, 4096], c: f32[4096]", "f32[2048, 4096]", "matmul(a, b) + c"),
    "relu": ("a: f32[4096, 4096]", "f32[4096, 4096]", "relu(a)"),
    "add": ("a: f32[4096, 2048], b: f32[4096, 2048]", "f32[4096, 2048]", "a + b"),
    "add bias": ("a: f32[8192, 1024], b: f32[1024]", "f32[8192, 1024]", "a + b"),
    "chain": ("a: f32[4096, 2048], b: f32[4096, 2048]", "f32[4096, 2048]", "relu((a + b) * a - 0.5) * b"),
    "gelu": ("a: f32[4096, 2048]", "f32[4096, 2048]", "gelu(a)"),
    "exp": ("a: f32[4096, 2048]", "f32[4096, 2048]", "exp(a)"),
    "tanh": ("a: f32[4096, 2048]", "f32[4096, 2048]", "tanh(a)"),
    "divide": ("a: f32[4096, 2048], b: f32[4096, 2048]", "f32[4096, 2048]", "a / b"),
    "small add": ("a: f32[64, 128], b: f32[64, 128]", "f32[64, 128]", "a + b"),
    "convert": ("a: f32[4096, 2048]", "bf16[4096, 2048]", "convert(a, bf16)"),
    "broadcast": ("a: f32[2048]", "f32[4096, 2048]", "broadcast(a, [4096, 2048])"),
    "iota": ("a: s32[]", "s32[4096, 2048]", "iota(s32[4096, 2048], dim=1) + a"),
    "one_hot": ("a: s32[8192]", "f32[8192, 1024]", "one_hot(a, 1024)"),
    "transpose": ("a: f32[2048, 4096]", "f32[4096, 2048]", "transpose(a)"),
    "transpose 3d": ("a: f32[64, 128, 1024]", "f32[128, 64, 1024]", "transpose(a, [1, 0, 2])"),
    "sum rows": ("a: f32[8192, 2048]", "f32[8192]", "sum(a, dim=1)"),
    "sum columns": ("a: f32[8192, 2048]", "f32[2048]", "sum(a, dim=0)"),
    "sum all": ("a: f32[8192, 2048]", "f32[]", "sum(a)"),
    "sum of squares": ("a: f32[4096, 2048]", "f32[4096]", "sum(a * a, dim=1)"),
    "max": ("a: f32[8192, 2048]", "f32[8192]", "max(a, dim=1)"),
    "argmax": ("a: f32[8192, 1024]", "s32[8192]", "argmax(a, dim=1)"),
    "softmax": ("a: f32[8192, 1024]", "f32[8192, 1024]", "softmax(a)"),
    "softmax narrow": ("a: f32[65536, 32]", "f32[65536, 32]", "softmax(a)"),
    "layer_norm": ("a: f32[8192, 1024], g: f32[1024], b: f32[1024]", "f32[8192, 1024]", "layer_norm(a, g, b)"),
    "rms_norm": ("a: f32[8192, 1024]", "f32[8192, 1024]", "rms_norm(a)"),
    "cumsum": ("a: f32[2048, 1024]", "f32[2048, 1024]", "cumsum(a, dim=0)"),
    "slice": ("a: f32[4096, 4096]", "f32[2048, 4096]", "a[1024:3072]"),
    "dynamic_slice": (
        "a: f32[64, 512, 1024], i: s32[]",
        "f32[1, 512, 1024]",
        "dynamic_slice(a, i, 0, 0, sizes=[1, 512, 1024])",
    ),
    "slice of a stack multiplied": (
        "x: f32[1024, 1024], a: f32[16, 1024, 1024], i: s32[]",
        "f32[1024, 1024]",
        "matmul(x, reshape(dynamic_slice(a, i, 0, 0, sizes=[1, 1024, 1024]), [1024, 1024]))",
    ),
    "update": (
        "a: f32[4096, 2048], u: f32[256, 2048], i: s32[]",
        "f32[4096, 2048]",
        "dynamic_update_slice(a, u, i, 0)",
    ),
    "concatenate": ("a: f32[4096, 1024], b: f32[4096, 1024]", "f32[4096, 2048]", "concatenate([a, b], 1)"),
    "pad": ("a: f32[4096, 2000]", "f32[4096, 2048]", "pad(a, [[0, 0], [24, 24]])"),
    "conv": ("a: f32[32, 56, 56, 128], w: f32[3, 3, 128, 128]", "f32[32, 56, 56, 128]", 'conv(a, w, padding="same")'),
    "max_pool": ("a: f32[32, 56, 56, 128]", "f32[32, 28, 28, 128]", "max_pool(a, 2)"),
    "uniform": ("k: u32[2]", "f32[2048, 1024]", "uniform(k, f32[2048, 1024])"),
    "select": ("c: pred[4096, 2048], a: f32[4096, 2048], b: f32[4096, 2048]", "f32[4096, 2048]", "where(c, a, b)"),
    "attention scores": (
        "q: f32[8, 16, 512, 64], k: f32[8, 16, 512, 64]",
        "f32[8, 16, 512, 512]",
        'softmax(einsum("bnik,bnjk->bnij", q, k) * 0.125)',
    ),
    "gated": (
        "a: f32[4096, 1024], b: f32[1024, 4096], c: f32[1024, 4096]",
        "f32[4096, 4096]",
        "silu(matmul(a, b)) * matmul(a, c)",
    ),
}
"""Parameters, types of results, and the expression that is returned."""

MLP = """mesh (x=4, y=2)
def main(a: f32[4096@x, 1024], w: f32[1024, 4096@y], b: f32[4096@y], v: f32[4096@y, 1024]) -> (o: f32[4096@x, 1024]) {
  h = gelu(matmul(a, w) + b)
  return layer_norm(a + matmul(h, v))
}
"""
ATTENTION = """mesh (x=4, y=2)
def main(q: f32[8@x, 512, 16@y, 64], k: f32[8@x, 512, 16@y, 64], v: f32[8@x, 512, 16@y, 64])
    -> (o: f32[8@x, 512, 16@y, 64]) {
  s = einsum("bind,bjnd->bnij", q, k) * 0.125
  visible = tril(ones([512, 512])) > 0
  p = softmax(where(visible, s, -1e9))
  return einsum("bnij,bjnd->bind", p, v)
}
"""
CONVOLUTIONS = """mesh (x=8)
def main(a: f32[16, 128@x, 128, 64], w: f32[3, 3, 64, 128], v: f32[3, 3, 128, 128]) -> (o: f32[16, 64@x, 64, 128]) {
  h = relu(conv(a, w, padding="same"))
  h2 = relu(conv(h, v, padding="same"))
  return max_pool(h2, 2)
}
"""
VOCABULARY = """mesh (x=4, y=2)
def main(tokens: s32[32@x, 256], table: f32[16384@y, 512], labels: s32[32@x, 256]) -> (loss: f32[]) {
  x = rms_norm(take(table, tokens, 0))
  logits = einsum("btm,vm->btv", x, table)
  picked = sum(where(one_hot(labels, 16384, pred), log_softmax(logits), 0.0), dim=2)
  return -mean(picked)
}
"""
STACKED = """mesh (x=4, y=2)
def main(a: f32[4096@x, 1024], w: f32[8, 1024, 2048@y], v: f32[8, 2048@y, 1024]) -> (o: f32[4096@x, 1024]) {
  n, o = while(i = 0, h = a, trip_count=8) cond { return i < 8 } do {
    wi = reshape(dynamic_slice(w, i, 0, 0, sizes=[1, 1024, 2048]), [1024, 2048])
    vi = reshape(dynamic_slice(v, i, 0, 0, sizes=[1, 2048, 1024]), [2048, 1024])
    return i + 1, h + matmul(relu(matmul(rms_norm(h), wi)), vi)
  }
  return o
}
"""
SWIGLU = """mesh (x=4, y=2)
def main(a: bf16[8192@x, 1024], w: bf16[1024, 4096@y], u: bf16[1024, 4096@y], v: bf16[4096@y, 1024])
    -> (o: bf16[8192@x, 1024]) {
  return a + matmul(silu(matmul(a, w)) * matmul(a, u), v)
}
"""
EXPERTS = {"D": 8, "S": 1024, "M": 1024, "H": 4096}
BLOCK = {"L": 512, "M": 1024, "N": 16, "K": 64, "H": 4096}
TRANSFORMER = {"LAYERS": 2, "T": 256, "V": 2048, "M": 512, "N": 8, "K": 64, "H": 2048}
EINSUMS = {"A": 8192, "B": 8192, "C": 8192, "F": 1024, "S": 256, "P": 64, "M": 512}


def shipped(name: str, **consts: int) -> Program:
    return spmdc.load(str(files("spmdc") / "programs" / f"{name}.spmd"), consts)


def of_one_op(name: str) -> Program:
    """A program of that op, for one device."""
    parameters, results, body = SINGLE[name]
    return spmdc.parse(f"mesh (x=1)\ndef main({parameters}) -> ({results}) {{\n  return {body}\n}}\n", name)


PROGRAMS: dict[str, Callable[[], Program]] = {
    "moe_layer": lambda: shipped("moe_layer", **EXPERTS),
    "moe_layer gradient": lambda: spmdc.gradient(shipped("moe_layer", **EXPERTS), ["wi", "wo", "wg"], "outputs"),
    "moe_gather": lambda: shipped("moe_gather", **EXPERTS),
    "moe_transformer": lambda: shipped("moe_transformer", **TRANSFORMER),
    "transformer_block": lambda: shipped("transformer_block", **BLOCK),
    "transformer_block gradient": lambda: spmdc.gradient(
        shipped("transformer_block", **BLOCK), ["wq", "w_in", "w_out", "scale_1"], "outputs"
    ),
    "matmul_cases": lambda: shipped("matmul_cases", **EINSUMS),
    "mlp": lambda: spmdc.parse(MLP),
    "mlp gradient": lambda: spmdc.gradient(spmdc.parse(MLP), ["a", "w", "b", "v"], "o"),
    "attention": lambda: spmdc.parse(ATTENTION),
    "attention gradient": lambda: spmdc.gradient(spmdc.parse(ATTENTION), ["q", "k", "v"], "o"),
    "convolutions": lambda: spmdc.parse(CONVOLUTIONS),
    "vocabulary": lambda: spmdc.parse(VOCABULARY),
    "stacked weights in a loop": lambda: spmdc.parse(STACKED),
    "gated bf16": lambda: spmdc.parse(SWIGLU),
    "transformer_block, tiny": lambda: shipped("transformer_block"),
    "moe_layer, tiny": lambda: shipped("moe_layer"),
}
"""On eight devices each."""
