"""Replaying: makes one recorded `tools/call` again, with a process of its own, and compares the answers.

Whether the tool may be called is asked of what that process offers: not of what the backend was known to offer.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import anyio
import msgspec

from app.backends.checks.backend_check import DEADLINE_S, SUFFIX, greet
from app.backends.checks.steps import Step, Steps
from app.backends.pool import ProcessPool
from app.domain import BackendSpec, Limits
from app.errors import BackendTimeout, Conflict, GatewayError, QuotaExceeded, ShuttingDown
from app.inspections.masking import Mask
from app.processes.conversation import Conversation
from app.processes.link import BackendLink
from app.protocol.eras.sessionless_envelope import META, VERSION_KEY
from app.protocol.jsonrpc import Response
from app.protocol.toolset.offer import Offer
from app.protocol.toolset.pages import Pages
from app.upstreams.upstreams import Upstreams

MAX_DIFFERENCES = 20
MAX_SHOWN = 200  # characters of a value that differs
MAX_AT_ONCE, MAX_OF_TENANT = 8, 2  # on a node: each has a process, for a minute at most
BUSY_S = 10.0  # until one of them may be over

Refusal = Callable[[Offer], Awaitable[str | None]]  # why a tool must not be called, by what its process offers


@dataclass(frozen=True, slots=True)
class ToolsCall:
    """What is made again. `before`: the masked answer to compare with. `refusal` may raise as the catalogue does."""

    params: Mapping[str, Any]
    before: str | None
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where the answers differ: a JSON pointer, and both values as JSON, cut; None: it is not there."""

    at: str
    before: str | None
    now: str | None


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it. `failure` says at which step it ended early, and why. `same` is None if that cannot be told."""

    took_ms: float | None
    answer: str | None
    is_cut: bool
    same: bool | None
    differences: Sequence[Difference]
    steps: Sequence[Step]
    failure: str | None


class Replaying:
    """Runs calls on this node, each with a process or a session of its own, as a check does."""

    def __init__(self, pool: ProcessPool, upstreams: Upstreams) -> None:
        self._pool, self._upstreams = pool, upstreams
        self._running = Counter[str]()  # by tenant

    async def replay(self, spec: BackendSpec, limits: Limits, call: ToolsCall, mask: Mask) -> Replayed:
        """Takes DEADLINE_S at most.

        Raises:
            Conflict: the tool must not be called.
            QuotaExceeded: too many are under way.
            ShuttingDown: the node is ending.
        """
        steps, failure, response = Steps(), None, None
        try:
            with self._counted(spec.tenant), anyio.fail_after(DEADLINE_S):
                response = await self._called(spec, limits, call, steps)
        except (ShuttingDown, Conflict, QuotaExceeded):
            raise
        except (GatewayError, TimeoutError) as error:
            problem = error if isinstance(error, GatewayError) else BackendTimeout()
            failure = f"{steps.taken[-1].name if steps.taken else 'start'}: {mask.text(str(problem))}"
        if response is None:
            return Replayed(None, None, False, None, (), steps.taken, failure)
        shown = mask.message(b'{"%b":%b}' % (response.member.encode(), response.value))
        old, new = _outcome(call.before), _outcome(None if shown.is_cut else shown.text)
        differences = [] if old is None or new is None else list(_limited(_differences(old, new)))
        same = None if old is None or new is None else not differences
        return Replayed(steps.taken[-1].ms, shown.text, shown.is_cut, same, differences, steps.taken, None)

    @contextmanager
    def _counted(self, tenant: str) -> Iterator[None]:
        if self._running.total() >= MAX_AT_ONCE or self._running[tenant] >= MAX_OF_TENANT:
            words = f"{self._running[tenant]} replays of this tenant are under way on this node, and"
            words = f"{words} {self._running.total()} in all; wait for the end of one"
            raise QuotaExceeded("replays", words, retry_after_s=BUSY_S)
        self._running[tenant] += 1
        try:
            yield
        finally:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]

    async def _called(self, spec: BackendSpec, limits: Limits, call: ToolsCall, steps: Steps) -> Response:
        # The name of a check: it takes no session's place, and its failures do not count for the backend's breaker.
        alone = replace(spec, name=spec.name + SUFFIX, isolation="session", warm=0, max_processes=1, recovery="end")
        try:
            if spec.url is not None:
                with steps.timed("start"):
                    upstream = await self._upstreams.lease(alone)
                try:
                    return await _talk(upstream, spec, call, steps)
                finally:
                    upstream.release("checked")
            with steps.timed("start"):
                lease = await self._pool.lease(alone, limits)
            try:
                return await _talk(lease.link, spec, call, steps)
            finally:
                lease.release("checked")
        finally:
            self._pool.forget(alone.key)
            self._upstreams.forget(alone.key)


async def _talk(link: BackendLink, spec: BackendSpec, call: ToolsCall, steps: Steps) -> Response:
    """The answer to the call, a result or an error of JSON-RPC. Raises Conflict: the tool must not be called."""
    conversation = Conversation(link)
    link.attach(conversation)
    envelope, meta = dict[str, Any](), call.params.get("_meta")
    if isinstance(meta, dict) and VERSION_KEY in meta:  # of 2026-07-28: there is no handshake
        envelope = {"_meta": {name: value for name, value in meta.items() if name.startswith(META)}}
    else:
        with anyio.fail_after(spec.timeouts.initialize_s), steps.timed("initialize"):
            await greet(conversation)
    with anyio.fail_after(spec.timeouts.call_s), steps.timed("tools/list"):
        offer = await _offer(conversation, envelope)
    if (why := await call.refusal(offer)) is not None:
        raise Conflict(why)
    with anyio.fail_after(spec.timeouts.call_s), steps.timed("tools/call"):
        return await conversation.answer_to("tools/call", dict(call.params))


async def _offer(conversation: Conversation, envelope: Mapping[str, Any]) -> Offer:
    """The tools that this process offers. Raises BackendError."""
    pages = Pages("tools/list", is_needed=True)
    while pages.take(await conversation.answer_to("tools/list", {**envelope, **pages.params})):
        pass
    return pages.list_in(Offer.begun(msgspec.Raw(b"{}"), is_sessionless=bool(envelope)))


def _outcome(text: str | None) -> dict[str, Any] | None:
    """The result or the error of an answer, if it is whole JSON."""
    if text is None:
        return None
    try:
        answer = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return None
    return {name: answer[name] for name in ("result", "error") if name in answer}


def _differences(before: Any, now: Any, at: str = "") -> Iterator[Difference]:
    if isinstance(before, dict) and isinstance(now, dict):
        for name in {**before, **now}:
            pointer = f"{at}/{name.replace('~', '~0').replace('/', '~1')}"
            if name not in before or name not in now:
                yield Difference(pointer, _shown(before, name), _shown(now, name))
            else:
                yield from _differences(before[name], now[name], pointer)
    elif isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for index, (old, new) in enumerate(zip(before, now, strict=True)):
            yield from _differences(old, new, f"{at}/{index}")
    elif before != now or isinstance(before, bool) != isinstance(now, bool):
        yield Difference(at, _json(before), _json(now))


def _limited(found: Iterator[Difference]) -> Iterator[Difference]:
    for number, each in enumerate(found):
        if number == MAX_DIFFERENCES:
            return
        yield each


def _shown(members: dict[str, Any], name: str) -> str | None:
    return _json(members[name]) if name in members else None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:MAX_SHOWN]
