"""A small program with something to train, its data, and its runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from spmdc.training.checkpoints import checkpoint_files, read_checkpoint
from spmdc.training.config import read_config
from spmdc.training.feed import feed_of
from spmdc.training.programs import trained_program
from spmdc.training.run import Run

PROGRAM = """\
const B = 8, S = 12, T = 10, V = 260, M = 8
mesh (x=2, y=2)

def main(source: s32[B@x, S], target: s32[B@x, T], table: f32[V, M@y] = normal(0.1), wi: f32[M, 16@y] = normal(0.3),
         wo: f32[16@y, V] = normal(0.3), bias: f32[V] = 0) -> (loss: f32[], right: f32[]) {
  read = mean(einsum("BSV,VM->BSM", one_hot(source, V), table), dim=1)
  before = einsum("BTV,VM->BTM", one_hot(target[:, :T - 1], V), table)
  hidden = relu(matmul(before + expand_dims(read, 1), wi))
  logits = matmul(hidden, wo) + bias
  wanted = target[:, 1:]
  counted = convert(wanted != 0, f32)
  probable = sum(log_softmax(logits, dim=2) * one_hot(wanted, V), dim=2)
  hits = convert(argmax(logits, dim=2) == wanted, f32)
  return -sum(probable * counted) / sum(counted), sum(hits * counted) / sum(counted)
}
"""
PHRASES = "de\tJanuar\tJanuary\nde\tMärz\tMarch\nfr\tjuin\tJune\nfr\tmars\tMarch\nnl\tmei\tMay\nnl\toktober\tOctober\n"
CONFIG = """\
program = "trained.spmd"
out = "out"
steps = 6

[data]
file = "phrases.tsv"
held_out = 0.0

[optimizer]
name = "adam"
schedule = "constant"
rate = 0.01

[checkpoints]
every = 2
"""


def written(folder: Path, config: str = CONFIG, program: str = PROGRAM) -> Path:
    """Writes all three into a folder, and returns the path of the configuration."""
    (folder / "trained.spmd").write_text(program)
    (folder / "phrases.tsv").write_text(PHRASES)
    (folder / "train.toml").write_text(config)
    return folder / "train.toml"


def run_of(config: Path) -> Run:
    """The run that a configuration describes, before its first step."""
    settings = read_config(config)
    program = trained_program(settings)
    return Run(program, settings, feed_of(program, settings))


def checkpoints(config: Path) -> list[int]:
    """The steps of all checkpoints of a run. Each checkpoint is read completely."""
    files = checkpoint_files(config.parent / "out" / "checkpoints")
    found = [read_checkpoint(file).step for file in files]
    assert [file.name for file in files] == [f"step-{step:08}.safetensors" for step in found]
    return found


def losses(config: Path) -> list[float]:
    """The losses in the log, by step."""
    lines = (config.parent / "out" / "log.jsonl").read_text().splitlines()
    records: list[dict[str, Any]] = [json.loads(line) for line in lines]
    assert [record["step"] for record in records] == [*range(1, len(records) + 1)]
    return [record["loss"] for record in records]
