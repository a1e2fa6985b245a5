"""Certificates of a backend's own: which authority is believed, and what the gateway shows of itself."""

import socket
import ssl
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from threading import Thread
from typing import Any

import pytest

from app.backends.upstreams import tls
from app.backends.upstreams.certificates import certificates_of, expiring
from app.backends.upstreams.tls import TlsContexts
from app.domain.resources.backends import Connect
from app.errors import BackendUnavailable, GatewayError
from app.telemetry.metrics import Metrics
from tests.backends.upstreams.rig import Heard, good, line, make_upstreams, opened, polite, serving, spec_at
from tests.certificates import authority, issued

ROOT = authority()
OTHER = authority("another authority")
OURS = issued(ROOT, "gateway.example")
SERVER = issued(ROOT)
SHOWN: Any = {"certificate": OURS.pem, "key": OURS.key}


@asynccontextmanager
async def reached(context, **connect):
    """Upstreams, and a backend with this `connect` at a server with this context."""
    async with serving(polite(good), context) as server, make_upstreams(Metrics("test")) as upstreams:
        yield upstreams, spec_at(server.url, connect=Connect(**connect))


async def works(context, **connect) -> bool:
    async with reached(context, **connect) as (upstreams, spec):
        link, heard = await opened(upstreams, spec)
        link.send(line(2, "tools/list"))
        found = await heard.answer(2)
        link.release("done")
        return "result" in found


async def failure(context, **connect) -> GatewayError:
    async with reached(context, **connect) as (upstreams, spec):
        return await failure_of(upstreams, spec)


async def failure_of(upstreams, spec) -> GatewayError:
    """Of the connection, or of the first message."""
    try:
        link, heard = await upstreams.lease(spec), Heard()
    except BackendUnavailable as error:
        return error
    link.attach(heard)
    link.send(line(1, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={}))
    failed = await heard.failure(1)
    link.release("done")
    return failed


def end(connection):
    """Ends it when the other side has: a reset, because something was not read, would take the reason with it."""
    with suppress(OSError):
        connection.settimeout(10)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 16):
            pass


@contextmanager
def refusing(context):
    """A server that says why it ends a handshake, as all do but those of asyncio; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            with suppress(OSError):
                while True:
                    raw, _ = listener.accept()
                    raw.settimeout(10)
                    with raw, raw.dup() as same:
                        with suppress(ssl.SSLError), context.wrap_socket(raw, server_side=True) as connection:
                            connection.recv(1)
                        end(same)

        thread = Thread(target=serve)
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}/mcp"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_an_authority_that_only_the_backend_names(tmp_path):
    assert await works(SERVER.context(tmp_path), ca=ROOT.pem)
    assert await works(SERVER.context(tmp_path), ca=OTHER.pem + ROOT.pem)
    assert await works(SERVER.context(tmp_path), ca=SERVER.pem)  # the server's own: nobody else is meant
    between = authority("between", ROOT)
    below = issued(between)
    assert await works(below.context(tmp_path), ca=between.pem)  # without its root


async def test_without_it_the_machine_does_not_know_that_authority(tmp_path):
    error = await failure(SERVER.context(tmp_path))
    assert "the certificate of 127.0.0.1 is not accepted" in str(error)
    assert "`connect.ca`" in (error.hint or "")


async def test_only_those_in_it_count(tmp_path, monkeypatch):
    """Not those that the machine trusts as well."""
    file = tmp_path / "machine.pem"
    file.write_text(ROOT.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert await works(SERVER.context(tmp_path))
    error = await failure(SERVER.context(tmp_path), ca=OTHER.pem)
    assert "With `connect.ca` only the authorities in it count" in (error.hint or "")


async def test_a_name_and_a_date_are_verified_as_well(tmp_path):
    late = issued(ROOT, days=-1)
    error = await failure(late.context(tmp_path), ca=ROOT.pem)
    assert ("expired" in str(error), error.hint) == (True, None)
    async with reached(SERVER.context(tmp_path), ca=ROOT.pem) as (upstreams, spec):
        elsewhere = spec_at((spec.url or "").replace("127.0.0.1", "127.0.0.2"), connect=Connect(ca=ROOT.pem))
        with pytest.raises(BackendUnavailable):
            await upstreams.lease(elsewhere)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_certificate_of_the_gateway(tmp_path, version):
    context = SERVER.context(tmp_path, clients=ROOT)
    context.maximum_version = version
    assert await works(context, ca=ROOT.pem, **SHOWN)
    silent = await failure(context, ca=ROOT.pem)
    assert "closed the connection" in str(silent)
    assert "a server that wants a certificate of its clients" in (silent.hint or "").lower()
    with refusing(context) as url:
        error = await refused_at(url, ca=ROOT.pem)
        is_old = version is ssl.TLSVersion.TLSv1_2  # which has no word of its own for it
        words = "SSLV3_ALERT_HANDSHAKE_FAILURE" if is_old else "127.0.0.1 wants a certificate of the client"
        assert words in str(error)
        assert "`connect.certificate`" in (error.hint or "")
        theirs = issued(OTHER)
        error = await refused_at(url, ca=ROOT.pem, certificate=theirs.pem, key=theirs.key)
        assert "does not accept the certificate that the gateway shows: unknown ca" in str(error)
        assert "another `connect.certificate`" in (error.hint or "")


async def refused_at(url, **connect) -> GatewayError:
    async with make_upstreams(Metrics("test")) as upstreams:
        error = await failure_of(upstreams, spec_at(url, connect=Connect(**connect)))
    assert isinstance(error, BackendUnavailable), repr(error)
    return error


async def test_certificates_between_it_and_its_authority_are_shown_too(tmp_path):
    between = authority("between", ROOT)
    ours = issued(between, "gateway.example")
    context = SERVER.context(tmp_path, clients=ROOT)
    assert await works(context, ca=ROOT.pem, certificate=ours.pem + between.pem, key=ours.key)
    assert "closed the connection" in str(await failure(context, ca=ROOT.pem, certificate=ours.pem, key=ours.key))


async def test_contexts_are_shared_and_limited(monkeypatch):
    monkeypatch.setattr(tls, "_KEPT", 2)
    usual = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    contexts = TlsContexts(usual)
    assert await contexts.of(Connect()) is usual
    first = await contexts.of(Connect(ca=ROOT.pem))
    assert await contexts.of(Connect(ca=ROOT.pem)) is first
    assert await contexts.of(Connect(ca=ROOT.pem, **SHOWN)) is not first
    assert await contexts.of(Connect(ca=ROOT.pem)) is first  # used last: the other one goes
    await contexts.of(Connect(ca=OTHER.pem))
    assert len(contexts._own) == 2
    assert await contexts.of(Connect(ca=ROOT.pem)) is first


def test_which_expire_soon():
    soon = issued(ROOT, "soon.example", days=5)
    connect = Connect(ca=ROOT.pem, certificate=soon.pem + ROOT.pem, key=soon.key)
    assert [name for name, _ in certificates_of(connect)] == ["ca", "certificate", "certificate"]
    (note,) = expiring(connect, datetime.now(UTC))
    assert note.startswith("`connect.certificate`: the certificate of CN=soon.example expires at")
    assert expiring(Connect(ca="not in PEM form any more"), datetime.now(UTC)) == []
