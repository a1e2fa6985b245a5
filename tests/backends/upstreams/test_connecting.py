"""Connections: which addresses are dialled, TLS for the name, limits."""

import asyncio
import select
import socket
import ssl
from ipaddress import ip_network

import pytest

from app.auth.outbound_urls import Policy, parse_url
from app.backends.checks.steps import Steps
from app.backends.upstreams import connecting
from app.backends.upstreams.connecting import CannotConnect, Connector, Place
from app.jail.egress.dialling import Dialler
from app.jail.egress.names import Names
from app.telemetry.metrics import Metrics
from tests.backends.upstreams.rig import (
    LOOPBACK,
    WAIT_S,
    Heard,
    good,
    line,
    make_upstreams,
    opened,
    polite,
    serving,
    spec_at,
)
from tests.certificates import self_signed


def names(**found):
    def lookup(name):
        addresses = found.get(name.split(".")[0])
        if addresses is None:
            raise socket.gaierror(-2, "Name or service not known")
        return addresses.pop(0) if isinstance(addresses[0], list) else addresses

    return lookup


async def refused(url, **options) -> CannotConnect:
    async with make_upstreams(Metrics("test"), **options) as upstreams:
        connector = upstreams._parts.connector
        with pytest.raises(CannotConnect) as caught:
            await connector.connect(Place(parse_url(url), "acme", "far"))
        assert connector.open == 0
    return caught.value


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://127.0.0.1/mcp", "http is"),
        ("https://127.0.0.1/mcp", "not public"),
        ("https://[::1]/mcp", "not public"),
        ("https://169.254.169.254/latest", "not public"),
        ("https://[::ffff:10.0.0.1]/", "not public"),
        ("https://[64:ff9b::a00:1]/", "not public"),
        ("https://private.example/mcp", "not public"),
        ("https://mixed.example/mcp", "not public"),
        ("https://public.example:6379/", "ports other than"),
        ("http://public.example/", "http is"),
        ("https://unknown.example/", "cannot be resolved"),
    ],
)
async def test_nothing_but_public_addresses_by_https(url, words):
    lookup = names(private=["10.1.2.3"], mixed=["8.8.8.8", "192.168.0.1"], public=["8.8.8.8"])
    error = await refused(url, allow=(), lookup=lookup)
    assert words in str(error)
    if "public" in words or "http is" in words:
        assert "TRUNKLINE_UPSTREAM_ALLOW" in str(error)


async def test_a_listed_network_is_reached_and_no_other():
    error = await refused("http://10.0.0.1/", allow=(LOOPBACK,))
    assert "http is" in str(error)


async def test_a_name_that_changes_after_the_look_gains_nothing():
    """Every connection looks and checks anew, and dials what it has checked: the second one of this session fails."""
    lookup = names(turning=[["127.0.0.1"], ["10.0.0.1"]])

    async def whole(asked):
        await polite(good)(asked)
        asked.writer.close()

    async with serving(whole) as server, make_upstreams(Metrics("test"), lookup=lookup) as upstreams:
        link, heard = await upstreams.lease(spec_at(server.url.replace("127.0.0.1", "turning.example"))), Heard()
        link.attach(heard)
        link.send(line(1, "initialize"))
        await heard.answer(1)
        link.send(line(2, "tools/list"))
        error = await heard.failure(2)
        assert "http is allowed only in a network that is listed" in str(error)
        link.release("done")
    assert len(server.asked) == 1


async def test_tls_is_verified_for_the_name(tmp_path):
    certificate, key = self_signed(tmp_path, "far.example")
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate, key)
    client_side = ssl.create_default_context(cafile=str(certificate))
    lookup = names(far=["127.0.0.1"], other=["127.0.0.1"])
    async with (
        serving(polite(good), server_side) as server,
        make_upstreams(Metrics("test"), lookup=lookup, tls=client_side) as upstreams,
    ):
        link, _ = await opened(upstreams, spec_at(server.url.replace("127.0.0.1", "far.example")))
        assert server.asked[0].headers["host"].startswith("far.example:")
        link.release("done")
        steps, url = Steps(), server.url.replace("127.0.0.1", "other.example")
        with pytest.raises(CannotConnect, match=r"certificate of other\.example is not accepted"):
            await upstreams._parts.connector.connect(Place(parse_url(url), "acme", "far"), steps)
        assert [each.name for each in steps.taken] == ["resolve", "connect", "tls"]  # the last one has failed


async def test_a_server_that_is_silent_in_the_handshake_is_given_up(monkeypatch):
    monkeypatch.setattr(connecting, "TLS_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        error = await refused(f"https://127.0.0.1:{silent.getsockname()[1]}/", allow=(LOOPBACK,))
    assert "did not answer the TLS handshake" in str(error)


async def test_connections_of_a_tenant_and_of_the_node_are_limited(monkeypatch):
    monkeypatch.setattr(connecting, "MAX_OF_TENANT", 2)
    monkeypatch.setattr(connecting, "MAX_OF_NODE", 3)
    async with serving(polite(good)) as server, make_upstreams(Metrics("test")) as upstreams:
        connector = upstreams._parts.connector
        acme, zenith = (Place(parse_url(server.url), tenant, "far") for tenant in ("acme", "zenith"))
        made = [await connector.connect(acme), await connector.connect(acme)]
        with pytest.raises(CannotConnect, match="for this tenant") as caught:
            await connector.connect(acme)
        assert caught.value.is_full
        made.append(await connector.connect(zenith))
        with pytest.raises(CannotConnect, match="on this node"):
            await connector.connect(zenith)
        for each in made:
            await each.aclose()
            await each.aclose()
        assert connector.open == 0
        await (await connector.connect(acme)).aclose()


async def test_the_gateway_itself_is_no_upstream():
    """Whatever its address: it would be its own server, and that one's, and so on."""
    policy = Policy((), "TRUNKLINE_UPSTREAM_ALLOW")
    dialler = Dialler(Names(names(gw=["8.8.8.8"], alias=["8.8.8.8"])), (), ("gw.example",))
    await dialler.look_up_own_hosts()
    for host in ("gw.example", "alias.example"):
        with pytest.raises(CannotConnect, match="of the gateway itself"):
            await Connector(dialler, policy).connect(Place(parse_url(f"https://{host}/t/a/b/mcp"), "acme", "far"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.7.7.7", "gw.example", "0.0.0.0", "[::ffff:127.0.0.1]"])
async def test_no_network_that_is_allowed_leads_to_the_gateway_itself(host):
    """A real listener, which another port of the same address reaches."""
    heard = list[str]()

    async def greet(reader, writer):
        heard.append("connection")
        writer.close()

    async with (
        await asyncio.start_server(greet, "0.0.0.0", 0) as own,
        await asyncio.start_server(greet, "127.0.0.1", 0) as other,
    ):
        port, allowed = own.sockets[0].getsockname()[1], other.sockets[0].getsockname()[1]
        policy = Policy(map(ip_network, ("127.0.0.0/8", "0.0.0.0/8", "::ffff:0:0/96")), "TRUNKLINE_UPSTREAM_ALLOW")
        dialler = Dialler(Names(names(gw=["127.0.0.1"])), policy.allow, (), (port,))
        await dialler.look_up_own_hosts()
        connector = Connector(dialler, policy)
        with pytest.raises(CannotConnect, match="of the gateway itself"):
            await connector.connect(Place(parse_url(f"http://{host}:{port}/t/a/b/mcp"), "acme", "far"))
        assert heard == []
        await (await connector.connect(Place(parse_url(f"http://127.0.0.1:{allowed}/"), "acme", "far"))).aclose()


async def test_a_connection_that_is_given_up_half_way_is_closed():
    greeted, gone = asyncio.Event(), asyncio.Event()

    async def never(reader, writer):
        await reader.readexactly(1)
        greeted.set()
        await reader.read()
        writer.close()
        gone.set()

    listener = await asyncio.start_server(never, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    async with make_upstreams(Metrics("test"), allow=(ip_network("127.0.0.0/8"),)) as upstreams:
        connector = upstreams._parts.connector
        task = asyncio.create_task(connector.connect(Place(parse_url(url), "acme", "far")))
        async with asyncio.timeout(WAIT_S):
            await greeted.wait()
        assert connector.open == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert connector.open == 0
        async with asyncio.timeout(WAIT_S):
            await gone.wait()
    listener.close()


async def test_an_answer_that_came_before_a_reset_is_read():
    """A server that refuses by the head closes while the body is being sent: its kernel then resets the connection."""

    def refuse(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)
            connection.sendall(b"HTTP/1.1 413 X\r\nContent-Length: 2\r\n\r\nno")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, 4096
        )  # the body does not fit into the kernel's buffers
        server = asyncio.create_task(asyncio.to_thread(refuse, listener))
        async with make_upstreams() as upstreams:
            link, heard = await upstreams.lease(spec_at(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp")), Heard()
            link.attach(heard)
            link.send(line(2, "tools/call", text="x" * (12 << 20)))
            error = await heard.failure(2)
            assert (error.reason, error.outcome) == ("upstream_failed", None)
            link.release("done")
        await server


async def test_an_idle_connection_that_its_server_has_just_closed_is_not_used():
    """Before this node's loop has noticed it: it may be late."""
    async with make_upstreams() as upstreams:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            place = Place(parse_url(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"), "acme", "far")
            connection = await upstreams._parts.connector.connect(place)
            assert not connection.get_extra_info("is_readable")
            listener.accept()[0].close()
            closed = select.poll()
            closed.register(connection._writer.get_extra_info("socket").fileno(), select.POLLRDHUP)
            assert closed.poll(WAIT_S * 1000)
            assert connection.get_extra_info("is_readable")
            await connection.aclose()
