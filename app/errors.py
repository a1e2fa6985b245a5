"""What can go wrong, named by what happened and whose fault it was.

Knows neither HTTP nor JSON-RPC: `http/errors.py` is the one table that turns these into answers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, Self

SessionLimit = Literal["sessions", "sessions_per_principal"]
SESSION_RETRY_S = 5.0  # sessions end in minutes rather than milliseconds
UNKNOWN = "unknown"  # the outcome of a call that was sent to a backend and has no answer
Whose = Literal["address", "principal", "session", "tenant", "backend", "node"]
FIXED = "nobody: it is part of the program"


@dataclass(frozen=True, slots=True)
class LimitReached:
    """The limit that refused a request, for the answer and for the log: a tenant sees its own numbers and those of the
    node, never another tenant's.

    Most limits have the name of what changes them: a member of `limits`, a field of a backend, a setting. `of` says
    what the limit applies to; `used` is None where nothing is held (a rate, a size).

    `raised_by` says who can raise it, and how.
    """

    name: str
    of: Whose
    allowed: float
    used: float | None
    raised_by: str

    @classmethod
    def of_tenant(cls, name: str, tenant: str, allowed: float, used: float | None, *, of: Whose = "tenant") -> Self:
        """A member of the tenant's `limits`."""
        return cls(name, of, allowed, used, f"a platform administrator: PATCH /api/v1/tenants/{tenant}, limits.{name}")

    @classmethod
    def of_backend(
        cls, name: str, key: tuple[str, str], allowed: float, used: float | None, *, of: Whose = "backend"
    ) -> Self:
        """A field of a backend; a session keeps what it was opened with."""
        tenant, backend = key
        where = f"PATCH /api/v1/tenants/{tenant}/backends/{backend}, {name}"
        where += " (for new sessions)" if of == "session" else ""
        return cls(name, of, allowed, used, f"a platform administrator: {where}")

    @classmethod
    def of_node(cls, name: str, setting: str, allowed: float, used: float) -> Self:
        """A setting of the gateway, counted on this node."""
        return cls(name, "node", allowed, used, f"the operator of the gateway: the setting {setting}, or another node")

    def hint(self) -> str:
        """For people, in a sentence."""
        if self.raised_by == FIXED:
            return f"Nobody can raise `{self.name}`: it is part of the program."
        return f"Who can raise `{self.name}`: {self.raised_by}."

    def shown(self) -> dict[str, object]:
        """For an answer."""
        shown = {"name": self.name, "of": self.of, "allowed": self.allowed, "used": self.used}
        return {name: value for name, value in shown.items() if value is not None} | {"raised_by": self.raised_by}

    def facts(self) -> dict[str, object]:
        """For the log."""
        facts = {"limit": self.name, "limit_of": self.of, "allowed": self.allowed, "used": self.used}
        return {name: value for name, value in facts.items() if value is not None}


class GatewayError(Exception):
    """The root of every error the gateway raises on purpose. The default message is the docstring of the class.

    `reason` is a stable word for machines (`data.reason`), `hint` what a person can do next. `outcome` is `UNKNOWN`
    where a call may have been carried out. `cause` is a stable word for why a session has ended. `retry_after_s` is set
    only where the same request can be tried again. `reached` is the limit that refused, for the answer and the log.
    `facts` are for the log line only, by name (a rule and what was found instead), and are never secret.
    """

    reason = "internal_error"
    hint: str | None = None
    outcome: str | None = None
    cause: str | None = None
    retry_after_s: float | None = None
    facts: Mapping[str, object] = MappingProxyType({})
    reached: LimitReached | None = None

    def __init_subclass__(cls, *, reason: str | None = None, retry_after_s: float | None = None) -> None:
        cls.reason = reason or cls.reason
        cls.retry_after_s = retry_after_s or cls.retry_after_s

    def __init__(
        self, message: str | None = None, *, hint: str | None = None, facts: Mapping[str, object] | None = None
    ) -> None:
        paragraph = (type(self).__doc__ or "").partition("\n\n")[0]
        super().__init__(message or " ".join(paragraph.split()).rstrip("."))
        if hint is not None:
            self.hint = hint
        if facts is not None:
            self.facts = facts

    def because(self, cause: str) -> Self:
        """The same error, for a session that has ended for this cause."""
        self.cause = cause
        return self

    def advise(self, hint: str) -> None:
        """Says what a person can do, if nothing does yet."""
        self.hint = self.hint or hint

    def at(self, reached: LimitReached | None) -> Self:
        """The same error, naming the limit that refused, in `facts` and in the hint as well."""
        if reached is not None:
            self.reached = reached
            self.facts = {**self.facts, **reached.facts()}
            self.hint = self.hint or reached.hint()
        return self

    def again_after(self, seconds: float) -> Self:
        """The same error, to be tried again after so many seconds."""
        self.retry_after_s = seconds
        return self

    def recorded(self, reason: str, outcome: str | None) -> Self:
        """The same error, as read back from a journal."""
        self.reason, self.outcome = reason, outcome
        return self

    def after_sending(self) -> Self:
        """The same error, for a call that was sent to its backend: its outcome is unknown, unless it is a refusal."""
        if not is_refusal(self):
            self.outcome = UNKNOWN
        return self


def is_refusal(error: GatewayError) -> bool:
    """Whether nothing was sent to a backend, and the same can be tried again."""
    return error.retry_after_s is not None


# --- the caller's fault


class ClientError(GatewayError):
    """The request cannot be served as it is."""


class InvalidMessage(ClientError, reason="invalid_message"):
    """The message is JSON but not a message of this protocol. `request_id`: its JSON, where the id is certain."""

    request_id = b"null"

    def about(self, request_id: bytes) -> Self:
        """The same error, of this request."""
        self.request_id = request_id
        return self


class ParseError(InvalidMessage, reason="parse_error"):
    """The body is not JSON."""


class InvalidRequest(ClientError, reason="invalid_request"):
    """A field of an administrative request is wrong; `field` names it."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Unauthenticated(ClientError, reason="unauthenticated"):
    """No credential, or not a valid one."""

    hint = "Send `Authorization: Bearer <key>`; `trunkline keys create` makes one, and says for which database."

    def __init__(
        self, message: str | None = None, *, token_was_sent: bool = False, facts: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message, facts=facts)
        self.token_was_sent = token_was_sent


class CredentialExpired(Unauthenticated):
    """The credential has expired since the request began."""

    def __init__(self) -> None:
        facts = {"failure": "expired", "rule": "expiry", "actual": "it expired while the request was under way"}
        super().__init__(token_was_sent=True, facts=facts)


class Forbidden(ClientError, reason="insufficient_scope"):
    """The credential is valid but its scopes do not allow this."""

    def __init__(self, scopes: Sequence[str], *, held: Iterable[str] | None = None, why: str = "") -> None:
        super().__init__(f"this needs the scope {' or '.join(scopes)}{why}")
        self.scopes = tuple(scopes)
        if held is not None:
            self.facts = {"failure": self.reason, "rule": "scopes", "expected": list(scopes), "actual": sorted(held)}


class Disabled(ClientError, reason="disabled"):
    """The tenant, backend, principal or key that the request needs is switched off: `what` it is, and its `name`."""

    def __init__(self, what: str, name: str = "", why: str = "", *, outcome: str | None = None) -> None:
        whose = f"the {what} `{name}`" if what in ("tenant", "backend") else f"this {what}"
        super().__init__(
            f"{whose} is switched off" + (f": {why}" if why else ""),
            hint="An administrator can switch it on again; do not retry until then.",
            facts={"switched_off": what, "name": name, "why": why},
        )
        self.what, self.name, self.why, self.outcome = what, name, why, outcome

    def again(self, *, outcome: str | None = None) -> Self:
        """A new error of the same kind for another request; with an `outcome` for a call that was in flight."""
        return type(self)(self.what, self.name, self.why, outcome=outcome)


class NotFound(ClientError, reason="not_found"):
    """There is no such object, or not for this caller: the two are not told apart."""


class SessionNotFound(NotFound, reason="session_not_found"):
    """Session not found."""

    hint = "Start again with `initialize`, without a session id."


class SessionEnded(SessionNotFound, reason="session_ended"):
    """The session has ended."""


class BackendNotFound(NotFound, reason="backend_not_found"):
    """Backend not found."""


class Conflict(ClientError, reason="conflict"):
    """An object with this name exists already, or the change contradicts its state."""


class ConcurrentChange(Conflict):
    """The object was changed by somebody else; read it again."""


class PreconditionFailed(ClientError, reason="precondition_failed"):
    """The object has changed since it was read."""


class QuotaExceeded(ClientError, reason="quota_exceeded"):
    """A limit of the tenant or of the session is used up; `limit` names it."""

    def __init__(
        self, limit: str, message: str | None = None, *, retry_after_s: float = 1.0, reached: LimitReached | None = None
    ) -> None:
        super().__init__(message or f"the limit `{limit}` is used up")
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.at(reached)


def session_quota(limit: SessionLimit, tenant: str, allowed: int, used: int) -> QuotaExceeded:
    """The refusal of a new session where the tenant, or this principal, has as many as it may have."""
    whose: Whose = "tenant" if limit == "sessions" else "principal"
    who = f"the tenant {tenant}" if whose == "tenant" else "this principal"
    return QuotaExceeded(
        limit,
        f"{who} has {used} sessions open; its limit is {allowed}",
        retry_after_s=SESSION_RETRY_S,
        reached=LimitReached.of_tenant(limit, tenant, allowed, used, of=whose),
    )


class RateLimited(QuotaExceeded, reason="rate_limited"):
    """Requests come faster than the tenant's limit."""


class StateRefused(ClientError):
    """A requestState that resumes no call: state_invalid, state_spent or state_lost."""

    _MEANINGS = {  # noqa: RUF012 - a constant
        "state_invalid": "this requestState was not made for this request",
        "state_spent": "this requestState has been used already",
        "state_lost": "the call behind this requestState is gone",
    }
    _HINTS = {  # noqa: RUF012 - a constant
        "state_invalid": "Send it as it came, with the same method, parameters and credential; without it another call "
        "begins.",
        "state_spent": "The call went on with the request that used it. Without it another call begins: check first "
        "whether this one had an effect.",
        "state_lost": "Check first whether the call had an effect, then send the request again without it.",
    }

    def __init__(self, reason: str) -> None:
        super().__init__(self._MEANINGS.get(reason, reason), hint=self._HINTS.get(reason))
        self.reason = reason


class RequestCancelled(ClientError, reason="cancelled"):
    """The request was cancelled by its sender."""


# --- the backend's fault


class BackendError(GatewayError, reason="backend_error"):
    """The stdio server failed. `stderr` are its last lines: for administrators only."""

    def __init__(
        self,
        message: str | None = None,
        *,
        hint: str | None = None,
        stderr: Sequence[str] = (),
        facts: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(message, hint=hint, facts=facts)
        self.stderr = stderr


class BackendExited(BackendError, reason="backend_exited"):
    """The backend's process ended, or could not be started (`started` tells which).

    `limit`: at which it was killed or refused, or which it had reached: its own (`memory`, `disk`, `pids`, `files`), or
    `tenant_memory`.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        started: bool = True,
        stderr: Sequence[str] = (),
        hint: str | None = None,
        limit: str = "",
    ) -> None:
        super().__init__(message, hint=hint, stderr=stderr, facts={"limit": limit} if limit else None)
        self.started = started
        self.limit = limit

    def before_the_call(self) -> "BackendExited":
        """The same error, for a caller whose call had not been sent."""
        return BackendExited(str(self), started=False, stderr=self.stderr, hint=self.hint, limit=self.limit)


class BackendUnavailable(BackendError, reason="backend_unavailable", retry_after_s=1.0):
    """The backend keeps dying right after its start; it is not started again until Retry-After has passed."""


class BackendBusy(BackendError, reason="backend_busy", retry_after_s=1.0):
    """The backend does not read its input, or no process became free in time."""


class ResponseTooLarge(BackendError, reason="response_too_large"):
    """The backend wrote a line over the limit, MAX_LINE_BYTES."""


class InvalidResponse(BackendError, reason="invalid_response"):
    """The backend's answer is not a JSON-RPC response."""


class UpstreamRefused(BackendError, reason="upstream_refused"):
    """The server does not accept the gateway's credentials."""


class UpstreamFailed(BackendError, reason="upstream_failed"):
    """The server answered with an HTTP status that is no answer."""


class CallCutOff(BackendError, reason="call_cut_off"):
    """The call was cut off while it was under way; whether it was carried out is not known."""

    hint = "The gateway does not send it again: check first whether it had an effect."
    outcome = UNKNOWN


class NodeLost(CallCutOff, reason="node_lost"):
    """The node that served this call is gone; whether the call was carried out is not known."""


class BackendTimeout(BackendError, reason="timeout"):
    """The backend did not answer in time."""


# --- ours


class ShuttingDown(GatewayError, reason="shutting_down", retry_after_s=2.0):
    """This node is shutting down."""


class Overloaded(GatewayError, reason="overloaded", retry_after_s=2.0):
    """This node is overloaded; the request was not begun."""

    hint = "Send it again after the time in Retry-After."


class RoutesUnavailable(GatewayError, reason="routes_unavailable", retry_after_s=2.0):
    """Cannot find out now which node has this session."""

    hint = "Send the request again in a moment; the session is not lost."


class CannotOpen(RoutesUnavailable):
    """Cannot open a session now: the other nodes cannot be told of it."""

    hint = "Nothing was begun. Send the request again in a moment."


class OwnershipUnknown(RoutesUnavailable):
    """This node's lease ended during a standstill; it cannot find out which sessions others have taken over since."""


class RoutesSettling(RoutesUnavailable):
    """The route store was emptied moments ago; a session that it does not know may still be there."""


class NodeUnavailable(GatewayError, reason="node_unavailable", retry_after_s=1.0):
    """The node that has this session does not answer."""

    hint = "Send the request again in a moment; the session is not lost."


AGAIN = "Send the request again in a moment."


def nodes_unavailable(silent: Iterable[str]) -> NodeUnavailable:
    """For an administrator, where what was asked for was not found and one of these nodes may have it."""
    return NodeUnavailable(f"no answer from {', '.join(silent)}, which may have it", hint=AGAIN)


class StorageUnavailable(GatewayError, reason="storage_unavailable", retry_after_s=2.0):
    """The database does not answer."""


class StorageReadOnly(StorageUnavailable, reason="storage_read_only"):
    """The database is read-only: it may be a standby."""

    hint = "Nothing was changed. TRUNKLINE_DATABASE_URL must name the primary."


class ProviderUnavailable(GatewayError, reason="provider_unavailable", retry_after_s=30.0):
    """The identity provider of this person has not answered for too long."""

    hint = "Send the request again later; the connection is not lost."


class SchemaMismatch(GatewayError, reason="schema_mismatch"):
    """The database has another schema than this version needs."""

    hint = "Run `trunkline migrate`."


class SettingsError(GatewayError, reason="settings"):
    """A setting has a wrong value."""
