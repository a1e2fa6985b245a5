"""Checks of the network: Redis, the address for other nodes, and the port for clients."""

import asyncio
import errno
import http.client
import socket
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from app.cli.doctor.findings import Check, State
from app.errors import GatewayError
from app.settings.hosts import is_loopback, is_wildcard

if TYPE_CHECKING:
    from app.cluster.redis.survey import Survey

ANSWER_S = 2.0
LEAST_REDIS = (6, 2)
MOST_SKEW_S = 5.0  # nodes tolerate 15 s between each other
SLOW_REDIS_S = 0.02  # a command times out after 250 ms


def redis(url: str) -> Check:
    # Here, because redis-py takes a quarter of a second to import, and every command imports this module.
    from app.cluster.redis.survey import survey  # noqa: PLC0415

    try:
        return _judge(asyncio.run(survey(url)))
    except (GatewayError, ValueError) as error:
        return Check("redis", State.MISSING, str(error), "Check TRUNKLINE_REDIS_URL, and that Redis runs.")


def _judge(found: "Survey") -> Check:
    """Reports the worst problem only."""
    name, version = "redis", ".".join(map(str, found.version))
    detail = f"version {version}, answers in {found.latency_s * 1000:.1f} ms"
    if found.version < LEAST_REDIS:
        advice = f"Use {'.'.join(map(str, LEAST_REDIS))} or later."
        return Check(name, State.MISSING, f"version {version} is too old", advice)
    if found.policy not in (None, "noeviction"):
        advice = "Set it to noeviction: other nodes cannot find a session whose route was evicted."
        return Check(name, State.OPTIONAL, f"{detail}; maxmemory-policy is {found.policy}", advice)
    if abs(found.ahead_s) > MOST_SKEW_S:
        advice = "Synchronise the clocks (NTP): nodes refuse each other's requests when their clocks differ."
        return Check(name, State.OPTIONAL, f"{detail}; its clock differs by {found.ahead_s:+.1f} s", advice)
    if found.latency_s > SLOW_REDIS_S:
        advice = "Use one in the same data centre: opening a session waits for Redis."
        return Check(name, State.OPTIONAL, detail, advice)
    return Check(name, State.OK, detail)


def node_url(host: str, url: str | None) -> Check:
    """Whether other nodes can reach this one."""
    name = "node address"
    if url is None and is_wildcard(host):
        advice = "Set TRUNKLINE_NODE_URL to how other nodes reach this one, like http://10.0.0.5:8080."
        return Check(name, State.MISSING, f"TRUNKLINE_HOST is {host}, which other nodes cannot connect to", advice)
    if url is None:
        place = "this machine only" if is_loopback(host) else "other machines"
        return Check(name, State.OK, f"from HOST and PORT: can be reached from {place}")
    parts = urlsplit(url)
    try:
        places = socket.getaddrinfo(parts.hostname, parts.port or parts.scheme, type=socket.SOCK_STREAM)
    except OSError as error:
        return Check(name, State.MISSING, f"{parts.hostname}: {error.strerror}", "Check TRUNKLINE_NODE_URL.")
    if is_loopback(host) and parts.scheme == "http" and not is_loopback(str(places[0][4][0]).partition("%")[0]):
        advice = "Listen where others can connect: TRUNKLINE_HOST."
        return Check(name, State.MISSING, f"{url}, but the node listens on {host} only", advice)
    return Check(name, State.OK, url)


def port(host: str, port: int, *, is_tls: bool = False) -> Check:
    """OK if it is free, or if a gateway answers there."""
    name, family = "port", socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE and _gateway_answers(host, port, is_tls=is_tls):
            return Check(name, State.OK, f"a gateway answers on {host}:{port}")
        advice = "Stop what listens there, or choose another port: TRUNKLINE_PORT."
        return Check(name, State.MISSING, f"cannot listen on {host}:{port}: {error.strerror}", advice)
    return Check(name, State.OK, f"{port} is free" if port else "any free port")


def _gateway_answers(host: str, port: int, *, is_tls: bool) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    if is_tls:
        trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # nothing secret is said, and the name is another one
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=ANSWER_S, context=trusting)
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().read(200).find(b'"alive"') >= 0
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
