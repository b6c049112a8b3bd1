"""The site that `make docs` makes: every page is in its navigation, every link and anchor leads somewhere, and a
browser finds nothing wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with `--strict`, by which warnings are errors."""
    pytest.importorskip("material", reason="the site is made with the packages of the extra docs")
    made = tmp_path_factory.mktemp("site")
    options = ["--config-file", "docs/site_config/mkdocs.yml", "--site-dir", str(made)]
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", *options]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    return made


def test_the_site_is_built_without_warnings_and_has_every_page(site: Path) -> None:
    made = {page.stem for page in site.glob("*.html")} - {"404"}
    assert made == {page.stem for page in (ROOT / "docs").glob("*.md")}


@pytest.mark.parametrize(("page", "part"), [("index", 'href="tutorial.html"'), ("figures", 'src="figures/tiles.svg"')])
def test_a_browser_finds_nothing_wrong(site: Path, tmp_path: Path, page: str, part: str) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no chromium")
    with ThreadingHTTPServer(("localhost", 0), partial(_Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [
            browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
            f"--user-data-dir={tmp_path}", "--virtual-time-budget=2000", "--dump-dom",
            f"http://localhost:{server.server_port}/{page}.html",
        ]  # fmt: skip
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        server.shutdown()
    assert part in ended.stdout
    assert [line for line in ended.stderr.splitlines() if "CONSOLE" in line] == []
