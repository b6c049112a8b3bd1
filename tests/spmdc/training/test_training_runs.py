"""Runs: they learn, go on after they were killed as if nothing had been, and say where a number comes from that is
none."""

from __future__ import annotations

import math
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import optax
import pytest
from compiling import compiling_alike
from training import CONFIG, PHRASES, PROGRAM, checkpoints, losses, run_of, written

import spmdc
from ir.diagnostics import SpmdcError
from spmdc.training.config import SETTINGS
from spmdc.training.data import read_phrases, source_symbols

pytestmark = pytest.mark.usefixtures("devices")
_ADAM = 'name = "adam"\nschedule = "constant"\nrate = 0.01\n'


def train(config: Path) -> list[float]:
    run_of(config).train(lambda record: None)
    return losses(config)


def diagnostics_of(config: Path) -> str:
    with pytest.raises(SpmdcError) as failed:
        train(config)
    return str(failed.value)


def test_the_first_step_is_what_jax_makes_of_the_loss_and_optax_of_its_gradient(tmp_path: Path) -> None:
    run = run_of(written(tmp_path))
    (weights, _), batch = run.trainer.first, run.feed.at(0)
    loss, slopes = jax.value_and_grad(lambda weights: run.trainer.loss(weights, batch)[0])(weights)
    adam = optax.adam(0.01)
    wanted = optax.apply_updates(weights, adam.update(slopes, adam.init(weights))[0])
    state, record = run._step(run._state()[0], 0)
    np.testing.assert_allclose(record["loss"], loss, rtol=1e-5)
    for name in weights:
        np.testing.assert_allclose(state[0][name], wanted[name], atol=1e-5)


def test_the_loss_falls_and_is_the_same_however_the_step_is_partitioned(tmp_path: Path) -> None:
    found = []
    for i, mesh in enumerate(("x=2, y=2", "x=1, y=1", "x=8, y=1")):
        (tmp_path / str(i)).mkdir()
        config = written(tmp_path / str(i), CONFIG.replace("steps = 6", "steps = 20"),
                         PROGRAM.replace("x=2, y=2", mesh))  # fmt: skip
        found.append(train(config))
    assert found[0][-1] < 0.9 * found[0][0]
    for other in found[1:]:
        np.testing.assert_allclose(other[0], found[0][0], atol=1e-5)
        np.testing.assert_allclose(other, found[0], rtol=1e-3)


@pytest.mark.parametrize("name", SETTINGS)
def test_what_an_optimizer_remembers_of_a_weight_lies_where_the_weight_does(name: str, tmp_path: Path) -> None:
    config = written(tmp_path, CONFIG.replace(_ADAM, f'name = "{name}"\nrate = 0.1\nfactored_from = 8\nmomentum = 0.9\n'
                     if name == "adafactor" else f'name = "{name}"\nrate = 0.1\n'))  # fmt: skip
    run = run_of(config)
    state, _ = run._step(run._state()[0], 0)
    wanted, found = map(jax.tree.leaves, (run.trainer.shardings, state))
    assert all(a.sharding.is_equivalent_to(s, a.ndim) for a, s in zip(found, wanted, strict=True))
    memory = {jax.tree_util.keystr(p): a for p, a in jax.tree_util.tree_flatten_with_path(state[1])[0]}
    rows = [a for path, a in memory.items() if "table" in path and a.ndim and a.shape[-1] == 8]
    assert all(a.sharding.shard_shape(a.shape)[-1] == 4 for a in rows)
    assert rows or name == "sgd"


def test_the_state_after_a_step_takes_the_memory_of_the_one_before(tmp_path: Path) -> None:
    run = run_of(written(tmp_path))
    state, _ = run._state()
    compiled = cast("Any", run.trainer.step).lower(state, run.feed.at(0)).compile()
    of_one_device = sum(a.dtype.itemsize * math.prod(a.sharding.shard_shape(a.shape)) for a in jax.tree.leaves(state))
    assert compiled.memory_analysis().alias_size_in_bytes == of_one_device
    run._step(state, 0)
    assert all(array.is_deleted() for array in jax.tree.leaves(state))


def test_a_program_without_a_mesh_is_trained_on_one_device(tmp_path: Path) -> None:
    plain = PROGRAM.replace("mesh (x=2, y=2)\n", "").replace("@x", "").replace("@y", "")
    (tmp_path / "plain").mkdir()
    (tmp_path / "split").mkdir()
    alone, split = train(written(tmp_path / "plain", program=plain)), train(written(tmp_path / "split"))
    np.testing.assert_allclose(alone, split, rtol=1e-5)


def test_parts_of_a_batch_one_after_the_other_are_the_batch(tmp_path: Path) -> None:
    run = run_of(written(tmp_path, "accumulate = 3\n" + CONFIG))
    (weights, _), batch = run.trainer.first, run.feed.at(0)
    assert batch["source"].shape == (3, 8, 12)
    parts = run.feed.parts_of(0)
    alone = [jax.value_and_grad(lambda w, p=p: run.trainer.loss(w, p)[0])(weights) for p in parts]
    _, record = run._step(run._state()[0], 0)
    np.testing.assert_allclose(record["loss"], np.mean([loss for loss, _ in alone]), rtol=1e-5)
    mean = jax.tree.map(lambda *slopes: sum(slopes) / 3, *(slopes for _, slopes in alone))
    np.testing.assert_allclose(record["gradient_norm"], optax.tree.norm(mean), rtol=1e-4)


def test_gradients_of_16_bit_weights_are_added_up_in_f32(tmp_path: Path) -> None:
    """512 parts with the gradient 1: in bf16, the sum would end at 256."""
    program = """
    const B = 1, T = 12
    def main(w: bf16[4] = 0, source: s32[B, T], target: s32[B, T]) -> (loss: f32[]) {
      return sum(convert(w, dtype=f32)) + 0 * f32(sum(source) + sum(target))
    }"""
    run = run_of(written(tmp_path, "accumulate = 512\n" + CONFIG, program))
    _, record = run._step(run._state()[0], 0)
    assert record["gradient_norm"] == 2


def test_a_step_of_f16_weights_is_made_whose_sum_of_squares_f16_lacks(tmp_path: Path) -> None:
    program = """
    const B = 1, T = 12, N = 100000
    def main(w: f16[N] = 0, source: s32[B, T], target: s32[B, T]) -> (loss: f32[]) {
      return sum(convert(w, dtype=f32)) + 0 * f32(sum(source) + sum(target))
    }"""
    run = run_of(written(tmp_path, CONFIG.replace("rate = 0.01", "rate = 1.0"), program))
    (weights, _), record = run._step(run._state()[0], 0)
    np.testing.assert_allclose(weights["w"], -1, rtol=1e-2)
    np.testing.assert_allclose((record["gradient_norm"], record["update_norm"]), math.sqrt(100_000), rtol=1e-2)


def test_the_norms_of_f16_gradients_and_updates_whose_squares_are_0_in_f16_are_above_0(tmp_path: Path) -> None:
    program = """
    const B = 1, T = 12
    def main(w: f16[4] = 0, source: s32[B, T], target: s32[B, T]) -> (loss: f32[]) {
      return 0.0001 * sum(convert(w, dtype=f32)) + 0 * f32(sum(source) + sum(target))
    }"""
    config = CONFIG.replace('"adam"', '"sgd"').replace("rate = 0.01", "rate = 1.0")
    run = run_of(written(tmp_path, config, program))
    _, record = run._step(run._state()[0], 0)
    np.testing.assert_allclose((record["gradient_norm"], record["update_norm"]), 2e-4, rtol=1e-2)


def test_f16_gradients_whose_sum_of_squares_f16_lacks_are_clipped_to_the_norm(tmp_path: Path) -> None:
    program = """
    const B = 1, T = 12, N = 100000
    def main(w: f16[N] = 0, v: f32[N] = 0, source: s32[B, T], target: s32[B, T]) -> (loss: f32[]) {
      return sum(convert(w, dtype=f32)) + sum(v) + 0 * f32(sum(source) + sum(target))
    }"""
    config = "clip = 2.0\n" + CONFIG.replace('"adam"', '"sgd"').replace("rate = 0.01", "rate = 1.0")
    run = run_of(written(tmp_path, config, program))
    (weights, _), record = run._step(run._state()[0], 0)
    np.testing.assert_allclose(record["gradient_norm"], math.sqrt(200_000), rtol=1e-3)
    np.testing.assert_allclose((weights["w"][0], weights["v"][0]), -2 / math.sqrt(200_000), rtol=1e-3)


def test_an_update_that_is_not_finite_is_not_made(tmp_path: Path) -> None:
    """Adam divides by the root of a slope that is 0, and its eps."""
    problem = diagnostics_of(written(tmp_path, CONFIG.replace(_ADAM, f"{_ADAM}eps = 0\n")))
    assert "E520" in problem
    assert "the update norm is nan in step 1" in problem
    assert "a larger eps" in problem
    state, begun = run_of(tmp_path / "train.toml")._state()
    assert begun == 0
    assert all(np.isfinite(np.asarray(a)).all() for a in jax.tree.leaves(state))


def test_a_run_goes_on_from_its_checkpoint_also_on_another_mesh_and_with_more_steps(tmp_path: Path) -> None:
    config = written(tmp_path)
    whole = train(config)
    shutil.rmtree(tmp_path / "out")
    config.write_text(CONFIG.replace("steps = 6", "steps = 4"))
    train(config)
    config.write_text(CONFIG + "\n[mesh]\nx = 4\ny = 2\n")
    program = tmp_path / "trained.spmd"
    program.write_text(PROGRAM.replace("x=2, y=2", "x=4, y=2"))
    run = run_of(config)
    run.train(lambda record: None)
    assert run.begun_at == 4
    assert losses(config)[:4] == whole[:4]
    np.testing.assert_allclose(losses(config), whole, rtol=1e-5)


def test_a_run_goes_on_wherever_its_folder_is_but_not_with_other_phrases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    train(written(tmp_path / "here", CONFIG.replace("steps = 6", "steps = 4")))
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("spmdc.training.run.fingerprint_of", lambda program: "of the ops of another release")
    config = Path("there/train.toml")
    config.write_text(CONFIG)
    run = run_of(config)
    run.train(lambda record: None)
    assert run.begun_at == 4
    (tmp_path / "there" / "phrases.tsv").write_text(PHRASES.replace("mei", "maart"))
    assert "which differs in data.file" in diagnostics_of(config)


@pytest.mark.parametrize("log", ['{"loss": 1}\n', "[]\n", "3\n", '{"step": "one"}\n'])
def test_a_log_that_is_of_no_run_is_begun_anew(log: str, tmp_path: Path) -> None:
    config = written(tmp_path, CONFIG.replace("steps = 6", "steps = 2"))
    train(config)
    (tmp_path / "out" / "log.jsonl").write_text(log)
    config.write_text(CONFIG.replace("steps = 6", "steps = 3"))
    run = run_of(config)
    run.train(lambda record: None)
    assert [record["step"] for record in run.records] == [3]


def test_metrics_that_are_not_finite_are_strings_of_the_log_and_numbers_again(tmp_path: Path) -> None:
    program = PROGRAM.replace("sum(hits * counted) / sum(counted)\n", "sum(counted) * nan\n")
    config = written(tmp_path, CONFIG.replace("steps = 6", "steps = 2"), program)
    train(config)
    logged = (tmp_path / "out" / "log.jsonl").read_text()
    assert '"right": "nan"' in logged
    assert "NaN" not in logged
    config.write_text(CONFIG.replace("steps = 6", "steps = 3"))
    run = run_of(config)
    run.train(lambda record: None)
    assert [math.isnan(record["right"]) for record in run.records] == [True] * 3


def test_a_log_that_is_a_folder_is_named(tmp_path: Path) -> None:
    config = written(tmp_path, CONFIG.replace("steps = 6", "steps = 2"))
    train(config)
    (tmp_path / "out" / "log.jsonl").unlink()
    (tmp_path / "out" / "log.jsonl").mkdir()
    assert f"cannot read {tmp_path}/out/log.jsonl" in diagnostics_of(config)


def _killed(config: Path, steps: int, wait: float) -> None:
    """Begins a run in a process of its own, and ends that once it has made so many steps, and a time has passed."""
    log = config.parent / "out" / "log.jsonl"

    def steps_made() -> int:
        return len(log.read_bytes().splitlines()) if log.exists() else 0

    most = steps_made() + steps
    command = [sys.executable, "-m", "spmdc", "train", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=compiling_alike()) as child:
        while child.poll() is None and steps_made() < most:
            time.sleep(0.002)
        time.sleep(wait)
        child.kill()
    checkpoints(config)


def test_a_run_that_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    config = written(tmp_path, CONFIG.replace("steps = 6", "steps = 60").replace("every = 2", "every = 5"))
    _killed(config, 23, 0)
    continued = run_of(config)
    continued.train(lambda record: None)
    assert 20 <= continued.begun_at < 60
    got = losses(config)
    shutil.rmtree(tmp_path / "out")
    continued.train(lambda record: None)
    assert losses(config) == got


_ENTERS = """
import os, signal, sys
from pathlib import Path
from spmdc.training.lock import alone_in
with alone_in(Path(sys.argv[1])):
    print(os.getpid(), flush=True)
    signal.pause()
"""


def test_a_folder_into_which_a_run_is_written_is_refused_until_its_process_ends(tmp_path: Path) -> None:
    run = run_of(written(tmp_path))
    run.checkpoints.mkdir(parents=True)
    command = [sys.executable, "-c", _ENTERS, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        number = other.stdout.readline().strip()
        said = rf"E005.*process {number} of .* is writing a run into .*out"
        with pytest.raises(SpmdcError, match=said) as refused, run.alone():
            pass
        assert refused.value.diagnostics[0].span is not None
        other.kill()
    with run.alone():
        pass


@pytest.mark.soak
@pytest.mark.optimised
def test_a_run_that_is_killed_at_any_moment_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    draw = random.Random(0)
    config = written(tmp_path, CONFIG.replace("steps = 6", "steps = 2000").replace("every = 2", "every = 1"))
    for _ in range(50):
        _killed(config, draw.randrange(1, 20), draw.uniform(0, 0.03))
    assert 100 < len(losses(config)) < 2000
    got = train(config)
    shutil.rmtree(tmp_path / "out")
    assert train(config) == got


def test_a_checkpoint_of_another_run_is_refused_with_what_is_other(tmp_path: Path) -> None:
    config = written(tmp_path)
    train(config)
    config.write_text(CONFIG.replace("rate = 0.01", "rate = 0.02"))
    problem = diagnostics_of(config)
    assert "E519" in problem
    assert "of another run, which differs in optimizer.rate\n" in problem
    assert "optimizer.rate is 0.02, and was 0.01" in problem
    config.write_text(CONFIG)
    (tmp_path / "trained.spmd").write_text(PROGRAM.replace("16", "24"))
    problem = diagnostics_of(config)
    assert "which differs in weights wi, wo\n" in problem
    assert "note: wi is float32[8, 24], and was float32[8, 16]" in problem
    assert "mu" not in problem
    (tmp_path / "trained.spmd").write_text(PROGRAM.replace("bias", "offset"))
    problem = diagnostics_of(config)
    assert "offset is float32[260], and there was none" in problem
    assert "bias does not exist any more, and was float32[260]" in problem
    (tmp_path / "trained.spmd").write_text(PROGRAM.replace("-sum(probable", "sum(probable"))
    assert "of another run, which differs in program\n" in diagnostics_of(config)
    (tmp_path / "trained.spmd").write_text(PROGRAM)
    config.write_text(CONFIG + "[consts]\nB = 4\n")
    assert "consts.B is 4, and there was none" in diagnostics_of(config)
    config.write_text(CONFIG.replace("steps = 6", "steps = 3"))
    assert "is of step 6, and the run has 3 steps" in diagnostics_of(config)


@pytest.mark.parametrize(
    ("program", "said", "line"),
    [
        (PROGRAM.replace("-sum(probable", "log(-sum(counted)) - sum(probable"), "is the first nan", "log(-sum"),
        (
            PROGRAM.replace("= mean(einsum", "= mean(sqrt(0 * table[0]) + einsum"),
            "is the first nan of the gradient",
            "sqrt(0",
        ),
    ],
)
def test_the_op_that_makes_a_number_none_is_named_and_the_weights_before_it_are_kept(
    program: str, said: str, line: str, tmp_path: Path
) -> None:
    problem = diagnostics_of(written(tmp_path, program=program))
    assert "E520" in problem
    assert said in problem
    assert line in problem
    assert f"the phrases of its batch are in {tmp_path / 'out' / 'not_finite.tsv'}" in problem
    run = run_of(tmp_path / "train.toml")
    state, begun = run._state()
    assert begun == 0
    assert all(np.isfinite(np.asarray(a)).all() for a in state[0].values())


def test_of_the_batches_of_a_step_the_one_that_makes_a_number_none_is_kept(tmp_path: Path) -> None:
    config = written(tmp_path, "accumulate = 2\n" + CONFIG)
    (tmp_path / "phrases.tsv").write_text(PHRASES.replace("a", "\v"))
    parts = run_of(config).feed.parts_of(0)
    totals = [int(part["source"].sum()) for part in parts]
    program = PROGRAM.replace("return -sum(", f"return log(f32(sum(source) - {sum(totals) // 2})) - sum(")
    (tmp_path / "trained.spmd").write_text(program)
    problem = diagnostics_of(config)
    assert f"batch {1 + totals.index(min(totals))} of 2 in the step" in problem
    phrases = read_phrases(tmp_path / "out" / "not_finite.tsv")
    found = sorted(tuple(source_symbols(phrase)) for phrase in phrases)
    rows = parts[totals.index(min(totals))]["source"].tolist()
    assert found == sorted(tuple(symbol for symbol in row if symbol) for row in rows)


def test_of_a_number_that_no_op_makes_alone_all_batches_of_the_step_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spmdc.training.run.first_fault", lambda program, arrays: None)
    run = run_of(written(tmp_path, f"accumulate = 2\n{CONFIG}"))
    said = f"the phrases of its 2 batches are in {tmp_path / 'out' / 'not_finite.tsv'}"
    with run.alone(), pytest.raises(SpmdcError, match=r"E520.*loss is nan in step 1") as failed:
        run._require_finite({"loss": math.nan, "gradient_norm": 1.0, "update_norm": 1.0}, run._state()[0], 0)
    (problem,) = failed.value.diagnostics
    assert said in problem.notes
    assert problem.help.startswith("a lower rate")
    found = sorted(tuple(source_symbols(phrase)) for phrase in read_phrases(tmp_path / "out" / "not_finite.tsv"))
    rows = [row for part in run.feed.parts_of(0) for row in part["source"].tolist()]
    assert found == sorted(tuple(n for n in row if n) for row in rows)


def test_the_picture_of_a_run_has_the_numbers_that_only_some_steps_have(tmp_path: Path) -> None:
    run = run_of(written(tmp_path))
    state, _ = run._state()
    run.records = [{"step": 1, "loss": 2.0, "held_out_loss": 2.5}, {"step": 2, "loss": 1.0}]
    with run.alone():
        run.save(state, 2)
    assert "held_out_loss" in run.picture.read_text()


def _translator(folder: Path, steps: int, consts: str) -> Path:
    path = Path(spmdc.__file__).parent / "programs" / "moe_translation.spmd"
    config = CONFIG.replace("trained.spmd", str(path)).replace("steps = 6", f"steps = {steps}")
    folder.mkdir()
    return written(folder, f"{config}\n[consts]\nB = 16\nT = 24\nM = 16\nH = 24\nN = 2\nE = 4\n{consts}")


@pytest.mark.soak
@pytest.mark.parametrize("sparse", [0, 1])
def test_a_translator_is_trained_alike_however_it_is_partitioned(sparse: int, tmp_path: Path) -> None:
    own = f"SPARSE = {sparse}\n"
    found = [train(_translator(tmp_path / str(d), 20, f"D = {d}\n{own}")) for d in (1, 2, 3, 8)]
    for other in found[1:]:
        np.testing.assert_allclose(other[0], found[0][0], atol=1e-5)
        np.testing.assert_allclose(other, found[0], rtol=1e-3)
