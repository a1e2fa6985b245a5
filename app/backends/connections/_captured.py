"""TappedLink: a link that tells an inspection what passes. It is there while one is open; others pay nothing.
PassingLink: what a link around another one passes on as it is."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from app.errors import GatewayError, InvalidMessage
from app.processes.endings import Exit
from app.processes.link import BackendLink, BackendListener, CallListener
from app.protocol.jsonrpc import parse_backend, several

Outer = Callable[[bytes], bytes | None]


class Tap(Protocol):
    """What is told (`inspections.recorder.Recorder`)."""

    def to_backend(self, line: bytes, member: str = "", outer: Outer | None = None) -> None:
        """A line is written. `outer`: the session's id of a call, by that which is in the line."""

    def from_backend(self, line: bytes, member: str = "") -> None:
        """A message has come; `passed_on` follows when all that it causes has happened."""

    def passed_on(self) -> None: ...


@runtime_checkable
class Tappable(Protocol):
    """A link with others behind it, which are tapped instead: all is seen as the processes see it."""

    def tap(self, tap: Tap | None, member: str = "") -> None:
        """`tap` is told from now on; None: nobody any more."""


class PassingLink:
    """Around `_link`, which may be replaced by another one."""

    def __init__(self, link: BackendLink) -> None:
        self._link = link

    def pause_reading(self) -> None:
        self._link.pause_reading()

    def resume_reading(self) -> None:
        self._link.resume_reading()

    def asked_for(self, size: int) -> None:
        self._link.asked_for(size)

    def heard_noise(self, line: bytes) -> None:
        self._link.heard_noise(line)

    def answering(self) -> bytes | None:
        return self._link.answering()


class TappedLink(PassingLink):
    """Fulfils BackendLink toward the session, and CallListener toward the link."""

    def __init__(
        self, link: BackendLink, listener: CallListener, tap: Tap, member: str = "", outer: Outer | None = None
    ) -> None:
        super().__init__(link)
        self._listener, self._tap, self._member, self._outer = listener, tap, member, outer
        link.attach(self)

    def removed(self) -> BackendLink:
        """The link, which talks to the listener itself again."""
        self._link.attach(self._listener)
        return self._link

    # --- BackendLink

    def attach(self, listener: BackendListener) -> None:
        assert isinstance(listener, CallListener)
        self._listener = listener

    def send(self, line: bytes) -> None:
        self._tap.to_backend(line, self._member, self._outer)
        self._link.send(line)

    # --- CallListener

    def backend_sent(self, line: bytes) -> None:
        """The messages of a batch are handed over one by one, as the listener would take them: so each is known to be
        what it causes."""
        for each in _messages(line):
            self._tap.from_backend(each, self._member)
            try:
                self._listener.backend_sent(each)
            finally:
                self._tap.passed_on()

    def backend_sent_too_much(self, beginning: bytes, end: bytes = b"") -> None:
        self._listener.backend_sent_too_much(beginning, end)

    def backend_failed(self, call: bytes, error: GatewayError) -> None:
        self._listener.backend_failed(call, error)

    def backend_exited(self, exit: Exit) -> None:
        self._listener.backend_exited(exit)


def retapped(
    link: BackendLink, listener: CallListener, tap: Tap | None, member: str = "", outer: Outer | None = None
) -> BackendLink:
    """The link with this tap instead of the one that it may have; or with none."""
    if isinstance(link, Tappable):
        link.tap(tap, member)
        return link
    bare = link.removed() if isinstance(link, TappedLink) else link
    return bare if tap is None else TappedLink(bare, listener, tap, member, outer)


def _messages(line: bytes) -> list[bytes]:
    try:
        parse_backend(line)
    except InvalidMessage:
        return several(line) or [line]
    return [line]
