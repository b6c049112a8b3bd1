"""Checkpoints are whole or not there, and what is none is noticed."""

from __future__ import annotations

import errno
import json
import os
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ir.diagnostics import SpmdcError
from ir.types import Array
from spmdc.training.checkpoints import (
    Checkpoint,
    checkpoint_files,
    newest_checkpoint,
    read_checkpoint,
    write_checkpoint,
)

ARRAYS: dict[str, Array] = {
    "count": np.array(7, np.int32),
    "mask": np.array([True, False, True]),
    "short": np.arange(6, dtype=ml_dtypes.bfloat16).reshape(2, 3),
    "none": np.zeros((0, 4), np.float32),
    "turned": np.arange(12.0).reshape(3, 4).T,
}


def write(folder: Path, step: int, keep: int = 3) -> Path:
    return write_checkpoint(folder, Checkpoint(step, ARRAYS, {"seed": 1}), keep)


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = read_checkpoint(write(tmp_path, 12))
    assert (found.step, found.course) == (12, {"seed": 1})
    for name, array in ARRAYS.items():
        assert (found.arrays[name].dtype, found.arrays[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found.arrays[name], array)


def test_a_checkpoint_may_be_larger_than_any_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spmdc.files.MAX_BYTES", 16)
    assert read_checkpoint(write(tmp_path, 12)).step == 12


def test_the_file_is_in_the_format_that_others_read(tmp_path: Path) -> None:
    content = write(tmp_path, 1).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    assert length % 8 == 0
    assert (header["short"]["dtype"], header["short"]["shape"]) == ("BF16", [2, 3])
    start, end = header["turned"]["data_offsets"]
    data = np.frombuffer(content[8 + length :][start:end]).reshape(4, 3)
    np.testing.assert_array_equal(data, ARRAYS["turned"])
    assert all(isinstance(value, str) for value in header["__metadata__"].values())


def test_the_newest_are_kept_and_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".step-00000003.safetensors.abc").write_text("half")
    for step in (5, 30, 100):
        write(tmp_path, step, keep=2)
    assert [path.name for path in checkpoint_files(tmp_path)] == [
        "step-00000030.safetensors",
        "step-00000100.safetensors",
    ]
    assert len([*tmp_path.iterdir()]) == 2
    newest = newest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.step == 100


@pytest.mark.parametrize("at", [0, 9, 40, 70, 200, -1])
def test_a_damaged_checkpoint_is_noticed(at: int, tmp_path: Path) -> None:
    write(tmp_path, 1)
    path = write(tmp_path, 2)
    content = bytearray(path.read_bytes())
    content[at] ^= 0x5A
    path.write_bytes(content)
    with pytest.raises(SpmdcError, match=r"E519[\s\S]*step-00000001.safetensors is the one before it"):
        newest_checkpoint(tmp_path)


def test_a_checkpoint_that_is_called_as_another_is_refused(tmp_path: Path) -> None:
    write(tmp_path, 6).rename(tmp_path / "step-00000099.safetensors")
    with pytest.raises(SpmdcError, match=r"E519.*99.safetensors holds step 6[\s\S]*call it step-00000006.safetensors"):
        newest_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"no", b"\xff" * 100, struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 2) + b"[]"]
)
def test_what_is_no_checkpoint_is_said_to_be_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "step-1.safetensors"
    path.write_bytes(content)
    with pytest.raises(SpmdcError, match="E519"):
        read_checkpoint(path)


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2, 3):
        write(tmp_path, step)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SpmdcError, match=r"E005.*No space left on device[\s\S]*help: free some space there"):
        write(tmp_path, 4)
    assert [read_checkpoint(path).step for path in checkpoint_files(tmp_path)] == [1, 2, 3]
    assert len([*tmp_path.iterdir()]) == 3
