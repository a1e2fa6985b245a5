"""Clients that open no session, over the registry of tests/sessions/rig.py."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from app.auth.sealing import Sealer
from app.domain import Principal
from app.protocol.commands import CANCEL_GRACE_S
from app.sessions.registry import SessionRegistry
from app.sessions.sessionless.requests import SessionlessRequests
from tests.sessions.fakes import FakeStore
from tests.sessions.rig import SPEC
from tests.sessions.sessionless.client import ELICITS, Client, held


@pytest.fixture
def stateless(store: FakeStore) -> None:
    """The backend keeps no state: home may be joined by other processes."""
    store.specs[SPEC.key] = replace(SPEC, recovery="respawn")


@pytest.fixture
async def sessionless(
    registry: SessionRegistry, swept: list[Callable[[float], None]]
) -> AsyncIterator[SessionlessRequests]:
    """Every test ends with nothing held: no pooled session, no suspended call, no call counted."""
    sessionless = SessionlessRequests(registry, Sealer(b"k" * 32))
    swept.append(sessionless.sweep)
    yield sessionless
    end_of_grace = time.monotonic() + CANCEL_GRACE_S + 1
    for session in registry:
        session.sweep(end_of_grace)
    assert [pooled for session in registry for pooled in held(sessionless, session.principal)] == []
    assert len(sessionless.suspended.waiting()) == 0
    assert {session.gate.in_flight for session in registry} <= {0}


@pytest.fixture
def client(sessionless: SessionlessRequests, principal: Principal) -> Client:
    return Client(sessionless, principal)


@pytest.fixture
def asked(sessionless: SessionlessRequests, principal: Principal) -> Client:
    """A client that answers questions."""
    return Client(sessionless, principal, ELICITS)
