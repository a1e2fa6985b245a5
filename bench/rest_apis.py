"""REST APIs of real documents as tools: what becomes of each document, and calls against a server made from it.

    npm install --ignore-scripts --prefix HOME \\
        @stoplight/prism-cli@5.16.0 @octokit/openapi@23.0.2 @blockfrost/openapi@0.1.93 @directus/specs@15.2.0
    unshare --net .venv/bin/python bench/rest_apis.py HOME [--only NAME ...] [--most 100] [--out FILE]

As root, and in a network of its own: so nothing that is started here, and nothing that a document names, is anywhere
but on its loopback. `prism mock --errors` checks each request against the document, and answers with an example. Each
tool (or `--most` of them, evenly) is called twice: with the arguments that it requires, and with all. What prism finds
wrong with a request is counted, with the first of each kind. Values are made from the tool's schema, so some
are wrong for what is not followed here, such as a pattern. Also: calls that must fail, credentials, and ten documents
that are none.
"""

import argparse
import asyncio
import base64
import fcntl
import gzip
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from tests.integration.gateway import Endpoint, Gateway, running_gateway
from tests.integration.remote import LOOPBACK, free_port, is_listened_to, reached
from tests.integration.wire import RpcError, Wire, wire

SECRET = "s3cret-of-the-benchmark"
READY_S, CALL_S = 300.0, 60.0
SHOWN = 3  # examples of each kind
_is_name = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_OF_FORMATS = {
    "date-time": "2026-01-02T03:04:05Z", "date": "2026-01-02", "time": "03:04:05Z", "email": "a@example.com",
    "uuid": "123e4567-e89b-12d3-a456-426614174000", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "hostname": "a.example",
}  # fmt: skip
_URLS = ("uri", "url", "uri-reference", "uri-template")


@dataclass(frozen=True)
class Document:
    """`where`: its file, below node_modules. `headers`: with which its API is asked."""

    where: str
    headers: Mapping[str, str]


DOCUMENTS = {
    "github": Document("@octokit/openapi/generated/api.github.com.json", {"Authorization": f"Bearer {SECRET}"}),
    "blockfrost": Document("@blockfrost/openapi/openapi.yaml", {"project_id": SECRET}),
    "directus": Document("@directus/specs/dist/openapi.json", {"Authorization": f"Bearer {SECRET}"}),
}


@dataclass
class Seen:
    """What came of calls. `wrong`: what prism says of requests; `odd`: answers that no call should have."""

    statuses: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, list[str]] = field(default_factory=dict)
    odd: list[str] = field(default_factory=list)

    def add_wrong(self, kind: str, example: str) -> None:
        found = self.wrong.setdefault(kind, [])
        if len(found) < SHOWN:
            found.append(example[:300])


# --- values for arguments


def value_for(schema: Any, defs: Mapping[str, Any], *, every: bool, depth: int = 0) -> Any:
    """A value that fits, as far as is easily said. `every`: with all that it may have."""
    if not isinstance(schema, dict) or depth > 8:
        return "x"
    if "$ref" in schema:
        return value_for(defs.get(schema["$ref"].rpartition("/")[2]), defs, every=every, depth=depth + 1)
    if "const" in schema:
        return schema["const"]
    if "default" in schema and schema["default"] is not None:
        return schema["default"]
    if values := [each for each in schema.get("enum", ()) if each is not None]:
        return values[0]
    for several in ("oneOf", "anyOf"):
        if several in schema and "properties" not in schema:
            fit: Any = next((each for each in schema[several] if each.get("type") != "null"), {})
            return value_for(fit, defs, every=every, depth=depth + 1)
    if "allOf" in schema and "properties" not in schema:
        parts = [value_for(each, defs, every=every, depth=depth + 1) for each in schema["allOf"]]
        return {k: v for part in parts if isinstance(part, dict) for k, v in part.items()} if parts else "x"
    kinds = schema.get("type", "object" if "properties" in schema else "string")
    kind = next((each for each in kinds if each != "null"), "null") if isinstance(kinds, list) else kinds
    return _of_kind(kind, schema, defs, every=every, depth=depth)


def _of_kind(kind: str, schema: dict[str, Any], defs: Mapping[str, Any], *, every: bool, depth: int) -> Any:
    if kind == "string":
        return _text_for(schema)
    if kind in ("integer", "number"):
        least = schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        return max(least, 1) if schema.get("maximum", 1) >= 1 else schema["maximum"]
    if kind == "boolean":
        return True
    if kind == "array":
        count = max(schema.get("minItems", 0), 1 if every else 0)
        return [value_for(schema.get("items", {}), defs, every=every, depth=depth + 1)] * count
    if kind == "object":
        properties, needed = schema.get("properties", {}), schema.get("required", [])
        names = list(properties) if every and depth < 3 else [each for each in needed if each in properties]
        return {name: value_for(properties[name], defs, every=every, depth=depth + 1) for name in names}
    return None


def _text_for(schema: dict[str, Any]) -> str:
    kind = schema.get("format", "")
    text = "https://example.com/" if kind in _URLS else _OF_FORMATS.get(kind, "x")
    text = text.ljust(schema.get("minLength", 0), "x")
    return text[: schema.get("maxLength", len(text))]


def arguments_for(tool: Mapping[str, Any], *, every: bool) -> dict[str, Any]:
    schema = tool["inputSchema"]
    names = list(schema["properties"]) if every else schema.get("required", [])
    defs = schema.get("$defs", {})
    return {name: value_for(schema["properties"][name], defs, every=every, depth=1) for name in names}


# --- the servers


def require_alone() -> None:
    """Ends the program where a network is near, and raises the loopback of one that is new."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        if probe.connect_ex(("192.0.2.1", 9)) == 0:  # nothing is sent: it is UDP
            raise SystemExit("there is a network here: begin with `unshare --net`")
        fcntl.ioctl(probe, 0x8914, struct.pack("16sh22x", b"lo", 0x41))  # SIOCSIFFLAGS: up and running


@contextmanager
def prism(home: Path, document: Path, port: int) -> Iterator[None]:
    """A server made from a document."""
    program = home / "node_modules/@stoplight/prism-cli/dist/index.js"
    words = ["mock", "--errors", "--verboseLevel", "error", "--host", "127.0.0.1", "--port", str(port), str(document)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "NODE_OPTIONS": "--max-old-space-size=4096"}
    process = subprocess.Popen(["node", str(program), *words], env=environment, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + READY_S
        while not is_listened_to(port):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"prism does not serve {document}")
            time.sleep(0.2)
        yield
    finally:
        process.terminate()
        process.wait()


def packed(text: bytes) -> str:
    return "data:application/gzip;base64," + base64.b64encode(gzip.compress(text)).decode()


@asynccontextmanager
async def session_of(gateway: Gateway, url: str, **fields: Any) -> AsyncIterator[tuple[Wire, Endpoint]]:
    endpoint = reached(gateway, url, **fields)
    async with wire(endpoint) as session:
        yield session, endpoint


# --- what is measured of a document


async def measured(gateway: Gateway, document: Document, text: bytes, url: str, most: int) -> dict[str, Any]:
    began = time.perf_counter()
    async with session_of(gateway, url, openapi=packed(text), headers=dict(document.headers)) as (session, endpoint):
        registered_s = time.perf_counter() - began
        path = f"/tenants/{endpoint.tenant}/backends/{endpoint.name}"
        registered = gateway.api("GET", path)
        tools = await all_tools(session)
        chosen = tools[:: max(1, len(tools) // most)]
        seen, calling = Seen(), time.perf_counter()
        for tool in chosen:
            for every in (False, True):
                await call(session, tool, arguments_for(tool, every=every), seen)
        calls_s = time.perf_counter() - calling
    shown = json.dumps([registered, tools])
    return {
        "registered_s": round(registered_s, 1),
        "tools": len(tools),
        "left_out": len(registered["notes"]),
        "left_out_first": [each[:200] for each in registered["notes"][:SHOWN]],
        "unfit_tools": [each["name"] for each in tools if not is_fit(each)],
        "called": len(chosen),
        "ms_a_call": round(1000 * calls_s / max(1, 2 * len(chosen)), 1),
        "answers": dict(seen.statuses.most_common()),
        "wrong_requests": seen.wrong,
        "odd_answers": seen.odd[:SHOWN],
        "without_credentials": await statuses(gateway, text, url, {}, chosen),
        "asked_to_fail": await statuses(gateway, text, url, {**document.headers, "Prefer": "code=404"}, chosen),
        "is_secret_shown": SECRET in shown or SECRET in gateway.log.read_text(),
    }


async def all_tools(session: Wire) -> list[dict[str, Any]]:
    found, cursor = list[dict[str, Any]](), None
    while True:
        page = await session.request("tools/list", {"cursor": cursor} if cursor else {})
        found += page["tools"]
        cursor = page.get("nextCursor")
        if not cursor:
            return found


def is_fit(tool: Mapping[str, Any]) -> bool:
    """Whether a client can use its name and schema, and everything that it refers to is there."""
    schema = tool["inputSchema"]
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return False
    defs = schema.get("$defs", {})
    referred = set(re.findall(r'"\$ref": "#/\$defs/([^"]+)"', json.dumps(schema)))
    return _is_name(tool["name"]) is not None and referred <= defs.keys()


async def call(session: Wire, tool: Mapping[str, Any], arguments: dict[str, Any], seen: Seen) -> None:
    try:
        result = await session.request("tools/call", {"name": tool["name"], "arguments": arguments})
    except RpcError as error:
        seen.statuses[f"{error.reason or error.code}"] += 1
        seen.odd.append(f"{tool['name']}: {error}")
        return
    text = "".join(each.get("text", "") for each in result["content"])
    if SECRET in text:
        seen.odd.append(f"{tool['name']}: shows the credential")
    found = re.match(r"The API answered HTTP (\d+)", text) if result.get("isError") else None
    seen.statuses[found[1] if found else "not made" if result.get("isError") else "2xx"] += 1
    if found is None and result.get("isError"):
        seen.add_wrong("not made", f"{tool['name']}: {text}")
    for kind in complaints(text) if found else ():
        seen.add_wrong(kind, f"{tool['name']} {json.dumps(arguments)[:120]}: {text.partition('{')[2]}")


def complaints(text: str) -> Iterator[str]:
    """What prism finds wrong with a request, by the kind of it; its own trouble with answers is none."""
    try:
        problem = json.loads(text.partition("\n\n")[2])
    except ValueError:
        return
    kind = str(problem.get("type", "")).rpartition("#")[2] if isinstance(problem, dict) else ""
    if kind in ("", "NOT_FOUND", "NO_RESPONSE_DEFINED", "UNAUTHORIZED"):
        return
    for each in problem.get("validation") or [{}]:
        place = ".".join(map(str, each.get("location", ())[:2]))
        if not place.startswith("response"):
            yield f"{kind} {place} {each.get('code', '')}".strip()


async def statuses(
    gateway: Gateway, text: bytes, url: str, headers: Mapping[str, str], tools: list[dict[str, Any]]
) -> dict[str, int]:
    """How the first of these tools are answered with other headers."""
    seen = Seen()
    async with session_of(gateway, url, openapi=packed(text), headers=dict(headers)) as (session, _):
        for tool in tools[:20]:
            await call(session, tool, arguments_for(tool, every=False), seen)
    return dict(seen.statuses.most_common())


# --- documents that are none


def malformed(text: bytes) -> dict[str, bytes]:
    """Ten, from one that is in JSON."""
    document = json.loads(text)
    paths, schemas = document["paths"], document["components"]["schemas"]
    circle = {"schemas": {name: {"$ref": f"#/components/schemas/{name}"} for name in schemas}}
    steps = zip("abcdefgh", "bcdefghi", strict=True)
    bomb = "".join(f"{name}: &{name} [{', '.join([f'*{before}'] * 8)}]\n" for before, name in steps)
    return {
        "cut off": text[: len(text) // 2],
        "in UTF-16": text[: 1 << 20].decode("utf-8", "ignore").encode("utf-16"),
        "packed twice": gzip.compress(text),
        "of another version": json.dumps({**document, "openapi": "4.0.0"}).encode(),
        "paths that are a list": json.dumps({**document, "paths": list(paths)}).encode(),
        "paths of numbers": json.dumps({**document, "paths": dict.fromkeys(paths, 7)}).encode(),
        "references to nowhere": re.sub(rb'"#/components/[a-z]+/', b'"#/nowhere/', text),
        "references to themselves": json.dumps({**document, "components": circle}).encode(),
        "a bomb of aliases": f"openapi: 3.0.0\na: &a [x, x, x, x, x, x, x, x]\n{bomb}paths: *i\n".encode(),
        "nested a million times": b'{"openapi":"3.0.3","paths":' + b'{"a":' * 1_000_000,
    }


def refused(gateway: Gateway, text: bytes) -> dict[str, Any]:
    """What is said of each, and how long it took; of one that is taken nevertheless how much is left out."""
    tenant, found = gateway.add_tenant(), dict[str, Any]()
    for number, (name, each) in enumerate(malformed(text).items()):
        body = {"name": f"m-{number}", "url": "http://127.0.0.1:1", "openapi": packed(each)}
        began = time.perf_counter()
        answer = gateway.http.post(f"/api/v1/tenants/{tenant}/backends", json=body, timeout=120)
        seconds, said = round(time.perf_counter() - began, 1), answer.json()
        words = f"{len(said['notes'])} notes" if answer.status_code == 201 else json.dumps(said)[-250:]
        found[name] = {"status": answer.status_code, "seconds": seconds, "said": words}
        assert gateway.api("GET", f"/tenants/{tenant}/backends?limit=1") is not None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("home", type=Path)
    parser.add_argument("--only", nargs="*", choices=[*DOCUMENTS, "malformed"], default=[*DOCUMENTS, "malformed"])
    parser.add_argument("--most", type=int, default=1_000_000, help="tools of a document that are called")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    require_alone()
    found = dict[str, Any]()
    with (
        tempfile.TemporaryDirectory() as directory,
        running_gateway(Path(directory) / "data", **LOOPBACK) as gateway,
    ):
        for name in options.only:
            found[name] = asyncio.run(one(gateway, options, name))
            print(json.dumps({name: found[name]}, indent=1), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


async def one(gateway: Gateway, options: argparse.Namespace, name: str) -> dict[str, Any]:
    document = DOCUMENTS["github" if name == "malformed" else name]
    file = options.home / "node_modules" / document.where
    text, port = file.read_bytes(), free_port()
    if name == "malformed":
        return refused(gateway, text)
    with prism(options.home, file, port):
        return await measured(gateway, document, text, f"http://127.0.0.1:{port}", options.most)


if __name__ == "__main__":
    main()
