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

from ir.mesh import Mesh
from ir.spelling.shardings import parse_sharding
from spmdc.commands import report
from spmdc.page.charts import exchange
from spmdc.pictures.placement import Placement


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
    assert (ended.status, ended.out, ended.err) == (0, "", "wrote report.html\n")
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
    assert "who sends to whom" in text


def test_who_sends_to_whom_is_drawn_of_each_exchange() -> None:
    mesh = Mesh((("x", 2), ("y", 2)))

    def placed(text: str) -> Placement:
        return Placement((4, 4), parse_sharding(text, mesh, 2))

    rows, columns = placed("{devices=[4,1]<=[4]}"), placed("{devices=[1,4]<=[4]}")
    drawing = exchange(rows, columns, 4)
    pairs = set(re.findall(r"(\d) to (\d): 4 bytes", drawing))
    assert pairs == {(str(a), str(b)) for a in range(4) for b in range(4) if a != b}
    assert " to " not in exchange(rows, rows, 4)
    whole = exchange(rows, placed("{replicated}"), 4)
    assert len(re.findall(r"\d to \d: 16 bytes", whole)) == 12


def test_the_dataflow_is_folded_by_function_and_by_line(spmdc: Run) -> None:
    Path("q.spmd").write_text(
        "mesh (x=4)\ndef main(a: f32[64@x, 64]) -> (c: f32[64, 64@x]) {\n  b = layer(a)\n  c = exp(b)\n  return c\n}\n"
        "def layer(a: f32[64, 64]) -> (f32[64, 64]) {\n  return tanh(a)\n}\n"
    )
    spmdc("report", "q.spmd")
    flow = Path("report.html").read_text().partition('<section id="flow">')[2].partition("</section>")[0]
    boxes = re.findall(r"<text[^>]*>([^<]+)</text>", flow)
    assert {"main", "layer", "q.spmd:4", "q.spmd:8"} <= set(boxes)
    assert re.search(r"<title>[\d,]+ bytes are received</title>", flow)


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


_SCROLLS = """
<script>
window.scrollTo(0, document.body.scrollHeight);
const last = [...document.querySelectorAll(".line")].at(-2);
last.scrollIntoView();
const box = last.getBoundingClientRect();
document.title = [last.id, box.top >= 0 && box.top < innerHeight].join("|");
</script>
"""


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


def title_of(page: str, folder: Path) -> str:
    """The title that a page has once it is loaded in a browser, which finds nothing wrong."""
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("there is no chromium")
    file = folder / "opened.html"
    file.write_text(page)
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
               f"--user-data-dir={folder / 'browser'}", "--dump-dom", file.as_uri()]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert [line for line in ended.stderr.splitlines() if "CONSOLE" in line] == []
    title = re.search("<title>(.*)</title>", ended.stdout)
    assert title is not None
    return title[1]


def test_a_browser_finds_nothing_wrong_and_clicks_work(page: str, tmp_path: Path) -> None:
    place, shown, opened = title_of(page.replace("</body>", f"{_CLICKS}</body>"), tmp_path).split("|")
    assert re.fullmatch(r"#p\.spmd:\d", place)
    assert shown == "p.spmd:4"
    assert opened == "1"


@pytest.mark.soak
def test_a_page_of_ten_thousand_ops_is_small_and_scrolls(spmdc: Run, tmp_path: Path) -> None:
    lines = "".join(f"  v{k + 1} = tanh(v{k}) + {'matmul(v0, w)' if k % 50 == 0 else f'v{k}'}\n" for k in range(5000))
    head = "mesh (x=4, y=2)\ndef main(v0: f32[64@x, 64], w: f32[64, 64@y]) -> (r: f32[64@x, 64]) {\n"
    Path("q.spmd").write_text(f"{head}{lines}  return v5000\n}}\n")
    spmdc("report", "q.spmd")
    page = Path("report.html").read_text()
    assert len(page) < 15e6
    assert title_of(page.replace("</body>", f"{_SCROLLS}</body>"), tmp_path) == "q.spmd:5003|true"
