"""An editor that communicates with `spmdc lsp` over its standard input and output, as real ones do."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar
from uuid import uuid4

from lsprotocol import types
from pygls.lsp.client import LanguageClient

Answer = TypeVar("Answer")
_PATIENCE = 60
"""The seconds within which a working server answers."""


class Editor:
    """One server, and a client that waits for its answers."""

    def __init__(self, *command: str, initialized: bool = True) -> None:
        """Starts `python -m spmdc lsp`, or Python with other arguments."""
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.client = LanguageClient("tests", "1")
        self.published: dict[str, list[list[types.Diagnostic]]] = {}
        self.versions: dict[str, list[int | None]] = {}
        self.shown: list[str] = []
        self.news = threading.Condition()
        self.version = 0
        self.client.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)(lambda params: self._note(params))
        self.client.feature(types.WINDOW_SHOW_MESSAGE)(lambda params: self._show(params))
        self.client.feature(types.WINDOW_LOG_MESSAGE)(lambda params: None)
        self.wait(self.client.start_io(sys.executable, *(command or ("-m", "spmdc", "lsp"))))
        if initialized:
            self.initialize()

    def initialize(self) -> None:
        self.ask(self.client.initialize_async, types.InitializeParams(types.ClientCapabilities()))
        self.client.initialized(types.InitializedParams())

    def wait(self, answer: Awaitable[Answer]) -> Answer:
        async def waited() -> Answer:
            return await answer

        return asyncio.run_coroutine_threadsafe(waited(), self.loop).result(_PATIENCE)

    def ask(self, request: Callable[[Any], Awaitable[Answer]], params: object) -> Answer:
        async def asked() -> Answer:
            return await request(params)

        return asyncio.run_coroutine_threadsafe(asked(), self.loop).result(_PATIENCE)

    def request(self, method: str, params: object) -> Any:
        """The answer to a request that need not be valid. Raises JsonRpcException if it is an error."""
        protocol, name = self.client.protocol, str(uuid4())

        async def asked() -> Any:
            answer = protocol._request_futures[name] = Future()
            protocol._send_data({"jsonrpc": "2.0", "id": name, "method": method, "params": params})
            return await asyncio.wrap_future(answer)

        return self.wait(asked())

    def _note(self, params: types.PublishDiagnosticsParams) -> None:
        with self.news:
            self.published.setdefault(params.uri, []).append(list(params.diagnostics))
            self.versions.setdefault(params.uri, []).append(params.version)
            self.news.notify_all()

    def _show(self, params: types.ShowMessageParams) -> None:
        with self.news:
            self.shown.append(params.message)
            self.news.notify_all()

    def message(self) -> str:
        """The last message that the server showed."""
        with self.news:
            assert self.news.wait_for(lambda: self.shown, _PATIENCE)
            return self.shown[-1]

    def open(self, name: str, text: str) -> str:
        """Opens a document, and returns its URI."""
        uri = f"file:///{name}"
        document = types.TextDocumentItem(uri, "spmd", 0, text)
        self.loop.call_soon_threadsafe(self.client.text_document_did_open, types.DidOpenTextDocumentParams(document))
        return uri

    def edit(self, uri: str, text: str) -> None:
        """Replaces the text of a document."""
        self.version += 1
        document = types.VersionedTextDocumentIdentifier(self.version, uri)
        whole = types.TextDocumentContentChangeWholeDocument(text)
        params = types.DidChangeTextDocumentParams(document, [whole])
        self.loop.call_soon_threadsafe(self.client.text_document_did_change, params)

    def diagnostics(self, uri: str, count: int = 1) -> list[types.Diagnostic]:
        """The diagnostics that the server published for a document the `count`-th time."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.published.get(uri, ())) >= count, _PATIENCE)
            return self.published[uri][count - 1]

    def close(self, uri: str) -> None:
        document = types.TextDocumentIdentifier(uri)
        self.loop.call_soon_threadsafe(self.client.text_document_did_close, types.DidCloseTextDocumentParams(document))

    def shut_down(self) -> None:
        self.ask(self.client.shutdown_async, None)

    def end(self) -> int | None:
        """Ends the server as editors do, and returns its exit status."""
        self.shut_down()
        return self.exit()

    def exit(self) -> int | None:
        self.loop.call_soon_threadsafe(self.client.exit, None)
        process = self.client._server
        assert process is not None
        status = self.wait(process.wait())
        self.wait(self.client.stop())  # type: ignore[no-untyped-call]
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        return status
