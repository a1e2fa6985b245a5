"""Inspection: what is looked at, by whom, why and until when; and the messages that were seen, bounded."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from app.telemetry.capture._looking_time import LookingTime
from app.telemetry.capture._memory import InspectionMemory
from app.telemetry.capture.captured_message import InspectedMessage, Numbers, Place
from app.telemetry.capture.masking import MASKED, MIN_VALUE, Mask

Ending = Literal["time", "session_ended", "closed", "revoked", "forbidden", "not_confirmed", "standstill", "shutdown"]
LEAVES_MESSAGES: frozenset[Ending] = frozenset({"time", "session_ended"})  # after another end nobody may see them
Identity = tuple[str, str, str]
MAX_SHOWN = 200  # characters of an id, a method or a name
MAX_NAME = 4096  # of one that is looked through; a longer one is no name
MAX_NAMES = 256  # that are remembered with what is shown of them


@dataclass(frozen=True, slots=True)
class About:
    """What an administrator has opened. Without a `session` it sees the next ones of the backend or toolset. Times are
    Unix time; `opener` is the identity of a principal."""

    id: str
    tenant: str
    backend: str
    session: str
    transport: str
    payloads: bool
    reason: str
    opener: Identity
    opened_at: float
    ends_at: float


class Inspection:
    """The newest messages that fit into the `memory`. `secrets_of` returns the secrets of a member of a toolset by its
    name, or None if they are not known: then no more payloads are kept. Where `looking_time` is used up, neither."""

    def __init__(
        self,
        about: About,
        mask: Mask,
        memory: InspectionMemory,
        secrets_of: Callable[[str], Iterable[str] | None],
        looking_time: LookingTime | None = None,
        place: Place | None = None,
    ) -> None:
        self.numbers = Numbers(place)
        self._looking_time = looking_time or LookingTime()
        self.about, self._mask, self._memory, self._secrets_of = about, mask, memory, secrets_of
        self._members = {""}
        self._is_mask_complete = True
        self._names: dict[str, str] = {}
        self._messages: deque[InspectedMessage] = deque()
        self.bytes = self.dropped = self.seen = self.sessions = self.missed = 0
        self.ended_at: float | None = None
        self.ending: Ending | None = None

    @property
    def tenant(self) -> str:
        return self.about.tenant

    @property
    def is_open(self) -> bool:
        return self.ended_at is None

    def __len__(self) -> int:
        return len(self._messages)

    def sees_session(self) -> None:
        """The messages of one more session are recorded."""
        self.sessions += 1

    def misses_session(self) -> None:
        """There was no room for a session."""
        self.missed += 1

    # --- from the capture of a session

    def name(self, name: str, member: str = "") -> str:
        """A method, or the name of a tool or a resource, as it may be kept."""
        if member not in self._members:
            self._meet(member)
        if (known := self._names.get(name)) is not None:
            return known
        shown = self.word(name)
        if len(name) <= MAX_SHOWN and shown != MASKED:
            if len(self._names) >= MAX_NAMES:
                self._names.clear()
            self._names[name] = shown
        return shown

    def word(self, word: str) -> str:
        """What client or server have named something, without secrets, and cut. Masked where there is no time to look
        for them."""
        if len(word) < MIN_VALUE:
            return word
        if len(word) > MAX_NAME or not self._looking_time.is_left():
            return MASKED
        with self._looking_time.using():
            return self._mask.text(word)[:MAX_SHOWN]

    def add(self, message: InspectedMessage, line: bytes) -> None:
        """Keeps a message that has passed; after the end nothing."""
        if not self.is_open:
            return
        self.seen += 1
        if message.pair and (other := self.message(message.pair)) is not None:
            other.found_pair(message.number)
        if message.member not in self._members:
            self._meet(message.member)
        if self.about.payloads and self._is_mask_complete and self._looking_time.is_left():
            with self._looking_time.using():
                message.keep_payload(*self._mask.message(line))
        elif self.about.payloads:
            message.keep_payload(None, True, 0)
        if not self._memory.take(self, message.kept_bytes):
            self.dropped += 1
            return
        self._messages.append(message)
        self.bytes += message.kept_bytes

    def learn(self, secrets: Iterable[str]) -> None:
        """These are masked too, from now on."""
        self._names.clear()
        self._mask.learn(secrets)

    def met(self, member: str) -> bool:
        """Whether it has seen messages of this member of a toolset."""
        return member in self._members

    def _meet(self, member: str) -> None:
        self._members.add(member)
        values = self._secrets_of(member)
        if values is None:
            self._is_mask_complete = False
        else:
            self.learn(values)

    # --- for who looks

    def message(self, number: int) -> InspectedMessage | None:
        """One message, if it is kept. Fast for those of the last moments."""
        for each in reversed(self._messages):
            if each.number <= number:
                return each if each.number == number else None
        return None

    def after(self, number: int) -> Iterator[InspectedMessage]:
        """The messages with higher numbers, oldest first."""
        if not self._messages or self._messages[-1].number <= number:
            return iter(())
        return (each for each in self._messages if each.number > number)

    # --- its end

    def drop_oldest(self) -> int:
        """Returns the bytes by which it has shrunk; 0 if it has none."""
        if not self._messages:
            return 0
        size = self._messages.popleft().kept_bytes
        self.bytes -= size
        self.dropped += 1
        return size

    def end(self, at: float, ending: Ending) -> None:
        self.ended_at, self.ending = at, ending

    def forget_messages(self) -> None:
        size, self.bytes = self.bytes, 0
        self._messages.clear()
        self._memory.freed(self, size)
