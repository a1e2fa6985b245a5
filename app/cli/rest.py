"""A gateway over REST: where it is, with which key, and what its answers say when they are errors."""

import argparse
import os
import secrets
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx2

from app.cli.tables import one_line
from app.cli.text import printable, read_text
from app.client_config import endpoint
from app.config.environment import PREFIX
from app.config.hosts import is_loopback
from app.errors import GatewayError, InvalidRequest

TIMEOUT = httpx2.Timeout(30.0, connect=5.0, read=100.0)  # a check takes a minute at most
ATTEMPTS = 3
DEEPEST = 64  # levels of an answer; no gateway nests more than a handful
LONGEST_PAUSE_S = 5.0  # a gateway that asks for more is left alone
PAGE = 200
MAX_KEY_FILE = 64 * 1024
_TOLD = frozenset({"type", "title", "status", "detail", "reason", "instance", "errors", "hint", "request_id"})
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.InvalidURL)


class Refused(GatewayError):
    """The gateway has refused, or something that stands before it. The message is all that it said, line by line;
    `summary` its first line."""

    reason = "refused"

    def __init__(self, status: int, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.status, self.summary = status, lines[0]


@dataclass(frozen=True, slots=True)
class Address:
    """A gateway and whoever asks it."""

    url: str
    key: str = field(repr=False)


def is_remote(options: argparse.Namespace) -> bool:
    """Whether a command that could use the database here is for a gateway instead: with --url, or with TRUNKLINE_URL
    unless --data-dir names a database."""
    data_dir = getattr(options, "data_dir", None)
    if options.url and data_dir:
        raise InvalidRequest("--url is a gateway's address and --data-dir a database here; give one of them")
    return bool(options.url or (_variable("URL") and not data_dir))


def address_of(options: argparse.Namespace, *, say: bool = True) -> Address:
    """The gateway, once stderr has said which it is.

    Raises:
        InvalidRequest: its address or a key is missing or cannot be one.
    """
    url = (options.url or _variable("URL")).rstrip("/")
    if not url:
        raise InvalidRequest(
            "which gateway? Set TRUNKLINE_URL or give --url; http://127.0.0.1:8080 is where one runs on this machine "
            "if nothing else is set"
        )
    endpoint(url, "t", "b")  # checks it
    if say:
        _say_which(url)
    named = getattr(options, "key_env", None)
    return Address(url, _checked(os.environ.get(named, "").strip(), named) if named else _key(options.key_file))


def _say_which(url: str) -> None:
    print(f"trunkline: gateway {url}", file=sys.stderr)
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        print("trunkline: this address is not encrypted: who is on the way can read the key", file=sys.stderr)


def _key(file: str | None) -> str:
    """Never from the command line itself, which every user of the machine can read."""
    text, kept = _variable("KEY"), _variable("KEY_FILE")
    if not file and text and kept:
        raise InvalidRequest("set either TRUNKLINE_KEY or TRUNKLINE_KEY_FILE, not both")
    source = file or kept
    if source:
        return _checked(read_text(source, MAX_KEY_FILE).strip(), source)
    if text:
        return _checked(text, "TRUNKLINE_KEY")
    raise InvalidRequest(
        "there is no key: set TRUNKLINE_KEY, or TRUNKLINE_KEY_FILE or --key-file to a file that holds it. The first "
        "is made on the gateway's machine: TRUNKLINE_URL= trunkline keys create --tenant default --scope platform:admin"
    )


def _checked(key: str, source: str) -> str:
    if not key:
        raise InvalidRequest(f"there is no key in {source}")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InvalidRequest(f"{source} holds no key: it has spaces or lines within")
    return key


def _variable(name: str) -> str:
    return os.environ.get(PREFIX + name, "").strip()


def segment(text: str) -> str:
    """One part of a path, whatever is in it. `.` and `..` would be taken for steps of the path."""
    if text in ("", ".", ".."):
        raise InvalidRequest(f"{text!r} names nothing")
    return quote(text, safe="")


class Rest:
    """The REST API of one gateway. Close it."""

    def __init__(self, address: Address) -> None:
        self._url = address.url
        # No redirect is followed, and no proxy asked for what is on this machine: either would take the key along.
        parts = urlsplit(address.url)
        is_here = is_loopback(parts.hostname or "")
        try:
            self._client = httpx2.Client(
                headers={"Authorization": f"Bearer {address.key}"},
                timeout=TIMEOUT,
                follow_redirects=False,
                trust_env=not is_here,
                # Where there is no TLS at all, the certificate authorities need not be read, which takes a while.
                verify=not (is_here and parts.scheme == "http"),
            )
        except (OSError, ValueError, httpx2.InvalidURL) as error:
            raise InvalidRequest(
                f"cannot ask anybody; is SSL_CERT_FILE, or a proxy's variable, right? {error}"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(
        self, method: str, path: str, body: object = None, *, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """What the gateway answers; an empty object where it says nothing but "done".

        What did not arrive, or came too soon, is sent again: a POST has a key by which it is done once.

        Raises:
            Refused: it does not do it.
            GatewayError: it does not answer.
        """
        headers = {"X-Request-Id": secrets.token_hex(8)}
        if method == "POST":
            headers["Idempotency-Key"] = secrets.token_hex(16)
        for attempt in range(1, ATTEMPTS + 1):
            try:
                response = self._client.request(
                    method, f"{self._url}/api/v1{path}", json=body, params=dict(query or {}), headers=headers
                )
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                if attempt == ATTEMPTS or isinstance(error, _NOT_SENT):
                    raise GatewayError(
                        f"{self._url} does not answer: {str(error) or type(error).__name__}",
                        hint=f"is it the gateway's address, and does it run? Request id: {headers['X-Request-Id']}",
                    ) from None
                continue
            pause_s = _pause(response)
            if attempt < ATTEMPTS and pause_s is not None:
                time.sleep(pause_s)
            elif method == "DELETE" and attempt > 1 and response.status_code == httpx2.codes.NOT_FOUND:
                return {}  # the answer to the first one was lost
            else:
                break
        return _answer(response, self._url, headers["X-Request-Id"])

    def items(self, path: str, *, query: Mapping[str, str], most: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """At most so many of a list, and what its last page says beside them: `next_cursor` if there are more."""
        found, cursor = list[dict[str, Any]](), ""
        while True:
            wanted = {**query, "limit": str(min(PAGE, most - len(found))), **({"cursor": cursor} if cursor else {})}
            page = self.ask("GET", path, query=wanted)
            items, last = page.pop("items", []), cursor
            if not (isinstance(items, list) and all(isinstance(each, dict) for each in items)):
                raise GatewayError(f"{self._url} sends a list that is none, so that is no gateway's answer")
            found += items
            cursor = str(page.get("next_cursor") or "")
            if not cursor or len(found) >= most or (cursor == last and not items):
                return found, page


def _pause(response: httpx2.Response) -> float | None:
    """How long to wait before the same once more, where the gateway has not done it and says when to come back."""
    after = response.headers.get("retry-after", "")
    if response.status_code not in (429, 503) or not (after.isascii() and after.isdigit() and len(after) < 6):
        return None
    return float(after) if int(after) <= LONGEST_PAUSE_S else None


def _answer(response: httpx2.Response, url: str, sent_id: str) -> dict[str, Any]:
    status = response.status_code
    try:
        document = response.json() if response.content else {}
    except (ValueError, RecursionError):
        document = None
    if _is_deeper(document, DEEPEST):
        document = None
    if 200 <= status < 300 and isinstance(document, dict):
        return document
    request_id = response.headers.get("x-request-id", sent_id)
    if not (isinstance(document, dict) and "title" in document):
        where = response.headers.get("location")
        told = f"and sends to {where!a}; give that address" if where else "and that is no gateway's answer"
        raise Refused(status, [f"{url} answers {status} {told}", f"  request id: {request_id}"])
    raise Refused(status, _lines(document, request_id))


def _is_deeper(value: object, levels: int) -> bool:
    """Whether more is nested in it than so many levels."""
    level = [value]
    for _ in range(levels):
        lists = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [each for inner in lists for each in inner]
        if not level:
            return False
    return True


def _lines(problem: Mapping[str, Any], request_id: str) -> list[str]:
    """Title, detail, each error, what else there is, hint and request id of an RFC 9457 problem."""
    detail = problem.get("detail")
    lines = [f"{problem['title']}" + (f": {detail}" if detail else "")]
    errors = problem.get("errors")
    for error in errors if isinstance(errors, list) else []:
        if not isinstance(error, dict):
            continue
        where = str(error.get("pointer", "")).removeprefix("#/").replace("/", ".") or error.get("parameter") or ""
        if error.get("detail") != detail:
            lines.append(f"  {where}: {error.get('detail')}" if where else f"  {error.get('detail')}")
    lines += [
        f"  {name}: {one_line(value)}" for name, value in problem.items() if name not in _TOLD and value is not None
    ]
    if problem.get("hint"):
        lines.append(f"  hint: {problem['hint']}")
    lines.append(f"  request id: {problem.get('request_id') or request_id}")
    return [printable(line) for line in lines]
