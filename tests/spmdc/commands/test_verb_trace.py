"""`spmdc trace`: what a device does when, by model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Run

import spmdc as library

PROGRAMS = sorted((Path(__file__).parents[2] / "programs").glob("[c-r]*.spmd"))


def test_a_trace_has_threads_events_and_memory_as_perfetto_reads_them(spmdc: Run, tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    ended = spmdc("trace", "p.spmd", "-o", str(out))
    assert (ended.status, ended.out) == (0, "")
    trace = json.loads(out.read_text())
    events = trace["traceEvents"]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(threads.values()) == ["compute", "network (x, y)"]
    done = [e for e in events if e["ph"] == "X"]
    assert all(e["ts"] >= 0 and e["dur"] > 0 and e["tid"] in threads for e in done)
    (sent,) = (e for e in done if e["cat"] == "all_reduce")
    assert threads[sent["tid"]] == "network (x, y)"
    assert sent["args"]["line"].startswith("p.spmd:6")
    assert sent["args"]["received bytes"] == 7
    assert all(e["args"]["bytes"] > 0 for e in events if e["ph"] == "C")
    assert trace["otherData"]["is_complete"]


@pytest.mark.parametrize("path", PROGRAMS[::6], ids=lambda path: path.stem)
def test_all_that_is_sent_has_a_place_in_the_trace(path: Path) -> None:
    partitioned = library.partition(library.load(path))
    events: Any = partitioned.trace()["traceEvents"]
    threads = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    sent = [e for e in events if e["ph"] == "X" and "received bytes" in e["args"]]
    assert {e["cat"] for e in sent} <= {c.kind for c in partitioned.collectives()}
    assert all(threads[e["tid"]].startswith("network (") for e in sent)


def test_a_trace_ends_when_costs_say(spmdc: Run) -> None:
    seconds = spmdc("cost", "p.spmd", "--machine", "tpu-v4", "--json").json["seconds"]
    events = spmdc("trace", "p.spmd", "--machine", "tpu-v4", "--json").json["trace"]["traceEvents"]
    end = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    assert end == pytest.approx(seconds * 1e6, rel=1e-9)


def test_what_devices_were_seen_to_do_stands_beside_the_model(spmdc: Run) -> None:
    modelled = spmdc("trace", "p.spmd", "--json").json["trace"]["traceEvents"]
    events = spmdc("trace", "p.spmd", "--measure", "--json").json["trace"]["traceEvents"]
    assert events[: len(modelled)] == modelled
    measured = events[len(modelled) :]
    assert {e["pid"] for e in measured} == {2}
    threads = {e["tid"]: e["args"]["name"] for e in measured if e["name"] == "thread_name"}
    assert {f"device {i}" for i in range(8)} <= set(threads.values())
    done = [e for e in measured if e["ph"] == "X"]
    assert min(e["ts"] for e in done) == 0
    assert all(e["dur"] > 0 for e in done)
    sent = [e for e in done if e["cat"] == "all_reduce"]
    assert {threads[e["tid"]].partition(",")[0] for e in sent} == {f"device {i}" for i in range(8)}
    assert {(e["name"], e["args"]["line"]) for e in sent} == {("total.1", "p.spmd:6:13")}


def test_more_devices_than_there_are_cannot_be_measured(spmdc: Run) -> None:
    for mesh in ("x=128,y=64", "x=32,y=128"):
        ended = spmdc("trace", "p.spmd", "--measure", "--mesh", mesh)
        assert ended.status == 1
        assert "error[E502]" in ended.err


def test_a_machine_that_is_not_there_is_reported(spmdc: Run) -> None:
    ended = spmdc("trace", "p.spmd", "--machine", "tpu-v99")
    assert ended.status in (1, 2)
    assert "error[E60" in ended.err


def test_a_trace_has_the_warnings_of_a_partition(spmdc: Run) -> None:
    text = b"mesh (x=4)\ndef main(a: f32[8@x]) -> (r: f32[8]) { return sort(a) }"
    assert "warning[W001]" in spmdc("trace", "-", stdin=text).err
    (warning,) = spmdc("trace", "-", "--json", stdin=text).json["diagnostics"]
    assert warning["code"] == "W001"
