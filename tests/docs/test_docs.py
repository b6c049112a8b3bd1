"""Every command and program in the README and in docs/ is executed, so that no page says what is not so.

A page's blocks run in order, in a folder that holds the package's programs under `spmdc/programs`:

    ```spmd      parsed; one that begins with `# name.spmd` is written to that file for the commands below it
    ```console   each `$ spmdc …` is run, and what follows it is compared with what it prints; a line `...` stands for
                 any lines
    ```python    executed, with the names of the page's earlier python blocks; a ```text block right behind it is
                 compared with what it prints

Other blocks, such as ```sh and ```text, are not executed. What commands write into `figures/` is what docs/figures has.
`--update-golden` rewrites the outputs in which no `...` stands, and the figures.
"""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import spmdc
from ir.ops.declaration import COLLECTIVES, OPS
from lowering.jax.module import EMITTERS
from lowering.reference.interpreter import KERNELS
from spmdc.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "tests" / "README.md"]
FIGURES = ROOT / "docs" / "figures"
_BLOCK = re.compile(r"^```(?P<kind>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<name>[\w-]+\.spmd)\b")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, and the line on which the text begins."""

    kind: str
    body: str
    line: int
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.body)


def blocks_of(text: str) -> list[Block]:
    return [
        Block(m["kind"], m["body"], text.count("\n", 0, m.start("body")) + 1, m.start("body"))
        for m in _BLOCK.finditer(text)
    ]


def matches(got: list[str], shown: list[str]) -> bool:
    """Whether lines are as shown, where `...` stands for any number of lines."""
    if "..." not in shown:
        return got == shown
    first = shown.index("...")
    if got[:first] != shown[:first]:
        return False
    rest = shown[first + 1 :]
    return not rest or any(matches(got[i:], rest) for i in range(first, len(got) + 1))


@dataclass
class Page:
    """Runs the blocks of a page."""

    path: Path
    capsys: pytest.CaptureFixture[str]

    def run(self) -> list[Block]:
        """The blocks as they should be. Raises AssertionError for one that is not, unless only its output differs."""
        names: dict[str, object] = {"__name__": "docs"}
        blocks = blocks_of(self.path.read_text(encoding="utf-8"))
        done: list[Block] = []
        printed: str | None = None
        for block in blocks:
            if block.kind == "text" and printed is not None:
                done.append(replace(block, body=printed))
                printed = None
                continue
            printed = None
            if block.kind == "spmd":
                self.spmd(block)
            elif block.kind == "python":
                self.capsys.readouterr()
                code = compile("\n" * (block.line - 1) + block.body, str(self.path), "exec", dont_inherit=True)
                exec(code, names)
                printed = self.capsys.readouterr().out or None
            done.append(replace(block, body=self.console(block)) if block.kind == "console" else block)
        return done

    def spmd(self, block: Block) -> None:
        named = _FILE.match(block.body)
        spmdc.parse(block.body, f"{self.path}:{block.line}", folder="")
        if named is not None:
            Path(named["name"]).write_text(block.body, encoding="utf-8")

    def console(self, block: Block) -> str:
        """The block with what its commands print now."""
        parts = re.split(r"^\$ (.*)\n", block.body, flags=re.MULTILINE)
        assert not parts[0].strip(), f"{self.path}:{block.line}: output without a command"
        return "".join(f"$ {command}\n{self.output(block, command)}" for command in parts[1::2])

    def output(self, block: Block, command: str) -> str:
        program, *arguments = shlex.split(command)
        assert program == "spmdc", f"{self.path}:{block.line}: only spmdc can be run here, not {command!r}"
        self.capsys.readouterr()
        status = main(arguments)
        captured = self.capsys.readouterr()
        assert status in (0, 1), f"{self.path}:{block.line}: {command} ended with {status}:\n{captured.err}"
        return captured.out + captured.err


def differing(before: list[Block], after: list[Block]) -> list[tuple[Block, Block]]:
    """The blocks whose output is not as shown."""
    return [(b, a) for b, a in zip(before, after, strict=True) if not matches(a.body.splitlines(), b.body.splitlines())]


def difference(path: Path, before: Block, after: Block) -> str:
    lines = difflib.unified_diff(before.body.splitlines(), after.body.splitlines(), f"{path}:{before.line}", "now")
    return "\n".join(line.rstrip("\n") for line in lines)


def updated(text: str, pairs: list[tuple[Block, Block]]) -> str:
    """The text with the new blocks, save those that leave lines out."""
    for before, after in reversed(pairs):
        if "..." not in before.body.splitlines():
            text = text[: before.start] + after.body + text[before.end :]
    return text


def _restoring(registry: dict[str, Any] | set[str]) -> Callable[[], None]:
    """Takes out of a registry what a page registers."""
    known = registry.copy()

    def restore() -> None:
        for name in [*registry]:
            if name not in known:
                if isinstance(registry, dict):
                    del registry[name]
                else:
                    registry.remove(name)

    return restore


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_what_a_page_shows_is_so(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    shutil.copytree(ROOT / "spmdc" / "programs", tmp_path / "spmdc" / "programs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for registry in (OPS, COLLECTIVES, KERNELS, EMITTERS):
        request.addfinalizer(_restoring(registry))
    (tmp_path / FIGURES.name).mkdir()
    text = path.read_text(encoding="utf-8")
    wrong = differing(blocks_of(text), Page(path, capsys).run())
    drawn = {file.name: file.read_bytes() for file in (tmp_path / FIGURES.name).iterdir()}
    if request.config.getoption("--update-golden"):
        path.write_text(updated(text, wrong), encoding="utf-8")
        for name, content in drawn.items():
            (FIGURES / name).write_bytes(content)
        return
    assert drawn == {name: (FIGURES / name).read_bytes() for name in drawn}, "a figure is old; --update-golden draws it"
    assert not wrong, "\n".join(difference(path, before, after) for before, after in wrong)


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    prose = _BLOCK.sub("", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", prose):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path} links to {target}, which is not there"


def test_every_question_has_an_answer_that_is_executed() -> None:
    _, *questions = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8").split("\n### ")
    assert len(questions) == 27
    for question in questions:
        assert question.partition("\n")[0].endswith("?")
        assert "```console\n$ spmdc " in question, question


def test_dots_stand_for_any_lines() -> None:
    lines = ["a", "b", "c"]
    assert all(matches(lines, shown) for shown in (lines, ["...", "c"], ["a", "..."], ["a", "...", "b", "c"], ["..."]))
    assert not any(matches(lines, shown) for shown in (["a"], ["...", "b"], ["a", "...", "d"], ["b", "..."]))


def test_blocks_are_found_with_their_lines() -> None:
    text = "x\n```spmd\na\nb\n```\n\n```console\n$ spmdc check -\n```\n"
    assert [(b.kind, b.body, b.line) for b in blocks_of(text)] == [
        ("spmd", "a\nb\n", 3),
        ("console", "$ spmdc check -\n", 8),
    ]
