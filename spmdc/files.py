"""Reading and writing of files, and the errors for files that cannot be read or written."""

from __future__ import annotations

import difflib
import errno
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO

from ir.diagnostics import Source, Span, SpmdcError, error

MAX_BYTES = 1 << 30
"""The size of the largest text that is read, in bytes. Devices such as /dev/zero have no end."""
_PART = 1 << 24


def read_bytes(path: str | Path, help: str = "", *, most: float | None = None) -> bytes:
    """The content of a file of at most that many bytes, or `MAX_BYTES`. Raises SpmdcError (E005, with `help` unless a
    file has a similar name; E004)."""
    try:
        with open(path, "rb") as file:
            return read_all(file, str(path), most)
    except OSError as problem:
        raise unreadable(path, problem, help) from None


def read_all(file: IO[bytes], name: str, most: float | None = None) -> bytes:
    """What is left to read in an open file. Raises OSError, or SpmdcError (E004) beyond `most` bytes, or
    `MAX_BYTES`."""
    parts: list[bytes] = []
    most = MAX_BYTES if most is None else most
    while part := file.read(_PART):
        parts.append(part)
        if sum(map(len, parts)) > most:
            raise error("E004", f"{name} has more than {most:,} bytes", help="name a smaller file")
    return b"".join(parts)


def unreadable(path: str | Path, problem: OSError, help: str) -> SpmdcError:
    """The error (E005) for a file that cannot be read. If it does not exist, files with similar names replace `help`;
    without either, the help is what the system's error calls for."""
    message = f"cannot read {path}: {problem.strerror or problem}"
    close: list[str] = []
    if isinstance(problem, FileNotFoundError):
        folder, name = os.path.split(path)
        with suppress(OSError):
            others = [n for n in os.listdir(folder or ".") if n != name]  # A link to nowhere has the name itself.
            close = [os.path.join(folder, n) for n in difflib.get_close_matches(name, others, 3, 0.7)]
    if close:
        return error("E005", message, help=f"did you mean {' or '.join(close)}")
    return error("E005", message, help=help or _WAYS_TO_READ.get(problem.errno or 0, _ANOTHER))


def unwritable(path: str | Path, problem: OSError, *, verb: str = "write") -> SpmdcError:
    """The error (E005) for a file that cannot be written, or a folder that cannot be created, with help."""
    help = _WAYS_OUT.get(problem.errno or 0, "name another place")
    return error("E005", f"cannot {verb} {path}: {problem.strerror or problem}", help=help)


_PERMITTED = "name a place that you may write to"
_WAYS_OUT = {
    errno.ENOSPC: "free some space there, or name a place on another disk",
    errno.EDQUOT: "free some of your space there, or name a place on another disk",
    errno.ENOENT: "make the folder that it is to be in first, or name another place",
    errno.ENOTDIR: "a part of the path is a file, and no folder: name another place",
    errno.EEXIST: "a file of this name is there: name another place",
    errno.EISDIR: "that is a folder: name a file in it",
    errno.EACCES: _PERMITTED,
    errno.EPERM: _PERMITTED,
    errno.EROFS: _PERMITTED,
    errno.EBADF: "open standard output, or redirect it to a file",
}
"""Help for the system's errors about files to write."""
_ANOTHER = "name another file"
_READABLE = "make it readable for you, or name another file"
_WAYS_TO_READ = {
    errno.ENOENT: "name a file that exists",
    errno.ENOTDIR: "a part of the path is a file, and no folder: name another file",
    errno.EISDIR: "that is a folder: name a file in it",
    errno.EACCES: _READABLE,
    errno.EPERM: _READABLE,
}
"""Help for the system's errors about files to read."""


def decode(data: bytes, name: str, what: str = "programs") -> str:
    """The text of a file's bytes; `what` names the usual contents of such files. Raises SpmdcError (E002) if they are
    not text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        message = f"{name} is not text: byte {problem.start} is {data[problem.start]:#04x}, which is not UTF-8"
        help = f"{what} are UTF-8 text"
        raise error("E002", message, _place_of_byte(data, problem.start, name), help=help) from None


def _place_of_byte(data: bytes, position: int, name: str) -> Span:
    line = data.count(b"\n", 0, position) + 1
    column = len(data[data.rfind(b"\n", 0, position) + 1 : position].decode("utf-8")) + 1
    return Span(Source(name, data.decode("utf-8", "replace")), line, column, line, column + 1)


def write_whole(path: str | Path, write: Callable[[IO[bytes]], object]) -> None:
    """Writes a file completely before it replaces the old one, so that an interruption leaves no partial file.

    An existing file keeps its permissions; a link stays a link. Raises SpmdcError (E005).
    """
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as file:
                write(file)
            return
        target = Path(os.path.realpath(path))
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, mode)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except BrokenPipeError:
        raise
    except OSError as problem:
        raise unwritable(path, problem) from None


def write_text(path: str | Path, text: str) -> None:
    """Writes a text as `write_whole` does."""
    write_whole(path, lambda file: file.write(text.encode()))


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
