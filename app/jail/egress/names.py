"""Names to addresses, in threads: a resolver that hangs must not hang the event loop, nor fill memory with threads."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Sequence

import anyio

from app.jail.egress.refusals import Reason, Refused

DEADLINE_S = 10.0
MAX_THREADS = 32
MAX_OF_TENANT = 8  # others wait; a thread that is no longer waited for counts until the resolver returns

Lookup = Callable[[str], Sequence[str]]


def system_lookup(name: str) -> list[str]:
    """The addresses of a name, as this machine resolves it."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Names:
    """Resolves names for tenants. For one event loop."""

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup
        self._of_tenant = dict[str, anyio.CapacityLimiter]()
        self._turns = asyncio.Semaphore(MAX_THREADS)

    async def resolve(self, tenant: str, name: str) -> Sequence[str]:
        """At least one address, as text.

        Raises:
            Refused: none in time, or others of this tenant took all of it.
        """
        own = self._of_tenant.setdefault(tenant, anyio.CapacityLimiter(MAX_OF_TENANT))
        place = object()  # among the tenant's, in the end for a thread
        has_place = has_thread = False

        def leave() -> None:
            own.release_on_behalf_of(place)
            if not own.borrowed_tokens and not own.statistics().tasks_waiting:
                self._of_tenant.pop(tenant, None)

        try:
            async with asyncio.timeout(DEADLINE_S):
                await own.acquire_on_behalf_of(place)
                has_place = True
                await self._turns.acquire()
                answer = self._start(name, leave)
                has_thread = True
                found = await answer
        except TimeoutError:
            if not has_place:
                raise Refused(Reason.NAMES_BUSY, f"{MAX_OF_TENANT} names are being resolved already") from None
            raise Refused(Reason.NAME_SLOW, f"{name} was not resolved within {DEADLINE_S:.0f} s") from None
        except (OSError, UnicodeError) as error:
            raise Refused(Reason.NAME, f"{name} cannot be resolved: {error}") from None
        finally:
            if has_place and not has_thread:
                leave()
        if not found:
            raise Refused(Reason.NAME, f"{name} has no address")
        return found

    def _start(self, name: str, leave: Callable[[], None]) -> asyncio.Future[Sequence[str]]:
        """A thread of its own, which nobody waits for at the end of the program."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Sequence[str]] = loop.create_future()

        def settle(found: Sequence[str], error: Exception | None) -> None:
            self._turns.release()
            leave()
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(found)

        def run() -> None:
            found: Sequence[str] = ()
            failure: Exception | None = None
            try:
                found = self._lookup(name)
            except Exception as error:  # noqa: BLE001 (raised where the answer is waited for)
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, found, failure)

        try:
            threading.Thread(target=run, name="egress names", daemon=True).start()
        except RuntimeError:  # no more threads on this machine
            self._turns.release()
            raise Refused(Reason.NAMES_BUSY, "the gateway can start no thread") from None
        return answer
