"""check_backend: starts a process of a backend, asks what it offers, and stops it. For administrators."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from app import __version__
from app.backends.checks._missed import MOST, Asked, Findings, Missed, findings, reaching_out
from app.backends.checks._modules import missed_modules
from app.backends.checks.downloads import Download, download_of
from app.backends.checks.proposals import missed_limit
from app.backends.checks.steps import Step, Steps
from app.backends.pool import ProcessPool
from app.domain import BackendSpec, Limits, Timeouts
from app.errors import BackendExited, BackendTimeout, GatewayError, InvalidResponse, ShuttingDown
from app.jail.sandbox.composer import Confined
from app.jail.spawner.client import MISSED_BYTES
from app.processes.connection import BackendConnection
from app.processes.conversation import Conversation, result_of
from app.processes.endings import CHECK_HINT, at_limit, of_words, raising
from app.processes.process import BackendProcess
from app.protocol.eras.sessionless_envelope import SERVER_INFO_KEY, SESSIONLESS, is_refused_handshake
from app.protocol.revisions import HANDSHAKE
from app.protocol.toolset.pages import Pages

DEADLINE_S = 60.0  # of a whole check, including the wait for a process; more where a start may take longer
DOWNLOAD_S = 15.0  # for a program that has to download what it starts, and cannot
END_S = 2.0  # for a process that has closed its pipes to end
MAX_CAPABILITIES_BYTES = 16 << 10
MAX_TEXT = 200
MAX_REACHING = 5  # tools that are named
SUFFIX = ":check"  # of the name under which the pool counts the process: no backend can have this name

_OF_THE_REGISTRATION = ("sandbox.", "which no sandbox opens")
_DOCTOR_HINT = "`trunkline doctor`, run as the gateway's user on this node, says what works of a sandbox here."
_SANDBOX_HINT = "Change the backend's `sandbox`, or what this node has there; docs/security.md, what a process sees."
_FORK_HINT = "Its sessions get processes that are executed. `start: exec` says so; docs/forking.md, what can be forked."

_BEGINNING = ("start", "initialize")
_LISTS = ("tools", "resources", "prompts")
QUESTIONS = ("initialize", *(f"{kind}/list" for kind in _LISTS))  # the steps of a Talk


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the check ended early."""

    step: str
    reason: str
    detail: str
    hint: str | None
    stderr: Sequence[str]
    limit: str = ""  # at which the process was


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What a check found. Texts from the backend are truncated; a count is None where it offers no such list."""

    protocol_version: str | None = None
    server: dict[str, str] = field(default_factory=dict)
    capabilities: dict[str, Any] = field(default_factory=dict)
    counts: Mapping[str, int | None] = field(default_factory=lambda: dict.fromkeys(_LISTS))
    steps: Sequence[Step] = ()
    failure: Failure | None = None
    findings: Findings = field(default_factory=Findings)
    start_used: str = "exec"
    start_reason: str = ""

    def started(self, wanted: str, why_not: str) -> "CheckResult":
        """With how its processes are started on this node. With `fork` it is a failure if they cannot be forked."""
        if not why_not:
            return replace(self, start_used="fork")
        failure = Failure("fork", "cannot_fork", why_not, _FORK_HINT, ()) if wanted == "fork" else None
        return replace(self, failure=failure, start_reason=why_not)


def longer_start_s(timeouts: Timeouts) -> float:
    """How much longer than by default a start may take: so much longer may take what includes one."""
    return max(0.0, timeouts.initialize_s - Timeouts().initialize_s)


async def check_backend(pool: ProcessPool, spec: BackendSpec, limits: Limits, steps: Steps) -> CheckResult:
    """Uses a process of its own, never a warm one, within the limits of tenant and node.

    Raises:
        ShuttingDown: the pool is closed.
    """
    # Under a name of its own it takes no session's place, and its failures do not count for the backend's breaker.
    alone = replace(spec, name=spec.name + SUFFIX, isolation="session", warm=0, max_processes=1, enabled=True)
    talk, failure = Talk(steps), None
    steps.expect("start", *QUESTIONS)
    process: BackendProcess | None = None
    is_closed = spec.sandbox.mode != "off" and spec.package is None
    download = download_of(spec.command, spec.args) if is_closed else None
    timeouts = spec.timeouts
    if download is not None and spec.sandbox.network == "none":
        timeouts = replace(timeouts, initialize_s=min(DOWNLOAD_S, timeouts.initialize_s))
    missed_log = os.memfd_create("missed")
    if spec.sandbox.mode != "off" and not spec.is_image:
        alone = replace(alone, missed_log=missed_log)
    limit = ""
    try:
        with anyio.fail_after(DEADLINE_S + longer_start_s(spec.timeouts)):
            with steps.timed("start"):
                lease = await pool.lease(alone, limits)
            process = lease.connection
            try:
                await talk.about(process, timeouts, lease.handshake_succeeded)
                await process.measure()
                limit = process.limit_reached()
            finally:
                lease.release("checked")
    except ShuttingDown:
        raise
    except (GatewayError, TimeoutError) as error:
        why = await _as_it_ended(error, process)
        failure = await _at_its_limit(failure_of(steps.taken[-1].name, why, process), why, process)
        limit = failure.limit
    finally:
        pool.forget(alone.key)
        missed = os.pread(missed_log, MISSED_BYTES, 0)
        os.close(missed_log)
    stderr = [] if process is None else process.stderr.last_lines()
    asked = _asked(talk.reaching, None if process is None else process.confined, pool.failures.denied_addresses(spec))
    found = findings(missed, spec, stderr, asked, has_failed=failure is not None)
    found = await _with_others(found, spec, stderr, missed_limit(limit, spec), has_failed=failure is not None)
    if failure is not None:
        failure = _explained(failure, found, of_words(stderr), download)
    return replace(talk.result(), failure=failure, findings=found)


async def _with_others(
    found: Findings, spec: BackendSpec, stderr: Sequence[str], limit: Missed | None, *, has_failed: bool
) -> Findings:
    """Also what no watcher sees: modules that are not found, and a limit that was reached. Nothing of a container: what
    its engine keeps from it, nobody sees."""
    if spec.is_image:
        return Findings()
    modules = list[Missed]()
    if has_failed and spec.sandbox.mode != "off":
        modules = await anyio.to_thread.run_sync(missed_modules, spec, stderr)
    limits = [] if limit is None else [limit]
    return replace(found, missed=(*limits, *modules, *found.missed)[:MOST])


def _explained(failure: Failure, found: Findings, distrust: str | None, download: Download | None) -> Failure:
    """With the hint that fits best."""
    if download is not None and failure.step in _BEGINNING:
        return replace(failure, hint=f"{download.words}.")
    if failure.limit:
        return failure
    if distrust:
        return replace(failure, hint=distrust)
    return replace(failure, hint=_missed_hint(found.missed[0])) if found.missed else failure


def _asked(reaching: Sequence[str], confined: Confined | None, in_calls: Sequence[str]) -> Asked:
    line = None if confined is None else confined.line
    refused, forbidden = () if line is None else tuple(line.refused), () if confined is None else confined.forbidden
    return Asked(reaching[:MAX_REACHING], line is not None, refused, forbidden, in_calls)


async def _as_it_ended(error: Exception, process: BackendProcess | None) -> Exception:
    """Who dies closes its pipes before its end is known, and the end says more: its status, and a limit."""
    if not isinstance(error, BackendExited) or process is None:
        return error
    with anyio.move_on_after(END_S):
        await process.wait_gone()
    return error if process.exit is None or process.exit.reason == "stopped" else process.exit.error()


async def _at_its_limit(failure: Failure, error: Exception, process: BackendProcess | None) -> Failure:
    """With the limit that the process had reached, whether or not it has ended by that."""
    if isinstance(error, BackendExited):
        if error.hint == CHECK_HINT and error.stderr:  # which is for those who have not checked it yet
            is_declared = any(words in error.stderr[0] for words in _OF_THE_REGISTRATION)
            hint = _SANDBOX_HINT if is_declared else _DOCTOR_HINT
            return replace(failure, detail=f"{failure.detail}: {error.stderr[0]}", hint=hint)
        return replace(failure, limit=error.limit)
    if process is None:
        return failure
    await process.measure()
    limit = process.limit_reached(is_late=failure.reason == BackendTimeout.reason)
    if not limit:
        return failure
    detail, hint = failure.detail + at_limit(limit, process.spec), raising(limit, process.spec)
    return replace(failure, limit=limit, detail=detail, hint=hint)


class Talk:
    """What a server says when it is asked what it offers; as far as it has got, if it fails."""

    def __init__(self, steps: Steps) -> None:
        self.reaching = list[str]()
        self._steps = steps
        self._result = CheckResult()
        self._counts = dict(self._result.counts)

    async def about(self, process: BackendConnection, timeouts: Timeouts, has_begun: Callable[[], None]) -> None:
        """Raises BackendError, TimeoutError: the last step has failed."""
        conversation = Conversation(process)
        process.attach(conversation)
        with anyio.fail_after(timeouts.initialize_s), self._steps.timed("initialize"):
            self._result = await _greet(conversation)
        has_begun()
        offered = [kind for kind in _LISTS if self._result.capabilities.get(kind) not in (None, False)]
        self._steps.skip(*(f"{kind}/list" for kind in _LISTS if kind not in offered))
        for kind in offered:
            with anyio.fail_after(timeouts.call_s), self._steps.timed(f"{kind}/list"):
                await self._count(conversation, kind)

    async def _count(self, conversation: Conversation, kind: str) -> None:
        """Also the names of tools that reach out; of a list that fails what could be read."""
        pages = Pages(f"{kind}/list", is_needed=True)
        try:
            while pages.take(await conversation.answer_to(f"{kind}/list", dict(pages.params))):
                pass
        finally:
            self._counts[kind] = len(pages.items) or None
        self._counts[kind] = len(pages.items)
        if kind == "tools":
            self.reaching += reaching_out(_plain(pages.items))[:MAX_REACHING]

    def result(self) -> CheckResult:
        capabilities = _bounded(self._result.capabilities)
        return replace(self._result, capabilities=capabilities, counts=self._counts, steps=self._steps.taken)


async def _greet(conversation: Conversation) -> CheckResult:
    """The handshake, and what the server says of itself in it. Raises BackendError."""
    client = {"name": "trunkline-check", "version": __version__}
    params = {"protocolVersion": HANDSHAKE[-1], "capabilities": {}, "clientInfo": client}
    answer = await conversation.answer_to("initialize", params)
    if answer.member == "error" and is_refused_handshake(answer):
        conversation.speak_sessionless(client)
        return _discovered(await conversation.ask("server/discover", {}))
    result = result_of(answer)
    found = _about(result.get("protocolVersion"), result.get("serverInfo"), result.get("capabilities"))
    if found is None:
        raise InvalidResponse("the answer to `initialize` lacks protocolVersion, serverInfo or capabilities")
    conversation.send({"method": "notifications/initialized"})
    return found


def _discovered(result: dict[str, Any]) -> CheckResult:
    meta = result.get("_meta")
    server = meta.get(SERVER_INFO_KEY, {}) if isinstance(meta, dict) else {}
    found = _about(SESSIONLESS, server, result.get("capabilities"))
    if found is None:
        raise InvalidResponse("the answer to `server/discover` lacks capabilities")
    return found


def _about(version: object, server: object, capabilities: object) -> CheckResult | None:
    capabilities = {} if capabilities == [] else capabilities  # PHP writes an empty object so
    if not isinstance(version, str) or not isinstance(server, dict) or not isinstance(capabilities, dict):
        return None
    shown = {name: server.get(name) for name in ("name", "title", "version")}
    return CheckResult(
        version[:MAX_TEXT],
        {name: text[:MAX_TEXT] for name, text in shown.items() if isinstance(text, str)},
        capabilities,
    )


def _plain(items: Iterable[msgspec.Raw]) -> Iterator[object]:
    """Those that can be read."""
    for item in items:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield msgspec.json.decode(item)


def _missed_hint(missed: Missed) -> str:
    if missed.uid is not None:
        return (
            f"It runs as the user {missed.uid}, who may not {missed.access} {missed.what}, as its owner and mode say; "
            "see `missed`. To allow it, use `chown` or `setfacl` on the node."
        )
    what = f"{missed.kind} {missed.what}" + (f" ({missed.access})" if missed.access else "")
    sentences = [f"Its sandbox keeps this from it: {what}; see `missed`."]
    if missed.proposal is not None:
        sentences.append(f"To allow it, add {json.dumps(missed.proposal)} to the backend's `sandbox`.")
    return " ".join([*sentences, *([missed.note] if missed.note else [])])


def _bounded(capabilities: dict[str, Any]) -> dict[str, Any]:
    """Unchanged if they are small, else only their first 50 names."""
    if len(json.dumps(capabilities)) <= MAX_CAPABILITIES_BYTES:
        return capabilities
    return {name[:MAX_TEXT]: {} for name in list(capabilities)[:50]}


def failure_of(step: str, error: Exception, process: BackendProcess | None = None) -> Failure:
    """Why the check ended at this step."""
    if not isinstance(error, GatewayError):
        error = BackendTimeout()
    stderr = list(getattr(error, "stderr", ())) or ([] if process is None else process.stderr.last_lines())
    return Failure(step, error.reason, str(error), error.hint, stderr)
