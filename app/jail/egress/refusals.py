"""Why a connection was refused or has failed, as programs, administrators and metrics see it."""

from enum import Enum
from typing import NamedTuple

ALLOW_ADVICE = (
    "A backend that needs it must be given it by host and port in `sandbox.network.allow`, by an administrator."
)


class _Facts(NamedTuple):
    label: str
    status: int
    phrase: str  # of the status line: many programs show nothing else of a refusal
    error: str  # RFC 9209
    socks: int  # RFC 1928
    advice: str


class Reason(Enum):
    """A closed set: it is a label of metrics."""

    MALFORMED = _Facts("malformed", 400, "Bad Proxy Request", "http_request_error", 1, "")
    TOO_LARGE = _Facts("too_large", 431, "Request Head Too Large", "http_request_error", 1, "")
    LENGTH = _Facts(
        "length", 411, "Length Required", "http_request_error", 1,
        "Plain HTTP needs a Content-Length here; https has no such limit.",
    )  # fmt: skip
    SLOW = _Facts("slow", 408, "Request Timeout", "http_request_error", 1, "")
    COMMAND = _Facts("command", 405, "Only Connections Are Proxied", "http_request_denied", 7, "")
    PORT = _Facts("port", 403, "Port Not Allowed By Gateway", "http_request_denied", 2, ALLOW_ADVICE)
    ADDRESS = _Facts("address", 403, "Address Not Public", "destination_ip_prohibited", 2, ALLOW_ADVICE)
    RULE = _Facts("rule", 403, "Not Allowed By Gateway", "http_request_denied", 2, "")
    NAME = _Facts("name", 502, "Name Not Resolved", "dns_error", 4, "")
    NAME_SLOW = _Facts(
        "name_slow", 504, "Name Not Resolved In Time", "dns_timeout", 4,
        "Check the resolver of the gateway's machine (/etc/resolv.conf).",
    )  # fmt: skip
    NAMES_BUSY = _Facts("names_busy", 503, "Too Many Names Being Resolved", "connection_limit_reached", 1, "")
    UNREACHABLE = _Facts("unreachable", 502, "Not Reachable", "destination_unavailable", 4, "")
    REFUSED = _Facts("refused", 502, "Connection Refused By Destination", "connection_refused", 5, "")
    TIMEOUT = _Facts("timeout", 504, "Destination Does Not Answer", "connection_timeout", 6, "")
    PROXY = _Facts(
        "proxy", 502, "Not Connected By Gateway's Proxy", "destination_unavailable", 1,
        "Whoever runs that proxy can say why: it is the one in TRUNKLINE_OUTBOUND_PROXY.",
    )  # fmt: skip
    PROCESS_FULL = _Facts(
        "process_full", 503, "Too Many Connections Of This Process", "connection_limit_reached", 1,
        "Close connections that are not used.",
    )  # fmt: skip
    TENANT_FULL = _Facts(
        "tenant_full", 503, "Too Many Connections Of This Tenant", "connection_limit_reached", 1,
        "Close connections that are not used.",
    )  # fmt: skip
    NODE_FULL = _Facts("node_full", 503, "Too Many Connections Of The Gateway", "connection_limit_reached", 1, "")

    @property
    def label(self) -> str:
        return self.value.label


# By a rule or a limit; the others are failures of the network, or of who asks.
DENIALS = frozenset({Reason.PORT, Reason.ADDRESS, Reason.RULE, Reason.PROCESS_FULL, Reason.TENANT_FULL})


class Refused(Exception):
    """The connection is not made. `detail` is for the program that asked for it."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(detail or reason.value.phrase)
        self.reason = reason

    def http(self) -> bytes:
        """The whole answer."""
        facts = self.reason.value
        detail = _printable(str(self))
        body = f"Trunkline: {detail}.\n" + (f"{facts.advice}\n" if facts.advice else "")
        quoted = detail.replace("\\", "\\\\").replace('"', '\\"')
        return (
            f"HTTP/1.1 {facts.status} {facts.phrase}\r\n"
            f'Proxy-Status: trunkline; error={facts.error}; details="{facts.label}: {quoted}"\r\n'
            "Content-Type: text/plain; charset=utf-8\r\n"
            f"Content-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n"
            f"{body}"
        ).encode()

    def socks(self) -> bytes:
        """The reply to a request of SOCKS5."""
        return socks_reply(self.reason.value.socks)


def socks_reply(code: int) -> bytes:
    """With 0.0.0.0:0 as the bound address, which nothing uses."""
    return bytes((5, code, 0, 1)) + bytes(6)


def _printable(text: str) -> str:
    return "".join(each if each.isascii() and each.isprintable() else "?" for each in text)[:300]
