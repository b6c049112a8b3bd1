"""What such a process does: it answers requests, each in a fork of its own, which may end.

What the process has imported before serves all requests. A request on stdin is a length and what is asked; it is
answered on stdout by a length, what became of it, and what was made.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable

DONE, REFUSED, FAILED, ENDED, STOPPED = b"+", b"-", b".", b"!", b"~"
"""What became of a request: it was answered, was refused, raised an error that nobody expected, ended the process, or
was stopped at a bound. All but the first come with words that say why."""


class RefusedError(Exception):
    """Says that what is asked cannot be done, and why."""


def serve(answer: Callable[[bytes], bytes], set_bounds: Callable[[int], None]) -> None:
    """Answers requests until there are no more; bounds are set in the fork, for the size of what is asked."""
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # What libraries print is no answer.
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
