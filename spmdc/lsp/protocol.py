"""What every request gets an answer to: also those that are invalid, or come too early or too late."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from cattrs import transform_error
from cattrs.v import format_exception
from lsprotocol import types
from pygls.exceptions import JsonRpcException, JsonRpcInvalidParams, JsonRpcInvalidRequest, JsonRpcServerNotInitialized
from pygls.protocol import LanguageServerProtocol
from pygls.protocol.json_rpc import RPCMessage, RPCRequest


class Protocol(LanguageServerProtocol):
    """The protocol of pygls, which drops messages that it cannot read, and all after `shutdown`, without an answer."""

    def structure_message(self, data: dict[str, Any]) -> Any:
        """The message of these fields; a request that has invalid ones is answered, and then an error for pygls."""
        try:
            return super().structure_message(data)
        except JsonRpcException as problem:
            faults = transform_error(problem.__cause__ or problem, str(data.get("method")), _reason)
            refused = JsonRpcInvalidParams("; ".join(faults))
            if "id" in data and "method" in data:
                self._send_response(data["id"], error=refused.to_response_error())
            raise refused from problem

    def handle_message(self, message: RPCMessage) -> None:
        """Handles a message, or refuses it: requests by an answer, and notifications, as they have none, in silence."""
        refused = self._refused(getattr(message, "method", ""), getattr(message, "params", None))
        if refused is None:
            super().handle_message(message)
        elif isinstance(message, RPCRequest):
            self._send_response(message.id, error=refused.to_response_error())

    def _refused(self, method: str, params: object) -> JsonRpcException | None:
        if method in ("", types.EXIT):
            return None
        if self._shutdown:
            return JsonRpcInvalidRequest(f"{method} after {types.SHUTDOWN}")
        is_initialized = self._workspace is not None
        if method == types.INITIALIZE:
            return JsonRpcInvalidRequest(f"a second {method}") if is_initialized else None
        if not is_initialized:
            return JsonRpcServerNotInitialized(f"{method} before initialize")
        uri = getattr(getattr(params, "text_document", None), "uri", None)
        if uri is None or method == types.TEXT_DOCUMENT_DID_OPEN or unquote(uri) in self.workspace.text_documents:
            return None
        return JsonRpcInvalidParams(f"{uri} is not open")


def _reason(fault: BaseException, expected: type | None) -> str:
    """Why a field is invalid: in the words of its check if it has one, such as that a line is not below 0."""
    return str(fault) if isinstance(fault, ValueError) and expected is None else format_exception(fault, expected)
