"""The process in which jaxlib reads HLO and MLIR: one for all texts, started for the first, and anew when it ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading

from lowering.jax.versions import HLO_TO_STABLEHLO, REGISTER_DIALECTS
from spmdc.frontends.stablehlo import parser_child


class ParserProcess:
    """The child process. Threads take turns; a fork of this process gets a child of its own."""

    def __init__(self) -> None:
        self._forget()
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._started: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()

    def start(self) -> None:
        """Starts the child, so that it is up by the time of the first text."""
        with self._turn:
            self._child()

    def read(self, language: bytes, text: str | bytes) -> tuple[bytes, bytes]:
        """What became of the text (a word of `parser_child`, as the languages are), and its StableHLO bytecode or what
        is said in its place. The child does not outlive an interruption."""
        with self._turn:
            try:
                answer = self._ask(language, text if isinstance(text, bytes) else text.encode(errors="replace"))
            except BaseException:
                self.end()
                raise
            return answer[:1], answer[1:]

    @property
    def pid(self) -> int | None:
        """The child's process id, while there is one."""
        return self._started.pid if self._started is not None else None

    def end(self) -> None:
        """Ends the child and what it is at, if there is one."""
        process, self._started = self._started, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _child(self) -> subprocess.Popen[bytes]:
        if self._started is None or self._started.poll() is not None:
            self.end()
            self._started = _start()
        return self._started

    def _ask(self, language: bytes, text: bytes) -> bytes:
        child = self._child()
        requests, answers = child.stdin, child.stdout
        assert requests is not None
        assert answers is not None
        with contextlib.suppress(BrokenPipeError):
            requests.write(len(text).to_bytes(8) + language + text)
            requests.flush()
        size = int.from_bytes(answers.read(8))
        answer = answers.read(size)
        if answer and len(answer) == size:
            return answer
        status = child.wait()
        self.end()
        return parser_child.ENDED + f"the process that reads it ended with status {status}".encode()


def _start() -> subprocess.Popen[bytes]:
    # With threads of OpenBLAS, it could not be forked.
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        [sys.executable, "-P", parser_child.__file__, REGISTER_DIALECTS, *HLO_TO_STABLEHLO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
    )


PARSER_PROCESS = ParserProcess()
