"""Questions of a handshake-era process for a client of 2026-07-28: whether it supports them, and their form."""

from typing import Any, NamedTuple

import msgspec

from app.protocol.commands import Listen, ToStream
from app.protocol.eras.input_required import NEEDS, without_key
from app.protocol.eras.sessionless_envelope import Envelope, takes_mode
from app.protocol.jsonrpc import Params, Request, dump_request, string_of


class Question(NamedTuple):
    """A question under our id, with the params for the client."""

    id: bytes
    method: str
    params: Params

    def as_command(self) -> ToStream:
        return ToStream(Listen.STREAM, dump_request(self.id, self.method, self.params), question=self.id)


def lacking_for(question: Request, envelope: Envelope) -> dict[str, Any]:
    """The client capabilities that this question needs and the client did not declare."""
    need = NEEDS.get(question.method)
    if need == "elicitation":
        mode = "url" if string_of((question.params or {}).get("mode")) == "url" else "form"
        return lacking_mode(envelope, mode)
    return {} if need is None or need in envelope.capabilities else {need: {}}


def lacking_mode(envelope: Envelope, mode: str) -> dict[str, Any]:
    """The same for one mode of elicitation. A client that declares no modes supports forms."""
    modes = envelope.capabilities.get("elicitation")
    if not isinstance(modes, dict):
        return {"elicitation": {} if mode == "form" else {mode: {}}}
    return {} if takes_mode(mode, modes) else {"elicitation": {mode: {}}}


def as_input_request(question: Request) -> tuple[Question, str]:
    """With the params of 2026-07-28: elicitation has a mode, and no id. And the key under which to ask it: the
    server's own, where it is one of that revision among the members of a toolset."""
    params, key = without_key(dict(question.params or {}))
    if question.method == "elicitation/create":
        params.setdefault("mode", msgspec.Raw(b'"form"'))
        params.pop("elicitationId", None)
    return Question(question.id, question.method, params), key or f"{NEEDS.get(question.method)}-{question.id.decode()}"
