"""The client side of an isolated process: one for all requests, started at the first, and restarted when it has
ended."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence

from spmdc.isolation.server import ENDED

_FATAL = re.compile(r"^(?:F\d.*?\] |(?=LLVM ERROR))(.*?)(?=\n\*\*\*|\Z)", re.MULTILINE | re.DOTALL)
_MOST_WORDS = 4000


class IsolatedProcess:
    """A module that serves requests, run with arguments, and with variables in addition to the user's environment.
    Threads take turns; a fork of this process starts one of its own."""

    def __init__(self, module: str, arguments: Sequence[str] = (), variables: Mapping[str, str] | None = None) -> None:
        self._command = [sys.executable, "-P", "-m", module, *arguments]
        self._variables = dict(variables or {})
        self._forget()
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._started: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()

    def start(self) -> None:
        """Starts the process, so that it is up by the time of the first request."""
        with self._turn:
            self._child()

    def ask(self, request: bytes) -> tuple[bytes, bytes]:
        """The status of a request (from `server`), and its result or message. An interruption ends the process."""
        with self._turn:
            try:
                answer = self._ask(request)
            except BaseException:
                self.end()
                raise
            return answer[:1], answer[1:]

    @property
    def pid(self) -> int | None:
        """The process's id, while there is one."""
        return self._started.pid if self._started is not None else None

    def end(self) -> None:
        """Ends the process and its current request, if there is one."""
        process, self._started = self._started, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _child(self) -> subprocess.Popen[bytes]:
        if self._started is None or self._started.poll() is not None:
            self.end()
            # With threads of OpenBLAS, it could not be forked.
            paths = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "OPENBLAS_NUM_THREADS": "1"}
            self._started = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | paths | self._variables,
                start_new_session=True,
            )
        return self._started

    def _ask(self, request: bytes) -> bytes:
        child = self._child()
        requests, answers = child.stdin, child.stdout
        assert requests is not None
        assert answers is not None
        with contextlib.suppress(BrokenPipeError):
            requests.write(len(request).to_bytes(8) + request)
            requests.flush()
        size = int.from_bytes(answers.read(8))
        answer = answers.read(size)
        if answer and len(answer) == size:
            return answer
        status = child.wait()
        self.end()
        return ENDED + f"the process that is asked ended with status {status}".encode()


def last_words(printed: bytes) -> str:
    """A library's final message before it ended: without the log lines around it, or all of a message."""
    text = printed.decode(errors="replace")
    fatal = _FATAL.search(text)
    words = " ".join((fatal[1] if fatal is not None else text).split())
    return words if len(words) <= _MOST_WORDS else f"{words[:_MOST_WORDS]}…"
