"""One process at a time writes into the folder of a run."""

from __future__ import annotations

import fcntl
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ir.diagnostics import SpmdcError, error
from spmdc.files import unwritable


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """A context in which no other process enters this one for the same folder. The system ends it when the process
    ends, however that happens; file systems without locks have none.

    Raises SpmdcError (E005) if another process is in it, or the folder cannot be written to.
    """
    path = folder / "lock"
    try:
        file = path.open("a+", encoding="utf-8")
    except OSError as problem:
        raise unwritable(path, problem) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            if isinstance(problem, BlockingIOError):
                raise _taken(folder, file) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} of {platform.node()}\n")
        file.flush()
        yield


def _taken(folder: Path, file: IO[str]) -> SpmdcError:
    file.seek(0)
    owner = file.read().strip() or "another process"
    help = "wait until it has ended, or choose another folder (out)"
    return error("E005", f"{owner} is writing a run into {folder}", help=help)
