"""`spmdc machine`: which machines there are, and a file of the devices at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run

import spmdc as api
from lowering.jax.measure import MeasuredDevices
from passes.cost.machine import machine_names


def test_all_machines_are_listed_and_shown(spmdc: Run) -> None:
    listed = spmdc("machine", "list")
    assert [line.split()[0] for line in listed.out.splitlines()[1:]] == list(machine_names())
    assert len(spmdc("machine", "list", "--json").json["machines"]) == len(machine_names()) == 11
    shown = spmdc("machine", "show", "h100:4").out
    assert "a switch of 4 devices, 5e+10 bytes/s a link and direction" in shown
    assert "equal links" in listed.out
    shown = spmdc("machine", "show", "tpu-v3").out
    assert "7e+10 bytes/s, 1e-07 s a message" in shown
    assert "in tiles of 8 x 128" in shown
    figures = spmdc("machine", "show", "tpu-v3", "--json").json
    assert (figures["clock"], figures["kernels"]["tile"]) == (940e6, [8, 128])
    assert spmdc("machine", "show", "--json", "tpu-v3").json == figures
    assert spmdc("machine", "show", "host", "--json").json["kernels"] is None
    shown = spmdc("machine", "show", "h100").out
    assert "4.7e+12 bytes/s of up to 25,000,000 bytes in the cache" in shown
    assert "tiles" not in shown


@pytest.mark.usefixtures("devices")
def test_the_devices_at_hand_are_measured(spmdc: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is a machine, for which programs can be planned."""
    monkeypatch.setattr("lowering.jax.measure._LONG_ENOUGH", 0.0)
    monkeypatch.setattr("lowering.jax.measure._SENT", (64, 1024))
    path = tmp_path / "here.toml"
    ended = spmdc("machine", "measure", "--devices", "2", "-o", str(path))
    assert (ended.status, ended.out, ended.err) == (0, "", f"wrote {path}\n")
    here = api.machine(str(path))
    assert here.name == "cpu-2"
    assert {(table.kind, table.group) for table in here.measured} == {
        (kind, 2) for kind in ("all_gather", "all_reduce", "reduce_scatter", "all_to_all", "collective_permute")
    }
    assert 1e6 < here.flops < 1e15
    assert 1e6 < here.memory_bandwidth < 1e15
    program = b"mesh (d=2)\ndef main(a: f32[64@d]) -> (o: f32[64]) {\n  return replicate(a)\n}\n"
    found = spmdc("cost", "-", "--machine", str(path), "--json", stdin=program).json
    gather = next(table for table in here.measured if table.kind == "all_gather")
    assert found["total"]["network"] == pytest.approx(gather.at(128))


def test_what_was_measured_is_there_as_json(spmdc: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    devices = MeasuredDevices("TPU v9", 2, (("f32", 1e12),), 1e11, 2**30, 1e-6, ())
    monkeypatch.setattr("spmdc.commands.machine.measure", lambda count: devices)
    path = str(tmp_path / "here.toml")
    assert 'name = "TPU-v9-2"' in spmdc("machine", "measure", "--json").json["text"]
    assert spmdc("machine", "measure", "--json", "-o", path).json["file"] == path
    assert api.machine(path).flops == 1e12


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("show",), "E601"),
        (("list", "h100"), "E601"),
        (("list", "-o", "x.toml"), "E601"),
        (("show", "h10"), "E603"),
        (("show", "h100:2x4"), "E603"),
        (("show", "tpu-v4:1024x1024x2"), "E603"),
        (("show", "missing.toml"), "E005"),
        (("burn",), "E601"),
    ],
)
def test_what_machine_cannot_do_is_said(spmdc: Run, arguments: tuple[str, ...], code: str) -> None:
    ended = spmdc("machine", *arguments)
    assert ended.status in (1, 2)
    assert f"error[{code}]" in ended.err
    assert "\n  = help: " in ended.err
