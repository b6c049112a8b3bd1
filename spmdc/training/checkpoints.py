"""Checkpoints: one file each, in the safetensors format, which other tools read too: a JSON header with the types,
shapes and positions of arrays, and their bytes.

A file is renamed into place after all of it is on the disk, so the newest file is complete at any time; a checksum of
its bytes detects damage. Arrays are stored whole, so a run can continue on a mesh of other sizes.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from ir.diagnostics import Diagnostic, SpmdcError, error
from ir.types import DTYPES, Array, dtype_of
from spmdc.files import read_bytes, write_whole

_NAME = re.compile(r"step-(\d+)\.safetensors")
_TYPES = {
    "pred": "BOOL", "s8": "I8", "s16": "I16", "s32": "I32", "s64": "I64", "u8": "U8", "u16": "U16", "u32": "U32",
    "u64": "U64", "bf16": "BF16", "f16": "F16", "f32": "F32", "f64": "F64", "f8e4m3fn": "F8_E4M3", "f8e5m2": "F8_E5M2",
}  # fmt: skip
"""The names of element types in safetensors."""
_OURS = {theirs: ours for ours, theirs in _TYPES.items()}


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after a number of steps, and the settings that its course depends on."""

    step: int
    arrays: Mapping[str, Array]
    course: Mapping[str, Any]


def write_checkpoint(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Writes a checkpoint, and removes all but the newest `keep`. Raises SpmdcError (E005), after which all others
    still exist."""
    data = {name: np.asarray(array, order="C") for name, array in checkpoint.arrays.items()}
    header: dict[str, Any] = {}
    place = 0
    for name, array in data.items():
        kind = _TYPES[str(dtype_of(array.dtype))]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [place, place + array.nbytes]}
        place += array.nbytes
    about: dict[str, Any] = {"step": checkpoint.step, "course": checkpoint.course}
    total = _sum_of_header(header, about)
    for array in data.values():
        total = zlib.crc32(array.tobytes(), total)
    header["__metadata__"] = {key: json.dumps(value) for key, value in {**about, "crc32": total}.items()}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(file: IO[bytes]) -> None:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in data.values():
            file.write(array.tobytes())

    path = folder / _name(checkpoint.step)
    _remove_unfinished(folder)
    write_whole(path, write)
    _settle(folder)
    for old in checkpoint_files(folder)[:-keep]:
        old.unlink(missing_ok=True)
    return path


def checkpoint_files(folder: Path) -> list[Path]:
    """The checkpoints in the folder, the newest last."""
    found = {int(match[1]): path for path in folder.glob("step-*") if (match := _NAME.fullmatch(path.name))}
    return [found[step] for step in sorted(found)]


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest checkpoint in the folder. Raises SpmdcError (E519) if it is damaged, which names the one before it,
    or if it is called as another."""
    files = checkpoint_files(folder)
    if not files:
        return None
    try:
        found = read_checkpoint(files[-1])
    except SpmdcError as problem:
        (damage,) = problem.diagnostics
        before = f": {files[-2].name} is the one before it" if len(files) > 1 else ""
        raise SpmdcError(
            Diagnostic(damage.code, damage.message, help=f"move it away, and the run continues without it{before}")
        ) from None
    if files[-1].name != _name(found.step):
        raise error("E519", f"{files[-1]} holds step {found.step:,}, and not the one of its name",
                    help=f"call it {_name(found.step)}, or move it away")  # fmt: skip
    return found


def _name(step: int) -> str:
    return f"step-{step:08}.safetensors"


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint. Raises SpmdcError (E005, E519) if it cannot be read, is no checkpoint, or is damaged."""
    content = read_bytes(path, most=math.inf)
    try:
        (length,) = struct.unpack_from("<Q", content)
        header, data = json.loads(content[8 : 8 + length]), memoryview(content)[8 + length :]
        about = {key: json.loads(value) for key, value in header.pop("__metadata__").items()}
        step, total, course = int(about["step"]), int(about["crc32"]), dict(about["course"])
    except (struct.error, ValueError, KeyError, TypeError, AttributeError):
        raise error("E519", f"{path} is no checkpoint of a run", help="give one that `spmdc train` wrote") from None
    if zlib.crc32(data, _sum_of_header(header, {"step": step, "course": course})) != total:
        raise error(
            "E519",
            f"{path} is damaged: its bytes are not those that were written",
            help="go on from an earlier one, and remove this",
        )
    return Checkpoint(step, {name: _array(entry, data) for name, entry in header.items()}, course)


def _array(entry: Mapping[str, Any], data: memoryview) -> Array:
    start, end = entry["data_offsets"]
    dtype = DTYPES[_OURS[entry["dtype"]]].numpy
    return np.frombuffer(data[start:end], dtype).reshape(entry["shape"])


def _sum_of_header(arrays: Mapping[str, Any], about: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps([arrays, about], sort_keys=True).encode())


def _settle(folder: Path) -> None:
    """Flushes the folder to the disk. Not every system supports that."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def _remove_unfinished(folder: Path) -> None:
    """Removes files of a run that was killed while writing."""
    for path in folder.glob(".step-*.safetensors.*"):
        path.unlink(missing_ok=True)
