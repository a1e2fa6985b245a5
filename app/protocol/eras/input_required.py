"""`input_required`: the questions of a server of 2026-07-28, and whether a handshake-era client can be asked."""

from app.protocol.eras.sessionless_envelope import takes_mode
from app.protocol.jsonrpc import Params, encoded, members_of, object_in, string_of
from app.protocol.revisions import Revision

MAX_ROUNDS = 10  # of questions in one call; then it fails
MAX_ASKED = 16  # questions of one round
MAX_KEY = 256  # characters of a question's key
INPUT_KEY = "trunkline/inputKey"  # in `_meta` of a question: the key under which a client of 2026-07-28 is asked it
NEEDS = {"sampling/createMessage": "sampling", "elicitation/create": "elicitation", "roots/list": "roots"}


def why_not_asked(asked: Params, rounds: int, capabilities: Params, version: str) -> str | None:
    """Why a client of this version with these capabilities cannot be asked; None if it can."""
    if rounds > MAX_ROUNDS:
        return f"the backend asked more than {MAX_ROUNDS} times"
    if len(asked) > MAX_ASKED:
        return f"the backend asked {len(asked)} questions at once; at most {MAX_ASKED} are allowed"
    for raw in asked.values():
        question = members_of(raw)
        method = string_of(question.get("method")) or ""
        need = NEEDS.get(method)
        if need is None or need not in capabilities:
            return f"the backend needs {method or 'something'}, which the client does not support"
        mode = string_of(object_in(question, "params").get("mode"))
        if need == "elicitation" and not _takes("url" if mode == "url" else "form", capabilities, version):
            return f"the backend needs an elicitation by {mode or 'form'}, which the client does not support"
    return None


def _takes(mode: str, capabilities: Params, version: str) -> bool:
    """Whether the client supports this mode of elicitation; before 2025-11-25 there were only forms."""
    if version != Revision.R2025_11_25:
        return mode == "form"
    return takes_mode(mode, members_of(capabilities["elicitation"]))


def as_client_knows(question: Params, version: str, serial: int) -> Params:
    """A question's params in the client's version; `serial` makes an elicitation's id unique in its session."""
    params = object_in(question, "params")
    if string_of(question.get("method")) == "elicitation/create":
        if version != Revision.R2025_11_25:
            params.pop("mode", None)
        elif string_of(params.get("mode")) == "url":
            params.setdefault("elicitationId", encoded(f"elicitation-{serial}"))
    return params


def with_key(params: Params, key: str) -> Params:
    """A question's params with the key that its server has given it."""
    return {**params, "_meta": encoded({**object_in(params, "_meta"), INPUT_KEY: key})}


def without_key(params: Params) -> tuple[Params, str | None]:
    """The params as the client gets them, and the key; None if there is none that could be one."""
    meta = object_in(params, "_meta")
    if INPUT_KEY not in meta:
        return params, None
    key = string_of(meta.pop(INPUT_KEY))
    rest = {name: value for name, value in params.items() if name != "_meta"}
    if meta:
        rest["_meta"] = encoded(meta)
    return rest, key if key and len(key) <= MAX_KEY else None
