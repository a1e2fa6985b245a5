"""What may differ between a dialogue through the gateway and the same one without it, and why. Nothing else may."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.differential.reading import META, Entry
from tests.differential.scripts import CHANGES, SERVERS

OPENING = "initialize or server/discover"
LIST_CHANGES = {f"notifications/{what}/list_changed" for what in ("tools", "prompts", "resources")}
COALESCED = {*LIST_CHANGES, "notifications/resources/updated"}
SUBSCRIBING = {
    *("resources/subscribe", "resources/unsubscribe"),
    *("subscriptions/listen", "notifications/subscriptions/acknowledged"),
}
# Over HTTP they have another stream than what is around them: their order is their own.
BY_THE_WAY = {*COALESCED, "notifications/initialized", "notifications/cancelled"}
_PROCESS = re.compile(r'(?<="process": )\d+')
_CLOCK = re.compile(r"T\d\d:\d\d:\d\d")


@dataclass(frozen=True)
class Pair:
    """Who speaks to whom, and what the client accepts."""

    name: str
    client: str
    server: str
    accept: str = "both"

    def __str__(self) -> str:
        return f"{self.name}: {self.client} client, {self.server} server, accepts {self.accept}"

    @property
    def is_bridged(self) -> bool:
        return self.client != self.server

    @property
    def by_the_way(self) -> set[str]:
        """Methods of messages whose order is their own."""
        is_on_get_stream = self.accept == "json" and self.client == "legacy"
        return BY_THE_WAY | {"notifications/message"} if is_on_get_stream else BY_THE_WAY


@dataclass(frozen=True)
class Place:
    """Where entries were written down."""

    pair: Pair
    end: str  # client, server
    through: bool  # the gateway

    @property
    def era(self) -> str:
        """What is spoken here."""
        is_clients = self.through and self.end == "client"
        return self.pair.client if is_clients else self.pair.server


Change = Callable[[Entry, Place], Entry | None]


@dataclass(frozen=True)
class Allowed:
    """A difference that is right."""

    what: str
    why: str
    change: Change  # the entry without the difference; None where the entry is the difference
    where: Callable[[Place], bool] = lambda _: True


# --- where


def at_the_client(place: Place) -> bool:
    return place.end == "client"


def bridged(place: Place) -> bool:
    return place.pair.is_bridged


def sessionless_client(place: Place) -> bool:
    return place.pair.client == "sessionless"


def sessionless_client_of_an_older_server(place: Place) -> bool:
    return bridged(place) and sessionless_client(place)


def json_only(place: Place) -> bool:
    return place.end == "client" and place.pair.accept == "json"


# --- changes


def _without(*methods: str) -> Change:
    return lambda entry, _: None if entry.method in methods else entry


def _without_fields(*names: str) -> Change:
    def change(entry: Entry, _: Place) -> Entry:
        if entry.kind != "result":
            return entry
        return replace(entry, body={name: value for name, value in entry.body.items() if name not in names})

    return change


def _own_of_the_process(entry: Entry, _: Place) -> Entry:
    def within(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: within(each) for name, each in value.items()}
        if isinstance(value, list):
            return [within(each) for each in value]
        return _CLOCK.sub("TIME", _PROCESS.sub("PROCESS", value)) if isinstance(value, str) else value

    return replace(entry, body=within(entry.body)) if entry.kind == "result" else entry


def _token_said(entry: Entry, _: Place) -> Entry:
    if entry.kind == "result" and '"test_tool_with_progress"' in entry.about:
        return replace(entry, body={**entry.body, "content": "its own token"})
    return entry


def _state(entry: Entry, _: Place) -> Entry:
    if isinstance(entry.body, dict) and "requestState" in entry.body:
        return replace(entry, body={**entry.body, "requestState": "sealed or not"})
    return entry


def _versions(entry: Entry, _: Place) -> Entry:
    if entry.method == "server/discover" and entry.kind == "result":
        return replace(entry, body={**entry.body, "supportedVersions": "any"})
    return entry


def _reason(entry: Entry, _: Place) -> Entry:
    if entry.method == "notifications/cancelled":
        return replace(entry, body={**entry.body, "reason": "some reason"})
    return entry


def _envelope(entry: Entry, _: Place) -> Entry:
    if entry.kind == "error" or entry.method == OPENING:
        return entry
    entry = replace(entry, body=entry.body or {})
    meta = {name: value for name, value in (entry.body.get("_meta") or {}).items() if not name.startswith(META)}
    body = {name: value for name, value in entry.body.items() if name != "_meta"}
    return replace(entry, body={**body, "_meta": meta} if meta else body)


def _opening(entry: Entry, place: Place) -> Entry | None:
    if entry.method not in ("initialize", "server/discover"):
        return entry
    if (entry.method == "initialize") != (place.era == "legacy"):
        return None  # asks whether the server speaks the other era
    meta = entry.body.get("_meta") or {}
    if entry.kind == "request":
        capabilities = entry.body.get("capabilities", meta.get(META + "clientCapabilities"))
        body = {"capabilities": capabilities, "who": entry.body.get("clientInfo", meta.get(META + "clientInfo"))}
    else:
        who = entry.body.get("serverInfo", meta.get(META + "serverInfo"))
        body = {"capabilities": entry.body["capabilities"], "who": who, "says": entry.body.get("instructions")}
    return replace(entry, method=OPENING, about=OPENING, body=body)


def _tasks(entry: Entry, _: Place) -> Entry:
    if entry.method == OPENING and "tasks" in entry.body["capabilities"]:
        capabilities = {name: value for name, value in entry.body["capabilities"].items() if name != "tasks"}
        return replace(entry, body={**entry.body, "capabilities": capabilities})
    return entry


def _mode(entry: Entry, _: Place) -> Entry:
    if entry.method == "elicitation/create" and entry.kind == "request":
        return replace(entry, body={"mode": "form", **entry.body})
    return entry


def _not_found(entry: Entry, _: Place) -> Entry:
    if entry.kind == "error" and entry.body["code"] == -32002:
        return replace(entry, body={**entry.body, "code": -32602})
    return entry


def _own_list(entry: Entry, _: Place) -> Entry | None:
    is_given_up = entry.method == "notifications/cancelled" and entry.body["requestId"] == "tools/list"
    return None if is_given_up or entry.method == "tools/list" else entry


def _end_of_listening(entry: Entry, _: Place) -> Entry | None:
    is_end = entry.method == "notifications/cancelled" and entry.body["requestId"] == "subscriptions/listen"
    return None if is_end else entry


def _changes_unasked(entry: Entry, _: Place) -> Entry | None:
    return None if entry.method in LIST_CHANGES and entry.step != CHANGES else entry


def _changes(entry: Entry, _: Place) -> Entry | None:
    return None if entry.step == CHANGES else entry


def _outside_of_calls(entry: Entry, place: Place) -> Entry | None:
    return None if entry.method in SERVERS[place.pair.name].by_the_way else entry


# Ids and progress tokens are not compared as such: `reading.py` says what they belong to.
ALLOWED = [
    Allowed(
        "process ids and times of day in the texts of results",
        "no two dialogues have the same",
        _own_of_the_process,
    ),
    Allowed(
        "the progress token that test_tool_with_progress tells as its result",
        "the gateway makes the tokens that servers see",
        _token_said,
    ),
    Allowed(
        "the requestState at the client's end",
        "it is sealed; at the server's end it has to be the server's own",
        _state,
        at_the_client,
    ),
    Allowed(
        "supportedVersions of server/discover",
        "the gateway speaks every revision, whatever the server does",
        _versions,
        at_the_client,
    ),
    Allowed(
        "progress, where the client accepts JSON only",
        "a JSON answer has no room for it",
        _without("notifications/progress"),
        json_only,
    ),
    Allowed(
        "log messages, where a client of 2026-07-28 accepts JSON only",
        "the same; one of the handshake era has its GET stream",
        _without("notifications/message"),
        lambda place: json_only(place) and sessionless_client(place),
    ),
    Allowed(
        "subscriptions, where a client of 2026-07-28 accepts JSON only",
        "they are a stream: 406",
        _changes,
        lambda place: place.pair.accept == "json" and sessionless_client(place),
    ),
    Allowed(
        "the reason of a cancellation",
        "over HTTP a client of 2026-07-28 closes the stream, which says none",
        _reason,
        sessionless_client,
    ),
    Allowed(
        "tools/list at the server's end",
        "the gateway asks for itself too, to know what a client of 2026-07-28 has to repeat in headers; not for long",
        _own_list,
        lambda place: sessionless_client(place) and place.end == "server",
    ),
    # --- what one revision writes in another way than the other, or has not at all
    Allowed("the opening", "initialize in one, server/discover in the other", _opening, bridged),
    Allowed("notifications/initialized", "2026-07-28 has none", _without("notifications/initialized"), bridged),
    Allowed("the envelope in _meta", "only 2026-07-28 has one", _envelope, bridged),
    Allowed(
        "resultType, ttlMs and cacheScope",
        "only 2026-07-28 has them",
        _without_fields("resultType", "ttlMs", "cacheScope"),
        bridged,
    ),
    Allowed("mode: form", "before 2026-07-28 a form need not say that it is one", _mode, bridged),
    Allowed("the code of a resource that is not there", "-32002 before 2026-07-28, -32602 since", _not_found, bridged),
    Allowed(
        "how a client subscribes",
        "by a request for each resource in one, by a stream in the other",
        _without(*SUBSCRIBING),
        bridged,
    ),
    Allowed(
        "how it ends a subscription",
        "by a request in one, by closing the stream in the other",
        _end_of_listening,
        bridged,
    ),
    Allowed(
        "logging/setLevel",
        "in 2026-07-28 each request has its level; the gateway makes one out of the other",
        _without("logging/setLevel"),
        bridged,
    ),
    Allowed("ping", "2026-07-28 has none", _without("ping"), bridged),
    Allowed("the capability tasks", "tasks are another thing in each, and not translated", _tasks, bridged),
    Allowed(
        "list changes outside of a subscription",
        "2026-07-28 has them only there",
        _changes_unasked,
        lambda place: sessionless_client_of_an_older_server(place) and place.end == "client",
    ),
    Allowed(
        "what a server says when it likes",
        "in 2026-07-28 it can ask and log only in a call: in one that runs, or it hears that there is none",
        _outside_of_calls,
        sessionless_client_of_an_older_server,
    ),
]


def without_what_may_differ(entries: list[Entry], place: Place) -> list[Entry]:
    left = []
    for entry in entries:
        changed: Entry | None = entry
        for allowed in ALLOWED:
            if changed is not None and allowed.where(place):
                changed = allowed.change(changed, place)
        if changed is not None:
            left.append(changed)
    return left
