"""A program that is open in an editor: its text, and the results of reading and planning it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from ir.diagnostics import Diagnostic, SpmdcError
from ir.program import Value
from ir.spelling.printer import print_type
from ir.verify.program import check
from passes.propagation.reasons import ValueId
from spmdc.frontends.spmd import Reading, read
from spmdc.frontends.spmd.items import Item
from spmdc.frontends.spmd.names import Definition, Names, names_of
from spmdc.lsp.planning import NOTHING, Facts, Planning
from spmdc.lsp.text import Lines

_PATIENCE = 0.3
"""Seconds for which a request waits for a long text to be read, before it uses the results of an earlier one."""
_PAUSE = 0.2
"""Seconds without an edit before a plan is made."""


@dataclass(frozen=True, eq=False)
class Analysis:
    """The results for one version of a text; `planning` has those of the plan."""

    text: str
    folder: str | None
    lines: Lines
    reading: Reading
    names: Names
    diagnostics: tuple[Diagnostic, ...]
    facts: Facts = NOTHING
    planning: Planning | None = None

    def item(self, definition: Definition) -> Item | None:
        """The item that a name is bound to; None if it has errors."""
        place = definition.span.line, definition.span.column
        return self.reading.bound.get(place) if self.is_own(definition) else None

    def is_own(self, definition: Definition) -> bool:
        """Whether the definition is in the text itself, and not in an included file."""
        return definition.span.source is self.reading.source

    def value(self, definition: Definition) -> tuple[ValueId, Value] | None:
        """The tensor that a name is bound to, and its id in passes."""
        item = self.item(definition)
        return ((definition.function, item.name), item) if isinstance(item, Value) else None

    def type_text(self, id: ValueId, value: Value) -> str:
        """The type, with the propagated sharding if it is known, or else as written."""
        return self.facts.shardings.get(id) or print_type(value.of or value.type, value.sharding)


def analyse(text: str, name: str, folder: str | None) -> Analysis:
    """Reads and checks a text, with includes from that folder. Its errors are in the result."""
    reading = read(text, name, folder)
    diagnostics = reading.diagnostics
    if reading.program is not None and not diagnostics:
        try:
            check(reading.program)
        except SpmdcError as problem:
            diagnostics = problem.diagnostics
    return Analysis(text, folder, Lines(text), reading, names_of(reading.module, reading.whole), diagnostics)


class Document:
    """The latest version of a text. `changed` is awaited whenever more is known of it, and `failed` is called with bugs
    of spmdc.

    Texts are read one after another in a thread; a text without errors is planned after a pause in typing, and the next
    edit cancels that.
    """

    def __init__(
        self, name: str, folder: str | None, reader: ThreadPoolExecutor, changed: Callable[[Analysis], Awaitable[None]],
        failed: Callable[[Exception], None],
    ) -> None:  # fmt: skip
        self.name = name
        self.folder = folder
        self._reader = reader
        self._changed = changed
        self._failed = failed
        self._latest: asyncio.Future[Analysis] | None = None
        self._task: asyncio.Task[None] | None = None
        self._planning: Planning | None = None
        self.text = ""
        self.known: Analysis | None = None

    def edit(self, text: str) -> None:
        """Takes a new text, and begins to read it."""
        self.close()
        self.text = text
        loop = asyncio.get_running_loop()
        self._latest = loop.run_in_executor(self._reader, analyse, text, self.name, self.folder)
        self._task = loop.create_task(self._follow())

    async def analysis(self) -> Analysis:
        """The analysis of the latest text, once it is read. Raises CancelledError if the document is closed."""
        read = await self._read()
        return self.known if self.known is not None and self.known.text == read.text else read

    async def recent(self) -> Analysis:
        """The analysis of the latest text, or, if reading takes long, of an earlier one."""
        try:
            return await asyncio.wait_for(self.analysis(), _PATIENCE if self.known is not None else None)
        except TimeoutError:
            assert self.known is not None
            return self.known

    def close(self) -> None:
        """Cancels all work; a text that is waiting to be read is not read."""
        if self._task is not None:
            self._task.cancel()
        if self._planning is not None:
            self._planning.end()
        if self._latest is not None:
            self._latest.cancel()
        self._task = self._planning = None

    async def _read(self) -> Analysis:
        while True:
            latest = self._latest
            assert latest is not None
            await asyncio.wait([latest])
            if not latest.cancelled() or latest is self._latest:
                return latest.result()

    async def _follow(self) -> None:
        try:
            read = await self._read()
            await self._know(read)
            if read.reading.program is not None and not read.diagnostics:
                await asyncio.sleep(_PAUSE)
                await self._plan(read)
        except Exception as problem:
            self._failed(problem)

    async def _plan(self, read: Analysis) -> None:
        planning = self._planning = await self._begun(read.text)
        facts = planning.facts()
        while (found := await asyncio.to_thread(next, facts, None)) is not None:
            await self._know(replace(read, facts=found, diagnostics=found.diagnostics, planning=planning))

    async def _begun(self, text: str) -> Planning:
        """The process that plans the text. It is ended if the task is cancelled before it has begun."""
        beginning = asyncio.get_running_loop().run_in_executor(None, Planning, text, self.name, self.folder)
        try:
            return await asyncio.shield(beginning)
        except asyncio.CancelledError:
            beginning.add_done_callback(lambda begun: begun.result().end())
            raise

    async def _know(self, analysis: Analysis) -> None:
        self.known = analysis
        await self._changed(analysis)
