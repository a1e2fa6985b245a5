"""Faults of sessions with servers that are reached by URL."""

from tests.mutations.fault import Fault

LINK = ("tests/upstreams/test_link.py",)
CHANNEL = ("tests/upstreams/test_channel.py",)
CONNECTING = ("tests/upstreams/test_connecting.py",)
REGISTERED = ("tests/admin/resources/test_backends_url.py",)

FAULTS_OF_UPSTREAMS = (
    Fault(
        "the error of an answer keeps what was read of it",
        "app/upstreams/channel.py",
        "chunks.clear()",
        "pass",
        CHANNEL,
    ),
    Fault(
        "an address of an upstream is not checked",
        "app/upstreams/connecting.py",
        "lambda address: self._policy.require(address, url)",
        "lambda address: None",
        CONNECTING,
    ),
    Fault(
        "a connection that could not be made counts for ever",
        "app/upstreams/connecting.py",
        "            self._closed(place.tenant)\n            if isinstance(error, UrlRefused):",
        "            if isinstance(error, UrlRefused):",
        CONNECTING,
    ),
    Fault(
        "an answer to a call that was never made is passed on",
        "app/upstreams/calls.py",
        'self._dropped("upstream_unasked")\n            return',
        'self._dropped("upstream_unasked")\n            self._deliver(line)\n            return',
        LINK,
    ),
    Fault(
        "a header's value goes to another host",
        "app/admin/resources/backends.py",
        'if kept and known is not None and origin_of(known.url or "") != origin_of(spec.url):',
        "if False:",
        REGISTERED,
    ),
    Fault(
        "a server sends requests elsewhere, by its endpoint or a redirect",
        "app/upstreams/statuses.py",
        "return found.target if (found.scheme, found.host, found.port) == (url.scheme, url.host, url.port) else None",
        "return found.target",
        LINK,
    ),
    Fault(
        "a redirect's password is shown",
        "app/upstreams/statuses.py",
        "parts.netloc.rpartition('@')[2]",
        "parts.netloc",
        ("tests/upstreams/test_statuses.py",),
    ),
    Fault(
        "what has come is read without a turn of the loop",
        "app/upstreams/connecting.py",
        "        await asyncio.sleep(0)\n        size",
        "        size",
        CHANNEL,
    ),
    Fault(
        "many lines that have come are read at once",
        "app/upstreams/connecting.py",
        "size = few_lines(self._unread) if self._is_cut else len(self._unread)",
        "size = len(self._unread)",
        CHANNEL,
    ),
    Fault(
        "interim answers of a server have no limit",
        "app/upstreams/connecting.py",
        "if self._head_lines > MAX_HEAD_LINES:",
        "if False:",
        CHANNEL,
    ),
    Fault(
        "the pieces of a body have no limit",
        "app/upstreams/channel.py",
        "if len(chunks) > MAX_CHUNKS:",
        "if False:",
        CHANNEL,
    ),
    Fault(
        "notifications of a server elsewhere are read before they are dropped",
        "app/upstreams/calls.py",
        "if self._flood.takes(data, time.monotonic()):",
        "if False:",
        LINK,
    ),
    Fault(
        "what a flood of a server elsewhere holds is never told",
        "app/upstreams/calls.py",
        "        for line in self._flood.take_held():\n            self._parsed(line)\n",
        "        self._flood.take_held()\n",
        LINK,
    ),
    Fault(
        "what a server elsewhere makes the loop do is not charged",
        "app/upstreams/link.py",
        "await charged(work, self._flow.share.took)",
        "await work",
        LINK,
    ),
    Fault(
        "a server elsewhere is read without a turn",
        "app/upstreams/flow.py",
        "return await self.share.turn()",
        "return",
        LINK,
    ),
    Fault(
        "a call overtakes a notification",
        "app/upstreams/link.py",
        "            await _over(before)\n            async with self._turns:",
        "            async with self._turns:",
        LINK,
    ),
    Fault(
        "a server is read although its session is held up",
        "app/upstreams/channel.py",
        "        await self._flow.turn()\n",
        "",
        LINK,
    ),
    Fault(
        "a session that is over is not ended at the server",
        "app/upstreams/link.py",
        "await self._wire.goodbye()",
        "pass",
        LINK,
    ),
    Fault(
        "a released link goes on reading",
        "app/upstreams/link.py",
        "        self._calls.close()\n        self._cancel_tasks()\n",
        "        self._calls.close()\n",
        LINK,
    ),
    Fault(
        "a reset overtakes an answer that has come",
        "app/upstreams/connecting.py",
        "        self.broken = exc\n        self.feed_eof()\n",
        "        super().set_exception(exc)\n",
        ("tests/upstreams/test_connecting.py",),
    ),
    Fault(
        "a connection that the server has closed is used as long as nobody has looked",
        "app/upstreams/connecting.py",
        "self._reader.at_eof() or self._is_left()",
        "self._reader.at_eof()",
        ("tests/upstreams/test_connecting.py",),
    ),
    Fault(
        "a handshake whose connection breaks has failed",
        "app/upstreams/streamable.py",
        '            if call.method != "initialize" or call.is_sessionless:\n                raise\n',
        "            raise\n",
        LINK,
    ),
    Fault(
        "a call whose connection breaks is sent again",
        "app/upstreams/streamable.py",
        'if call.method != "initialize" or call.is_sessionless:',
        "if call.is_sessionless:",
        LINK,
    ),
)
