"""The models of the papers' tables: programs that ship with spmdc, at the papers' sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files

import spmdc
from ir.program import Program


@dataclass(frozen=True)
class Model:
    """A program with consts, on a target; the weights as the paper counts them, and steps a second where it reports
    these or what they follow from. `placed` are weights that are placed in other ways than in the program: mesh axes,
    or None, by dims."""

    name: str
    file: str
    consts: Mapping[str, int]
    target: str
    billions: float
    steps: float | None
    placed: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)

    def program(self) -> Program:
        return spmdc.load(str(files("spmdc") / "programs" / f"{self.file}.spmd"), dict(self.consts))


LENGTH = 128
"""Tokens of a sentence, of which the first paper says nothing."""
_SPLIT = {
    "source_embedding": 0, "target_embedding": 0, "out": 0, "enc_attention": 2, "dec_attention": 2,
    "cross_attention": 2, "enc_dense": 3, "dec_dense": 3,
}  # fmt: skip
"""The dims along which weights outside of experts are split, if they are."""


def sparse(
    experts: int, layers: int, billions: float, target: str, tokens: int, steps: float | None, *, is_split: bool = False
) -> Model:
    """A row of GShard's Table 1, with the tokens of a batch and the steps a second of Table 3; sizes, vocabularies and
    dropout of appendix A.2. If it `is_split`, the weights outside of experts are split over the cores too, and
    gathered layer by layer."""
    consts = {
        "D": experts, "LAYERS": layers // 2, "B": tokens // LENGTH, "T": LENGTH, "V": 64000, "W": 32000, "M": 1024,
        "N": 16, "K": 128, "H": 8192, "TIED": 0, "DROPOUT": 10,
        "RECOMPUTE": int(layers > 12 or tokens > 2048 * experts),
    }  # fmt: skip
    placed = {name: (*[None] * dim, "d") for name, dim in _SPLIT.items()} if is_split else {}
    return Model(f"MoE({experts}E, {layers}L)", "moe_transformer", consts, target, billions, steps, placed)


def dense(name: str, billions: float, layers: int, width: int, batch: int, tokens: float) -> tuple[Model, Model]:
    """A row of Table 3 of GShard (ICLR), which has thousands of tokens a second, in f32 and in bf16. Hidden units are 8
    times the model's dim, heads have 128 numbers, and all but the loss is bf16, as in the paper's open source."""
    consts = {
        "X": 32, "Y": 64, "LAYERS": layers, "B": batch, "T": 1024, "V": 32000, "M": width, "N": width // 64, "K": 128,
        "H": 8 * width,
    }  # fmt: skip
    steps = tokens * 1000 / (batch * 1024)
    return in_both(Model(f"Dense({name})", "dense_transformer", consts, "tpu-v3:32x32", billions, steps))


def in_both(model: Model) -> tuple[Model, Model]:
    """The model in f32, and as one of its own in bf16."""
    return model, replace(model, name=f"{model.name}, bf16", consts={**model.consts, "BF16": 1})


def switch(
    name: str, billions: float, layers: int, experts: int, mesh: tuple[int, int, int], target: str, batch: int,
    examples: float | None = None, **sizes: int,
) -> Model:  # fmt: skip
    """A row of Table 9 of Switch Transformer on a mesh of data, experts and model, with the layers of encoder and
    decoder together; and the examples a second of Table 2. Sequences have 512 tokens."""
    data, expert, model = mesh
    consts = {
        "DATA": data, "EXPERT": expert, "MODEL": model, "LAYERS": layers, "E": experts, "B": batch, "T": 512,
        "V": 32128, "K": 64, "RECOMPUTE": 1, **sizes,
    }  # fmt: skip
    steps = None if examples is None else examples / batch
    return Model(f"Switch-{name}", "switch_transformer", consts, target, billions, steps)


_BASE = {"M": 768, "H": 2048, "N": 12}
MODELS = (
    sparse(128, 12, 12.5, "tpu-v3:8x8", 2**20, 2.16),
    sparse(512, 12, 50, "tpu-v3:16x16", 2**20, 3.28),
    sparse(2048, 12, 200, "tpu-v3:32x32", 2**22, 2.15),
    sparse(128, 36, 37, "tpu-v3:8x8", 2**20, 0.67),
    sparse(512, 36, 150, "tpu-v3:16x16", 2**20, 1.05),
    sparse(2048, 36, 600, "tpu-v3:32x32", 2**22, 0.72),
    sparse(2048, 60, 1000, "tpu-v3:32x32", 2**22, None, is_split=True),
    *dense("64B", 64, 32, 8192, 512, 150.7),
    *dense("128B", 128, 64, 8192, 512, 73.5),
    *dense("1T", 1000, 128, 16384, 128, 9.23),
    *dense("4T", 4000, 128, 32768, 32, 1.36),
    switch("Base, 32 experts", 2, 24, 32, (1, 32, 1), "tpu-v3:4x4", 512, 1160, **_BASE),
    switch("Base", 7, 24, 128, (1, 128, 1), "tpu-v3:8x8", 2048, **_BASE),
    switch("Large", 26, 48, 128, (1, 128, 1), "tpu-v3:8x8", 2048, M=1024, H=2816, N=16),
    *in_both(switch("XXL", 395, 48, 128, (1, 128, 16), "tpu-v3:32x32", 2048, M=4096, H=10240, N=64, G=1024)),
    *in_both(switch("C", 1571, 30, 2048, (1, 2048, 1), "tpu-v3:32x32", 2048, M=2080, H=6144, N=32, EVERY=1, GEGLU=0)),
)
