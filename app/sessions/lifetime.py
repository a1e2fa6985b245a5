"""For how long sessions may live, and since when they have been idle."""

from app.auth.api_keys import ISSUER as KEY
from app.protocol.lifecycle import SessionState
from app.sessions.calls import is_past
from app.sessions.session import Session


def why_over(session: Session, now: float) -> str | None:
    """Why the session should end now, if it should: "idle", "too_old", or "credential_expired" where that is a key,
    for nobody can come back with another."""
    timeouts, exchange = session.spec.timeouts, session.exchange
    if now - session.opened_at > timeouts.absolute_s:
        return "too_old"
    if session.principal.issuer == KEY and not exchange.in_flight and is_past(session.principal.expires_at):
        return "credential_expired"
    if exchange.in_flight or session.streams.listen.attached or session.state is SessionState.CONNECTING:
        return None
    return "idle" if now - session.last_seen > timeouts.idle_s else None


def idle_since(session: Session, now: float) -> float | None:
    """Since when its client has been silent; None while anything goes on: a call, a question, a task, somebody who
    reads its stream. Whoever ends it for that asks and ends it without waiting in between."""
    exchange = session.exchange
    if exchange.in_flight or exchange.has_questions or session.streams.listen.attached:
        return None
    if session.state in (SessionState.CONNECTING, SessionState.CLOSED) or exchange.running_tasks.is_any(now):
        return None
    return session.last_seen
