"""A process that reads HLO text for another one: over some texts, XLA's parser ends the process that it runs in.

It is run as a script and imports nothing of spmdc's; its arguments name the functions that are called on a text, one
after the other. Each request on stdin, a length and a text, is read in a fork of the process, which may end, and is
answered on stdout by a length, a status and what was made. What the process has imported serves all texts.
"""

from __future__ import annotations

import os
import pkgutil
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence

MOST_MEMORY = 4 << 30
"""Bytes of memory that reading a text may take."""

READ, REFUSED, ENDED, STOPPED = b"+", b"-", b"!", b"~"
"""What became of a text: it was read, was refused, ended the process, or was stopped at a bound. All but the first come
with words that say why."""


def most_seconds(size: int) -> float:
    """The processor time that reading a text of so many bytes may take: twenty times what it usually does."""
    return 3.0 + size / 200_000


def serve(functions: Sequence[Callable[..., object]]) -> None:
    """Answers requests until there are no more."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What libraries print is no answer.
    while size := requests.read(8):
        answer = _in_a_fork(functions, requests.read(int.from_bytes(size)))
        answers.write(len(answer).to_bytes(8) + answer)
        answers.flush()


def _in_a_fork(functions: Sequence[Callable[..., object]], text: bytes) -> bytes:
    with tempfile.TemporaryFile() as made, tempfile.TemporaryFile() as printed:
        process = os.fork()
        if process == 0:
            os.dup2(printed.fileno(), 2)
            try:
                _set_bounds(len(text))
                made.write(_read(functions, text.decode()))
                made.flush()
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code == 0:
            made.seek(0)
            return made.read()
        if code == -signal.SIGPROF:
            return STOPPED + b"it takes too much time"
        printed.seek(0)
        return ENDED + (printed.read() or (signal.strsignal(-code) or f"status {code}").encode())


def _set_bounds(size: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    memory = MOST_MEMORY if most == resource.RLIM_INFINITY else min(MOST_MEMORY, most)
    resource.setrlimit(resource.RLIMIT_DATA, (memory, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, most_seconds(size))


def _read(functions: Sequence[Callable[..., object]], text: str) -> bytes:
    result: object = text
    try:
        for function in functions:
            result = function(result)
    except MemoryError:
        return STOPPED + f"it takes more than {MOST_MEMORY >> 30} GiB of memory".encode()
    except (RuntimeError, ValueError) as problem:
        return REFUSED + str(problem).encode()
    assert isinstance(result, bytes)
    return READ + result


if __name__ == "__main__":
    serve([pkgutil.resolve_name(name) for name in sys.argv[1:]])
