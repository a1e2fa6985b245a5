"""Who a client is: redirect addresses good and bad, metadata documents, secrets, hosts (RFC 8252, RFC 9700, CIMD)."""

import json
from dataclasses import replace
from typing import Any

import anyio
import pytest

from app.auth.authorization.clients import (
    KEEP_FAILED_S,
    KEEP_S,
    MAX_DOCUMENT_BYTES,
    MAX_UNDER_WAY,
    ClientDocuments,
    ClientRefused,
    Clients,
    ClientSecrets,
    read_metadata,
)
from app.auth.outbound_urls import FetchFailed
from app.domain import SignIn
from app.domain.resources.clients import OAuthClient, parsed_redirect, redirects_to
from app.domain.resources.fields import Unfit
from tests.auth.authorization.rig import HERE, WEB, Rig
from tests.auth.tokens import NOW

URL = "https://app.example/client.json"

GOOD = [
    "https://claude.ai/api/mcp/auth_callback", "https://app.example/cb?from=here&x=%2F", "https://app.example:8443/cb",
    "https://app.example", "https://app.example/", "https://xn--bcher-kva.example/cb", "https://a-b.c.example/a/b;c=d",
    "http://127.0.0.1/cb", "http://127.0.0.1:3000/cb", "http://localhost:65535/", "http://[::1]:8080/cb",
    "http://localhost", "https://localhost:1/cb", "cursor://anysphere.cursor-mcp/oauth/callback",
    "com.example.app:/cb", "vscode://a.b/cb", "HTTP://LOCALHOST:1/cb", "https://app.example/a..b/...",
    "https://[2001:db8::1]/cb", "https://app.example/%2fcb",
]  # fmt: skip

BAD = [
    "", "app.example/cb", "/cb", "//app.example/cb", "https:", "https://", "https:///cb", "https:/app.example/cb",
    "https:app.example", "http://app.example/cb", "http://127.0.0.1.evil.example/", "http://127.0.0.2/",
    "http://localhost.evil.example/", "http://0.0.0.0/", "http://127.1/", "http://[::ffff:127.0.0.1]/",
    "https://app.example@evil.example/", "https://a:b@app.example/", "http://localhost:80@evil.example/",
    "https://app.example/cb#", "https://app.example/cb#x", "https://app.example/../cb", "https://app.example/a/..",
    "https://app.example/./cb", "https://app.example/%2e%2E/cb", "https://app.example/.%2e",
    "https://app.example\\@evil",
    "https://evil.example\\.app.example/", "https://app.example/cb\n", " https://app.example/cb",
    "https://app.example/a b",
    "https://app.example/\0", "https://app.example/\tcb", "https://b\u00fccher.example/cb",
    "https://app.example/\u202ecb",
    "https://%61pp.example/cb", "https://*.example/cb", "https://app.example:*/cb", "https://app.example:0/cb",
    "https://app.example:65536/cb", "https://app.example:-1/cb", "https://app.example:x/", "https://[::1/cb",
    "https://app.example;script-src/cb", "https://app.example,evil.example/", "https://app.example'/",
    "https://a..b/cb",
    "https://app.example./cb", "https://.example/cb", "https://app_.example$/cb",
    "http://[::1]evil.example/", "http://evil.example[::1]/", "https://app.example:/cb",
    "javascript:alert(1)", "JAVASCRIPT:/x", "data:text/html,x", "data:/x", "file:///etc/passwd", "blob:/x", "about:/x",
    "vbscript:/x", "view-source:/x", "intent:/x", "ws://app.example/", "ftp://app.example/", "mailto:a@b", "tel:/1",
    "urn:ietf:wg:oauth:2.0:oob", "cursor://a@b/cb", "cursor:cb", "cursor", "1a://x",
    "https://app.example/" + "a" * 1000, "https://app.example/<script>",
    'https://app.example/"', "https://app.example/{x}", "https://app.example/^",
]  # fmt: skip


@pytest.mark.parametrize("uri", GOOD)
def test_a_code_may_be_sent_here(uri):
    parsed_redirect(uri)
    assert redirects_to(uri, [uri])


@pytest.mark.parametrize("uri", BAD)
def test_a_code_is_never_sent_here(uri):
    with pytest.raises(Unfit):
        parsed_redirect(uri)
    assert not redirects_to(uri, GOOD)


@pytest.mark.parametrize(("asked", "registered", "is_same"), [
    (WEB, WEB, True), (WEB + "/", WEB, False), (WEB + "?x=1", WEB, False), (WEB + "?", WEB, False),
    ("https://app.example:443/cb", WEB, False), ("https://APP.example/cb", WEB, False),
    ("https://app.example/CB", WEB, False),
    ("https://x.app.example/cb", WEB, False), ("https://app.example.evil.example/cb", WEB, False),
    ("http://app.example/cb", WEB, False), ("https://app.example/c%62", WEB, False),
    ("https://app.example/", WEB, False),
    ("https://app.example//cb", WEB, False), ("https://app.example/cb/../cb", WEB, False),
    ("http://127.0.0.1:9/cb", HERE, True), ("http://127.0.0.1/cb", HERE, True), ("http://127.0.0.1:0/cb", HERE, False),
    ("http://localhost:1234/cb", HERE, False), ("http://[::1]:1234/cb", HERE, False),
    ("https://127.0.0.1:9/cb", HERE, False),
    ("http://127.0.0.1:9/cb/", HERE, False), ("http://127.0.0.1:9/cb?x", HERE, False),
    ("http://127.0.0.1:9/CB", HERE, False),
    ("http://127.0.0.1:9@evil.example/cb", HERE, False), ("http://127.0.0.1:9/cb#x", HERE, False),
    ("http://[::1]:9/cb", "http://[::1]/cb", True), ("http://localhost:9/cb", "http://localhost:8/cb", True),
    ("https://localhost:9/cb", "https://localhost:8/cb", False), ("app:/cb", "app:/cb", True),
    ("app:/cb2", "app:/cb", False),
    ("app://cb", "app:/cb", False),
])  # fmt: skip
def test_addresses_are_compared_character_for_character_but_for_the_port_of_this_machine(asked, registered, is_same):
    """RFC 9700, 4.1.3; RFC 8252, 7.3."""
    assert redirects_to(asked, [registered]) is is_same


# --- metadata documents


async def refused(rig: Rig, client_id: str = URL, rules: SignIn | None = None) -> str:
    with pytest.raises(ClientRefused) as caught:
        await Clients(rig, rig.client_documents).find("acme", client_id, rules or SignIn())
    return str(caught.value)


async def find(rig: Rig, client_id: str = URL, rules: SignIn | None = None) -> Any:
    return await Clients(rig, rig.client_documents).find("acme", client_id, rules or SignIn())


async def test_a_client_is_known_by_its_document(rig):
    client = await find(rig, rig.document(client_name="Ap\u202ep\n  ", client_uri="https://x", scope="a"))
    assert (client.client_id, client.title, client.host, client.stored) == (URL, "Ap p", "app.example", None)
    assert client.authentication == "none"
    assert client.redirects_to(WEB)


@pytest.mark.parametrize("url", [
    "http://app.example/client.json", "https://app.example", "https://app.example/", "https://app.example/c?x=1",
    "https://app.example/c#x", "https://a@app.example/c", "https://app.example/../c", "https://app.example/%2e%2e/c",
    "https://app.example\\c", "ftp://app.example/c", "app:/c", "https:///c", "javascript:/x",
    "https://app.example/" + "a" * 990,
    "nobody", "CLI", "a b", "\0", "é",
])  # fmt: skip
async def test_what_is_no_name_and_no_url_of_a_document_is_no_client(rig, url):
    await refused(rig, url)
    assert rig.fetched == []


@pytest.mark.parametrize("text", [
    b"", b"x", b"[]", b"1", b"\xff", b"[" * 5000, b"{}", json.dumps({"client_id": URL}).encode(),
    json.dumps({"client_id": URL + "/", "redirect_uris": [WEB]}).encode(),
    json.dumps({"client_id": URL.upper(), "redirect_uris": [WEB]}).encode(),
    json.dumps({"client_id": [URL], "redirect_uris": [WEB]}).encode(),
    json.dumps({"client_id": URL, "redirect_uris": ["http://app.example/cb"]}).encode(),
    json.dumps({"client_id": URL, "redirect_uris": [WEB], "client_secret": "x"}).encode(),
    json.dumps({"client_id": URL, "redirect_uris": [WEB], "token_endpoint_auth_method": "client_secret_post"}).encode(),
    json.dumps({"client_id": URL, "redirect_uris": [WEB], "token_endpoint_auth_method": []}).encode(),
    json.dumps({"client_id": URL, "redirect_uris": [WEB], "client_name": []}).encode(),
    json.dumps({"client_id": URL, "redirect_uris": [WEB], "x": "a" * MAX_DOCUMENT_BYTES}).encode(),
    FetchFailed("it points inside"),
])  # fmt: skip
async def test_a_document_that_cannot_be_used_makes_no_client(rig, text):
    rig.documents[URL] = text
    assert "its metadata document cannot be" in await refused(rig)
    assert "its metadata document cannot be" in await refused(rig)
    assert rig.fetched == [URL]  # a failure is remembered too
    rig.elapsed_s += KEEP_FAILED_S
    rig.document()
    await find(rig)
    assert rig.fetched == [URL] * 2


async def test_a_document_is_fetched_once_for_many_and_again_after_ten_minutes(rig):
    rig.document()
    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(find, rig)
    assert rig.fetched == [URL]
    rig.elapsed_s += KEEP_S - 1
    await find(rig)
    assert rig.fetched == [URL]
    rig.elapsed_s += 1
    rig.document(redirect_uris=["https://app.example/new"])
    assert (await find(rig)).redirect_uris == ("https://app.example/new",)


async def test_a_document_whose_host_is_away_is_good_for_a_day(rig):
    """Else every client of a host that is down for a moment would be told that there is no such client."""
    rig.document()
    await find(rig)
    rig.documents[URL] = FetchFailed("down")
    rig.elapsed_s += KEEP_S
    await find(rig)
    await find(rig)
    assert rig.fetched == [URL] * 2
    rig.elapsed_s += KEEP_FAILED_S
    await find(rig)
    assert rig.fetched == [URL] * 3
    rig.elapsed_s += 86400
    assert "cannot be fetched" in await refused(rig)
    rig.document()
    rig.elapsed_s += KEEP_FAILED_S
    await find(rig)
    rig.documents[URL] = b"{}"  # its host has answered: it is none any more
    rig.elapsed_s += KEEP_S
    assert "cannot be used" in await refused(rig)


async def test_slow_hosts_of_strangers_do_not_hold_up_a_client_that_is_known():
    gate, now = anyio.Event(), 1000.0

    async def get(url: str) -> bytes:
        if "slow" in url:
            await gate.wait()
        return json.dumps({"client_id": url, "redirect_uris": [WEB]}).encode()

    documents = ClientDocuments(get, lambda: now)
    await documents.find(URL)
    now += KEEP_S
    async with anyio.create_task_group() as tasks:
        for number in range(2 * MAX_UNDER_WAY):
            tasks.start_soon(documents.find, f"https://slow.example/{number}")
        await anyio.wait_all_tasks_blocked()
        with anyio.fail_after(5):
            await documents.find(URL)
        gate.set()


async def test_documents_that_are_remembered_are_bounded(rig, monkeypatch):
    monkeypatch.setattr("app.auth.authorization.clients.MAX_KEPT", 3)
    for number in range(10):
        await find(rig, rig.document(f"https://app.example/{number}"))
    await find(rig, "https://app.example/9")
    await find(rig, "https://app.example/7")
    assert len(rig.fetched) == 10
    await find(rig, "https://app.example/6")
    assert len(rig.fetched) == 11


@pytest.mark.parametrize(("rules", "host", "is_in"), [
    ({}, "app.example", True), ({"documents": False}, "app.example", False),
    ({"allow_hosts": ("app.example",)}, "app.example", True),
    ({"allow_hosts": ("app.example",)}, "x.app.example", False),
    ({"allow_hosts": ("*.app.example",)}, "x.app.example", True),
    ({"allow_hosts": ("*.app.example",)}, "app.example", False),
    ({"allow_hosts": ("app.example",)}, "evilapp.example", False),
    ({"allow_hosts": ("*.app.example",)}, "evilapp.example", False),
    ({"block_hosts": ("app.example",)}, "app.example", False),
    ({"block_hosts": ("app.example",)}, "APP.EXAMPLE", False),
    ({"block_hosts": ("app.example",)}, "app.example:8443", False),
    ({"block_hosts": ("app.example",)}, "app.example.", False),
    ({"block_hosts": ("*.app.example",)}, "a.b.app.example", False),
    ({"block_hosts": ("other.example",)}, "app.example", True),
    ({"allow_hosts": ("app.example",), "block_hosts": ("app.example",)}, "app.example", False),
])  # fmt: skip
async def test_a_tenant_says_whose_clients_it_lets_in(rig, rules, host, is_in):
    uris = [f"https://{host}/cb"] if not host.endswith(".") else [HERE]
    url = rig.document(f"https://{host}/client.json", redirect_uris=uris)
    if is_in:
        await find(rig, url, SignIn(**rules))
    else:
        await refused(rig, url, SignIn(**rules))
        assert rig.fetched == []


async def test_nor_does_a_client_of_one_host_send_people_to_another_that_is_not_let_in(rig):
    url = rig.document(redirect_uris=[WEB, "https://evil.example/cb"])
    await find(rig, url)
    for rules in (SignIn(allow_hosts=("app.example",)), SignIn(block_hosts=("evil.example",))):
        assert "evil.example" in await refused(rig, url, rules)
    local = rig.document("https://app.example/local.json", redirect_uris=[HERE, "app:/cb"])
    await find(rig, local, SignIn(allow_hosts=("app.example",)))


async def test_a_client_that_has_registered_itself_is_under_the_rules_and_an_administrators_is_not(rig):
    rig.client("mine")
    rig.client("r-theirs")
    for rules in (SignIn(registration=False), SignIn(block_hosts=("app.example",))):
        await find(rig, "mine", rules)
        await refused(rig, "r-theirs", rules)
    client = await find(rig, "r-theirs")
    assert (client.host, client.title) == ("app.example", "r-theirs")
    with pytest.raises(ClientRefused):
        await Clients(rig, rig.client_documents).find("zenith", "mine", SignIn())


# --- names and secrets


def test_a_secret_is_of_one_client_of_one_tenant_with_one_salt():
    client = OAuthClient(name="a", changed_at=NOW, authentication="secret", salt="1")
    secrets = ClientSecrets(b"k" * 32)
    mine = secrets.of("acme", client)
    others = [secrets.of("zenith", client), secrets.of("acme", replace(client, name="b")),
              secrets.of("acme", replace(client, salt="2")), ClientSecrets(b"o" * 32).of("acme", client)]  # fmt: skip
    assert mine.startswith("tls_")
    assert len({mine, *others}) == 5
    assert secrets.is_right("acme", client, mine)
    for wrong in (*others, "", mine[:-1], mine + "A", mine.upper(), "é", "\ud7ff"):
        assert not secrets.is_right("acme", client, wrong)


def test_what_a_client_calls_itself_is_one_line_that_can_be_read():
    for name, shown in (("  A\tb\r\n c ", "A b c"), ("\u202eevil", "evil"), ("\u2800", ""), ("", ""),
                        ("a" * 300, "a" * 200), ("\ud800x", "x")):  # fmt: skip
        assert read_metadata({"redirect_uris": [WEB, WEB], "client_name": name}).title == shown
    assert read_metadata({"redirect_uris": [WEB, WEB]}).redirect_uris == (WEB,)
