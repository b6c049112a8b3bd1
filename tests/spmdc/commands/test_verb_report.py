"""`spmdc report`: a page that holds what is known of a program, needs nothing else, and works in a browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from command_line import PROGRAM, Run
from command_line import spmdc as spmdc

from spmdc.commands import report


class _Page(HTMLParser):
    """The ids of a page, the texts of its summaries, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href") and not (value or "").startswith("#"):
                self.loaded.append(value or "")


@pytest.fixture
def page(spmdc: Run) -> str:
    ended = spmdc("report", "p.spmd")
    assert (ended.status, ended.out) == (0, "wrote report.html\n")
    return Path("report.html").read_text()


def test_the_page_has_every_line_with_shardings_reasons_and_pictures(page: str) -> None:
    read = _Page(page)
    assert {f"p.spmd:{n}" for n in range(1, 8)} <= set(read.ids)
    assert {"source", "sent", "step", "time", "flow", "beside", "plan"} <= set(read.ids)
    assert read.loaded == []
    assert "link" not in read.tags
    text = re.sub("<[^>]*>", "", page)
    assert "h: f32[16@x, 8@y]" in text
    assert "h dim 0 &lt;- a dim 0: step" in text
    assert "16 blocks" not in text
    assert "8 blocks of [4, 4] on 8 devices" in text


def test_the_page_says_what_is_sent_and_what_else_could_be(page: str) -> None:
    text = re.sub("<[^>]*>", "", page)
    assert "total.1" in text
    assert "{partial: x, y} →" in text
    assert "all_reduce" in text
    assert "critical path" in text
    assert "alive at the peak" in text


def test_alternatives_of_what_needs_a_reshard_are_listed(spmdc: Run) -> None:
    Path("q.spmd").write_text(
        "mesh (x=4)\ndef main(a: f32[64@x, 64], b: f32[64, 64@x]) -> (c: f32[64@x, 64]) {\n"
        "  c = matmul(a, b)\n  return c\n}\n"
    )
    spmdc("report", "q.spmd", "-o", "q.html")
    text = re.sub("<[^>]*>", "", Path("q.html").read_text())
    assert "operand 1 of dot_general c" in text
    assert "without reshards, the program" in text
    assert "before" in text


def test_another_plan_and_xla_stand_beside_it(spmdc: Run) -> None:
    Path("q.spmd").write_text(PROGRAM.replace("16@x", "16"))
    spmdc("report", "p.spmd", "--diff", "q.spmd", "--xla")
    text = re.sub("<[^>]*>", "", Path("report.html").read_text())
    assert "bytes, devices in step" in text
    assert re.search("^\\+ ", text, re.MULTILINE)


def test_names_are_no_markup(spmdc: Run) -> None:
    Path("<b>.spmd").write_text(PROGRAM)
    spmdc("report", "<b>.spmd")
    assert "<b>.spmd" not in Path("report.html").read_text()


def test_a_program_without_a_source_text_has_a_page(spmdc: Run) -> None:
    text = spmdc("lower", "p.spmd", "--emit", "stablehlo", "--unpartitioned").out
    Path("p.mlir").write_text(text)
    assert spmdc("report", "p.mlir").status == 0
    assert "stablehlo" in Path("report.html").read_text()


def test_what_has_no_page_says_why(spmdc: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("q.spmd").write_text(spmdc("partition", "p.spmd").out)
    assert "error[E406]" in spmdc("report", "q.spmd").err
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    ended = spmdc("report", "p.spmd")
    assert (ended.status, "pip install 'spmdc[report]'" in ended.err) == (1, True)


_CLICKS = """
<script>
document.querySelector("#time [data-line]").dispatchEvent(new MouseEvent("click", {bubbles: true}));
const found = document.getElementById("find");
found.value = "einsum";
found.dispatchEvent(new Event("input"));
document.querySelector(".tensor summary").click();
const shown = [...document.querySelectorAll(".line:not(.hidden)")].map((line) => line.id);
document.title = [location.hash, shown.join(" "), document.querySelectorAll("details.tensor[open]").length].join("|");
</script>
"""


def test_a_browser_finds_nothing_wrong_and_clicks_work(page: str, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no chromium")
    clicked = tmp_path / "clicked.html"
    clicked.write_text(page.replace("</body>", f"{_CLICKS}</body>"))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
               f"--user-data-dir={tmp_path / 'browser'}", "--dump-dom", clicked.as_uri()]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert [line for line in ended.stderr.splitlines() if "CONSOLE" in line] == []
    title = re.search("<title>(.*)</title>", ended.stdout)
    assert title is not None
    place, shown, opened = title[1].split("|")
    assert re.fullmatch(r"#p\.spmd:\d", place)
    assert shown == "p.spmd:4"
    assert opened == "1"
