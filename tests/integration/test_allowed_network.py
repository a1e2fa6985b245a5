"""A backend reaches what `sandbox.network.allow` names, by the same name and port, with any client library: a query to
a real PostgreSQL, in the highest tier of this machine and where there are no namespaces."""

import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.jail.egress.egress import Egress, EgressOptions
from app.jail.sandbox.tiers import Tier
from app.telemetry.metrics import Metrics
from tests.integration.gateway import ROOT, Gateway, running_gateway
from tests.integration.wire import wire
from tests.jail.egress.conftest import Lookup
from tests.jail.egress.inside import backend, run, spawner_client
from tests.jail.sandbox.inside import IS_ROOT, needs_bubblewrap

SERVER = str(ROOT / "tests/servers/database.py")
NO_BUBBLEWRAP = """
from app.jail.sandbox import machine
def find_none(path=None): raise FileNotFoundError("there is no bwrap")
machine.find_bubblewrap = find_none
"""


class WithoutNamespaces(Gateway):
    FIRST = NO_BUBBLEWRAP


@pytest.fixture(scope="module")
def without_namespaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("kernel") / "data", WithoutNamespaces) as gateway:
        yield gateway


def of_loopback(url: str, host: str) -> tuple[str, int]:
    """The same database at another name of this machine, and its port."""
    parts = urlsplit(url)
    assert parts.port
    return f"{parts.scheme}://{parts.username}@{host}:{parts.port}{parts.path}", parts.port


async def answer(gateway: Gateway, url: str, network: Any, **fields: Any) -> Any:
    endpoint = gateway.endpoint([sys.executable, SERVER, url], sandbox={"network": network}, **fields)
    async with wire(endpoint) as session:
        return await session.call("query", statement="select 6 * 7")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("start", ["exec", "fork"])
async def test_a_database_on_loopback_is_reached_by_its_address_and_by_localhost(
    gateway: Gateway, postgres_url: str, host: str, start: str
) -> None:
    url, port = of_loopback(postgres_url, host)
    assert await answer(gateway, url, {"allow": [f"127.0.0.1:{port}"]}, start=start) == "[42]"


async def test_the_port_beside_it_and_another_one_are_not_reached(gateway: Gateway, postgres_url: str) -> None:
    url, port = of_loopback(postgres_url, "127.0.0.1")
    for network in ("none", {"allow": [f"127.0.0.1:{port + 1}"]}, {"allow": [f"127.0.0.2:{port}"]}):
        assert "failed" in await answer(gateway, url, network)


async def test_without_namespaces_it_is_reached_too_and_the_report_says_what_is_not_kept(
    without_namespaces: Gateway, postgres_url: str
) -> None:
    gateway = without_namespaces
    url, port = of_loopback(postgres_url, "127.0.0.1")
    assert await answer(gateway, url, {"allow": [f"127.0.0.1:{port}"]}) == "[42]"
    assert "failed" in await answer(gateway, url, {"allow": [f"127.0.0.1:{port + 1}"]})
    [node] = gateway.api("GET", "/nodes")["items"]
    profile = node["sandbox"]["networks"]["allow"]
    assert "every address can be reached" in profile["missing"]["network"]
    assert any("by ports" in each for each in profile["weaker"])


QUERY = "import json, psycopg; print(json.dumps(psycopg.connect({!r}).execute('select 6 * 7').fetchone()))"


@needs_bubblewrap
@pytest.mark.parametrize("tier", [Tier.NAMESPACES, Tier.ASSISTED])
async def test_a_database_at_a_private_name_is_reached_by_it(postgres_url: str, tier: Tier) -> None:
    if tier is Tier.ASSISTED and not IS_ROOT:
        pytest.skip("needs root")
    url, port = of_loopback(postgres_url, "db.internal")
    options = EgressOptions(lookup=Lookup(db_internal=[["127.0.0.1"]]))
    async with spawner_client() as client, Egress(Metrics("0"), options) as egress:
        spec = backend(QUERY.format(url), [f"db.internal:{port}@127.0.0.0/8"])
        found, _ = await run(client, egress, tier, spec)
    assert found == [42]
