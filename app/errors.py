"""What can go wrong, named by what happened and whose fault it was.

Knows neither HTTP nor JSON-RPC: `http/errors.py` is the one table that turns these into answers.
"""

from collections.abc import Sequence
from typing import Self

UNKNOWN = "unknown"  # the outcome of a call that was sent to a backend and has no answer


class GatewayError(Exception):
    """The root of every error the gateway raises on purpose.

    `reason` is a stable word for machines (`data.reason`), `hint` what a person can do next. `outcome` says that a call
    may have been carried out; an error without it says that nothing was sent to a backend, or needs no such word.
    """

    reason = "internal_error"
    hint: str | None = None
    outcome: str | None = None

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message or _first_sentence(type(self)))
        if hint is not None:
            self.hint = hint

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
    hint = "Send `Authorization: Bearer <key>`; `trunkline keys create` makes one."

    def __init__(self, message: str | None = None, *, token_was_sent: bool = False) -> None:
        super().__init__(message)
        self.token_was_sent = token_was_sent


class CredentialExpired(Unauthenticated):
    """The credential has expired since the request began."""

    def __init__(self) -> None:
        super().__init__(token_was_sent=True)


class Forbidden(ClientError):
    """The credential is valid but its scopes do not allow this."""

    reason = "insufficient_scope"

    def __init__(self, scopes: Sequence[str]) -> None:
        super().__init__("this needs the scope " + " or ".join(scopes))
        self.scopes = tuple(scopes)


class NotFound(ClientError):
    """There is no such object, or not for this caller: the two look the same."""

    reason = "not_found"


class SessionNotFound(NotFound):
    """Session not found."""

    reason = "session_not_found"
    hint = "Start again with `initialize`, without a session id."


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

    def __init__(self, limit: str, message: str | None = None, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message or f"the limit `{limit}` is used up")
        self.limit = limit
        self.retry_after_s = retry_after_s


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
