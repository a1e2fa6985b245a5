"""The proxy with real sockets: what gets through, what is refused, and what is left when it is over."""

import asyncio
import contextlib
import socket
import threading
import time
from ipaddress import ip_address
from types import SimpleNamespace

import pytest

from app.jail.egress import _connection as connections
from app.jail.egress import _incoming as incoming
from app.jail.egress import dialling, names
from app.jail.egress import egress as egress_module
from app.jail.egress.outgoing import PortRule
from app.jail.egress.refusals import Reason, Refused
from tests.jail.egress.conftest import WAIT_S, Lookup, Proxied, descriptors, listen, proxy, server, until

pytestmark = pytest.mark.real

GREETING = b"\x05\x01\x00"


def socks(host: str, port: int, command: int = 1) -> bytes:
    name = host.encode()
    return GREETING + bytes((5, command, 0, 3, len(name))) + name + port.to_bytes(2, "big")


# --- what gets through


async def test_a_tunnel_carries_both_directions_and_half_closes():
    async with proxy() as proxied, server() as port:
        reader, writer, head = await proxied.connect(f"127.0.0.1:{port}")
        assert head.startswith(b"HTTP/1.1 200 ")
        writer.write(b"x" * 300_000)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b"x" * 300_000
        writer.close()
        await until(lambda: proxied.connections == 0)
        for direction in ("sent", "received"):
            count = proxied.metrics.registry.get_sample_value("trunkline_egress_bytes_total", {"direction": direction})
            assert count == 300_000


async def test_socks_with_a_name_an_address_and_all_in_one_packet():
    lookup = Lookup(files_example=[["127.0.0.1"]])
    async with proxy(lookup=lookup) as proxied, server() as port:
        by_address = GREETING + bytes((5, 1, 0, 1, 127, 0, 0, 1)) + port.to_bytes(2, "big")
        for asked in (socks("files.example", port), socks("127.0.0.1", port), by_address):
            reader, writer = await proxied.open()
            writer.write(asked + b"hello")
            writer.write_eof()
            assert (
                await asyncio.wait_for(reader.read(), WAIT_S) == b"\x05\x00" + bytes((5, 0, 0, 1)) + bytes(6) + b"hello"
            )
            writer.close()
    assert lookup.asked == ["files.example"]


async def test_plain_http_reaches_the_server_in_its_own_form():
    async def answer(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(5)
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + head + body)

    async with proxy(lookup=Lookup(files_example=[["127.0.0.1"]])) as proxied, server(answer) as port:
        url = f"http://files.example:{port}"
        sent = (
            f"POST {url}/a?b=c HTTP/1.1\r\nHost: other\r\nProxy-Authorization: Basic eA==\r\nX-Kept: 1\r\n"
            "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nContent-Length: 5\r\n\r\nhe"
        )
        reader, writer = await proxied.open()
        writer.write(sent.encode())
        await asyncio.sleep(0.05)
        writer.write(b"llo")
        got = (await asyncio.wait_for(reader.read(), WAIT_S)).partition(b"\r\n\r\n")[2].decode()
        writer.close()
    assert got == (
        f"POST /a?b=c HTTP/1.1\r\nHost: files.example:{port}\r\nX-Kept: 1\r\nContent-Length: 5\r\n"
        "Connection: close\r\n\r\nhello"
    )


async def test_a_second_request_on_a_connection_of_plain_http_reaches_nobody():
    got = []

    async def answer(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")  # and stays open, whatever it was asked
        got.append(await reader.readuntil(b"\r\n\r\n"))
        got.append(await reader.read())

    async with proxy() as proxied, server(answer) as port:
        request = f"GET http://127.0.0.1:{port}/%s HTTP/1.1\r\n\r\n"
        reader, writer = await proxied.open()
        writer.write((request % "a").encode())
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)
        writer.write((request % "b").encode())
        with contextlib.suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), WAIT_S)
        writer.close()
        await until(lambda: len(got) > 1 or proxied.connections == 0)
    assert b"/b" not in b"".join(got)


async def test_an_answer_that_comes_before_the_end_of_a_body_arrives():
    async def too_large(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")

    async with proxy() as proxied, server(too_large) as port:
        for _ in range(20):
            head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nContent-Length: 400000\r\n\r\n".encode()
            reader, writer = await proxied.open()
            writer.write(head)
            assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)).startswith(b"HTTP/1.1 413")
            writer.close()


async def test_a_reader_that_does_not_read_stops_the_sender():
    sent = 0

    async def endless(reader, writer):
        nonlocal sent
        while True:
            writer.write(bytes(1 << 20))
            await writer.drain()
            sent += 1 << 20

    async with proxy() as proxied, server(endless) as port:
        plain = socket.create_connection(("127.0.0.1", proxied.port))
        plain.sendall(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
        await until(lambda: sent)
        before, still = -1, 0
        while still < 10:  # until no more is taken for half a second
            before, still = sent, still + 1 if sent == before else 0
            await asyncio.sleep(0.05)
        assert sent < 64 << 20  # the kernel's buffers
        plain.close()
        await until(lambda: proxied.connections == 0)


async def test_a_destination_that_resets_resets_the_client():
    async def reset(reader, writer):
        writer.write(b"half")
        await writer.drain()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await reader.read(1)

    async with proxy() as proxied, server(reset) as port:
        reader, writer, _ = await proxied.connect(f"127.0.0.1:{port}")
        assert await reader.readexactly(4) == b"half"
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), WAIT_S)
        writer.close()
        await until(lambda: proxied.connections == 0)


async def test_a_body_that_is_cut_off_is_not_taken_for_the_whole():
    ended = asyncio.get_running_loop().create_future()

    async def reads(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        ended.set_result((await asyncio.gather(reader.read(), return_exceptions=True))[0])

    async with proxy() as proxied, server(reads) as port:
        _, writer = await proxied.open()
        writer.write(f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nContent-Length: 5\r\n\r\nhe".encode())
        writer.write_eof()
        assert isinstance(await asyncio.wait_for(ended, WAIT_S), ConnectionResetError)
        writer.close()
        await until(lambda: proxied.connections == 0)


async def test_an_unexpected_error_resets_its_connection_and_no_other(monkeypatch, caplog):
    real = connections.Tunnel._copy

    async def fails(tunnel, source, sink, most):
        size = await real(tunnel, source, sink, most)
        if size == 3:
            raise ValueError("a bug")
        return size

    monkeypatch.setattr(connections.Tunnel, "_copy", fails)
    async with proxy() as proxied, server() as port:
        broken, broken_writer, _ = await proxied.connect(f"127.0.0.1:{port}")
        good, writer, _ = await proxied.connect(f"127.0.0.1:{port}")
        broken_writer.write(b"bad")
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(broken.read(), WAIT_S)
        writer.write(b"good")
        assert await asyncio.wait_for(good.readexactly(4), WAIT_S) == b"good"
        for each in (writer, broken_writer):
            each.close()
    assert "a bug" in caplog.text


async def test_bytes_arrive_in_order_whatever_the_readers_do():
    def part(number: int) -> bytes:
        return (b"%08d" % number) * 8192

    async def numbers(reader, writer):
        for number in range(100):
            writer.write(part(number))
            await writer.drain()

    async def read(proxied: Proxied, port: int, pause_s: float) -> bool:
        reader, writer, _ = await proxied.connect(f"127.0.0.1:{port}")
        try:
            for number in range(100):
                if await asyncio.wait_for(reader.readexactly(65536), WAIT_S) != part(number):
                    return False
                await asyncio.sleep(pause_s if number % 10 == 0 else 0)
            return await reader.read() == b""
        finally:
            writer.close()

    async with proxy() as proxied, server(numbers) as port:
        assert all(await asyncio.gather(*(read(proxied, port, 0.02 * (each % 3)) for each in range(12))))


# --- what does not

INSIDE = [
    "127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0x7f.0.0.1", "017700000001", "0", "[::1]", "[::]",
    "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[64:ff9b:1::a9fe:a9fe]", "[2002:7f00:1::]",
    "[2001:0:4136:e378:8000:63bf:80ff:fffe]", "[2606:4700::5efe:127.0.0.1]", "[::127.0.0.1]", "[fe80::1]",
    "[fe80::1%25eth0]", "[fd00:ec2::254]", "[ff02::1]", "169.254.169.254", "100.64.0.1", "10.0.0.1", "172.31.255.255",
    "192.168.0.1", "192.88.99.1", "224.0.0.1", "255.255.255.255", "198.18.0.1", "0.0.0.0", "127。0。0。1", "ⓛocalhost",
    "user@127.0.0.1", "1.1.1.1@127.0.0.1", "localhost.", "1.1.1.1.", "1.1.1.01", "a b",
]  # fmt: skip


@pytest.fixture
def dialled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every address that a connection is made to. Only loopback is."""
    made: list[str] = []
    really = dialling._dial

    async def dial(address, outgoing, seconds):
        made.append(str(address))
        if address.version == 6 or not address.is_loopback:
            raise Refused(Reason.UNREACHABLE)
        return await really(address, outgoing, seconds)

    monkeypatch.setattr(dialling, "_dial", dial)
    return made


@pytest.mark.parametrize("host", INSIDE)
async def test_no_form_of_an_address_leads_inside(dialled: list[str], host: str):
    lookup = Lookup()
    lookup.names = {host.strip("[]").lower(): [["127.0.0.1"]]}  # what a system's resolver would make of it
    async with proxy(allow=(), lookup=lookup) as proxied:
        connect = f"CONNECT {host}:443 HTTP/1.1\r\n\r\n".encode()
        plain = f"GET http://{host}/ HTTP/1.1\r\n\r\n".encode()
        for asked in (connect, plain):
            assert (await proxied.says(asked)).split()[1] in (b"400", b"403")
        assert (await proxied.says(socks(host.strip("[]"), 443)))[:4] in (b"\5\0\5\1", b"\5\0\5\2")
    assert dialled == []


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["::1"], ["::ffff:8.8.8.8"], ["169.254.169.254"],
        ["fe80::1%eth0"], ["64:ff9b::808:808"],
    ],
)  # fmt: skip
async def test_a_name_with_any_address_that_is_not_public_is_refused(dialled, addresses):
    async with proxy(allow=(), lookup=Lookup(inside_example=[addresses])) as proxied:
        answer = await proxied.says(b"CONNECT inside.example:443 HTTP/1.1\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 403 Address Not Public\r\nProxy-Status: trunkline; error=destination_ip_")
        assert b"network.allow" in answer
        assert not any(each.encode() in answer for each in addresses)
        assert (await proxied.says(socks("inside.example", 443)))[:4] == b"\5\0\5\2"
        assert proxied.refusals("address") == 2
        assert proxied.line.refused == (("inside.example:443", "address"),) * 2
    assert dialled == []


async def test_the_address_that_was_checked_is_the_one_that_is_dialled(dialled):
    lookup = Lookup(rebinding_example=[["93.184.216.34"], ["127.0.0.1"]])
    async with proxy(allow=(), lookup=lookup) as proxied:
        assert (await proxied.says(b"CONNECT rebinding.example:443 HTTP/1.1\r\n\r\n")).split()[1] == b"502"
        assert (dialled, lookup.asked) == (["93.184.216.34"], ["rebinding.example"])
        assert (await proxied.says(b"CONNECT rebinding.example:443 HTTP/1.1\r\n\r\n")).split()[1] == b"403"
    assert dialled == ["93.184.216.34"]


async def test_the_gateways_own_hosts_and_addresses_are_refused_even_if_they_are_public(dialled, monkeypatch):
    lookup = Lookup(gateway_example=[["93.184.216.34"]], alias_example=[["93.184.216.34"]], mine_example=[["1.1.1.1"]])
    monkeypatch.setattr(dialling, "_is_of_this_machine", lambda address, port: str(address) == "1.1.1.1")
    lookup.names["9.9.9.9"] = [["9.9.9.9"]]  # as a system's resolver answers
    async with proxy(allow=(), lookup=lookup, own_hosts=("gateway.example", "9.9.9.9")) as proxied:
        for host in ("gateway.example", "alias.example", "93.184.216.34", "mine.example", "1.1.1.1", "9.9.9.9"):
            assert (await proxied.says(f"CONNECT {host}:443 HTTP/1.1\r\n\r\n".encode())).split()[1] == b"403", host
    assert dialled == []


def test_an_address_of_this_machine_is_known():
    assert dialling._is_of_this_machine(ip_address("127.0.0.1"), 443)
    assert not dialling._is_of_this_machine(ip_address("192.0.2.1"), 443)


async def test_other_ports_are_refused_before_the_name_is_resolved():
    lookup = Lookup(files_example=[["93.184.216.34"]])
    async with proxy(rule=PortRule(), lookup=lookup) as proxied:
        for port in (22, 25, 6379, 8080, 8443):
            answer = await proxied.says(f"CONNECT files.example:{port} HTTP/1.1\r\n\r\n".encode())
            assert answer.startswith(b"HTTP/1.1 403 Port Not Allowed By Gateway\r\n")
            assert (await proxied.says(socks("files.example", port)))[:4] == b"\5\0\5\2"
        assert proxied.refusals("port") == 10
    assert lookup.asked == []


async def test_a_redirect_comes_back_and_is_checked_as_any_request():
    async def redirect(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest/\r\nContent-Length: 0\r\n\r\n")

    async with proxy() as proxied, server(redirect) as port:
        first = await proxied.says(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n".encode())
        assert b"302 Found" in first
        second = await proxied.says(b"GET http://169.254.169.254/latest/ HTTP/1.1\r\n\r\n")
        assert second.startswith(b"HTTP/1.1 403 Address Not Public\r\n")


async def test_a_rule_of_a_backend_sees_who_asks_for_what_and_decides():
    seen = []

    class Nobody:
        async def permit(self, outgoing):
            seen.append(outgoing)
            raise Refused(Reason.RULE, "only on Mondays")

    async with proxy() as proxied:
        line = proxied.egress.open("acme", "mail", Nobody())
        line.started("p-1")
        line.listen(socket.create_server(("127.0.0.1", 0)))
        answer = await Proxied(proxied.egress, proxied.metrics, line).says(b"CONNECT A.example:443 HTTP/1.1\r\n\r\n")
    assert b"403 Not Allowed By Gateway" in answer
    assert b"only on Mondays" in answer
    [outgoing] = seen
    assert (outgoing.tenant, outgoing.backend, outgoing.process) == ("acme", "mail", "p-1")
    assert outgoing.destination == "a.example:443"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\x04\x01\x00\x50\x7f\x00\x00\x01\x00", 400),
        (b"get / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"GET https://a/ HTTP/1.1\r\n\r\n", 400),
        (b"GET ftp://a/ HTTP/1.1\r\n\r\n", 400),
        (b"GET http://a/ HTTP/1.1\r\n folded: x\r\n\r\n", 400),
        (b"GET http://a/ HTTP/1.1\r\na : x\r\n\r\n", 400),
        (b"GET http://a/ HTTP/1.1\r\nX: a\nb: c\r\n\r\n", 400),
        (b"GET http://a/#b HTTP/1.1\r\n\r\n", 400),
        (b"GET http://a/ HTTP/2.0\r\n\r\n", 400),
        (b"CONNECT a HTTP/1.1\r\n\r\n", 400),
        (b"CONNECT http://a:443/ HTTP/1.1\r\n\r\n", 400),
        (b"POST http://a/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n", 400),
        (b"POST http://a/ HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST http://a/ HTTP/1.1\r\nContent-Length: 1\r\n\r\nab", 400),
        (b"POST http://a/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"GET http://a/" + b"a" * 20000, 431),
        (b"GET http://missing.example/ HTTP/1.1\r\n\r\n", 502),
    ],
)
async def test_what_cannot_be_forwarded_is_answered_in_words(sent: bytes, status: int):
    async with proxy(lookup=Lookup()) as proxied:
        answer = await proxied.says(sent)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
    assert b"\r\nProxy-Status: trunkline; error=" in answer


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"\x05\x01\x02", b"\x05\xff"),  # only with a password
        (b"\x05\x00", b"\x05\xff"),
        (socks("a.example", 443, command=2), b"\x05\x00\x05\x07"),  # BIND
        (socks("a.example", 443, command=3), b"\x05\x00\x05\x07"),  # UDP
        (GREETING + b"\x05\x01\x00\x09", b"\x05\x00\x05\x08"),
        (GREETING + b"\x04\x01\x00\x01", b"\x05\x00\x05\x01"),
        (socks("a b", 443), b"\x05\x00\x05\x01"),
        (socks("missing.example", 443), b"\x05\x00\x05\x04"),
    ],
)
async def test_socks_answers_with_its_codes(sent: bytes, answer: bytes):
    async with proxy(lookup=Lookup()) as proxied:
        assert (await proxied.says(sent)).startswith(answer)


@pytest.mark.parametrize("kind", ["http", "socks"])
async def test_a_request_may_arrive_byte_by_byte(kind: str):
    async with proxy() as proxied, server() as port:
        asked = socks("127.0.0.1", port) if kind == "socks" else f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode()
        reader, writer = await proxied.open()
        for byte in asked:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.001)
        writer.write(b"hello")
        writer.write_eof()
        assert (await asyncio.wait_for(reader.read(), WAIT_S)).endswith(b"hello")
        writer.close()


async def test_a_port_where_nothing_listens_is_refused_with_502():
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    async with proxy() as proxied:
        answer = await proxied.says(f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 502 Connection Refused By Destination\r\n")
        assert (await proxied.says(socks("127.0.0.1", port)))[:4] == b"\5\0\5\5"


# --- limits


async def test_a_head_that_does_not_arrive_is_ended_in_time(monkeypatch):
    monkeypatch.setattr(connections, "HEAD_S", 1.0)
    begun = (b"", b"CONNECT a", b"\x05", GREETING, GREETING + b"\x05\x01")
    async with proxy() as proxied:
        answers = await asyncio.gather(*map(proxied.says, begun))
        for said, answer in zip(begun, answers, strict=True):
            assert b"408" in answer or said[:1] == b"\x05", said
        assert proxied.refusals("slow") == 5
        await until(lambda: proxied.connections == 0)


async def test_a_process_has_so_many_connections_and_is_told_so():
    async with proxy(max_of_process=4) as proxied, server() as port:
        held = [await proxied.connect(f"127.0.0.1:{port}") for _ in range(4)]
        _, writer, head = await proxied.connect(f"127.0.0.1:{port}")
        assert head.startswith(b"HTTP/1.1 503 Too Many Connections Of This Process")
        writer.close()
        held[0][1].close()
        await until(lambda: proxied.connections == 3)
        _, writer, head = await proxied.connect(f"127.0.0.1:{port}")
        assert head.startswith(b"HTTP/1.1 200")
        for each in (*(each[1] for each in held), writer):
            each.close()


async def test_a_tenant_that_takes_all_it_can_get_leaves_room_for_others():
    async with proxy(max_of_tenant=4, max_of_node=100) as proxied, server() as port:
        lines = [proxied.line, listen(proxied.egress, "acme", "other")]
        users = [Proxied(proxied.egress, proxied.metrics, line) for line in lines]
        made = [await users[each % 2].connect(f"127.0.0.1:{port}") for each in range(5)]
        assert [head[9:12] for *_, head in made] == [b"200"] * 4 + [b"503"]
        assert b"Too Many Connections Of This Tenant" in made[4][2]
        silent = [await each.open() for each in users for _ in range(40)]  # more than it gets refusals for
        await until(lambda: proxied.connections == 4 + 16)
        bystander = listen(proxied.egress, "globex", "files")
        async with asyncio.timeout(30):  # half of what the crowd before him would need
            _, writer, head = await Proxied(proxied.egress, proxied.metrics, bystander).connect(f"127.0.0.1:{port}")
        assert head.startswith(b"HTTP/1.1 200")
        for each in (*(each[1] for each in (*made, *silent)), writer):
            each.close()
        await until(lambda: proxied.connections == 0)
        for line in (lines[1], bystander):
            line.close()


@pytest.mark.parametrize(("of_process", "of_tenant", "of_node"), [(2, 999, 999), (999, 2, 999), (999, 999, 2)])
async def test_over_all_limits_connections_wait_in_the_kernel_and_are_served_when_there_is_room(
    of_process, of_tenant, of_node
):
    limits = {"max_of_process": of_process, "max_of_tenant": of_tenant, "max_of_node": of_node}
    async with proxy(**limits) as proxied, server() as port:
        silent = [await proxied.open() for _ in range(40)]  # nobody says what it wants
        await until(lambda: proxied.connections == 18)
        await asyncio.sleep(0.1)  # calm: no more are to be served
        assert proxied.connections == 18
        for _, writer in silent:
            writer.close()
        await until(lambda: proxied.connections == 0)
        _, writer, head = await proxied.connect(f"127.0.0.1:{port}")
        assert head.startswith(b"HTTP/1.1 200")
        writer.close()


async def test_a_thousand_connections_of_many_processes_and_nothing_is_left():
    async with server() as port, proxy(max_of_node=1000, max_of_tenant=2000) as proxied:
        before = descriptors()
        lines = [listen(proxied.egress, "acme", f"b{number}") for number in range(20)]
        users = [Proxied(proxied.egress, proxied.metrics, line) for line in lines]
        made = await asyncio.gather(*(users[each % 20].connect(f"127.0.0.1:{port}") for each in range(1000)))
        assert all(head.startswith(b"HTTP/1.1 200") for *_, head in made)
        assert proxied.connections == 1000

        async def speak(reader, writer, text: bytes) -> bool:
            writer.write(text)
            return await asyncio.wait_for(reader.readexactly(len(text)), WAIT_S) == text

        spoken = await asyncio.gather(*(speak(*each[:2], b"n%d" % n) for n, each in enumerate(made)))
        assert all(spoken)
        _, writer, head = await users[0].connect(f"127.0.0.1:{port}")
        assert head.startswith(b"HTTP/1.1 503 Too Many Connections Of The Gateway")
        for each in (*(each[1] for each in made), writer):
            each.close()
        await until(lambda: proxied.connections == 0)
        for line in lines:
            line.close()
        await until(lambda: descriptors() <= before)


async def test_an_idle_connection_ends_and_one_that_is_used_does_not(monkeypatch):
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now)
    for module in (egress_module, connections):
        monkeypatch.setattr(module, "time", clock)
    async with proxy(idle_s=600.0, sweep_s=0.05) as proxied, server() as port:
        idle, idle_writer, _ = await proxied.connect(f"127.0.0.1:{port}")
        used, writer, _ = await proxied.connect(f"127.0.0.1:{port}")
        await until(lambda: all(each.active_at is not None for each in proxied.line._connections))
        now += 590.0
        writer.write(b"x")
        await used.readexactly(1)
        assert repr(proxied.line).endswith("[open, 2 connections]>")
        now += 11.0
        assert await asyncio.wait_for(idle.read(), WAIT_S) == b""
        writer.write(b"x")
        assert await asyncio.wait_for(used.readexactly(1), WAIT_S) == b"x"
        writer.close()
        idle_writer.close()


# --- names


async def test_a_resolver_that_hangs_hangs_neither_the_loop_nor_other_tenants(monkeypatch):
    monkeypatch.setattr(names, "DEADLINE_S", 0.3)
    go_on = threading.Event()

    def lookup(name: str) -> list[str]:
        if name == "hangs.example":
            go_on.wait(30)
        return ["127.0.0.1"]

    async with proxy(lookup=lookup) as proxied, server() as port:
        asked = f"CONNECT hangs.example:{port} HTTP/1.1\r\n\r\n".encode()
        answers = await asyncio.gather(*(proxied.says(asked) for _ in range(names.MAX_OF_TENANT)))
        assert {each.split()[1] for each in answers} == {b"504"}
        # The threads still hang, so they still count.
        assert (await proxied.says(asked)).startswith(b"HTTP/1.1 503 Too Many Names")
        monkeypatch.setattr(names, "DEADLINE_S", 30.0)  # for threads that wait for a processor only
        other = Proxied(proxied.egress, proxied.metrics, listen(proxied.egress, "other", "b"))
        _, writer, head = await other.connect(f"works.example:{port}")
        assert head.startswith(b"HTTP/1.1 200")
        writer.close()
        go_on.set()
        async with asyncio.timeout(20):
            answer = b""
            while b"502" not in answer:  # nothing listens on port 1: it was resolved, and dialled
                answer = await proxied.says(b"CONNECT works.example:1 HTTP/1.1\r\n\r\n")


async def test_who_asks_for_many_names_at_once_waits_for_his_own(monkeypatch):
    """As an installer does that downloads fifty files at once."""
    most = under_way = 0

    def lookup(name: str) -> list[str]:
        nonlocal most, under_way
        under_way += 1
        most = max(most, under_way)
        time.sleep(0.02)
        under_way -= 1
        return ["127.0.0.1"]

    async with proxy(lookup=lookup) as proxied:
        asked = (f"CONNECT n{number}.example:1 HTTP/1.1\r\n\r\n".encode() for number in range(50))
        answers = await asyncio.gather(*(proxied.says(each) for each in asked))
    assert {each.split()[1] for each in answers} == {b"502"}  # nothing listens on port 1
    assert most <= names.MAX_OF_TENANT


# --- the end


async def test_closing_a_line_ends_its_connections_in_every_state_and_leaves_no_descriptor(monkeypatch):
    async def silent(reader, writer):
        await reader.read()

    go_on = threading.Event()

    def lookup(name: str) -> list[str]:
        go_on.wait(30)
        return ["127.0.0.1"]

    async with server(silent) as port, proxy(lookup=lookup) as proxied:
        before = descriptors()
        line = listen(proxied.egress, "acme", "other")
        user = Proxied(proxied.egress, proxied.metrics, line)
        in_tunnel = await user.connect(f"127.0.0.1:{port}")
        in_head, at_start = await user.open(), await user.open()
        in_head[1].write(b"CONNECT ")
        resolving = await user.open()
        resolving[1].write(b"CONNECT hangs.example:443 HTTP/1.1\r\n\r\n")
        await until(lambda: proxied.connections == 4)
        line.close()
        for reader, writer, *_ in (in_tunnel, in_head, at_start, resolving):
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
            writer.close()
        assert proxied.connections == 0
        line.close()
        await until(lambda: descriptors() <= before)
        go_on.set()


async def test_a_line_whose_process_never_starts_leaves_nothing():
    async with proxy() as proxied:
        before = descriptors()
        for is_taken in (True, False):
            line = proxied.egress.open("acme", "files")
            if is_taken:
                socket.socket(fileno=line.take_channel()).close()  # the spawner refused the order
            await asyncio.sleep(0.05)
            line.close()
        await until(lambda: descriptors() <= before)


async def test_an_error_in_the_block_leaves_it_as_it_is():
    with pytest.raises(KeyError):
        async with proxy():
            raise KeyError


async def test_leaving_the_block_ends_everything():
    async with server() as port:
        before = descriptors()
        async with proxy() as proxied:
            reader, writer, _ = await proxied.connect(f"127.0.0.1:{port}")
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        await until(lambda: descriptors() <= before)
        with pytest.raises(RuntimeError):
            proxied.egress.open("acme", "files")


def test_a_head_may_have_16_kib():
    assert incoming.MAX_HEAD_BYTES == 16384


async def test_a_request_that_comes_a_byte_at_a_time_leaves_the_loop_turns_and_has_a_limit(monkeypatch):
    monkeypatch.setattr(incoming, "_PIECE_BYTES", 1)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.send(b"CONNECT a" + b"x" * incoming.MAX_PIECES)
        turns = 0

        async def others():
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        busy = asyncio.create_task(others())
        with pytest.raises(Refused, match=f"{incoming.MAX_PIECES} pieces"):
            await incoming.Incoming(ours).request()
        busy.cancel()
        assert turns >= incoming.MAX_PIECES
