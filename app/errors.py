"""What can go wrong, named by what happened and whose fault it was.

Knows neither HTTP nor JSON-RPC: `http/errors.py` is the one table that turns these into answers.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, Self

from app.reached import Reached, Whose

SessionLimit = Literal["sessions", "sessions_per_principal"]
SESSION_RETRY_S = 5.0  # sessions end in minutes rather than milliseconds
UNKNOWN = "unknown"  # the outcome of a call that was sent to a backend and has no answer


class GatewayError(Exception):
    """The root of every error the gateway raises on purpose.

    `reason` is a stable word for machines (`data.reason`), `hint` what a person can do next. `outcome` says that a call
    may have been carried out; an error without it says that nothing was sent to a backend, or needs no such word.
    `cause` is a stable word for why a session has ended, where that is what the error is about.
    `facts` are what an operator wants to know of it, by name (a limit and its use, a rule and what was found instead):
    they stand in the log line, in no answer, and are never secret. `reached` is the limit that it is about, if there
    is one: that stands in both.
    """

    reason = "internal_error"
    hint: str | None = None
    outcome: str | None = None
    cause: str | None = None
    facts: Mapping[str, object] = MappingProxyType({})
    reached: Reached | None = None

    def __init__(
        self, message: str | None = None, *, hint: str | None = None, facts: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message or _first_sentence(type(self)))
        if hint is not None:
            self.hint = hint
        if facts is not None:
            self.facts = facts

    def at(self, reached: Reached | None) -> Self:
        """The same error, which says which limit it is about."""
        if reached is not None:
            self.reached = reached
            self.facts = {**self.facts, **reached.facts()}
            self.hint = self.hint or f"Who can raise `{reached.name}`: {reached.raised_by}."
        return self

    def after_sending(self) -> Self:
        """The same error, of a call that has left for its backend. What can be tried again says that it has not."""
        if not is_refusal(self):
            self.outcome = UNKNOWN
        return self


def is_refusal(error: GatewayError) -> bool:
    """Whether the error says that nothing was sent to a backend, and when to try again."""
    return getattr(error, "retry_after_s", None) is not None


def _first_sentence(error: type[GatewayError]) -> str:
    """What an error says where nobody has said more."""
    paragraph, _, _ = (error.__doc__ or "").partition("\n\n")
    return " ".join(paragraph.split()).rstrip(".")


# --- the caller's fault


class ClientError(GatewayError):
    """The request cannot be served as it is."""


class InvalidMessage(ClientError):
    """The message is JSON but not a message of this protocol."""

    reason = "invalid_message"


class ParseError(InvalidMessage):
    """The body is not JSON."""

    reason = "parse_error"


class InvalidRequest(ClientError):
    """A field of an administrative request is wrong; `field` names it."""

    reason = "invalid_request"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Unauthenticated(ClientError):
    """No credential, or not a valid one."""

    reason = "unauthenticated"
    hint = "Send `Authorization: Bearer <key>`; `trunkline keys create` makes one, and says for which database."

    def __init__(
        self,
        message: str | None = None,
        *,
        token_was_sent: bool = False,
        facts: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message, facts=facts)
        self.token_was_sent = token_was_sent


class CredentialExpired(Unauthenticated):
    """The credential has expired since the request began."""

    def __init__(self) -> None:
        facts = {"failure": "expired", "rule": "expiry", "actual": "it expired while the request was under way"}
        super().__init__(token_was_sent=True, facts=facts)


class Forbidden(ClientError):
    """The credential is valid but its scopes do not allow this."""

    reason = "insufficient_scope"

    def __init__(self, scopes: Sequence[str], *, held: Iterable[str] | None = None) -> None:
        facts = None
        if held is not None:
            facts = {"failure": self.reason, "rule": "scopes", "expected": list(scopes), "actual": sorted(held)}
        super().__init__("this needs the scope " + " or ".join(scopes), facts=facts)
        self.scopes = tuple(scopes)


class Disabled(ClientError):
    """What the request needs is switched off: `what` is the tenant, backend, principal or key of this `name`."""

    reason = "disabled"

    def __init__(self, what: str, name: str = "", why: str = "") -> None:
        whose = f"the {what} `{name}`" if what in ("tenant", "backend") else f"this {what}"
        super().__init__(
            f"{whose} is switched off" + (f": {why}" if why else ""),
            hint="An administrator can switch it on again; until then it is of no use to try.",
            facts={"switched_off": what, "name": name, "why": why},
        )
        self.what, self.name, self.why = what, name, why

    def again(self, *, outcome: str | None = None) -> Self:
        """The same, to be raised to somebody else; with an `outcome` for a call that was under way."""
        again = type(self)(self.what, self.name, self.why)
        again.outcome = outcome
        return again


class NotFound(ClientError):
    """There is no such object, or not for this caller: the two look the same."""

    reason = "not_found"


class SessionNotFound(NotFound):
    """Session not found."""

    reason = "session_not_found"
    hint = "Start again with `initialize`, without a session id."


class SessionEnded(SessionNotFound):
    """The session has ended."""

    reason = "session_ended"
    hint = SessionNotFound.hint

    def __init__(self, message: str, cause: str) -> None:
        super().__init__(message)
        self.cause = cause


class BackendNotFound(NotFound):
    """Backend not found."""

    reason = "backend_not_found"


class Conflict(ClientError):
    """An object with this name exists already, or the change contradicts its state."""

    reason = "conflict"


class ConcurrentChange(Conflict):
    """The object was changed by somebody else; read it again."""


class PreconditionFailed(ClientError):
    """The object has changed since it was read."""

    reason = "precondition_failed"


class QuotaExceeded(ClientError):
    """A limit of the tenant or of the session is used up; `limit` names it."""

    reason = "quota_exceeded"

    def __init__(
        self, limit: str, message: str | None = None, *, retry_after_s: float = 1.0, reached: Reached | None = None
    ) -> None:
        super().__init__(message or f"the limit `{limit}` is used up")
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.at(reached)


def session_quota(limit: SessionLimit, tenant: str, allowed: int, used: int) -> QuotaExceeded:
    """What a new session is refused with where the tenant, or this principal of it, has its number of them."""
    whose: Whose = "tenant" if limit == "sessions" else "principal"
    who = f"the tenant {tenant}" if whose == "tenant" else "this principal"
    return QuotaExceeded(
        limit,
        f"{who} has {used} sessions open; its limit is {allowed}",
        retry_after_s=SESSION_RETRY_S,
        reached=Reached.of_tenant(limit, tenant, allowed, used, of=whose),
    )


class RateLimited(QuotaExceeded):
    """Requests come faster than the tenant's limit."""

    reason = "rate_limited"


class StateRefused(ClientError):
    """A requestState that goes on with nothing: state_invalid, state_spent or state_lost."""

    _MEANINGS = {  # noqa: RUF012 - a constant
        "state_invalid": "this requestState was not made for this request",
        "state_spent": "this requestState has been used already",
        "state_lost": "the call behind this requestState is gone",
    }

    def __init__(self, reason: str) -> None:
        super().__init__(self._MEANINGS.get(reason, reason), hint="Send the request again without a requestState.")
        self.reason = reason


class RequestCancelled(ClientError):
    """The request was cancelled by its sender."""

    reason = "cancelled"


# --- the backend's fault


class BackendError(GatewayError):
    """The stdio server failed. `stderr` are its last lines: for administrators only."""

    reason = "backend_error"
    stderr: Sequence[str] = ()


class BackendExited(BackendError):
    """The backend's process ended, or could not be started (`started` tells which)."""

    reason = "backend_exited"

    def __init__(
        self, message: str | None = None, *, started: bool = True, stderr: Sequence[str] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.started = started
        self.stderr = stderr


class BackendUnavailable(BackendError):
    """The backend dies again and again; it is not started until `retry_after_s` has passed."""

    reason = "backend_unavailable"

    def __init__(self, message: str | None = None, *, retry_after_s: float = 1.0, stderr: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
        self.stderr = stderr


class BackendBusy(BackendError):
    """The backend reads nothing, or no process came free in time."""

    reason = "backend_busy"
    retry_after_s = 1.0


class ResponseTooLarge(BackendError):
    """The backend wrote a line over the limit."""

    reason = "response_too_large"


class InvalidResponse(BackendError):
    """The backend's answer is not a JSON-RPC response."""

    reason = "invalid_response"


class NodeLost(BackendError):
    """The node that served this call is gone; whether the call was carried out is not known."""

    reason = "node_lost"
    hint = "It is not sent again on its own: look first whether it had an effect."
    outcome = UNKNOWN


class CallCutOff(BackendError):
    """The call was cut off while it was under way; whether it was carried out is not known."""

    reason = "call_cut_off"
    hint = NodeLost.hint
    outcome = UNKNOWN


class BackendTimeout(BackendError):
    """The backend did not answer in time."""

    reason = "timeout"


# --- ours


class ShuttingDown(GatewayError):
    """This node is shutting down."""

    reason = "shutting_down"
    retry_after_s = 2.0


class Overloaded(GatewayError):
    """This node has as much to do as it can; what is refused has not been begun."""

    reason = "overloaded"
    hint = "Send it again after the time that Retry-After says."

    def __init__(self, message: str | None = None, *, retry_after_s: float = 2.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RoutesUnavailable(GatewayError):
    """Which node has this session cannot be found out now."""

    reason = "routes_unavailable"
    hint = "Send the request again in a moment; the session is not lost."
    retry_after_s = 2.0


class OwnershipUnknown(RoutesUnavailable):
    """This node's lease ended while it stood still, and the store does not say what others have taken since."""


class RoutesSettling(RoutesUnavailable):
    """The store was emptied moments ago: that it knows no route means nothing yet."""


class NodeUnavailable(GatewayError):
    """The node that has this session does not answer now."""

    reason = "node_unavailable"
    hint = "Send the request again in a moment; the session is not lost."
    retry_after_s = 1.0


class StorageUnavailable(GatewayError):
    """The database does not answer."""

    reason = "storage_unavailable"
    retry_after_s = 2.0


class StorageReadOnly(StorageUnavailable):
    """The database is read-only: it may be a standby."""

    reason = "storage_read_only"
    hint = "Nothing was changed. TRUNKLINE_DATABASE_URL must name the primary."


class SchemaMismatch(GatewayError):
    """The database has another schema than this version needs."""

    reason = "schema_mismatch"
    hint = "Run `trunkline migrate`."


class SettingsError(GatewayError):
    """A setting has a wrong value."""

    reason = "settings"
