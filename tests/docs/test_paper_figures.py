"""The figures in docs/papers.md are drawn of what the model says, and grow as the paper says; `--update-golden` (`make
paper-figures`) writes them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import paper_figures as figures
import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
EXPERTS = (128, 256, 512, 1024, 2048)


@cache
def layers() -> dict[int, dict[str, float]]:
    return {experts: figures.layer_times(experts) for experts in EXPERTS}


def memory() -> dict[str, tuple[float, float]]:
    return figures.memory_by_model((DOCS / "papers.md").read_text(encoding="utf-8"))


def drawn(number: int) -> str:
    if number == 7:
        return figures.figure_7(memory())
    return figures.figure_8(layers()) if number == 8 else figures.figure_9(figures.collective_times)


@pytest.mark.parametrize("number", [7, 8, 9])
def test_the_figures_of_the_page_are_drawn_of_what_the_model_says_now(
    number: int, request: pytest.FixtureRequest
) -> None:
    path, svg = DOCS / "images" / f"paper_figure_{number}.svg", drawn(number)
    if request.config.getoption("--update-golden"):
        path.write_text(svg, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == svg, f"{path} is another drawing; `make paper-figures` draws it again"
    assert f"images/{path.name}" in (DOCS / "papers.md").read_text(encoding="utf-8")


def test_figure_7_has_the_memory_of_all_models_of_the_table() -> None:
    """With 36 layers a core has the same weights besides those of the gate, whatever the number of experts."""
    found = memory()
    assert len(found) == 7
    svg = figures.figure_7({"one": (3.0, 1.0), "other": (1.0, 1.0)})
    heights = [float(h) for h in re.findall(r'<rect x="\S+" y="\S+" width="\S+" height="([\d.]+)" fill="#', svg)[:4]]
    assert heights == [165, 55, 55, 55]
    weights = [found[f"MoE({experts}E, 36L)"][0] for experts in (128, 512, 2048)]
    assert max(weights) / min(weights) < 1.5


def test_figure_8_sending_grows_most_of_all_that_takes_long() -> None:
    """Section 5.2: AllToAll takes 16 % of the time with 128 experts and 36 % with 2048, 3.75 times as long; dense parts
    take as long as before; sums along tokens are linear in the experts; gating takes less than a tenth."""
    first, last = layers()[128], layers()[2048]
    whole = sum(first.values()), sum(last.values())
    assert 1.3 < whole[1] / whole[0] < 1.9
    assert last[figures.SENT] / first[figures.SENT] == pytest.approx(3.75, rel=0.25)
    for times, total, share in zip((first, last), whole, figures.PAPER_SHARE.values(), strict=True):
        assert times[figures.SENT] / total == pytest.approx(share, abs=0.1)
    for part in (figures.EXPERTS, figures.DENSE, figures.ATTENTION):
        assert last[part] == pytest.approx(first[part], rel=0.05)
    assert last[figures.CUMSUM] / first[figures.CUMSUM] == pytest.approx(16, rel=0.25)
    assert last[figures.CUMSUM] / whole[1] < 0.1


def test_figure_8_draws_the_paper_s_bars_of_its_text() -> None:
    """They are 1 and 1.7 high, of which AllToAll is 16 % and 36 %; ours have all parts, and the first is 1 high."""
    svg = figures.figure_8({128: dict.fromkeys(figures.PARTS, 0.5), 2048: dict.fromkeys(figures.PARTS, 1.0)})
    shown = {
        (name, part): float(number)
        for name, part, number in re.findall(r"<title>([^<]*?[\d]), (.*?): ([\d.]+)</title>", svg)
    }
    assert shown["128", figures.SENT] == 0.12
    assert shown["2,048", figures.SENT] == 0.25
    assert shown["paper: 128", "paper: AllToAll"] == 0.16
    assert shown["paper: 2,048", "paper: AllToAll"] == 0.61


def test_figure_9_all_to_all_grows_nine_times_and_all_reduce_does_not() -> None:
    """Section 5.3: from 16 to 2048 partitions, and with their root between them."""
    svg = figures.figure_9(figures.collective_times)
    shown: dict[str, dict[int, float]] = {}
    for name, partitions, ms in re.findall(r"<title>(.*?), ([\d,]+): ([\d.e-]+)</title>", svg):
        shown.setdefault(name, {})[int(partitions.replace(",", ""))] = float(ms)
    for size in (8, 32):
        reduced, sent = shown[f"AllReduce, {size} MB"], shown[f"AllToAll, {size} MB"]
        assert list(sent) == list(reduced) == list(figures.TORI)
        assert max(reduced.values()) / min(reduced.values()) < 1.3
        assert sent[2048] / sent[16] == pytest.approx(9, rel=0.25)
    assert shown["paper: AllToAll, 8 MB"][2048] / shown["paper: AllToAll, 8 MB"][16] == pytest.approx(9, rel=0.01)


def test_a_figure_is_another_where_the_data_are() -> None:
    def other(kind: str, nbytes: int) -> dict[int, float]:
        return {n: seconds / n for n, seconds in figures.collective_times(kind, nbytes).items()}

    assert figures.figure_9(other) != figures.figure_9(figures.collective_times)
