"""The node's own proxy behind the egress proxy: what is asked of it, and what is refused as without it."""

import asyncio
import base64
import json
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from app.auth.outbound_proxy import NodeProxy
from app.domain import BackendSpec, Sandbox
from app.domain.resources.backends import AllowList
from app.jail.egress import names
from app.jail.egress.allowed import Allowed
from app.jail.egress.egress import Egress, EgressOptions
from app.jail.egress.http_proxies import forwarded_request
from app.jail.egress.outgoing import PortRule
from app.jail.sandbox.composer import Composer, Place
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.tiers import Profile, Tier
from app.telemetry.metrics import Metrics
from tests.backends.upstreams.proxies import Proxy, proxying
from tests.jail.egress.conftest import LOOPBACK, WAIT_S, Lookup, Proxied, proxy, server
from tests.jail.egress.inside import carried_out, machine, spawner_client
from tests.jail.sandbox.inside import IS_ROOT, SYSTEM_PYTHON, needs_bubblewrap

pytestmark = pytest.mark.real

NAMES = {"api.example": "127.0.0.1"}


@asynccontextmanager
async def behind(
    company: Proxy, login: str | None = None, direct: Sequence[Any] = (), **options: Any
) -> AsyncIterator[Proxied]:
    """An egress proxy that reaches public addresses only, with this proxy behind it."""
    node = NodeProxy(company.url, login, tuple(direct))
    async with proxy(**{"allow": (), "proxy": node, **options}) as proxied:
        yield proxied


async def echoed(proxied: Proxied, target: str) -> bytes:
    """What comes back through a tunnel."""
    reader, writer, head = await proxied.connect(target)
    assert head.startswith(b"HTTP/1.1 200 "), head
    writer.write(b"hello")
    found = await asyncio.wait_for(reader.readexactly(5), WAIT_S)
    writer.close()
    return found


@pytest.mark.parametrize("known", [{}, {"api_example": [["93.184.216.34"]]}], ids=["unknown here", "public here"])
async def test_a_name_is_the_proxys_to_find(known):
    async with (
        proxying(names=NAMES, credentials="me:s3cret") as company,
        server() as port,
        behind(company, "me:s3cret", lookup=Lookup(**known)) as proxied,
    ):
        assert await echoed(proxied, f"api.example:{port}") == b"hello"
    [(first, headers)] = company.asked
    assert first == f"CONNECT api.example:{port} HTTP/1.1"
    assert headers["host"] == f"api.example:{port}"


async def test_plain_http_is_asked_of_it_by_its_whole_url():
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(5)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + body[::-1])

    async with (
        proxying(names=NAMES, credentials="me:s3cret") as company,
        server(answer) as port,
        behind(company, "me:s3cret") as proxied,
    ):
        sent = (
            f"POST http://api.example:{port}/a?b=c HTTP/1.1\r\nHost: other\r\nProxy-Authorization: Basic eA==\r\n"
            "X-Kept: 1\r\nContent-Length: 5\r\n\r\nhello"
        )
        said = await proxied.says(sent.encode())
    assert said.endswith(b"\r\n\r\nolleh")
    [(first, headers)] = company.asked
    assert first == f"POST http://api.example:{port}/a?b=c HTTP/1.1"
    assert headers["proxy-authorization"] == f"Basic {base64.b64encode(b'me:s3cret').decode()}"
    assert (headers["host"], headers["x-kept"]) == (f"api.example:{port}", "1")


def test_a_forwarded_request_is_the_same_but_for_its_first_lines():
    head = b"PUT /a HTTP/1.0\r\nHost: x.example:81\r\nX: 1\r\n\r\nbody\r\n\r\nof it"
    made = b"PUT http://x.example:81/a HTTP/1.0\r\nHost: x.example:81\r\nX: 1\r\n\r\nbody\r\n\r\nof it"
    assert forwarded_request(head, None) == made


async def test_what_the_server_says_first_is_not_lost():
    async def eager(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nVia: 1.1 proxy\r\n\r\nhello")
        await reader.read()

    async with server(eager) as port, behind(Proxy(port=port)) as proxied:
        reader, writer, head = await proxied.connect("api.example:443")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert await asyncio.wait_for(reader.readexactly(5), WAIT_S) == b"hello"
        writer.close()


@pytest.mark.parametrize(
    ("target", "label"),
    [
        ("10.0.0.1:443", "address"),
        ("127.0.0.1:80", "address"),
        ("[::1]:443", "address"),
        ("169.254.169.254:80", "address"),
        ("168.63.129.16:80", "address"),
        ("[::ffff:10.0.0.1]:443", "address"),
        ("2130706433:443", "malformed"),
        ("wiki.example:443", "address"),  # private
        ("mixed.example:443", "address"),
        ("metadata.example:80", "address"),
        ("intranet:443", "name"),  # nowhere here, and by its name the company's
        ("db.internal:443", "name"),
        ("wiki.corp:443", "name"),
        ("slow.example:443", "name_slow"),
        ("gateway.example:443", "address"),
        ("base.example:5432", "address"),
        ("proxy.example:{proxy}", "address"),
        ("alias.example:{proxy}", "address"),
    ],
)
async def test_what_is_refused_without_it_is_never_asked_of_it(monkeypatch, target, label):
    if label == "name_slow":
        monkeypatch.setattr(names, "DEADLINE_S", 0.1)
    found = Lookup(
        wiki_example=[["10.1.2.3"]], mixed_example=[["93.184.216.34", "10.1.2.3"]],
        metadata_example=[["169.254.169.254"]], proxy_example=[["127.0.0.1"]], alias_example=[["127.0.0.1"]],
    )  # fmt: skip
    waiting = threading.Event()

    def lookup(name: str) -> Sequence[str]:
        if name == "slow.example":
            waiting.wait(60)
        return found(name)

    async with proxying(names=dict.fromkeys(("intranet", "db.internal", "slow.example"), "127.0.0.1")) as company:
        node = NodeProxy(f"http://proxy.example:{company.port}")
        parts = (("base.example", 5432),)
        own: dict[str, Any] = {"own_hosts": ("gateway.example",), "parts": parts, "lookup": lookup}
        allow = (LOOPBACK,) if "{proxy}" in target else ()
        try:
            async with proxy(allow=allow, proxy=node, **own) as proxied:
                head = f"CONNECT {target.format(proxy=company.port)} HTTP/1.1\r\n\r\n".encode()
                said = await proxied.says(head)
                assert not said.startswith(b"HTTP/1.1 200"), said
                assert proxied.refusals(label) == 1
        finally:
            waiting.set()
    assert company.asked == []


async def test_ports_are_refused_as_without_it():
    async with proxying(names=NAMES) as company, behind(company, rule=PortRule()) as proxied:
        await proxied.says(b"CONNECT api.example:22 HTTP/1.1\r\n\r\n")
        assert proxied.refusals("port") == 1
    assert company.asked == []


@pytest.mark.parametrize("direct", ["near.example", "example", LOOPBACK])
async def test_what_is_near_is_reached_without_it(direct):
    lookup = Lookup(near_example=[["127.0.0.1"]])
    async with (
        proxying() as company,
        server() as port,
        behind(company, None, [direct], allow=(LOOPBACK,), lookup=lookup) as proxied,
    ):
        target = "127.0.0.1" if direct is LOOPBACK else "near.example"
        assert await echoed(proxied, f"{target}:{port}") == b"hello"
    assert company.asked == []


async def test_what_allow_names_is_near_unless_it_is_a_public_name_on_a_port_of_the_web():
    refusal = b"HTTP/1.1 403 Forbidden\r\n\r\n"
    async with proxying(answer=refusal) as company, server() as port, behind(company) as proxied:
        line = proxied.egress.open("acme", "files", allowed=Allowed([f"127.0.0.1:{port}", "api.example.com:443"]))
        line.listen(socket.create_server(("127.0.0.1", 0)))
        of_line = Proxied(proxied.egress, proxied.metrics, line)
        assert await echoed(of_line, f"127.0.0.1:{port}") == b"hello"
        assert company.asked == []
        assert b"(HTTP 403 Forbidden)" in await of_line.says(b"CONNECT api.example.com:443 HTTP/1.1\r\n\r\n")
    assert [first for first, _ in company.asked] == ["CONNECT api.example.com:443 HTTP/1.1"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", b"does not connect to api.example:443 (HTTP 403 Forbidden)"),
        (b"HTTP/1.1 502\r\n\r\n", b"(HTTP 502)"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", b"does not answer as an HTTP proxy does"),
        (b"HTTP/1.1 200 OK\r\n", b"does not answer as an HTTP proxy does"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 20_000, b"does not answer as an HTTP proxy does"),
        (b"", b"(HTTP 407 Proxy Authentication Required)"),
    ],
)
async def test_a_proxy_that_does_not_connect_is_told_in_words_without_its_credentials(answer, words):
    async with (
        proxying(names=NAMES, answer=answer, credentials="other:login") as company,
        behind(company, "me:s3cret") as proxied,
    ):
        said = await proxied.says(b"CONNECT api.example:443 HTTP/1.1\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 502 ")
        assert words in said
        assert b"s3cret" not in said
        assert str(company.port).encode() not in said
        assert proxied.refusals("proxy") == 1


async def test_a_proxy_that_is_not_there():
    async with behind(Proxy(port=1)) as proxied:
        said = await proxied.says(b"CONNECT api.example:443 HTTP/1.1\r\n\r\n")
    assert b"the gateway's own proxy cannot be reached" in said
    assert b"127.0.0.1" not in said


# --- the node's certificate authorities

BELIEVED = """
import json, os
names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
files = [os.environ.get(name) for name in names]
print(json.dumps([open(each).read() if each else None for each in files]))
"""
OUTSIDE = [("web", True), (AllowList(("192.0.2.1:443",)), True), ("none", False), ("host", False)]


@needs_bubblewrap
@pytest.mark.parametrize("tier", [Tier.KERNEL, Tier.NAMESPACES, Tier.ASSISTED])
@pytest.mark.parametrize(("network", "has_them"), OUTSIDE, ids=["web", "allow", "none", "host"])
async def test_a_process_reads_the_authorities_of_the_node(tmp_path, tier, network, has_them):
    if tier is Tier.ASSISTED and not IS_ROOT:
        pytest.skip("needs root")
    file, home = tmp_path / "authorities.pem", tmp_path / "home"
    file.write_text("those of the company")
    home.mkdir()
    spec = BackendSpec("acme", "files", SYSTEM_PYTHON, ("-I", "-c", BELIEVED), sandbox=Sandbox(network=network))
    async with spawner_client() as client, Egress(Metrics("0"), EgressOptions()) as egress:
        composer = Composer(machine(), NeedsFinder([str(tmp_path)]), egress, str(file))
        profile = Profile(tier, spec.sandbox.network_kind)
        confined = await composer.compose(spec, Place(str(home), str(home)), profile)
        said, end = await carried_out(client, confined)
        confined.close()
    assert end.number == 0, said
    assert json.loads(said) == ["those of the company" if has_them else None] * 5
