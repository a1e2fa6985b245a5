"""Makes dialogues comparable: who said what about which request, in groups whose order counts."""

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from tests.differential.recording import Line

META = "io.modelcontextprotocol/"


@dataclass(frozen=True)
class Entry:
    """One message, told by the request that it belongs to instead of by ids."""

    step: str
    speaker: str  # client, server
    kind: str  # request, notification, result, error
    method: str
    about: str  # the request itself, the one that is answered, the one that a notification names
    body: Any

    def __str__(self) -> str:
        return f"{self.speaker}: {self.kind} {self.about} {json.dumps(self.body, sort_keys=True, ensure_ascii=False)}"


class Reader:
    """Reads one end of one dialogue."""

    def __init__(self, *, neutral: bool) -> None:
        """`neutral`: questions are the same whether they are requests or part of an `input_required` result."""
        self._neutral = neutral
        self._requests: dict[tuple[str, bool, Any], tuple[str, str]] = {}  # method and name, by who asked, and the id
        self._tokens: dict[tuple[str, Any], str] = {}
        self._asked: dict[tuple[str, str], str] = {}  # the method of a question, by the call and its key

    def read(self, steps: Mapping[str, Sequence[Line]]) -> list[Entry]:
        return [entry for step, lines in steps.items() for line in lines for entry in self._entries(step, line)]

    def _entries(self, step: str, line: Line) -> Iterable[Entry]:
        message = line.message
        speaker = "client" if line.of_client else "server"
        if "method" not in message:
            asked = (line.process, not line.of_client, message.get("id"))
            method, about = self._requests.get(asked, ("?", "an unknown request"))
            kind = "result" if "result" in message else "error"
            entry = Entry(step, speaker, kind, method, about, message[kind])
        elif "id" in message:
            method, about = message["method"], _name(message)
            self._requests[line.process, line.of_client, message["id"]] = method, about
            entry = Entry(step, speaker, "request", method, about, self._params(line, about))
        else:
            method = about = message["method"]
            entry = Entry(step, speaker, "notification", method, about, self._params(line, about))
        return self._neutrally(entry) if self._neutral else [entry]

    def _params(self, line: Line, about: str) -> Any:
        """Its parameters, with names instead of ids."""
        params = deepcopy(line.message.get("params"))
        if not isinstance(params, dict):
            return params
        meta = params.get("_meta") or {}
        if "progressToken" in meta and "id" in line.message:
            self._tokens[line.process, meta["progressToken"]] = about
            meta["progressToken"] = "its own"
        if META + "subscriptionId" in meta:
            meta[META + "subscriptionId"] = self._name_of(line.process, True, meta[META + "subscriptionId"])
        if line.message["method"] == "notifications/progress":
            params["progressToken"] = self._tokens.get((line.process, params["progressToken"]), "nobody's")
        if line.message["method"] == "notifications/cancelled":
            params["requestId"] = self._name_of(line.process, line.of_client, params["requestId"])
        return params

    def _name_of(self, process: str, of_client: bool, request_id: Any) -> str:
        return self._requests.get((process, of_client, request_id), ("", "an unknown request"))[1]

    def _neutrally(self, entry: Entry) -> Iterable[Entry]:
        """A question is a question, and a call that is sent again with its answers is no new call."""
        if entry.kind == "result" and entry.body.get("resultType") == "input_required":
            for key, request in entry.body.get("inputRequests", {}).items():
                self._asked[entry.about, key] = request["method"]
                question = {"kind": "request", "method": request["method"], "about": _name(request)}
                yield replace(entry, **question, body=request.get("params"))
            return
        if entry.kind == "request" and "inputResponses" in (entry.body or {}):
            for key, response in entry.body["inputResponses"].items():
                method = self._asked.get((entry.about, key), "?")
                yield replace(entry, kind="result", method=method, about=method, body=response)
            return
        yield entry


def _name(request: dict[str, Any]) -> str:
    params = request.get("params") or {}
    told = [params[name] for name in ("name", "uri", "arguments") if params.get(name)]
    return " ".join([request["method"], *(json.dumps(each, ensure_ascii=False) for each in told)])
