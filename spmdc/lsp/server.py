"""The requests of editors, and their handlers."""

from __future__ import annotations

import logging
import traceback
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlparse

from lsprotocol import types
from pygls.exceptions import JsonRpcException, JsonRpcInternalError, JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from ir.diagnostics import SpmdcError
from spmdc import __version__
from spmdc.frontends.spmd import format_source
from spmdc.frontends.spmd.names import Definition
from spmdc.lsp.completion import complete
from spmdc.lsp.documents import Analysis, Document
from spmdc.lsp.hints import inlay_hints
from spmdc.lsp.hover import hover
from spmdc.lsp.naming import defined_at, rename
from spmdc.lsp.outline import outline
from spmdc.lsp.problems import problems
from spmdc.lsp.protocol import Protocol
from spmdc.lsp.text import Lines


class Server(LanguageServer):
    """The server, and its open documents. Bugs of spmdc are shown and logged, and end nothing."""

    def __init__(self) -> None:
        super().__init__("spmdc", __version__, protocol_cls=Protocol)
        self.documents: dict[str, Document] = {}
        """By unquoted URI, as the workspace of pygls has them."""
        self._published: dict[str, types.PublishDiagnosticsParams] = {}
        self._reader = ThreadPoolExecutor(1, "reader")

    def open(self, uri: str, text: str) -> None:
        """Takes the text of a document that was opened or edited."""
        key = unquote(uri)
        if key not in self.documents:
            folder, _, name = unquote(urlparse(uri).path).rpartition("/")
            around = (folder or "/") if urlparse(uri).scheme == "file" else None
            publish = partial(self._publish, uri)
            self.documents[key] = Document(name or uri, around, self._reader, publish, self.failed)
        self.documents[key].edit(text)

    def close(self, uri: str) -> None:
        """Ends all work on a document, and takes back its diagnostics."""
        self.document(uri).close()
        del self.documents[unquote(uri)]
        last = self._published.pop(unquote(uri), None)
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(last.uri if last else uri, []))

    def document(self, uri: str) -> Document:
        """An open document. An editor may write its URI in another way than when it opened it: with `%20`, or a
        space."""
        return self.documents[unquote(uri)]

    async def _publish(self, uri: str, analysis: Analysis) -> None:
        """Publishes the diagnostics of the latest version, unless the editor has them."""
        version = self.workspace.get_text_document(uri).version
        found = types.PublishDiagnosticsParams(uri, problems(analysis, uri), version)
        if found != self._published.get(unquote(uri)):
            self._published[unquote(uri)] = found
            self.text_document_publish_diagnostics(found)
        if _refreshes_hints(self.client_capabilities):
            self.workspace_inlay_hint_refresh(None)

    def failed(self, problem: Exception) -> None:
        """Shows a bug of spmdc, and logs where it is."""
        text = "".join(traceback.format_exception(problem))
        logging.error(text)
        self.window_log_message(types.LogMessageParams(types.MessageType.Error, text))
        message = f"spmdc has a bug: {traceback.format_exception_only(problem)[-1].strip()}"
        self.window_show_message(types.ShowMessageParams(types.MessageType.Error, message))

    def report_server_error(self, error: Exception, source: object) -> None:
        """Called by pygls with exceptions of handlers. Requests that cannot be met are answered; any other exception is
        a bug."""
        if isinstance(error, JsonRpcInternalError) or not isinstance(error, JsonRpcException):
            self.failed(error)


def _refreshes_hints(capabilities: types.ClientCapabilities) -> bool:
    hints = capabilities.workspace.inlay_hint if capabilities.workspace is not None else None
    return bool(hints is not None and hints.refresh_support)


SERVER = Server()


@SERVER.feature(types.TEXT_DOCUMENT_DID_OPEN)
def _opened(server: Server, params: types.DidOpenTextDocumentParams) -> None:
    server.open(params.text_document.uri, params.text_document.text)


@SERVER.feature(types.TEXT_DOCUMENT_DID_CHANGE)
def _changed(server: Server, params: types.DidChangeTextDocumentParams) -> None:
    uri = params.text_document.uri
    server.open(uri, server.workspace.get_text_document(uri).source)


@SERVER.feature(types.TEXT_DOCUMENT_DID_CLOSE)
def _closed(server: Server, params: types.DidCloseTextDocumentParams) -> None:
    server.close(params.text_document.uri)


@SERVER.feature(types.TEXT_DOCUMENT_HOVER)
async def _hover(server: Server, params: types.HoverParams) -> types.Hover | None:
    analysis = await server.document(params.text_document.uri).analysis()
    return await hover(analysis, analysis.lines.place(params.position))


@SERVER.feature(types.TEXT_DOCUMENT_INLAY_HINT)
async def _hints(server: Server, params: types.InlayHintParams) -> list[types.InlayHint]:
    return inlay_hints(await server.document(params.text_document.uri).analysis(), params.range)


async def _defined(server: Server, uri: str, position: types.Position) -> tuple[Analysis, Definition | None]:
    """The analysis of a document, and the definition in it of the name at a position."""
    analysis = await server.document(uri).analysis()
    return analysis, defined_at(analysis, analysis.lines.place(position))


@SERVER.feature(types.TEXT_DOCUMENT_DEFINITION)
async def _definition(server: Server, params: types.DefinitionParams) -> types.Location | None:
    analysis, found = await _defined(server, params.text_document.uri, params.position)
    if found is None:
        return None
    other = found.span.source
    if analysis.is_own(found):
        return types.Location(params.text_document.uri, analysis.lines.range(found.span))
    return types.Location(Path(other.name).absolute().as_uri(), Lines(other.text or "").range(found.span))


@SERVER.feature(types.TEXT_DOCUMENT_REFERENCES)
async def _references(server: Server, params: types.ReferenceParams) -> list[types.Location]:
    analysis, found = await _defined(server, params.text_document.uri, params.position)
    if found is None:
        return []
    places = analysis.names.of(found)
    is_first = analysis.is_own(found) and not params.context.include_declaration
    return [types.Location(params.text_document.uri, analysis.lines.range(o.span)) for o in places[is_first:]]


@SERVER.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
async def _prepare_rename(server: Server, params: types.PrepareRenameParams) -> types.Range | None:
    analysis, definition = await _defined(server, params.text_document.uri, params.position)
    found = analysis.names.at(analysis.lines.place(params.position))
    return analysis.lines.range(found.span) if found is not None and definition is not None else None


@SERVER.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
async def _rename(server: Server, params: types.RenameParams) -> types.WorkspaceEdit | None:
    analysis, found = await _defined(server, params.text_document.uri, params.position)
    if found is None:
        return None
    try:
        return types.WorkspaceEdit({params.text_document.uri: rename(analysis, found, params.new_name)})
    except SpmdcError as problem:
        raise JsonRpcInvalidParams(problem.diagnostics[0].message) from None


@SERVER.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
async def _symbols(server: Server, params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
    return outline(await server.document(params.text_document.uri).analysis())


@SERVER.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=["@", "=", "("]))
async def _completion(server: Server, params: types.CompletionParams) -> types.CompletionList:
    document = server.document(params.text_document.uri)
    lines = Lines(document.text)
    place = lines.place(params.position)
    return complete(await document.recent(), lines.before(place), place)


@SERVER.feature(types.TEXT_DOCUMENT_FORMATTING)
async def _format(server: Server, params: types.DocumentFormattingParams) -> list[types.TextEdit] | None:
    """The text in the standard layout; a text that does not parse stays as it is."""
    analysis = await server.document(params.text_document.uri).analysis()
    try:
        text = format_source(analysis.text)
    except SpmdcError:
        return None
    return [types.TextEdit(analysis.lines.whole(), text)] if text != analysis.text else []
