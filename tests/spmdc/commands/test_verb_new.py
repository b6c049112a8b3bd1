"""`spmdc new`."""

from __future__ import annotations

import runpy
from pathlib import Path

from command_line import Run


def test_a_new_program_is_in_the_standard_layout_and_its_test_passes(spmdc: Run) -> None:
    made = spmdc("new", "my-layer.spmd")
    assert (made.status, made.out.split()) == (0, ["my-layer.spmd", "test_my_layer.py"])
    assert spmdc("fmt", "--check", "my-layer.spmd").status == 0
    assert spmdc("check", "my-layer.spmd").status == 0
    tests = [test for name, test in runpy.run_path("test_my_layer.py").items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


def test_nothing_is_overwritten(spmdc: Run) -> None:
    Path("test_layer.py").write_text("mine")
    refused = spmdc("new", "layer")
    assert refused.status == 1
    assert "error[E005]: test_layer.py is there already" in refused.err
    assert not Path("layer.spmd").exists()
    assert Path("test_layer.py").read_text() == "mine"


def test_names_that_no_file_should_have_are_refused(spmdc: Run) -> None:
    before = sorted(Path().iterdir())
    for name in ("a b", "", ".spmd", ".", "..", "\u00e9", "layers/", "-"):
        refused = spmdc("new", name)
        assert (refused.status, refused.out) == (2, "")
        assert "is no name for a program" in refused.err
    assert sorted(Path().iterdir()) == before
    assert spmdc("new", "missing/layer").status == 1
