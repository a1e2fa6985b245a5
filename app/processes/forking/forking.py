"""Forking: which backends have a template on this node, and how their next process is started."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

import anyio
import anyio.abc
import anyio.to_thread

from app.domain import BackendSpec
from app.errors import BackendError, GatewayError, ShuttingDown
from app.jail.sandbox.tiers import Profile, Tier
from app.processes.forking._making import Launcher, Maker, NoTemplate, Template, died, is_current
from app.processes.forking.start import EXEC, Start
from app.processes.process import BackendProcess
from app.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)

Key = tuple[str, str]

MAKERS = 4  # templates that are made at the same time, each for another tenant
SETTLED_S = 60.0  # how long a check waits for a template
_LOOK_AT_FILES_S = 1.0  # how old the knowledge of a template's files may be
_AGAIN_S, _LATEST_S = 5.0, 600.0  # the first and the longest delay after a template that could not be made, or ended
_FOR_GOOD = ("not_python", "unfit", "differs")  # until the backend changes, or is restarted
_BEING_MADE = "its template is being made"
_FULL = "all templates of this node (FORK_TEMPLATES) are being made"


@dataclass(frozen=True, slots=True)
class ForkingOptions:
    """`most`: templates of the node; with 0 there are none. `idle_s`: how long one is kept that nobody uses."""

    most: int = 16
    idle_s: float = 1800.0


@dataclass(slots=True, eq=False)
class _Entry:
    """What is known of one backend: exactly one of `template`, `making` and `why`."""

    edition: tuple[int, int]
    template: Template | None = None
    making: anyio.CancelScope | None = None
    why: str = ""
    failures: int = 0
    again_at: float = 0.0
    settled: anyio.Event = field(default_factory=anyio.Event)

    def made(self, template: Template) -> None:
        self.template, self.making, self.why = template, None, ""
        self.settled.set()

    def begun(self, scope: anyio.CancelScope) -> None:
        self.template, self.making, self.why = None, scope, ""
        self.settled = anyio.Event()

    def failed(self, why: str, now: float, *, for_good: bool = False) -> None:
        self.template, self.making, self.why = None, None, why
        self.failures += 1
        delay_s = min(_LATEST_S, _AGAIN_S * 2.0 ** min(self.failures - 1, 10))
        self.again_at = float("inf") if for_good else now + delay_s
        self.settled.set()

    def close(self) -> None:
        self.settled.set()
        if self.making is not None:
            self.making.cancel()


@dataclass(eq=False)
class Forking:
    """Decides how each process is started, and makes templates in the background. `profile_of`: how a backend is
    confined. Only for the event loop's thread; `close` is called before the processes are stopped."""

    metrics: Metrics
    options: ForkingOptions
    launcher: Launcher
    profile_of: Callable[[BackendSpec], Profile]
    clock: Callable[[], float] = time.monotonic
    _entries: dict[Key, _Entry] = field(default_factory=dict)
    _tasks: anyio.abc.TaskGroup | None = None
    _retired: list[Template] = field(default_factory=list)
    _turns: WeakValueDictionary[str, anyio.Lock] = field(default_factory=WeakValueDictionary)  # by tenant
    _makers: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(MAKERS))

    def __post_init__(self) -> None:
        self.metrics.fork_templates.set_function(lambda: len(self.templates))

    def open(self, tasks: anyio.abc.TaskGroup) -> None:
        self._tasks = tasks

    def close(self) -> None:
        """Ends all templates, and makes no more. Idempotent."""
        self._tasks = None
        for key in list(self._entries):
            self.forget(key)

    @property
    def templates(self) -> list[Template]:
        return [each.template for each in self._entries.values() if each.template is not None]

    def why_not(self, spec: BackendSpec) -> str:
        """Why the next process of this backend will not be forked, as far as that is known; empty if it will be."""
        entry = self._entries.get(spec.key)
        if entry is None or entry.edition != spec.edition:
            return self._obstacle(spec) or "no process has been started yet"
        return "" if entry.template is not None else entry.why or _BEING_MADE

    async def settled(self, spec: BackendSpec) -> str:
        """Has a template made, if there is none yet, and waits for it; returns why there is none."""
        (await self.start_of(spec)).close()
        entry = self._entries.get(spec.key)
        if entry is not None:
            with anyio.move_on_after(SETTLED_S):
                await entry.settled.wait()
            if self._entries.get(spec.key) is not entry:
                return "the backend was changed or restarted meanwhile"
        return self.why_not(spec)

    async def start_of(self, spec: BackendSpec) -> Start:
        """How the next process of this backend, which may be forked, is to be started. Does not wait for a template."""
        if spec.missed_log is not None or ":" in spec.name:
            return EXEC
        obstacle = self._obstacle(spec)
        if obstacle is not None:
            return Start(reason=obstacle)
        entry = self._entries.get(spec.key)
        if entry is not None and entry.edition != spec.edition:
            self.forget(spec.key)
            entry = None
        if entry is not None and entry.template is not None:
            return await self._of_template(spec, entry, entry.template)
        if entry is not None and (entry.making is not None or self.clock() < entry.again_at):
            return Start(reason=entry.why or _BEING_MADE)
        return Start(reason=self._make_soon(spec, entry))

    async def _of_template(self, spec: BackendSpec, entry: _Entry, template: Template) -> Start:
        now = self.clock()
        if now - template.looked_at >= _LOOK_AT_FILES_S:
            current = await anyio.to_thread.run_sync(is_current, template)
            if self._entries.get(spec.key) is not entry or entry.template is not template:
                return Start(reason="its template has ended")
            if not current:
                logger.info("Files of a forked backend have changed; its template is made anew", extra=_names(spec))
                self.forget(spec.key)
                return Start(reason=self._make_soon(spec, None))
            template.looked(now)
        template.used(now)
        try:
            return template.start()
        except OSError as error:
            return Start(reason=f"the template cannot be asked: {error.strerror}")

    def _obstacle(self, spec: BackendSpec) -> str | None:
        """Why this backend cannot be forked on this node, whatever it runs."""
        if self.options.most == 0:
            return "this node forks nothing (FORK_TEMPLATES is 0)"
        if spec.state == "keep":
            return "with `state: keep` a template could write to the homes of all principals"
        return None

    def _has_rooms(self, spec: BackendSpec) -> bool:
        return self.profile_of(spec).tier >= Tier.NAMESPACES

    # --- making

    def _make_soon(self, spec: BackendSpec, entry: _Entry | None) -> str:
        """Returns what to say of the process that is executed meanwhile."""
        if self._tasks is None:
            return "the node is shutting down"
        if not self._has_room(spec.key):
            return _FULL
        entry = entry or _Entry(spec.edition)
        self._entries[spec.key] = entry
        scope = anyio.CancelScope()
        entry.begun(scope)
        self._tasks.start_soon(self._make, spec, entry, scope, name="make a template")
        return _BEING_MADE

    def _has_room(self, key: Key) -> bool:
        """Ends a template, if there are too many: of the tenant that has the most, the one that was not used for the
        longest time. One that is being made goes only for another tenant."""
        others = {other: each for other, each in self._entries.items() if other != key and not each.why}
        if len(others) < self.options.most:
            return True
        counts = Counter(tenant for tenant, _ in (*others, key))
        most = max(counts.values())
        ends = [
            (each.template is None, 0.0 if each.template is None else each.template.used_at, other)
            for other, each in others.items()
            if counts[other[0]] == most and (each.template is not None or other[0] != key[0])
        ]
        if not ends:
            return False
        self.forget(min(ends)[-1])
        return True

    async def _make(self, spec: BackendSpec, entry: _Entry, scope: anyio.CancelScope) -> None:
        began = self.clock()
        turn = self._turns.setdefault(spec.tenant, anyio.Lock())
        with scope:
            try:
                async with turn, self._makers:  # a tenant's one after another: each costs several starts, or hangs
                    template = await Maker(self.launcher, has_rooms=self._has_rooms(spec)).make(spec, self._on_gone)
            except NoTemplate as error:
                self._failed(spec, entry, error)
            except (BackendError, TimeoutError) as error:
                self._failed(spec, entry, died(error))
            except ShuttingDown:
                return
            except GatewayError as error:
                self._failed(spec, entry, died(error))
            except Exception:
                logger.exception("Could not make a template", extra=_names(spec))
                self._failed(spec, entry, NoTemplate("died", "it could not be made"))
            else:
                self._made(spec, entry, template, self.clock() - began)

    def _made(self, spec: BackendSpec, entry: _Entry, template: Template, seconds: float) -> None:
        if self._entries.get(spec.key) is not entry or template.process.exit is not None:
            template.close()
            if self._entries.get(spec.key) is entry:
                self._failed(spec, entry, NoTemplate("died", "its template has ended"))
            return
        now = self.clock()
        template.used(now)
        template.looked(now)
        entry.made(template)
        fields = {"modules": template.loaded, "skipped": len(template.skipped), "seconds": round(seconds, 2)}
        logger.info("A template is ready: processes of the backend are forked", extra=_names(spec) | fields)

    def _failed(self, spec: BackendSpec, entry: _Entry, error: NoTemplate) -> None:
        self.metrics.fork_failures.labels(error.reason).inc()
        entry.failed(str(error), self.clock(), for_good=error.reason in _FOR_GOOD)
        fields = _names(spec) | {"reason": error.reason}
        logger.warning("A backend has no template, its processes are executed: %s", error, extra=fields)

    # --- ends

    def _on_gone(self, process: BackendProcess) -> None:
        for entry in self._entries.values():
            template = entry.template
            if template is not None and template.process is process:
                self._failed(template.spec, entry, NoTemplate("died", "its template has ended"))
                template.close()

    def fork_failed(self, spec: BackendSpec, start: Start, why: str) -> None:
        """A template has made no process: it is ended, and another one is made later."""
        entry = self._entries.get(spec.key)
        if entry is None or entry.template is None or entry.template.process.id != start.template:
            return
        template = entry.template
        self._failed(spec, entry, NoTemplate("died", f"its template does not fork: {why}"))
        self._end(template)

    def forget(self, key: Key) -> None:
        """For a backend that was changed, restarted or removed: its template ends, and what is known of it."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            entry.close()
            if entry.template is not None:
                self._end(entry.template)

    def _end(self, template: Template) -> None:
        if not template.retire():
            self._retired.append(template)

    def sweep(self) -> None:
        """Ends templates that nobody has used for long, and those of which the last fork has ended; to be called a few
        times a minute."""
        self._retired = [each for each in self._retired if not each.retire()]
        oldest = self.clock() - self.options.idle_s
        for key, entry in list(self._entries.items()):
            if entry.template is not None and entry.template.used_at < oldest:
                logger.info("A template was not used for long, and is ended", extra=_names(entry.template.spec))
                self.forget(key)


def _names(spec: BackendSpec) -> dict[str, object]:
    return {"backend": spec.name, "backend_tenant": spec.tenant}
