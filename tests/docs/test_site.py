"""The site that `make docs` makes: every page is in its navigation, every link and anchor leads somewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    """With `--strict`, warnings are errors."""
    pytest.importorskip("material", reason="the site is made with the packages of the extra docs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    made = {page.stem for page in tmp_path.glob("*.html")} - {"404"}
    assert made == {page.stem for page in (ROOT / "docs").glob("*.md")}
