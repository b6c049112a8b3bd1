"""HLO and MLIR are read in a process of its own: what ends a parser of jaxlib's, or never ends in it, ends no more."""

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
from spmdc.frontends.stablehlo import parser_child
from spmdc.frontends.stablehlo.parser_child import HLO, INVALID, MLIR, VALID
from spmdc.frontends.stablehlo.parser_process import ParserProcess
from spmdc.isolation.server import DONE, ENDED, REFUSED


def module(body: str) -> str:
    return f"HloModule m\n\nENTRY main {{\n  x = f32[8,8] parameter(0)\n{body}\n}}\n"


GOOD = module("  ROOT y = f32[8,8] sine(x)")
ABORTS = module("  ROOT t = f32[8,8] tuple(x)")
FAULTS = module("  t = (f32[8,8]) tuple(x)\n  ROOT y = f32[8,8] get-tuple-element(t), index=5")
ENDLESS = module("  ROOT y = f32[8,8] sine(x), sharding={devices=[2,4]<=[2,2,2]T(1,2,2)}")


TENSOR = "tensor<4x6xf32>"


def mlir(body: str = "", head: str = "", attributes: str = "") -> str:
    return (
        f"module attributes {{{attributes}}} {{\n{head}\nfunc.func @main(%x: {TENSOR}) -> {TENSOR} {{\n{body}\n"
        f"  return %x : {TENSOR}\n}}\n}}\n"
    )


@pytest.fixture
def process() -> Iterator[ParserProcess]:
    process = ParserProcess()
    yield process
    process.end()


def is_alive(pid: int | None) -> bool:
    assert pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def test_one_child_reads_all_texts_also_after_those_that_end_xla(process: ParserProcess) -> None:
    assert process.pid is None
    assert process.read(HLO, GOOD)[0] == DONE
    first = process.pid
    outcome, words = process.read(HLO, ABORTS)
    assert outcome == ENDED
    assert b"Check failed: " in words
    assert process.read(HLO, FAULTS) == (ENDED, b"Segmentation fault")
    assert process.read(HLO, module("  ROOT y = f32[8,8] frobnicate(x)"))[0] == REFUSED
    assert process.read(HLO, GOOD)[0] == DONE
    assert process.pid == first


def test_the_same_child_reads_mlir_also_after_texts_that_overflow_its_stack(process: ParserProcess) -> None:
    outcome, bytecode = process.read(MLIR, mlir())
    assert outcome == DONE
    assert bytecode.startswith(VALID)
    first = process.pid
    assert process.read(MLIR, bytecode[1:])[1].startswith(VALID)
    assert process.read(MLIR, "module {\n" * 100_000) == (ENDED, b"Segmentation fault")
    assert process.read(MLIR, bytecode[1:40])[1].startswith(INVALID)
    assert process.read(HLO, GOOD)[0] == DONE
    assert process.pid == first


def test_a_child_that_was_ended_is_started_anew(process: ParserProcess) -> None:
    process.read(HLO, GOOD)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    while process.read(HLO, GOOD)[0] != DONE:  # The signal may arrive while it reads.
        pass
    assert process.pid != first
    assert not is_alive(first)


def test_an_interruption_ends_the_child_and_what_it_reads(process: ParserProcess) -> None:
    process.read(HLO, GOOD)
    first = process.pid

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            process.read(HLO, ENDLESS)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not is_alive(first)
    assert process.read(HLO, GOOD)[0] == DONE


def test_a_fork_of_a_program_gets_a_child_of_its_own_and_none_outlives_its_program() -> None:
    program = (
        "import os, sys, spmdc; from spmdc.frontends.stablehlo.parser_process import PARSER_PROCESS\n"
        "spmdc.from_hlo(sys.argv[1]); fork = os.fork(); spmdc.from_hlo(sys.argv[1])\n"
        "print(PARSER_PROCESS.pid, flush=True)\n"
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
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E701"
    assert str(diagnostic.span) == "m.hlo:505:1"
    assert "Check failed: state Expected a tuple shape. Got f32[8,8]" in diagnostic.message


NESTED = {
    "2 regions": "module {\n" + 'func.func @f() { "stablehlo.case"() ({' * 50_000 + "}) }" * 50_000 + "\n}",
    "1 attributes": mlir(attributes="a.a = " + "[" * 1_000_000 + "]" * 1_000_000),
    "4 parentheses": mlir('  %0 = "a"(' + "(" * 1_000_000),
    "4 types": mlir("  %0 = stablehlo.constant " + "tuple<" * 200_000 + ">" * 200_000),
    "4 elements": mlir("  %0 = stablehlo.constant dense<" + "[" * 200_000 + "]" * 200_000 + "> : tensor<1xi32>"),
    "4 places": mlir(f"  %0 = stablehlo.sine %x : {TENSOR} loc(" + "callsite(" * 200_000),
    "0 what a front end says": mlir(attributes='mhlo.frontend_attributes = {xla.sdy.meshes = "' + "[" * 500_000 + '"}'),
}


@pytest.mark.parametrize("what", NESTED)
def test_what_is_nested_too_deep_is_refused_at_its_line(what: str) -> None:
    """Line 0 is that of what only a whole function or module comes to."""
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.from_mlir(NESTED[what], "deep.mlir")
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "E701"
    assert (diagnostic.span.line if diagnostic.span is not None else 0) == int(what.split()[0])
    assert diagnostic.help


FAULTY = {
    "4:27 a dense attribute of too few bytes": (mlir('  %0 = stablehlo.constant dense<"0x0102"> : tensor<4xi32>'), ""),
    "4:10 an unknown dialect": (mlir('  "my.op"() : () -> ()'), "unregistered dialect"),
    "4:27 elements of another shape": (mlir("  %0 = stablehlo.constant dense<[1]> : tensor<4xi32>"), "does not match"),
}


@pytest.mark.parametrize("what", FAULTY)
def test_what_is_no_valid_mlir_is_refused_where_mlir_says(what: str) -> None:
    text, words = FAULTY[what]
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.from_mlir(text, "bad.mlir")
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == "E701"
    assert words in diagnostic.message
    assert str(diagnostic.span) == f"bad.mlir:{what.split()[0]}"


def test_a_large_constant_comes_along() -> None:
    type = "tensor<1000000xf32>"
    text = f"""
      func.func @main() -> {type} {{
        %0 = stablehlo.constant dense<"0x{"00000040" * 1_000_000}"> : {type}
        return %0 : {type}
      }}"""
    (result,) = spmdc.evaluate(spmdc.from_mlir(text))
    assert result.shape == (1_000_000,)
    assert (result == 2).all()


def test_a_text_that_xla_reads_without_an_end_is_stopped() -> None:
    with pytest.raises(spmdc.SpmdcError, match="it takes too much time"):
        spmdc.from_hlo(ENDLESS)


def test_more_memory_than_there_is_for_a_text_is_refused(process: ParserProcess) -> None:
    outcome, words = process.read(HLO, module("  ROOT c = f32[2000000000] constant({...})"))
    assert outcome == REFUSED
    assert b"Failed to allocate" in words


@pytest.mark.parametrize("text", ["\ud800", "HloModule m\n\x00", "HloModule m\r\nENTRY"])
def test_a_text_of_any_characters_is_refused(text: str) -> None:
    with pytest.raises(spmdc.SpmdcError) as caught:
        spmdc.from_hlo(text)
    assert caught.value.diagnostics[0].code == "E701"


def of_chlo(op: str, type: str) -> str:
    tensor = f"tensor<4x{type}>"
    return f'func.func @main(%x: {tensor}) -> {tensor} {{\n  %0 = "chlo.{op}"(%x) : ({tensor}) -> {tensor}\n' \
           f"  return %0 : {tensor}\n}}"  # fmt: skip


def test_an_op_that_has_no_form_in_simpler_ops_is_refused_in_the_words_of_mlir() -> None:
    with pytest.raises(spmdc.SpmdcError, match=r"E702.*chlo\.bessel_i1e: .*failed to legalize"):
        spmdc.from_mlir(of_chlo("bessel_i1e", "f8E4M3FN"))


def test_what_ends_the_process_over_an_op_of_chlo_ends_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ParserProcess.read

    def ending(self: ParserProcess, language: bytes, text: str | bytes) -> tuple[bytes, bytes]:
        return (ENDED, b"an assertion failed") if language == parser_child.CHLO else read(self, language, text)

    monkeypatch.setattr(ParserProcess, "read", ending)
    with pytest.raises(spmdc.SpmdcError, match=r"E702.*chlo\.digamma: .*an assertion failed"):
        spmdc.from_mlir(of_chlo("digamma", "f16"))
