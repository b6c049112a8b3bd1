"""The process in which jaxlib reads HLO and MLIR."""

from __future__ import annotations

from lowering.jax.versions import HLO_TO_STABLEHLO, REFINE_SHAPES, REGISTER_DIALECTS
from spmdc.isolation.process import IsolatedProcess

_CHILD = "spmdc.frontends.stablehlo.parser_child"


class ParserProcess(IsolatedProcess):
    """A process that runs `parser_child`, where the languages are."""

    def __init__(self) -> None:
        super().__init__(_CHILD, [REGISTER_DIALECTS, REFINE_SHAPES, *HLO_TO_STABLEHLO])

    def read(self, language: bytes, text: str | bytes) -> tuple[bytes, bytes]:
        """The status of the request, and the text's StableHLO bytecode, or a message in its place."""
        return self.ask(language + (text if isinstance(text, bytes) else text.encode(errors="replace")))


PARSER_PROCESS = ParserProcess()
