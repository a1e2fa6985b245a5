"""`input_required`: what a server of 2026-07-28 wants to know, and whether a handshake-era client can be asked."""

import msgspec

from app.protocol.eras.modern import takes_mode
from app.protocol.jsonrpc import Params, encode, members_of, string_of
from app.protocol.revisions import Revision

MAX_ROUNDS = 10  # of one call's questions; a server that asks for ever is told so
MAX_ASKED = 16  # questions of one round
NEEDS = {"sampling/createMessage": "sampling", "elicitation/create": "elicitation", "roots/list": "roots"}


def why_not_asked(asked: Params, rounds: int, capabilities: Params, version: str) -> str | None:
    """Why a client of this version with these capabilities cannot be asked this, if so."""
    if rounds > MAX_ROUNDS:
        return "the backend asks without end"
    if len(asked) > MAX_ASKED:
        return f"the backend asks {len(asked)} things at once"
    for raw in asked.values():
        question = members_of(raw)
        method = string_of(question.get("method")) or ""
        need = NEEDS.get(method)
        if need is None or need not in capabilities:
            return f"the backend needs {method or 'something'}, which the client does not support"
        mode = string_of(_params_of(question).get("mode"))
        if need == "elicitation" and not _takes("url" if mode == "url" else "form", capabilities, version):
            return f"the backend needs an elicitation by {mode or 'form'}, which the client does not support"
    return None


def _takes(mode: str, capabilities: Params, version: str) -> bool:
    """Whether the client has this mode of elicitation; before 2025-11-25 there were only forms."""
    if version != Revision.R2025_11_25:
        return mode == "form"
    return takes_mode(mode, members_of(capabilities["elicitation"]))


def as_client_knows(question: Params, version: str, serial: int) -> Params:
    """The params of a question as the client's version has them; `serial` tells elicitations of one session apart."""
    params = _params_of(question)
    if string_of(question.get("method")) == "elicitation/create":
        if version != Revision.R2025_11_25:
            params.pop("mode", None)
        elif string_of(params.get("mode")) == "url":
            params.setdefault("elicitationId", msgspec.Raw(encode(f"elicitation-{serial}")))
    return params


def _params_of(question: Params) -> Params:
    """What it is asked with."""
    return members_of(question.get("params", msgspec.Raw(b"{}")))
