"""RedisConnection: one connection to Redis, used by many at once.

redis-py makes the connection (TLS, login, sentinels) and parses; what is different here: commands of all callers
go out together and answers are matched in order, so that a caller who is cancelled takes nothing with him, and nothing
is ever sent twice.

Late is not broken. Who waits gives up one by one; the connection is given up only when nothing at all comes (see
`waiting_commands`).
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
from redis.exceptions import NoScriptError, ReadOnlyError, RedisError, ResponseError

from app.errors import RoutesUnavailable
from app.redis import address as redis_address
from app.redis import key_check
from app.redis.waiting_commands import USUAL_DEADLINES, Deadlines, WaitingCommands

CONNECT_S = redis_address.CONNECT_S
OPENS_AFTER = 5  # lost or refused connections in a row, and likewise
PROBE_S = 1.0  # how often it is tried then
RETRY_S = 0.02  # and before
CLOSE_S = 1.0

Value = str | bytes | int | float
# Its stub knows commands of one word only.
_pack = cast("Callable[[tuple[Value, ...]], bytes]", hiredis.pack_command)
_Work = Callable[[AbstractConnection], Awaitable[None]]

log = logging.getLogger(__name__)


class Script:
    """A Lua script; Redis knows it by its digest after the first time."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class RedisConnection:
    """`async with` opens it and keeps it open, whether Redis is there or not; leaving closes it.

    `generation` grows with each connection: what was written on an older one may be lost. Errors are counted by
    reason: timeout, connection, breaker, busy, refused.
    """

    def __init__(
        self, url: str, errors: Counter, deadlines: Deadlines = USUAL_DEADLINES, *, check: bytes | None = None
    ) -> None:
        """`check` is compared with that of the other nodes (`key_check`): with another secret key Redis counts as away.

        Raises ValueError for a URL that is of no known form.
        """
        self.check = check
        self.has_other_key = False  # than the nodes that use this Redis, as far as is known
        self._tried = asyncio.Event()
        self._address = redis_address.parse(url)
        self._pool = self._address.pool()
        self._errors = errors
        self._waiting = WaitingCommands(deadlines, self._unavailable, self._on_silence)
        self._tasks: TaskGroup | None = None
        self._line: CancelScope | None = None
        self._failures = 0
        self._trouble: str | None = "no connection yet"
        self._advice: str | None = None
        self._refusal: str | None = None
        self.generation = 0
        self._connected = asyncio.Event()  # each connection's; the next one has another

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._keep_connected)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connection; whoever still waits gets RoutesUnavailable. For the task that has opened it."""
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
        """What an operator should know: Redis does not answer, or it is set up to lose what it is given."""
        return self._trouble or self._advice

    @property
    def is_up(self) -> bool:
        """Whether it answered last."""
        return self._trouble is None

    def blocking_client(self) -> Redis:
        """A client with a pool of its own and no time-out, for commands that wait; its user bounds and closes it."""
        return Redis.from_pool(self._address.pool())

    async def execute(self, *command: Value) -> Any:
        """The answer to one command.

        Raises:
            RoutesUnavailable: there is none within the deadline, or it is an error; it may have been carried out.
        """
        return self._checked((await self._ask([command]))[0])

    async def pipeline(self, commands: Sequence[Sequence[Value]]) -> list[Any]:
        """The answers to several commands, sent together and carried out in order, but others' may come between.

        Raises:
            RoutesUnavailable: as `execute`, for any of them.
        """
        return [self._checked(reply) for reply in await self._ask(commands)] if commands else []

    async def run(
        self,
        script: Script,
        keys: Sequence[Value],
        arguments: Sequence[Value] = (),
        *,
        patience_s: float | None = None,
    ) -> Any:
        """What the script returns. With `patience_s` it may take that long, as long as Redis answers anything.

        Raises:
            RoutesUnavailable: as `execute`.
        """
        call = (len(keys), *keys, *arguments)
        (reply,) = await self._ask([("EVALSHA", script.digest, *call)], patience_s)
        if isinstance(reply, NoScriptError):  # a new server, or one that was restarted: nothing was carried out
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
        """Not late: gone. Answers come in order, so nothing that was asked on this connection will be answered."""
        self._lost("it does not answer")
        self._failures = max(self._failures, OPENS_AFTER)
        self._waiting.refuse_all("timeout")
        if self._line is not None:
            self._line.cancel()

    async def first_attempt(self, within_s: float) -> None:
        """Returns when it is known whether Redis is there, or after this time."""
        with anyio.move_on_after(within_s):
            await self._tried.wait()

    def give_up(self) -> None:
        """The next commands get another connection, and the keys are compared again. What was asked on this one and has
        no answer gets RoutesUnavailable."""
        if self._line is not None:
            self._line.cancel()

    async def reconnect(self, within_s: float) -> None:
        """As `give_up`, whatever the connection seems to be; returns once another one has answered.

        Raises:
            RoutesUnavailable: no other one has answered within this time.
        """
        connected = self._connected
        self.give_up()
        with anyio.move_on_after(within_s):
            await connected.wait()
            return
        raise self._unavailable("timeout")

    def _unavailable(self, reason: str) -> RoutesUnavailable:
        self._errors.labels(reason).inc()
        return RoutesUnavailable()

    def _checked(self, reply: Any) -> Any:
        """The answer; one that is an error is logged when it is another one than the last time."""
        if not isinstance(reply, ResponseError):
            return reply
        refusal = str(reply)[:200]
        if refusal != self._refusal:
            log.error("Redis refuses a command: %s", refusal)
        self._refusal = refusal
        raise self._unavailable("refused") from reply

    async def _keep_connected(self) -> None:
        while True:
            connection: AbstractConnection = self._pool.make_connection()  # type: ignore[no-untyped-call]
            try:
                await self._connect(connection)
                await self._use(connection)
            except (RedisError, OSError, TimeoutError) as problem:
                self._lost(_words(problem))
            except Exception:
                log.exception("The connection to Redis has failed")
                self._lost("an error of ours; see the log")
            finally:
                was_up, self._line = self._line is not None, None
                self._waiting.fail_sent()
                with anyio.move_on_after(CLOSE_S, shield=True):
                    await connection.disconnect(nowait=True)
            if not was_up:
                self._waiting.fail_unsent()  # now rather than at their deadlines
            await anyio.sleep(RETRY_S if was_up or self._failures < OPENS_AFTER else PROBE_S)

    async def _connect(self, connection: AbstractConnection) -> None:
        with anyio.fail_after(CONNECT_S):
            await connection.connect()  # type: ignore[no-untyped-call]
        with anyio.fail_after(CONNECT_S):
            self._advice = await _advice(connection)
            await self._compare_keys(connection)
        if self._advice is not None:
            log.warning("Redis may lose routes: %s", self._advice)
        if self._trouble is not None:
            log.info("Redis answers")
        self._failures, self._trouble, self._refusal = 0, None, None
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
            self._line = tasks.cancel_scope
            tasks.start_soon(self._end_on_loss, self._write, connection, tasks.cancel_scope)
            await self._end_on_loss(self._read, connection, tasks.cancel_scope)

    async def _end_on_loss(self, work: _Work, connection: AbstractConnection, line: CancelScope) -> None:
        try:
            await work(connection)
        except (RedisError, OSError) as problem:
            self._lost(_words(problem))
            line.cancel()

    async def _write(self, connection: AbstractConnection) -> None:
        """Sends what has come together since the last time."""
        while True:
            packed = self._waiting.take_unsent()
            if packed:
                try:
                    await connection.send_packed_command(packed, check_health=False)
                except RuntimeError as closed:  # uvloop, of a connection whose loss nobody has read yet
                    raise ConnectionResetError("the connection was closed") from closed
            await self._waiting.wait_for_unsent()

    async def _read(self, connection: AbstractConnection) -> None:
        """Gives each answer to who has asked first; nobody may be there any more to take it."""
        while True:
            try:
                reply = await connection.read_response()
            except ReadOnlyError:
                raise  # a master no longer: another connection finds the new one
            except ResponseError as refusal:
                reply = refusal
            self._waiting.answer(reply)

    def _lost(self, why: str) -> None:
        self._failures += 1
        if self._failures == 1:
            log.warning("Redis is away: %s", why)
        self._trouble = why
        self._tried.set()

    def __repr__(self) -> str:
        return f"<RedisConnection {self._trouble or 'up'} {self._waiting!r}>"


async def _advice(connection: AbstractConnection) -> str | None:
    """What is wrong with how this Redis is set up; None also where it does not let us ask."""
    await connection.send_command("CONFIG", "GET", "maxmemory-policy")
    try:
        name_and_value = await connection.read_response()
    except ResponseError:
        return None
    policy = bytes(name_and_value[1]).decode() if len(name_and_value) == 2 else "noeviction"
    return None if policy == "noeviction" else f"its maxmemory-policy is {policy}; it should be noeviction"


def _words(problem: BaseException) -> str:
    """An error of redis-py in one short line; they name hosts, never passwords."""
    return (str(problem) or type(problem).__name__)[:200].replace("\n", " ")
