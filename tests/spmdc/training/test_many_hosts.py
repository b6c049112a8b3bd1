"""A run of several processes is a run of one: to the bit where nothing is added over more than two devices, whose sums
are the same in any order. One that lost a process goes on from its checkpoint."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from compiling import compiling_alike
from training import CONFIG, PROGRAM, checkpoints, losses, run_of, written

from ir.diagnostics import SpmdcError
from spmdc.commands import train
from spmdc.commands.shared.options import Options
from spmdc.training import hosts
from spmdc.training.hosts import first_failure, launch

_ACROSS = PROGRAM.replace("x=2, y=2", "x=1, y=2")
"""With weights of which each of two processes has a half."""


def started(config: Path, *options: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "spmdc", "train", str(config), *options]
    pipe = subprocess.PIPE
    whole = {**compiling_alike(), **(environment or {})}
    return subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe, env=whole)


def steps_of(config: Path) -> int:
    log = config.parent / "out" / "log.jsonl"
    return len(log.read_bytes().splitlines()) if log.exists() else 0


def children_of(process: subprocess.Popen[str]) -> list[int]:
    return [int(n) for n in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def wait_for_steps(run: subprocess.Popen[str], config: Path, most: int) -> None:
    """Returns when the run has made so many steps, or has ended."""
    while run.poll() is None and steps_of(config) < most:
        time.sleep(0.002)


def kill_one(config: Path, steps: int, processes: int, number: int) -> str:
    """Kills a process of a run after so many more steps, and returns what the run says then. Whatever it was about, it
    leaves no checkpoint that cannot be read."""
    run, most = started(config, "--processes", str(processes)), steps_of(config) + steps
    wait_for_steps(run, config, most)
    if run.poll() is None:
        subprocess.run(["kill", "-9", str(children_of(run)[number])], check=False)
    said = run.communicate(timeout=300)[1]
    checkpoints(config)
    return said


_LONG = CONFIG.replace("steps = 6", "steps = 120").replace("every = 2", "every = 20")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a run of two processes, of which one was killed."""
    config = written(tmp_path_factory.mktemp("killed"), _LONG, _ACROSS)
    said = kill_one(config, 25, 2, 1)
    assert f"process 1 of 2 was ended by signal {signal.SIGKILL}" in said
    assert said.count("error[E521]") == 1
    assert 25 <= steps_of(config) < 120
    return config


def beside(config: Path, folder: Path, more: str = "") -> Path:
    """A copy of a run, as far as it got, with more in its configuration."""
    shutil.copytree(config.parent, folder, dirs_exist_ok=True)
    (folder / config.name).write_text(_LONG + more)
    return folder / config.name


@pytest.fixture(scope="module")
def uninterrupted(devices: object, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of that run in one process, which nobody killed."""
    config = written(tmp_path_factory.mktemp("uninterrupted"), _LONG, _ACROSS)
    run_of(config).train(lambda record: None)
    return losses(config)


def test_two_processes_of_a_device_each_of_which_one_is_killed_are_one_to_the_bit(
    killed: Path, uninterrupted: list[float], tmp_path: Path
) -> None:
    config = beside(killed, tmp_path)
    with started(config, "--processes", "2", "--json") as continued:
        figures = json.loads(continued.communicate(timeout=300)[0])
    assert 20 <= figures["begun_at"] < 120
    assert figures["last"]["step"] == 120
    assert losses(config) == uninterrupted


@pytest.mark.parametrize(("x", "y"), [(2, 2), (2, 1)])
def test_a_run_that_was_killed_goes_on_on_other_devices(
    x: int, y: int, killed: Path, uninterrupted: list[float], tmp_path: Path
) -> None:
    """Sums over other devices are in another order. That moves a loss by a rounding or two, some 1e-7 of it, and the
    weights by as little in each step."""
    config = beside(killed, tmp_path, f"\n[mesh]\nx = {x}\ny = {y}\n")
    (begun,) = checkpoints(config)[-1:]
    run = run_of(config)
    run.train(lambda record: None)
    assert (run.trainer.mesh.size, run.begun_at) == (x * y, begun)
    assert losses(config)[:begun] == uninterrupted[:begun]
    np.testing.assert_allclose(losses(config), uninterrupted, rtol=1e-5)


def test_an_interrupted_cluster_says_from_where_it_goes_on(tmp_path: Path) -> None:
    """Slurm tells a process by variables which one it is, and passes Ctrl-C on. Here there is one."""
    program = PROGRAM.replace("x=2, y=2", "x=1, y=1")
    config = written(tmp_path, CONFIG.replace("steps = 6", "steps = 100000"), program)
    slurm = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": "1"}
    place = {**slurm, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "JAX_NUM_CPU_DEVICES": "1"}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell has its background jobs ignore it.
    process = started(config, "--cluster", environment=place)
    signal.signal(signal.SIGINT, before)
    wait_for_steps(process, config, 3)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert said.startswith("\ninterrupted: the same command goes on from")
    assert process.returncode == 130
    assert checkpoints(config)


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_interrupted_processes_are_said_to_go_on_only_from_a_checkpoint_that_is_there(
    has_checkpoint: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(children: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hosts, "_COMMAND", (sys.executable, "-c", "pass"))
    monkeypatch.setattr(hosts, "first_failure", interrupted)
    config = written(tmp_path)
    kept = tmp_path / "out" / "checkpoints" / "step-00000004.safetensors"
    if has_checkpoint:
        kept.parent.mkdir(parents=True)
        kept.write_bytes(b"")
    with pytest.raises(KeyboardInterrupt):
        train.run(Options("train"), config=str(config), out=None, processes=2, cluster=False)
    does = f"goes on from {kept}" if has_checkpoint else "begins anew, as there is no checkpoint yet"
    assert f"\ninterrupted: the same command {does}\n" in capfd.readouterr().err


def ended(code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", f"import os, signal; {code}"])
    process.wait()
    return process


def test_a_killed_process_is_named_although_those_that_lost_it_have_ended_in_the_same_moment() -> None:
    reports, aborts = ended("os._exit(1)"), ended("os.abort()")
    killed = ended("os.kill(os.getpid(), signal.SIGKILL)")
    assert first_failure([reports, aborts, killed]) == (2, -signal.SIGKILL)
    assert first_failure([reports, aborts]) == (0, 1)
    loses = ended(f"os._exit({hosts._LOST})")
    assert first_failure([loses, aborts, reports]) == (2, 1)
    assert first_failure([loses, aborts]) == (0, hosts._LOST)
    assert first_failure([ended("os._exit(0)")]) is None


def test_what_fails_in_all_processes_is_reported_once(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    config = written(tmp_path)
    assert launch(3, ["train", str(config)], str) == 1
    assert capfd.readouterr().err.count("error[E521]: 4 devices cannot be shared by 3 processes") == 1


_LOSES = """
import os, sys
from spmdc.training.hosts import leave_to_the_launcher, lost
number = os.environ["SPMDC_PROCESS"].split(",")[1]
def lose(): leave_to_the_launcher(lost(RuntimeError(f"process {number} hears nothing")))
"""


def launched(monkeypatch: pytest.MonkeyPatch, processes: int, code: str) -> int:
    monkeypatch.setattr(hosts, "_COMMAND", (sys.executable, "-c", _LOSES + code))
    return launch(processes, [], str)


def test_an_error_of_one_process_is_reported_and_not_that_others_lost_it(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fails = 'print("its own figures"); sys.exit("its own error")'
    assert launched(monkeypatch, 3, f"if number != '1': lose()\n{fails}") == 1
    said = capfd.readouterr()
    assert (said.out, said.err) == ("its own figures\n", "its own error\n")


def test_processes_that_lose_one_another_are_reported_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SpmdcError, match=r"another process of the run has ended: process \d hears nothing") as failed:
        launched(monkeypatch, 2, "lose()")
    assert [d.code for d in failed.value.diagnostics] == ["E521"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.soak
@pytest.mark.optimised
def test_four_processes_of_which_any_is_killed_at_any_moment_are_four_that_are_not_to_the_bit(tmp_path: Path) -> None:
    config = written(tmp_path, CONFIG.replace("steps = 6", "steps = 500").replace("every = 2", "every = 7"))
    draw = random.Random(0)
    for _ in range(50):
        if steps_of(config) >= 500:
            break
        kill_one(config, draw.randrange(1, 10), 4, draw.randrange(4))
    got = losses_of_four(config)
    shutil.rmtree(tmp_path / "out")
    assert losses_of_four(config) == got


def losses_of_four(config: Path) -> list[float]:
    with started(config, "--processes", "4") as run:
        run.communicate(timeout=600)
    return losses(config)
