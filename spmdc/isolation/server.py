"""The server side of an isolated process: it answers requests, each in a separate fork, which may end.

Modules that the process has imported serve all requests. A request on stdin is a length and its data; the answer on
stdout is a length, a status, and the result.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable

DONE, REFUSED, FAILED, ENDED, STOPPED = b"+", b"-", b".", b"!", b"~"
"""The status of a request: it was answered, was rejected, raised an unexpected exception, ended the process, or was
stopped at a limit. All but the first come with a message."""


class RefusedError(Exception):
    """The request cannot be answered, for the reason given."""


def serve(answer: Callable[[bytes], bytes], set_bounds: Callable[[int], None]) -> None:
    """Answers requests until there are no more; limits are set in the fork, by the size of the request."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # Output that libraries print is not an answer.
    while size := requests.read(8):
        made = _in_a_fork(answer, set_bounds, requests.read(int.from_bytes(size)))
        answers.write(len(made).to_bytes(8) + made)
        answers.flush()


def _in_a_fork(answer: Callable[[bytes], bytes], set_bounds: Callable[[int], None], asked: bytes) -> bytes:
    with tempfile.TemporaryFile() as made, tempfile.TemporaryFile() as printed:
        process = os.fork()
        if process == 0:
            os.dup2(printed.fileno(), 2)
            try:
                set_bounds(len(asked))
                made.write(_answered(answer, asked))
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


def _answered(answer: Callable[[bytes], bytes], asked: bytes) -> bytes:
    try:
        return DONE + answer(asked)
    except RefusedError as problem:
        return REFUSED + str(problem).encode(errors="replace")
    except MemoryError:
        return STOPPED + b"it takes too much memory"
    except Exception:
        return FAILED + traceback.format_exc().encode(errors="replace")
