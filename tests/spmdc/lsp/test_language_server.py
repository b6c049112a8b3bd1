"""What an editor gets of `spmdc lsp`, asked as editors ask."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from editor import Editor
from lsprotocol import types
from pygls.exceptions import JsonRpcException

from ir.diagnostics import SpmdcError
from spmdc.commands import lsp
from spmdc.commands.shared.options import Options
from spmdc.lsp.text import Lines

PROGRAM = """\
mesh (x=4, y=2)
const N = 64

def layer(h: f32[N, 32], w: f32[32, 48@y]) -> (o: f32[N, 48]) {
  return tanh(matmul(h, w))
}

def main(a: f32[N@x, 32], w: f32[32, 48@y], v: f32[48@y, 32]) -> (o: f32[N@x, 32]) {
  h = layer(a, w=w)
  o = matmul(h, v)
  return o
}
"""
FAULTY = """\
from spmdc.commands import lsp
from spmdc.commands.shared.options import Options
from spmdc.lsp import server
server.outline = {}.__getitem__
raise SystemExit(lsp.run(Options()))
"""
"""A server in which one handler raises KeyError."""


@pytest.fixture(scope="module")
def editor() -> Iterator[Editor]:
    made = Editor()
    yield made
    assert made.end() == 0


@pytest.fixture(scope="module")
def planned(editor: Editor) -> str:
    uri = editor.open("layer.spmd", PROGRAM)
    wait_for_plan(editor, uri)
    return uri


def wait_for_plan(editor: Editor, uri: str) -> None:
    """Waits until the server has planned a document that begins as PROGRAM."""
    for _ in range(600):
        if "bytes received" in hover(editor, uri, PROGRAM, "def ^main"):
            return
        time.sleep(0.1)
    pytest.fail(f"no plan of {uri}")


def at(text: str, marked: str) -> types.Position:
    """The place that `^` has in a stretch of the text."""
    return position(text, text.index(marked.replace("^", "")) + marked.index("^"))


def position(text: str, before: int) -> types.Position:
    return types.Position(text.count("\n", 0, before), before - (text.rfind("\n", 0, before) + 1))


def written(text: str, place: types.Range) -> str:
    lines = text.split("\n")
    assert place.start.line == place.end.line
    return lines[place.start.line][place.start.character : place.end.character]


def hover(editor: Editor, uri: str, text: str, marked: str) -> str:
    asked = types.HoverParams(types.TextDocumentIdentifier(uri), at(text, marked))
    found = editor.ask(editor.client.text_document_hover_async, asked)
    assert found is not None
    assert isinstance(found.contents, types.MarkupContent)
    return found.contents.value


def completions(editor: Editor, name: str, text: str) -> Sequence[str]:
    """What is proposed where the text has `^`."""
    place = position(text, text.index("^"))
    uri = editor.open(name, text.replace("^", ""))
    asked = types.CompletionParams(types.TextDocumentIdentifier(uri), place)
    found = editor.ask(editor.client.text_document_completion_async, asked)
    assert isinstance(found, types.CompletionList)
    return [item.label for item in found.items]


def test_errors_have_ranges_codes_help_and_the_places_of_what_they_name(editor: Editor) -> None:
    text = PROGRAM.replace("matmul(h, v)", "matmul(v, h)").replace("return o\n", "return missing\n")
    mismatch, undefined = editor.diagnostics(editor.open("faulty.spmd", text))
    assert (mismatch.code, mismatch.severity) == ("E201", types.DiagnosticSeverity.Error)
    assert written(text, mismatch.range) == "matmul(v, h)"
    related = [(r.message, r.location.range.start) for r in mismatch.related_information or ()]
    assert related == [
        ("v: f32[48@y, 32]", at(text, "^v: f32[48@y, 32]")),
        ("h: f32[64, 48]", at(text, "^h = layer")),
    ]
    assert undefined.code == "E101"
    assert "\nhelp: " in undefined.message


def test_a_name_that_is_taken_leads_to_where_it_was_bound_before(editor: Editor) -> None:
    text = PROGRAM.replace("  o = matmul(h, v)", "  h = matmul(h, v)")
    problem, *_ = editor.diagnostics(editor.open("twice.spmd", text))
    assert problem.code == "E102"
    assert [r.location.range.start for r in problem.related_information or ()] == [at(text, "^h = layer")]


def test_warnings_of_the_plan_come_behind_those_of_reading(editor: Editor) -> None:
    text = "mesh (x=4)\n\ndef main(a: f32[64@x]) -> (o: f32[64@x]) {\n  return sort(a, dim=0)\n}\n"
    uri = editor.open("gathered.spmd", text)
    assert list(editor.diagnostics(uri)) == []
    (warning,) = editor.diagnostics(uri, 2)
    assert (warning.code, warning.severity) == ("W001", types.DiagnosticSeverity.Warning)
    assert written(text, warning.range) == "sort(a, dim=0)"


def test_a_value_shows_its_sharding_why_it_has_it_and_what_it_takes(editor: Editor, planned: str) -> None:
    shown = hover(editor, planned, PROGRAM, "^o = matmul")
    assert "o: f32[64@x, 32]" in shown
    assert "dim 0 is split over x" in shown
    assert "153 ns, 2,048 bytes received" in shown
    assert "all_reduce y 2,048 B" in shown


def test_ops_attributes_consts_and_functions_show_what_they_are(editor: Editor, planned: str) -> None:
    assert "matmul(a, b)" in hover(editor, planned, PROGRAM, "^matmul(h, w)")
    assert "N = 64" in hover(editor, planned, PROGRAM, "h: f32[^N, 32]")
    assert "def layer(h: f32[N, 32]" in hover(editor, planned, PROGRAM, "= ^layer(a")
    assert "2,048 bytes received" in hover(editor, planned, PROGRAM, "def ^main")


def test_hints_show_inferred_shardings_and_collectives_behind_their_line(editor: Editor, planned: str) -> None:
    shown = types.Range(types.Position(0, 0), types.Position(99, 0))
    asked = types.InlayHintParams(types.TextDocumentIdentifier(planned), shown)
    hints = editor.ask(editor.client.text_document_inlay_hint_async, asked) or ()
    assert {(h.position.line, h.position.character): h.label for h in hints} == {
        (3, 23): "[64@x, 32]",
        (8, 3): ": f32[64@x, 48@y]",
        (9, 3): ": f32[64@x, 32]",
        (9, 18): "all_reduce y 2,048 B",
    }


def test_names_lead_to_their_definitions_and_uses(editor: Editor, planned: str) -> None:
    document = types.TextDocumentIdentifier(planned)
    client = editor.client
    asked = types.DefinitionParams(document, at(PROGRAM, "^w=w"))
    found = editor.ask(client.text_document_definition_async, asked)
    assert isinstance(found, types.Location)
    assert found.range.start == at(PROGRAM, "^w: f32[32, 48@y]) ->")
    uses = types.ReferenceParams(types.ReferenceContext(False), document, at(PROGRAM, "mesh (^x"))
    places = editor.ask(client.text_document_references_async, uses) or ()
    assert [p.range.start for p in places] == [at(PROGRAM, "N@^x, 32], w"), at(PROGRAM, "N@^x, 32]) {")]


def test_what_other_files_define_is_there(editor: Editor, tmp_path: Path) -> None:
    text = 'include "gating.spmd"\n\ndef main(x: f32[8]) -> (y: f32[8]) {\n  y = gate(x)\n  return y\n}\n'
    other = tmp_path / "gating.spmd"
    other.write_text("# Gates.\ndef gate(v: f32[8]) -> (w: f32[8]) {\n  return tanh(v)\n}\n")
    uri = editor.open(f"{tmp_path}/router.spmd".lstrip("/"), text)
    assert editor.diagnostics(uri) == []
    asked = types.DefinitionParams(types.TextDocumentIdentifier(uri), at(text, "^gate(x)"))
    found = editor.ask(editor.client.text_document_definition_async, asked)
    assert isinstance(found, types.Location)
    assert (found.uri, found.range.start) == (other.as_uri(), types.Position(1, 4))
    with pytest.raises(JsonRpcException, match=r"defined in .*gating\.spmd"):
        renamed(editor, uri, at(text, "^gate(x)"), "other")
    other.write_text("def gate(v: f32[8]) -> (w: f32[8]) {\n  return tanh(missing)\n}\n")
    before = len(editor.published[uri])
    editor.edit(uri, f"{text}\n")
    (fault,) = editor.diagnostics(uri, before + 1)
    assert fault.message.startswith(f"{other}:2:15: 'missing' is not defined here")
    assert fault.range.start == types.Position(0, 8)


def renamed(editor: Editor, uri: str, place: types.Position, name: str) -> str:
    asked = types.RenameParams(types.TextDocumentIdentifier(uri), place, name)
    found = editor.ask(editor.client.text_document_rename_async, asked)
    assert found is not None
    assert found.changes is not None
    lines = PROGRAM.split("\n")
    for edit in sorted(found.changes[uri], key=lambda e: -e.range.start.character):
        line, start, end = edit.range.start.line, edit.range.start.character, edit.range.end.character
        lines[line] = lines[line][:start] + edit.new_text + lines[line][end:]
    return "\n".join(lines)


def test_a_new_name_is_written_wherever_the_old_one_means_the_same(editor: Editor, planned: str) -> None:
    text = renamed(editor, planned, at(PROGRAM, "^w: f32[32, 48@y]) ->"), "weights")
    assert text == (
        PROGRAM.replace("w: f32[32, 48@y]) ->", "weights: f32[32, 48@y]) ->")
        .replace("matmul(h, w)", "matmul(h, weights)")
        .replace("w=w", "weights=w")
    )


@pytest.mark.parametrize("name", ["a", "return", "2nd"])
def test_a_new_name_that_would_mean_something_else_is_refused(editor: Editor, planned: str, name: str) -> None:
    with pytest.raises(JsonRpcException):
        renamed(editor, planned, at(PROGRAM, "^h = layer"), name)


def test_symbols_are_the_definitions_of_the_text(editor: Editor, planned: str) -> None:
    asked = types.DocumentSymbolParams(types.TextDocumentIdentifier(planned))
    symbols = editor.ask(editor.client.text_document_document_symbol_async, asked) or ()
    names = {s.name: [c.name for c in s.children or ()] for s in symbols if isinstance(s, types.DocumentSymbol)}
    assert names == {
        "x": [], "y": [], "N": [], "layer": ["h", "w", "o"], "main": ["a", "w", "v", "o", "h", "o"],
    }  # fmt: skip


def test_what_may_follow_is_proposed_in_a_text_that_does_not_read(editor: Editor) -> None:
    head = "mesh (x=4, y=2)\ndef main(a: f32[8, 4], b: f32[4]) -> (o: f32[8]) {\n  c = a + 1\n"
    assert completions(editor, "1.spmd", "mesh (x=4, y=2)\ndef main(a: f32[8@^") == ["x", "y"]
    assert "bf16" in completions(editor, "2.spmd", "def main(a: ^")
    attributes = completions(editor, "3.spmd", f"{head}  d = reduce(c, ^")
    assert attributes[:2] == ["dims=", "kind="]
    assert {"a", "b", "c", "einsum"} <= {*attributes}
    assert "d" not in attributes
    assert completions(editor, "4.spmd", f"{head}  d = reduce(c, dims=[0], kind=^")[:2] == ["sum", "prod"]
    assert completions(editor, "5.spmd", f"{head}  # a comm^") == []
    assert {"return", "case"} <= {*completions(editor, "6.spmd", f"{head}  r^")}


def test_of_very_many_names_those_are_proposed_that_the_word_may_become(editor: Editor) -> None:
    names = "".join(f"  v{i} = a + {i}\n" for i in range(1000))
    found = completions(editor, "many.spmd", f"def main(a: f32[8]) -> (o: f32[8]) {{\n{names}  o = v71^")
    assert [name for name in found if name[0] == "v" and name[1:].isdigit()][:2] == ["v971", "v871"]
    assert "v71" in found
    assert "v70" not in found


def test_what_reads_of_an_incomplete_text_has_types_and_symbols(editor: Editor) -> None:
    text = PROGRAM.replace("o = matmul(h, v)", "o = matmul(h,")
    uri = editor.open("incomplete.spmd", text)
    assert [d.code for d in editor.diagnostics(uri)] == ["E001"]
    assert "h: f32[64, 48]" in hover(editor, uri, text, "^h = layer")
    assert "h: f32[64, 48]" in hover(editor, uri, text, "o = matmul(^h,")


def test_the_standard_layout_replaces_a_text_that_reads(editor: Editor) -> None:
    options = types.FormattingOptions(2, True)
    ugly = editor.open("ugly.spmd", PROGRAM.replace("  return o", "      return   o"))
    asked = types.DocumentFormattingParams(types.TextDocumentIdentifier(ugly), options)
    (edit,) = editor.ask(editor.client.text_document_formatting_async, asked) or ()
    assert edit.new_text.replace("mesh (x=4, y=2)\n\n", "mesh (x=4, y=2)\n") == PROGRAM
    broken = editor.open("broken.spmd", "def main(")
    asked = types.DocumentFormattingParams(types.TextDocumentIdentifier(broken), options)
    assert editor.ask(editor.client.text_document_formatting_async, asked) is None


def test_an_edit_ends_the_plan_of_the_text_before(editor: Editor) -> None:
    chain = "".join(f"  v{i + 1} = tanh(matmul(v{i}, w))\n" for i in range(1000))
    head = "mesh (x=4)\ndef main(v0: f32[8@x, 8], w: f32[8, 8]) -> (o: f32[8, 8]) {\n"
    uri = editor.open("long.spmd", f"{head}{chain}  return v1000\n}}\n")
    assert list(editor.diagnostics(uri)) == []
    editor.edit(uri, f"{head}{chain}  return v1001\n}}\n")
    assert [d.code for d in editor.diagnostics(uri, 2)] == ["E101"]
    editor.edit(uri, PROGRAM)
    assert list(editor.diagnostics(uri, 3)) == []
    wait_for_plan(editor, uri)
    assert "2,048 bytes received" in hover(editor, uri, PROGRAM, "^o = matmul")


def test_diagnostics_are_published_once_for_each_version_of_a_text(editor: Editor) -> None:
    uri = editor.open("versions.spmd", PROGRAM)
    wait_for_plan(editor, uri)
    editor.edit(uri, f"{PROGRAM}\n")
    first = editor.version
    wait_for_plan(editor, uri)
    editor.edit(uri, PROGRAM.replace("return o\n", "return missing\n"))
    assert [d.code for d in editor.diagnostics(uri, 3)] == ["E101"]
    assert [len(found) for found in editor.published[uri]] == [0, 0, 1]
    assert editor.versions[uri] == [0, first, first + 1]


def test_a_fault_of_the_server_is_shown_and_ends_nothing() -> None:
    editor = Editor("-c", FAULTY)
    uri = editor.open("layer.spmd", PROGRAM)
    with pytest.raises(JsonRpcException):
        editor.request("textDocument/documentSymbol", {"textDocument": {"uri": uri}})
    assert "spmdc has a bug: " in editor.message()
    assert "KeyError" in editor.message()
    assert "N = 64" in hover(editor, uri, PROGRAM, "h: f32[^N, 32]")
    assert editor.end() == 0


def refused(editor: Editor, method: str, params: object) -> tuple[int, str]:
    """The code and the message by which a request is refused."""
    with pytest.raises(JsonRpcException) as raised:
        editor.request(method, params)
    return raised.value.code, raised.value.message


@pytest.mark.parametrize(
    ("params", "fault"),
    [
        (
            {"textDocument": {}, "position": {"line": 0, "character": 0}},
            "missing @ textDocument/hover.params.text_document.uri",
        ),
        ({"position": {"line": 0, "character": 0}}, "text_document"),
        ({"textDocument": {"uri": "file:///layer.spmd"}, "position": {"line": -1, "character": 0}}, "but was -1"),
        (
            {"textDocument": {"uri": "file:///layer.spmd"}, "position": {"line": 2**31, "character": 0}},
            "line should be",
        ),
        ({"textDocument": {"uri": "file:///never.spmd"}, "position": {"line": 0, "character": 0}}, "is not open"),
        ([], "text_document"),
        (None, "HoverParams"),
    ],
)
def test_a_request_with_invalid_params_is_refused_with_the_reason(
    editor: Editor, planned: str, params: object, fault: str
) -> None:
    code, message = refused(editor, "textDocument/hover", params)
    assert code == -32602
    assert fault in message
    assert "N = 64" in hover(editor, planned, PROGRAM, "h: f32[^N, 32]")
    assert editor.shown == []


def test_an_unknown_request_is_no_bug_of_the_server(editor: Editor) -> None:
    assert refused(editor, "spmdc/unknown", {})[0] == -32601
    assert editor.shown == []


def test_requests_before_initialize_and_after_shutdown_are_refused() -> None:
    editor = Editor(initialized=False)
    asked = {"textDocument": {"uri": "file:///layer.spmd"}, "position": {"line": 0, "character": 6}}
    editor.open("layer.spmd", PROGRAM)
    assert refused(editor, "textDocument/hover", asked) == (-32002, "textDocument/hover before initialize")
    editor.initialize()
    editor.open("layer.spmd", PROGRAM)
    assert editor.request("textDocument/hover", asked) is not None
    editor.shut_down()
    assert refused(editor, "textDocument/hover", asked) == (-32600, "textDocument/hover after shutdown")
    assert editor.shown == []
    assert editor.exit() == 0


def test_a_second_initialize_is_refused_and_changes_nothing(editor: Editor, planned: str) -> None:
    params = {"processId": None, "rootUri": None, "capabilities": {"general": {"positionEncodings": ["utf-8"]}}}
    assert refused(editor, "initialize", params) == (-32600, "a second initialize")
    assert "N = 64" in hover(editor, planned, PROGRAM, "h: f32[^N, 32]")
    assert editor.shown == []


def test_a_document_is_the_same_with_a_space_in_its_uri_or_a_code_for_it(editor: Editor) -> None:
    coded = editor.open("a%20b.spmd", PROGRAM.replace("return o\n", "return missing\n"))
    spaced = coded.replace("%20", " ")
    assert len(editor.diagnostics(coded)) == 1
    assert "N = 64" in hover(editor, spaced, PROGRAM, "h: f32[^N, 32]")
    editor.edit(spaced, PROGRAM.replace("const N = 64", "const N = 32"))
    assert "N = 32" in hover(editor, coded, PROGRAM, "h: f32[^N, 32]")
    editor.close(spaced)
    asked = {"textDocument": {"uri": coded}, "position": {"line": 0, "character": 0}}
    assert refused(editor, "textDocument/hover", asked) == (-32602, f"{coded} is not open")
    assert editor.published[coded][-1] == []
    assert editor.shown == []


def test_what_is_asked_of_a_document_that_was_closed_is_refused(editor: Editor) -> None:
    uri = editor.open("closed.spmd", PROGRAM)
    for _ in range(2):
        editor.close(uri)
    editor.edit(uri, "")
    for method in ("hover", "completion", "definition"):
        params = {"textDocument": {"uri": uri}, "position": {"line": 0, "character": 0}}
        assert refused(editor, f"textDocument/{method}", params) == (-32602, f"{uri} is not open")
    assert editor.shown == []


def test_places_are_counted_in_units_of_utf_16() -> None:
    lines = Lines('a = "𝕊é" + b')
    assert lines.position((1, 9)) == types.Position(0, 9)
    assert lines.place(types.Position(0, 9)) == (1, 9)


def test_without_the_package_the_verb_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lsp, "find_spec", lambda name: None)
    with pytest.raises(SpmdcError, match=r"E605.*\n.*pip install 'spmdc\[lsp\]'"):
        lsp.run(Options())
