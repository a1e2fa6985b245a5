"""Whom a node speaks to: Redis, other nodes, and clients on its port."""

import asyncio
import errno
import http.client
import ipaddress
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from app.doctor.findings import Check, State
from app.doctor.subject import Subject
from app.errors import GatewayError

if TYPE_CHECKING:
    from app.redis.survey import Survey

ANSWER_S = 2.0  # a peer may not answer
LEAST_REDIS = (6, 2)
MOST_SKEW_S = 5.0  # nodes take 15 s of each other; between them and Redis it should be far less
SLOW_REDIS_S = 0.02  # a command has 250 ms in all


def redis(url: str) -> Check:
    """Whether it can be used, and how well."""
    # Here, because redis-py takes a quarter of a second to import, and every command imports this module.
    from app.redis.survey import survey  # noqa: PLC0415

    try:
        return _judge(asyncio.run(survey(url)))
    except (GatewayError, ValueError) as error:
        return Check("redis", State.MISSING, str(error), "Check TRUNKLINE_REDIS_URL, and that Redis runs.")


def _judge(found: "Survey") -> Check:
    """The worst that is to be said: too old, forgets routes, another time, far away; or nothing."""
    name, version = "redis", ".".join(map(str, found.version))
    detail = f"version {version}, answers in {found.latency_s * 1000:.1f} ms"
    if found.version < LEAST_REDIS:
        advice = f"Use {'.'.join(map(str, LEAST_REDIS))} or later."
        return Check(name, State.MISSING, f"version {version} lacks commands that are needed", advice)
    if found.policy not in (None, "noeviction"):
        advice = "Set it to noeviction: what is evicted is a session that other nodes cannot find."
        return Check(name, State.OPTIONAL, f"{detail}; maxmemory-policy is {found.policy}", advice)
    if abs(found.ahead_s) > MOST_SKEW_S:
        advice = "Set the clocks of all machines by NTP: nodes refuse each other's requests when they differ."
        return Check(name, State.OPTIONAL, f"{detail}; its clock differs by {found.ahead_s:+.1f} s", advice)
    if found.latency_s > SLOW_REDIS_S:
        advice = "It should be in the same data centre: a session that is opened waits for it."
        return Check(name, State.OPTIONAL, detail, advice)
    return Check(name, State.OK, detail)


def node_url(subject: Subject) -> Check:
    """Two ways in which other nodes would not find this one, and whether it answers if it runs."""
    name, url = "node address", subject.node_url
    if url is None and subject.host_is_wildcard:
        advice = "Set TRUNKLINE_NODE_URL to how other nodes reach this one, like http://10.0.0.5:8080."
        return Check(name, State.MISSING, f"TRUNKLINE_HOST is {subject.host}, which names no place", advice)
    if url is None:
        place = "this machine alone" if subject.host_is_loopback else "other machines"
        return Check(name, State.OK, f"made of HOST and PORT: reached from {place}")
    parts = urlsplit(url)
    try:
        places = socket.getaddrinfo(parts.hostname, parts.port or parts.scheme, type=socket.SOCK_STREAM)
    except OSError as error:
        return Check(name, State.MISSING, f"{parts.hostname}: {error.strerror}", "Check TRUNKLINE_NODE_URL.")
    if subject.host_is_loopback and parts.scheme == "http" and not _is_here(str(places[0][4][0])):
        advice = "Listen where others can connect: TRUNKLINE_HOST."
        return Check(name, State.MISSING, f"{url}, but the node listens on {subject.host} alone", advice)
    return Check(name, State.OK, url)


def _is_here(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def port(host: str, port: int) -> Check:
    """Free, or held by a gateway."""
    name, family = "port", socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE and _gateway_answers(host, port):
            return Check(name, State.OK, f"a gateway answers on {host}:{port}")
        advice = "Stop what listens there, or choose another: TRUNKLINE_PORT."
        return Check(name, State.MISSING, f"cannot listen on {host}:{port}: {error.strerror}", advice)
    return Check(name, State.OK, f"{port} is free" if port else "any free one")


def _gateway_answers(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_S)
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().read(200).find(b'"alive"') >= 0
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
