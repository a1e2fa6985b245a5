"""RedisConnection: one connection to Redis, shared by all callers.

redis-py connects (TLS, login, sentinels) and parses. Commands of all callers are sent together and answers are matched
in order, so a cancelled caller does not break the connection, and nothing is ever sent twice.

A late answer fails only its caller; the connection is closed only when nothing comes at all (see `waiting_commands`).
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, cast

import anyio
import hiredis
from anyio import CancelScope
from anyio.abc import TaskGroup
from prometheus_client import Counter
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.exceptions import NoScriptError, RedisError, ResponseError

from app.cluster.redis import REFUSES, key_check
from app.cluster.redis import _address as redis_address
from app.cluster.redis._waiting_commands import USUAL_DEADLINES, Deadlines, WaitingCommands
from app.cluster.redis.survey import eviction_policy, in_one_line, is_of_replica
from app.errors import RoutesUnavailable

CONNECT_S = redis_address.CONNECT_S
OPENS_AFTER = 5  # lost or refused connections in a row open the circuit breaker: commands fail at once
PROBE_S = 1.0  # between attempts to connect while it is open
RETRY_S = 0.02  # and before
CLOSE_S = 1.0

Value = str | bytes | int | float
# The stub of hiredis allows one word only.
_pack = cast("Callable[[tuple[Value, ...]], bytes]", hiredis.pack_command)
_Work = Callable[[AbstractConnection], Awaitable[None]]

log = logging.getLogger(__name__)


class Script:
    """A Lua script; after the first call Redis knows it by its digest."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class RedisConnection:
    """`async with` starts it, whether Redis can be reached or not, and reconnects until it is left.

    `generation` grows with each connection: what was written on an older one may be lost. Errors are counted by
    reason: timeout, connection, breaker, busy, refused.
    """

    def __init__(
        self,
        url: str,
        errors: Counter,
        deadlines: Deadlines = USUAL_DEADLINES,
        *,
        check: bytes | None = None,
        use: str = "routes",
    ) -> None:
        """`check` is compared with that of the other nodes (`key_check`); if it differs, the connection is not used.
        `use` says in the log what the connection is for.

        Raises ValueError for an unsupported URL.
        """
        self.check, self._used_for = check, use
        self.has_other_key = False  # than the nodes that use this Redis
        self._tried = asyncio.Event()
        self._address = redis_address.parse(url)
        self._pool = self._address.pool()
        self._errors = errors
        self._waiting = WaitingCommands(deadlines, self._unavailable, self._on_silence)
        self._tasks: TaskGroup | None = None
        self._scope: CancelScope | None = None
        self._failures = 0
        self._trouble: str | None = "no connection yet"
        self._advice: str | None = None
        self._refusal: str | None = None  # the last one that was logged
        self._refuses: str | None = None
        self.generation = 0
        self._connected = asyncio.Event()  # of the next connection; replaced when it is there

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._keep_connected)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection; waiting callers get RoutesUnavailable. Call it from the task that opened it."""
        tasks, self._tasks = self._tasks, None
        if tasks is not None:
            tasks.cancel_scope.cancel()
            await tasks.__aexit__(None, None, None)
            self._trouble, self._failures = "it is closed", OPENS_AFTER
            self._waiting.fail_unsent()
            self._waiting.stop()
            with anyio.move_on_after(CLOSE_S, shield=True):
                await self._pool.aclose()

    @property
    def problem(self) -> str | None:
        """For operators: why Redis cannot be used, or a setting of it that loses data; None if all is well."""
        return self._trouble or self._refuses or self._advice

    def takes_commands(self) -> None:
        """One that writes was carried out: what it refused before is over."""
        self._refuses = None

    @property
    def is_up(self) -> bool:
        """Whether the last attempt succeeded."""
        return self._trouble is None

    def blocking_client(self) -> Redis:
        """A client with its own pool and without timeout, for blocking commands; the caller bounds and closes it."""
        return Redis.from_pool(self._address.pool())

    async def execute(self, *command: Value) -> Any:
        """The answer to one command.

        Raises:
            RoutesUnavailable: no answer within the deadline, or an error; the command may have been carried out.
        """
        return self._checked((await self._ask([command]))[0])

    async def pipeline(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        """The answers to commands that are sent together, in order, but not as a transaction. Raises as `execute`."""
        return [self._checked(reply) for reply in await self._ask(commands)] if commands else []

    async def run(
        self, script: Script, keys: Sequence[Value], arguments: Sequence[Value] = (), *, patience_s: float | None = None
    ) -> Any:
        """What the script returns. `patience_s` replaces the usual deadline. Raises as `execute`."""
        call = (len(keys), *keys, *arguments)
        (reply,) = await self._ask([("EVALSHA", script.digest, *call)], patience_s)
        if isinstance(reply, NoScriptError):  # a server that has not seen it yet: nothing was carried out
            (reply,) = await self._ask([("EVAL", script.text, *call)], patience_s)
        return self._checked(reply)

    async def _ask(self, commands: Sequence[Sequence[Value]], patience_s: float | None = None) -> list[Any]:
        if self._failures >= OPENS_AFTER:
            raise self._unavailable("breaker")
        if self._waiting.are_too_many():
            raise self._unavailable("busy")
        packed = b"".join(_pack(tuple(command)) for command in commands)
        answered = self._waiting.add(packed, len(commands), is_patient=patience_s is not None)
        if patience_s is None:
            return await answered
        with anyio.move_on_after(patience_s):
            return await answered
        raise self._unavailable("timeout")

    def _on_silence(self) -> None:
        """Answers come in order, so nothing that was sent on this connection will be answered."""
        self._lost("it does not answer")
        self._failures = max(self._failures, OPENS_AFTER)
        self._waiting.refuse_all("timeout")
        if self._scope is not None:
            self._scope.cancel()

    async def first_attempt(self, within_s: float) -> None:
        """Returns after the first attempt to connect, or after this time."""
        with anyio.move_on_after(within_s):
            await self._tried.wait()

    def give_up(self) -> None:
        """Closes this connection, if any: its callers get RoutesUnavailable. The next one compares the keys again."""
        if self._scope is not None:
            self._scope.cancel()

    async def reconnect(self, within_s: float) -> None:
        """Like `give_up`, and waits for the next connection. Raises RoutesUnavailable after `within_s`."""
        connected = self._connected
        self.give_up()
        with anyio.move_on_after(within_s):
            await connected.wait()
            return
        raise self._unavailable("timeout")

    def note_forged(self) -> None:
        """Counts a record that no node of ours has written."""
        self._errors.labels("poisoned").inc()

    def _unavailable(self, reason: str) -> RoutesUnavailable:
        self._errors.labels(reason).inc()
        return RoutesUnavailable()

    def _checked(self, reply: Any) -> Any:
        """Raises for an error, and logs it if it differs from the last one."""
        if not isinstance(reply, ResponseError):
            return reply
        refusal = in_one_line(reply)
        self._refuses = f"{REFUSES}: {refusal.rstrip('.')}"
        if refusal != self._refusal:
            log.error("Redis refused a command: %s", refusal)
        self._refusal = refusal
        raise self._unavailable("refused") from reply

    async def _keep_connected(self) -> None:
        while True:
            connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
            try:
                await self._connect(connection)
                await self._use(connection)
            except (RedisError, OSError, TimeoutError) as problem:
                self._lost(in_one_line(problem))
            except Exception:
                log.exception("Unexpected error in the connection to Redis; reconnecting")
                self._lost("an internal error; see the log")
            finally:
                was_up, self._scope = self._scope is not None, None
                self._waiting.fail_sent()
                with anyio.move_on_after(CLOSE_S, shield=True):
                    await connection.disconnect(nowait=True)
            if not was_up:
                self._waiting.fail_unsent()  # without waiting for their deadlines
            await anyio.sleep(RETRY_S if was_up or self._failures < OPENS_AFTER else PROBE_S)

    async def _connect(self, connection: AbstractConnection) -> None:
        with anyio.fail_after(CONNECT_S):
            await connection.connect()  # type: ignore[no-untyped-call]
        with anyio.fail_after(CONNECT_S):
            policy = await eviction_policy(connection)
            await self._compare_keys(connection)
        self._advice = None
        if policy not in (None, "noeviction"):
            self._advice = f"its maxmemory-policy is {policy}; it should be noeviction"
            log.warning("Redis may lose routes: %s", self._advice)
        if self._trouble is not None:
            log.info("Connected to Redis for %s", self._used_for)
        self._failures, self._trouble, self._refusal, self._refuses = 0, None, None, None
        self._waiting.note_sign_of_life()
        self.generation += 1
        self._connected.set()
        self._connected = asyncio.Event()
        self._tried.set()

    async def _compare_keys(self, connection: AbstractConnection) -> None:
        try:
            if self.check is not None:
                await key_check.claim(connection, self.check)
        except key_check.OtherKey:
            self.has_other_key = True
            raise
        self.has_other_key = False

    async def _use(self, connection: AbstractConnection) -> None:
        async with anyio.create_task_group() as tasks:
            self._scope = tasks.cancel_scope
            tasks.start_soon(self._end_on_loss, self._write, connection, tasks.cancel_scope)
            await self._end_on_loss(self._read, connection, tasks.cancel_scope)

    async def _end_on_loss(self, work: _Work, connection: AbstractConnection, scope: CancelScope) -> None:
        try:
            await work(connection)
        except (RedisError, OSError) as problem:
            self._lost(in_one_line(problem))
            scope.cancel()

    async def _write(self, connection: AbstractConnection) -> None:
        """Sends what has been queued since the last time."""
        while True:
            packed = self._waiting.take_unsent()
            if packed:
                try:
                    await connection.send_packed_command(packed, check_health=False)
                except RuntimeError as closed:  # uvloop, when the reader has not noticed the loss yet
                    raise ConnectionResetError("the connection was closed") from closed
            await self._waiting.wait_for_unsent()

    async def _read(self, connection: AbstractConnection) -> None:
        while True:
            try:
                reply = await connection.read_response()
            except ResponseError as refusal:
                if is_of_replica(refusal):
                    raise  # no longer the master: the next connection finds the new one
                reply = refusal
            self._waiting.answer(reply)

    def _lost(self, why: str) -> None:
        self._failures += 1
        if self._failures == 1:
            log.warning("Redis is unavailable for %s, reconnecting: %s", self._used_for, why)
        self._trouble = why
        self._tried.set()
