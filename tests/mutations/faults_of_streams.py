"""Faults of event streams: when a call becomes one, who waits for whom, and what a client that comes back gets."""

from tests.mutations.fault import Fault

SENT = ("tests/http/transports/test_event_stream.py",)
UNREAD = ("tests/sessions/streams/test_session_streams_back_pressure.py",)
SILENT = ("tests/sessions/test_session.py",)
REPLAY = ("tests/sessions/streams/test_replay.py",)
RESUMED = ("tests/http/transports/test_streamable_http_resume.py",)

FAULTS_OF_STREAMS = (
    Fault(
        "what a tenant's sessions keep for clients that resume has no limit together",
        "app/sessions/streams/_replay.py",
        "MAX_BYTES if self._tenant.replay_bytes <= MAX_OF_TENANT else LEAST_BYTES",
        "MAX_BYTES",
        REPLAY,
    ),
    Fault(
        "a session that is gone counts for its tenant's replay logs for ever",
        "app/sessions/streams/_replay.py",
        "self._count(-self.bytes)",
        "pass",
        REPLAY,
    ),
    Fault(
        "what is queued for a client is sent in one turn of the loop",
        "app/http/transports/event_stream.py",
        "if count % EVENTS_A_TURN == 0:",
        "if False:",
        SENT,
    ),
    Fault(
        "what a tenant's streams make the loop do is not charged",
        "app/http/transports/event_stream.py",
        "await charged(super()._stream_response(send), self._share.took)",
        "await super()._stream_response(send)",
        SENT,
    ),
    Fault(
        "the streams of a tenant over its share go on at once",
        "app/http/transports/event_stream.py",
        "            await share.turn()\n",
        "",
        SENT,
    ),
    Fault(
        "streams are nobody's use of the loop",
        "app/http/transports/front.py",
        "asked_of = self._public_url, self._requests.error, self._issuers, self._shares",
        "asked_of = self._public_url, self._requests.error, self._issuers",
        ("tests/http/transports/test_front_shares.py",),
    ),
    Fault(
        "a call whose answer has begun becomes a stream by silence",
        "app/sessions/streams/session_streams.py",
        "if call.stream is not Listen.STREAM and not is_being_answered:",
        "if call.stream is not Listen.STREAM:",
        SILENT,
    ),
    Fault(
        "an answer that does not say whose it is counts as nobody's",
        "app/sessions/streams/session_streams.py",
        "named is not None and (not named or answered_id(named) == call.gateway_id)",
        "named is not None and answered_id(named) == call.gateway_id",
        SILENT,
    ),
    Fault(
        "a stream that is not read holds up others for as long as it likes",
        "app/sessions/streams/session_streams.py",
        "                stream.fall_behind()\n",
        "                pass\n",
        UNREAD,
    ),
    Fault(
        "a stream that is read slowly counts as one that is not read",
        "app/sessions/streams/session_streams.py",
        "if stream.taken != taken or not has_others:",
        "if taken < 0 or not has_others:",
        UNREAD,
    ),
    Fault(
        "a call's stream falls behind although nobody else waits",
        "app/sessions/streams/session_streams.py",
        "if stream.taken != taken or not has_others:",
        "if stream.taken != taken:",
        UNREAD,
    ),
    Fault(
        "a reader that has fallen behind does not look into the log",
        "app/sessions/streams/resumption.py",
        "if self._stream.is_behind and not self._backlog:",
        "if False:",
        UNREAD,
    ),
    Fault(
        "a reader that has fallen behind gets what waits in the stream first",
        "app/sessions/streams/resumption.py",
        "return self._backlog.popleft() if is_next else None",
        "return self._backlog.popleft() if queued_from is None else None",
        UNREAD,
    ),
    Fault(
        "an answer waits in the log only, which may have no room for it",
        "app/sessions/streams/streams.py",
        "return self.is_behind and (entry.call is None or (bool(self._entries) and self.bytes + entry.size > MAX_BYTES))",
        "return self.is_behind",
        UNREAD,
    ),
    Fault(
        "a stream that was caught up with never holds its process up again",
        "app/sessions/streams/streams.py",
        "        self.is_behind = False\n        self._set_full(",
        "        self._set_full(",
        UNREAD,
    ),
    Fault(
        "an event id that names nothing opens the listen stream",
        "app/sessions/streams/session_streams.py",
        "if stream is None and place.stream == listen_name(self._owner.id):",
        "if stream is None:",
        RESUMED,
    ),
    Fault(
        "the end of a stream is an error",
        "app/sessions/streams/resumption.py",
        "found[0].number == place.number and",
        "found[0].number < place.number and",
        RESUMED,
    ),
    Fault(
        "a stream that has ended takes the request with it that goes on with its call",
        "app/sessions/sessionless/call.py",
        "if self._reply is reply and not self.is_done:\n            self._reply = None",
        "if self._reply is not None and not self.is_done:\n            self._reply = None",
        ("tests/sessions/sessionless/test_call.py",),
    ),
)
