"""A gateway's REST API: its address, the key, requests, and what its errors say."""

import argparse
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2

from app.admin.client_config import endpoint
from app.cli.files.text import read_text
from app.cli.tables import one_line
from app.errors import GatewayError, InvalidRequest
from app.settings.environment import PREFIX
from app.settings.hosts import is_loopback
from app.text.terminal.text import printable

TIMEOUT = httpx2.Timeout(30.0, connect=5.0, read=300.0)  # to install a package takes up to 280 s
ATTEMPTS = 3
DEEPEST = 64  # levels of an answer; no gateway nests more than a handful
LONGEST_PAUSE_S = 5.0  # if a gateway asks for a longer pause, its refusal is shown instead
UNDER_WAY, TOO_MANY, MOST_WAITS = 409, 429, 100  # of one request
PAGE = 200
MAX_KEY_FILE = 64 * 1024
MOST_BACKENDS = 100_000  # of one tenant
MOST_SHOWN = 20  # names in an error
_KNOWN = frozenset({"type", "title", "status", "detail", "reason", "instance", "errors", "hint", "request_id"})
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.InvalidURL)


class Refused(GatewayError):
    """The gateway, or a proxy before it, refused the request. `summary` is the first line of the message."""

    reason = "refused"

    def __init__(self, status: int, lines: list[str]) -> None:
        super().__init__("\n".join(lines))
        self.status, self.summary = status, lines[0]


class NoTenant(InvalidRequest):
    """There is no such tenant; `names` are some that there are."""

    def __init__(self, tenant: str, names: Sequence[str]) -> None:
        super().__init__(f"there is no tenant {tenant!r}" + (f"; there are {', '.join(names)}" if names else ""))


def is_remote(options: argparse.Namespace) -> bool:
    """Whether a command that could use the database of this machine is for a gateway: with --url, or with TRUNKLINE_URL
    and without --data-dir."""
    data_dir = getattr(options, "data_dir", None)
    if options.url and data_dir:
        raise InvalidRequest("--url is a gateway's address and --data-dir a database here; give one of them")
    return bool(options.url or (_variable("URL") and not data_dir))


@contextmanager
def open_rest(options: argparse.Namespace, *, say: bool = True, is_patient: bool = False) -> Iterator["Rest"]:
    """The REST API of the gateway that the options name. With `say` its address is printed on stderr first.

    Raises:
        InvalidRequest: its address or a key is missing or malformed.
    """
    url = (options.url or _variable("URL")).rstrip("/")
    if not url:
        raise InvalidRequest(
            "which gateway? Set TRUNKLINE_URL or give --url; by default a gateway on this machine has the address "
            "http://127.0.0.1:8080"
        )
    endpoint(url, "t", "b")  # checks it
    if say:
        _say_which(url)
    named = getattr(options, "key_env", None)
    key = _checked(os.environ.get(named, "").strip(), named) if named else _key(options.key_file)
    with _client(url, key) as client:
        yield Rest(url, client, is_patient)


def _client(url: str, key: str) -> httpx2.Client:
    # No redirect is followed, and no proxy is used for this machine: either would receive the key.
    parts = urlsplit(url)
    is_here = is_loopback(parts.hostname or "")
    try:
        return httpx2.Client(
            headers={"Authorization": f"Bearer {key}"},
            timeout=TIMEOUT,
            follow_redirects=False,
            trust_env=not is_here,
            # SSL_CERT_FILE counts for this machine too. Without TLS no authorities need be read, which takes a while.
            verify=httpx2.create_ssl_context() if parts.scheme == "https" else not is_here,
        )
    except (OSError, ValueError, httpx2.InvalidURL) as error:
        raise InvalidRequest(
            f"cannot set up the connection; is SSL_CERT_FILE, or a proxy's variable, right? {error}"
        ) from None


def _say_which(url: str) -> None:
    print(f"trunkline: gateway {url}", file=sys.stderr)
    parts = urlsplit(url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        print("trunkline: this address is not encrypted: others on the network can read the key", file=sys.stderr)


def _key(file: str | None) -> str:
    text, kept = _variable("KEY"), _variable("KEY_FILE")
    if not file and text and kept:
        raise InvalidRequest("set either TRUNKLINE_KEY or TRUNKLINE_KEY_FILE, not both")
    source = file or kept
    if source:
        return _checked(read_text(source, MAX_KEY_FILE).strip(), source)
    if text:
        return _checked(text, "TRUNKLINE_KEY")
    raise InvalidRequest(
        "there is no key: set TRUNKLINE_KEY, or TRUNKLINE_KEY_FILE or --key-file to a file that contains it. To "
        "create the first one, run on the gateway's machine: TRUNKLINE_URL= trunkline keys create --tenant default "
        "--scope platform:admin"
    )


def _checked(key: str, source: str) -> str:
    if not key:
        raise InvalidRequest(f"there is no key in {source}")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise InvalidRequest(f"{source} does not contain a key: no key has spaces or line breaks in it")
    return key


def _variable(name: str) -> str:
    return os.environ.get(PREFIX + name, "").strip()


def segment(text: str) -> str:
    """The text as one segment of a path. `.` and `..` are refused: they would change the path."""
    if text in ("", ".", ".."):
        raise InvalidRequest(f"{text!r} is not a name or an id")
    return quote(text, safe="")


@dataclass(frozen=True, slots=True)
class Rest:
    """The REST API of one gateway."""

    url: str
    client: httpx2.Client
    is_patient: bool = False  # for commands of many requests: waits for as long as there are too many of them

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """The gateway's answer; an empty object if it has no body.

        Repeats requests that got no answer, or were asked to come later; an idempotency key keeps a POST from being
        carried out twice.

        Raises:
            Refused: the gateway answered with an error.
            GatewayError: it does not answer.
        """
        return self._exchange(method, path, body, query or {}, headers or {})[0]

    def tagged(self, path: str) -> tuple[dict[str, Any], str]:
        """One object, and its `ETag`. Raises like `ask`."""
        return self._exchange("GET", path, None, {}, {})

    def compare(self, path: str, body: object) -> list[str]:
        """The members of the body whose values the gateway does not have. Raises like `ask`."""
        # Nothing is changed, so it may be repeated without an idempotency key, of which a day has a limited number.
        found = self._exchange("POST", f"{path}:compare", body, {}, {"Idempotency-Key": ""})[0].get("different")
        if not (isinstance(found, list) and all(isinstance(each, str) for each in found)):
            raise GatewayError(f"{self.url} does not answer a comparison with a list of members")
        return found

    def follow(self, path: str, body: object, begun: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
        """The answer to a POST that tells its steps while it takes them; `begun` gets each. Raises like `ask`.

        It has no idempotency key, with which an answer is one document, so it is repeated only if it was refused for
        now: without a step.
        """
        request_id = secrets.token_hex(8)
        headers = {"X-Request-Id": request_id, "Accept": "text/event-stream"}
        try:
            with self.client.stream("POST", f"{self.url}/api/v1{path}", json=body, headers=headers) as response:
                if response.headers.get("content-type", "").startswith("text/event-stream"):
                    return self._last_event(response, begun, request_id)
                response.read()
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._silence(str(error) or type(error).__name__, request_id) from None
        if _pause(response) is not None:
            return self.ask("POST", path, body)
        return _answer(response, self.url, request_id)

    def _last_event(
        self, response: httpx2.Response, begun: Callable[[Mapping[str, Any]], None], request_id: str
    ) -> dict[str, Any]:
        for kind, found in _events(response.iter_lines()):
            if kind == "result":
                return found
            if kind == "problem" and "title" in found:
                status = found.get("status")
                raise Refused(status if isinstance(status, int) else 0, _lines(found, request_id))
            if kind == "begun":
                begun(found)
        raise self._silence("its answer has ended too early", request_id)

    def _silence(self, why: str, request_id: str) -> GatewayError:
        return GatewayError(
            f"{self.url} does not answer: {why}",
            hint=f"is the address right, and is the gateway running? Request id: {request_id}",
        )

    def _exchange(
        self, method: str, path: str, body: object, query: Mapping[str, str], more: Mapping[str, str]
    ) -> tuple[dict[str, Any], str]:
        headers = {"X-Request-Id": secrets.token_hex(8)}
        if method == "POST":
            headers["Idempotency-Key"] = secrets.token_hex(16)
        headers = {name: value for name, value in {**headers, **more}.items() if value}
        attempt = waited = 0
        while True:
            attempt += 1
            try:
                response = self.client.request(
                    method, f"{self.url}/api/v1{path}", json=body, params=dict(query), headers=headers
                )
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                if attempt == ATTEMPTS or isinstance(error, _NOT_SENT):
                    raise self._silence(str(error) or type(error).__name__, headers["X-Request-Id"]) from None
                continue
            pause_s = _pause(response)
            # The first one may take longer than its answer is waited for.
            waits_for = (UNDER_WAY, TOO_MANY) if self.is_patient else (UNDER_WAY,)
            if response.status_code in waits_for and pause_s is not None and waited < MOST_WAITS:
                waited, attempt = waited + 1, attempt - 1
                time.sleep(pause_s)
            elif attempt < ATTEMPTS and pause_s is not None:
                time.sleep(pause_s)
            elif method == "DELETE" and attempt > 1 and response.status_code == httpx2.codes.NOT_FOUND:
                return {}, ""  # the answer to the first one was lost
            else:
                break
        return _answer(response, self.url, headers["X-Request-Id"]), response.headers.get("etag", "")

    def items(self, path: str, *, query: Mapping[str, str], most: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """At most `most` items of a list, and the other members of its last page: `next_cursor` if there are more."""
        found, cursor = list[dict[str, Any]](), ""
        while True:
            wanted = {**query, "limit": str(min(PAGE, most - len(found))), **({"cursor": cursor} if cursor else {})}
            page = self.ask("GET", path, query=wanted)
            items, last = page.pop("items", []), cursor
            if not (isinstance(items, list) and all(isinstance(each, dict) for each in items)):
                raise GatewayError(f"{self.url} sent a list without items: it is not a gateway")
            found += items
            cursor = str(page.get("next_cursor") or "")
            if not cursor or len(found) >= most or (cursor == last and not items):
                return found, page


def _events(lines: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of a stream as a gateway writes it: each has one line of data, which is a JSON object."""
    kind = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            try:
                found = json.loads(value)
            except (ValueError, RecursionError):
                found = None
            if isinstance(found, dict) and not _is_deeper(found, DEEPEST):
                yield kind, found


def _pause(response: httpx2.Response) -> float | None:
    """How long to wait before repeating a request that was refused for now; None if it must not be repeated."""
    after = response.headers.get("retry-after", "")
    if response.status_code not in (UNDER_WAY, TOO_MANY, 503) or not (
        after.isascii() and after.isdigit() and len(after) < 6
    ):
        return None
    return float(after) if int(after) <= LONGEST_PAUSE_S else None


def _answer(response: httpx2.Response, url: str, sent_id: str) -> dict[str, Any]:
    status = response.status_code
    try:
        document = response.json() if response.content else {}
    except (ValueError, RecursionError):
        document = None
    if _is_deeper(document, DEEPEST):  # it could not be printed
        document = None
    if 200 <= status < 300 and isinstance(document, dict):
        return document
    request_id = response.headers.get("x-request-id", sent_id)
    if not (isinstance(document, dict) and "title" in document):
        where = response.headers.get("location")
        what = f"and redirects to {where!a}; use that address" if where else "and this is not a gateway's answer"
        raise Refused(status, [f"{url} answers {status} {what}", f"  request id: {request_id}"])
    raise Refused(status, _lines(document, request_id))


def _is_deeper(value: object, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not levels or any(_is_deeper(each, levels - 1) for each in inner)


def _lines(problem: Mapping[str, Any], request_id: str) -> list[str]:
    """Title, detail, errors, other members, hint and request id of a problem (RFC 9457)."""
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
        f"  {name}: {one_line(value)}" for name, value in problem.items() if name not in _KNOWN and value is not None
    ]
    if problem.get("hint"):
        lines.append(f"  hint: {problem['hint']}")
    lines.append(f"  request id: {problem.get('request_id') or request_id}")
    return [printable(line) for line in lines]
