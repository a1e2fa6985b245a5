"""Refresh tokens over two nodes, one of which is killed on the way."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.console.browser import Browser
from tests.integration.clocks import Clock
from tests.integration.gateway import ECHO, Endpoint, Gateway, until
from tests.integration.nodes import Nodes, running_nodes
from tests.integration.person import Person, Program
from tests.integration.test_openid_provider import AtTheProvider, provider
from tests.integration.test_sign_in import asked, connections

pytestmark = pytest.mark.timeout(180)
TIMES = 200
LIFE_S = 10  # of an access token: longer than a backend takes to start on a busy machine
SHORT_LIVES = f"import app.auth.authorization.access_tokens as _tokens; _tokens.LIFE_S = {LIFE_S}"
AFTER_THE_GRACE_S = 31.0


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """By which the nodes know how old a turn of a connection is."""
    clock = Clock(tmp_path / "seconds", ["app.auth.authorization.server"])
    monkeypatch.setattr(Gateway, "FIRST", f"{SHORT_LIVES}\n{clock.first}")
    return clock


@pytest.fixture
def nodes(tmp_path: Path, clock: Clock, postgres_database: str) -> Iterator[Nodes]:
    with running_nodes(tmp_path, postgres_database, 2) as nodes:
        anyio.run(nodes.all_know_each_other)
        yield nodes


class Refreshing:
    """A program at one node after the other. `seen` are its refresh tokens, each with the turn that it came from."""

    def __init__(self, endpoint: Endpoint, program: Program, first: dict[str, Any]) -> None:
        self.endpoint, self.program, self.tokens = endpoint, program, first
        self.seen: list[str] = [first["refresh_token"]]

    def ask(self, node: Gateway, refresh_token: str) -> httpx2.Response:
        form = {"grant_type": "refresh_token", "refresh_token": refresh_token, "client_id": self.program.client_id}
        return self.program.http.post(f"{node.url}/oauth/{self.endpoint.tenant}/token", data=form)

    def refresh(self, node: Gateway, again_at: Gateway | None = None) -> None:
        """The next turn; where the answer is lost, with the same token at another node."""
        used = self.seen[-1]
        answers = [self.ask(each, used) for each in (node, again_at) if each is not None]
        assert {each.status_code for each in answers} == {200}, [each.text for each in answers]
        assert len({each.json()["refresh_token"] for each in answers}) == 1
        self.tokens = answers[-1].json()
        self.seen.append(self.tokens["refresh_token"])

    def refresh_while_it_dies(self, node: Gateway, other: Gateway) -> None:
        """The node may have taken the turn or not: nobody hears of it."""
        used = self.seen[-1]
        lost = threading.Thread(target=lambda: self._lost(node, used))
        lost.start()
        node.kill()
        lost.join()
        self.refresh(other)

    def _lost(self, node: Gateway, used: str) -> None:
        with suppress(httpx2.TransportError):
            self.ask(node, used)

    def status_at(self, node: Gateway) -> int:
        """What a node answers to a request with the access token."""
        base = self.endpoint.base.replace(self.endpoint.gateway.url, node.url)
        there = Endpoint(node, self.endpoint.tenant, self.endpoint.name, base, "")
        return asked(there, self.tokens["access_token"]).status_code


async def test_each_refresh_of_many_succeeds_at_any_node(nodes: Nodes, clock: Clock) -> None:
    first, second = nodes.all
    endpoint = first.endpoint(ECHO)
    first.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {}})
    with httpx2.Client(timeout=30) as http, Browser(first) as browser:
        program = Program(http, f"{first.url}/oauth/{endpoint.tenant}", endpoint.mcp)
        run = Refreshing(endpoint, program, program.connected(Person(browser, endpoint.key)))
        for turn in range(TIMES // 2):
            here, there = (first, second) if turn % 2 else (second, first)
            run.refresh(here, again_at=there if turn % 5 == 0 else None)
            if turn % 20 == 0:
                assert [run.status_at(here), run.status_at(there)] == [200, 200], turn
        old = run.tokens["access_token"]
        run.refresh_while_it_dies(second, first)
        second = nodes.replace(second)
        for turn in range(TIMES // 2):
            here, there = (first, second) if turn % 2 else (second, first)
            run.refresh(here, again_at=there if turn % 5 == 0 else None)
        assert len(set(run.seen)) == len(run.seen) == TIMES + 2
        await until(lambda: asked(endpoint, old).status_code == 401)  # it has lived for seconds
        run.refresh(first)
        assert run.status_at(second) == 200
        assert len(connections(endpoint)) == 1
        clock.is_ahead(AFTER_THE_GRACE_S)
        reused = run.ask(second, run.seen[-2])
        assert (reused.status_code, reused.json()["error"]) == (400, "invalid_grant")
        assert run.ask(first, run.seen[-1]).json()["error"] == "invalid_grant"
        assert connections(endpoint) == []
        await until(lambda: run.status_at(first) == 401)


def test_a_day_of_refreshes_at_the_pace_of_a_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_database: str
) -> None:
    """Every ten minutes of the gateway's clock, so that the provider is asked each time; a node dies in every sixth
    hour, in the middle of a refresh."""
    parts = (f"app.auth.authorization.{each}" for each in ("access_tokens", "people", "server"))
    clock = Clock(tmp_path / "seconds", list(parts))
    monkeypatch.setattr(Gateway, "FIRST", clock.first)
    with running_nodes(tmp_path, postgres_database, 2, OUTBOUND_ALLOW="127.0.0.0/8") as nodes:
        first, second = nodes.all
        endpoint = first.endpoint(ECHO)
        first.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {}})
        with httpx2.Client(timeout=30) as http, Browser(first) as browser, provider(first) as idp:
            made = first.api("POST", f"/tenants/{endpoint.tenant}/issuers", idp.issuer())
            program = Program(http, f"{first.url}/oauth/{endpoint.tenant}", endpoint.mcp)
            run = Refreshing(endpoint, program, program.connected(AtTheProvider(browser, endpoint, made["id"])))
            for turn in range(1, 24 * 6 + 1):
                clock.is_ahead(turn * (10 * 60 + 1))
                here, there = (first, second) if turn % 2 else (second, first)
                if turn % 36 == 0:
                    run.refresh_while_it_dies(second, first)
                    second = nodes.replace(second)
                else:
                    run.refresh(here, again_at=there if turn % 5 == 0 else None)
                if turn % 12 == 0:
                    assert [run.status_at(each) for each in (first, second)] == [200, 200], turn
            refreshed = [status for kind, status in idp.asked() if kind == "refresh_token"]
            assert set(refreshed) == {200}
            assert 24 * 6 <= len(refreshed) <= 24 * 6 + 8
            assert len(connections(endpoint)) == 1
            idp.has(bob=["people"])
            clock.is_ahead(25 * 3600)
            refused = run.ask(first, run.seen[-1])
            assert (refused.status_code, refused.json()["error"]) == (400, "invalid_grant")
            assert connections(endpoint) == []


async def test_of_two_that_use_one_refresh_token_at_once_both_get_the_same(nodes: Nodes) -> None:
    first, second = nodes.all
    endpoint = first.endpoint(ECHO)
    first.api("PATCH", f"/tenants/{endpoint.tenant}", {"sign_in": {}})
    with httpx2.Client(timeout=30) as http, Browser(first) as browser:
        program = Program(http, f"{first.url}/oauth/{endpoint.tenant}", endpoint.mcp)
        run = Refreshing(endpoint, program, program.connected(Person(browser, endpoint.key)))
        for _ in range(20):
            answers: list[httpx2.Response] = []

            async def ask(node: Gateway, into: list[httpx2.Response] = answers) -> None:
                into.append(await anyio.to_thread.run_sync(run.ask, node, run.seen[-1]))

            async with anyio.create_task_group() as tasks:
                for each in (first, second, first, second):
                    tasks.start_soon(ask, each)
            assert [each.status_code for each in answers] == [200] * 4, [each.text for each in answers]
            (fresh,) = {each.json()["refresh_token"] for each in answers}
            run.seen.append(fresh)
        assert len(set(run.seen)) == 21
