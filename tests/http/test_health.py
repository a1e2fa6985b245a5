"""/livez, /readyz and /metrics."""

import pytest

FAR = ("203.0.113.7", 4321)


async def test_livez_asks_nobody(rig):
    rig.ready.parts = {"database": "gone"}
    answer = await rig.ask("GET", "/livez", key="")
    assert (answer.status_code, answer.json()) == (200, {"status": "alive"})
    assert answer.headers["Cache-Control"] == "no-store"


async def test_readyz_names_every_part_and_what_is_wrong(rig):
    answer = await rig.ask("GET", "/readyz", key="")
    ready = {"status": "ready", "parts": {"database": "ok"}, "degraded": {}}
    assert (answer.status_code, answer.json()) == (200, ready)
    rig.ready.parts = {"database": "ok", "sessions": "shutting down"}
    answer = await rig.ask("GET", "/readyz", key="")
    assert answer.status_code == 503
    assert answer.json() == {"status": "not ready", "parts": {"database": "ok", "sessions": "shutting down"}}


async def test_readyz_stays_200_and_says_what_the_node_does_without(rig):
    rig.ready.away = {"redis": "it does not answer"}
    answer = await rig.ask("GET", "/readyz", key="")
    assert (answer.status_code, answer.json()["degraded"]) == (200, {"redis": "it does not answer"})


@pytest.mark.parametrize("address", ["127.0.0.1", "127.9.9.9", "::1"])
async def test_metrics_are_open_on_this_machine(untouched, address):
    answer = await untouched.ask("GET", "/metrics", key="", client=(address, 1))
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert 'trunkline_build_info{version="test"} 1.0' in answer.text


async def test_metrics_need_a_scope_from_elsewhere(untouched):
    assert (await untouched.ask("GET", "/metrics", key="", client=FAR)).status_code == 401
    small = await untouched.key("acme", "tenant:admin")
    assert (await untouched.ask("GET", "/metrics", key=small, client=FAR)).status_code == 403
    scraper = await untouched.key("acme", "metrics:read")
    for key in (scraper, untouched.root):
        assert (await untouched.ask("GET", "/metrics", key=key, client=FAR)).status_code == 200


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "Via"])
async def test_a_proxy_on_this_machine_does_not_open_them_to_the_world(untouched, header):
    assert (await untouched.ask("GET", "/metrics", key="", headers={header: "127.0.0.1"})).status_code == 401


async def test_a_client_without_an_address_is_not_local(untouched):
    assert (await untouched.ask("GET", "/metrics", key="", client=("", 0))).status_code == 401
