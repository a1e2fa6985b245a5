"""The MCP endpoint of a backend or toolset, as a client without a session uses it (2026-07-28)."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import httpx2
import msgspec

from app import __version__
from app.backends.upstreams.requests import encoded_value, mirrors
from app.cli.rest import Rest, segment
from app.errors import GatewayError
from app.protocol.eras.sessionless_envelope import mirrored_parameters
from app.protocol.jsonrpc import METHOD_NOT_FOUND
from app.text.meant import did_you_mean
from app.text.terminal.text import printable

VERSION = "2026-07-28"
MOST_PAGES = 1000  # of a list of tools
_ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "trunkline", "version": __version__},
}
Tool = Mapping[str, Any]
Told = Callable[[Mapping[str, Any]], None]  # is given the params of each progress notification


class RpcError(GatewayError):
    """An error as the answer, of the gateway or of the server."""

    reason = "rpc_error"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a gateway."""

    rest: Rest
    tenant: str
    name: str

    @property
    def url(self) -> str:
        return f"{self.rest.url}/t/{segment(self.tenant)}/{segment(self.name)}/mcp"

    def tools(self) -> list[dict[str, Any]]:
        """All tools. Raises GatewayError."""
        found, cursor = list[dict[str, Any]](), None
        for _ in range(MOST_PAGES):
            page = self._ask("tools/list", {} if cursor is None else {"cursor": cursor}, {}, lambda _: None)
            tools = page.get("tools")
            found += [each for each in tools if isinstance(each, dict)] if isinstance(tools, list) else []
            cursor = page.get("nextCursor")
            if cursor is None:
                break
        return found

    def call(self, tool: Tool, arguments: Mapping[str, Any], told: Told) -> dict[str, Any]:
        """The result of a call, also if it `isError`. Raises GatewayError."""
        name = str(tool.get("name"))
        params = {"arguments": msgspec.Raw(json.dumps(arguments).encode())}
        mirrored = mirrors(mirrored_parameters(tool.get("inputSchema")), params)
        headers = {each.decode(): value.decode() for each, value in mirrored}
        headers["Mcp-Name"] = encoded_value(name).decode()
        result = self._ask("tools/call", {"name": name, "arguments": arguments}, headers, told)
        if result.get("resultType") == "input_required":
            raise GatewayError(
                f"{printable(name)} asks its user something, which this command cannot answer",
                hint="use a client: `trunkline connect` prints its configuration",
            )
        return result

    def _ask(self, method: str, params: Mapping[str, Any], headers: Mapping[str, str], told: Told) -> dict[str, Any]:
        meta = {**_ENVELOPE, "progressToken": 1}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        headers = {
            **headers,
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
        }
        try:
            with self.rest.client.stream("POST", self.url, json=body, headers=headers) as response:
                kind = response.headers.get("content-type", "")
                if kind.startswith("text/event-stream"):
                    answer = _answer_in(response.iter_lines(), told)
                else:
                    answer = _object(response.read())
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise GatewayError(
                f"{self.rest.url} does not answer: {str(error) or type(error).__name__}",
                hint="is the address right, and is the gateway running?",
            ) from None
        if isinstance(answer.get("result"), dict):
            result: dict[str, Any] = answer["result"]
            return result
        raise self._refusal(response.status_code, answer.get("error"))

    def _refusal(self, status: int, error: object) -> GatewayError:
        error = error if isinstance(error, dict) else {}
        data = error["data"] if isinstance(error.get("data"), dict) else {}
        what = printable(str(error.get("message") or f"{self.url} answers {status}, and this is no MCP endpoint"))
        creating = f"`trunkline keys create --tenant {self.tenant} --scope mcp:connect`"
        known: dict[int, str] = {
            HTTPStatus.UNAUTHORIZED: "is the key right, and not expired or revoked? "
            f"Make one with {creating}, and put it into TRUNKLINE_KEY",
            HTTPStatus.FORBIDDEN: f"{creating} makes such a key",
        }
        if status == HTTPStatus.NOT_FOUND and error.get("code") != METHOD_NOT_FOUND:
            hint = f"see `trunkline backends list --tenant {self.tenant}` and `toolsets list`"
            return GatewayError(f"{what}: {self.tenant}/{self.name}{self._meant()}", hint=hint)
        hint = known.get(status) or data.get("hint") or ""
        return RpcError(what, hint=printable(str(hint)))

    def _meant(self) -> str:
        """The name that was meant, if this key may read those that there are."""
        names = list[str]()
        for kind in ("backends", "toolsets"):
            try:
                rows, _ = self.rest.items(f"/tenants/{segment(self.tenant)}/{kind}", query={}, most=MOST_PAGES)
            except GatewayError:
                return ""
            names += [str(row.get("name")) for row in rows]
        return did_you_mean(self.name, names)


def _answer_in(lines: Iterable[str], told: Told) -> dict[str, Any]:
    """The answer at the end of a stream."""
    for line in lines:
        name, _, value = line.partition(":")
        message = _object(value.encode()) if name == "data" else {}
        if message.get("method") == "notifications/progress" and isinstance(message.get("params"), dict):
            told(message["params"])
        elif message.get("id") == 1 and "method" not in message:
            return message
    return {"error": {"message": "the answer has ended too early"}}


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
