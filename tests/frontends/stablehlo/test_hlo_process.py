"""HLO text is read in a process of its own: what ends XLA's parser, or never ends in it, ends no more than that."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType

import pytest

import spmdc
from spmdc.frontends.stablehlo.hlo_child import ENDED, READ, REFUSED
from spmdc.frontends.stablehlo.hlo_process import HloProcess


def module(body: str) -> str:
    return f"HloModule m\n\nENTRY main {{\n  x = f32[8,8] parameter(0)\n{body}\n}}\n"


GOOD = module("  ROOT y = f32[8,8] sine(x)")
ABORTS = module("  ROOT t = f32[8,8] tuple(x)")
FAULTS = module("  t = (f32[8,8]) tuple(x)\n  ROOT y = f32[8,8] get-tuple-element(t), index=5")
ENDLESS = module("  ROOT y = f32[8,8] sine(x), sharding={devices=[2,4]<=[2,2,2]T(1,2,2)}")


@pytest.fixture
def process() -> Iterator[HloProcess]:
    process = HloProcess()
    yield process
    process.end()


def is_alive(pid: int | None) -> bool:
    assert pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_one_child_reads_all_texts_also_after_those_that_end_xla(process: HloProcess) -> None:
    assert process.pid is None
    assert process.read(GOOD)[0] == READ
    first = process.pid
    outcome, words = process.read(ABORTS)
    assert outcome == ENDED
    assert b"Check failed: " in words
    assert process.read(FAULTS) == (ENDED, b"Segmentation fault")
    assert process.read(module("  ROOT y = f32[8,8] frobnicate(x)"))[0] == REFUSED
    assert process.read(GOOD)[0] == READ
    assert process.pid == first


def test_a_child_that_was_ended_is_started_anew(process: HloProcess) -> None:
    process.read(GOOD)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    while process.read(GOOD)[0] != READ:  # The signal may arrive while it reads.
        pass
    assert process.pid != first
    assert not is_alive(first)


def test_an_interruption_ends_the_child_and_what_it_reads(process: HloProcess) -> None:
    process.read(GOOD)
    first = process.pid

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            process.read(ENDLESS)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not is_alive(first)
    assert process.read(GOOD)[0] == READ


def test_a_fork_of_a_program_gets_a_child_of_its_own_and_none_outlives_its_program() -> None:
    program = (
        "import os, sys, spmdc; from spmdc.frontends.stablehlo.hlo_process import HLO_PROCESS\n"
        "spmdc.from_hlo(sys.argv[1]); fork = os.fork(); spmdc.from_hlo(sys.argv[1])\n"
        "print(HLO_PROCESS.pid, flush=True)\n"
        "if fork: os.waitpid(fork, 0)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program, GOOD], capture_output=True, text=True, check=True)
    first, second = map(int, ran.stdout.split())
    assert first != second
    assert not is_alive(first)
    assert not is_alive(second)
    assert "Traceback" not in ran.stderr


def test_the_place_is_the_line_that_ends_xla_and_the_words_are_its_own() -> None:
    many = "\n".join(f"  a{i} = f32[8,8] sine(x)" for i in range(500))
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.from_hlo(module(f"{many}\n  t = f32[8,8] tuple(x)\n{many.replace('a', 'b')}"), "m.hlo")
    (told,) = caught.value.diagnostics
    assert told.code == "E701"
    assert str(told.span) == "m.hlo:505:1"
    assert "Check failed: state Expected a tuple shape. Got f32[8,8]" in told.message


def test_a_text_that_xla_reads_without_an_end_is_stopped() -> None:
    with pytest.raises(spmdc.SpmdcError, match="it takes too much time"):
        spmdc.from_hlo(ENDLESS)


def test_more_memory_than_there_is_for_a_text_is_refused() -> None:
    with pytest.raises(spmdc.SpmdcError, match=r"Failed to allocate|memory"):
        spmdc.from_hlo(module("  ROOT c = f32[2000000000] constant({...})"))


@pytest.mark.parametrize("text", ["\ud800", "HloModule m\n\x00", "HloModule m\r\nENTRY"])
def test_a_text_of_any_characters_is_refused(text: str) -> None:
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.from_hlo(text)
    assert caught.value.diagnostics[0].code == "E701"
