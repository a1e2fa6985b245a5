"""Faults of what the gateway does about backends that misbehave."""

from tests.mutations.fault import Fault

NOTIFICATIONS = ("tests/protocol/test_exchange_notifications.py",)
NOISE = ("tests/processes/test_stderr_noise.py",)
READ_END = ("tests/processes/test_pipes_read_end.py",)
FLOOD = ("tests/protocol/test_framing_flood.py",)
PROCESS = ("tests/processes/test_process.py",)

FAULTS_OF_BACKENDS = (
    Fault(
        "notifications are told however many come",
        "app/protocol/_notification_rate.py",
        "if self._count <= PER_SECOND:\n            if self._kept:",
        "if self._count >= 0:\n            if self._kept:",
        NOTIFICATIONS,
    ),
    Fault(
        "of a flood of changes the first is told and the last is not",
        "app/protocol/_notification_rate.py",
        "        self._kept[change] = message, call\n",
        "        self._kept.setdefault(change, (message, call))\n",
        NOTIFICATIONS,
    ),
    Fault(
        "changes that wait are kept however many they are",
        "app/protocol/_notification_rate.py",
        " or (len(self._kept) >= MAX_KEPT and not is_known)",
        "",
        NOTIFICATIONS,
    ),
    Fault(
        "a change is told to a subscription that is over",
        "app/protocol/_notification_rate.py",
        "if call is None or call.gateway_id in running:",
        "if call is None or running is not None:",
        NOTIFICATIONS,
    ),
    Fault(
        "a process may write noise for ever",
        "app/processes/_stderr.py",
        "if self._in_minute == self._per_minute + 1:",
        "if self._in_minute < 0:",
        NOISE,
    ),
    Fault(
        "noise is logged however much it is",
        "app/processes/_stderr.py",
        "self._lines <= LOGGED_LINES and ",
        "",
        NOISE,
    ),
    Fault(
        "stderr is logged however much it is",
        "app/processes/_stderr.py",
        "room = max(0, STDERR_LINES_PER_S - self._written)",
        "room = len(lines)",
        NOISE,
    ),
    Fault(
        "what is no JSON is not told to its process",
        "app/sessions/session.py",
        "                self.connection.heard_noise(line)\n",
        "                pass\n",
        ("tests/sessions/test_session.py",),
    ),
    Fault(
        "blank lines cost nothing",
        "app/processes/pipes.py",
        'count = data.count(b"\\n")',
        "count = len(read)",
        PROCESS,
    ),
    Fault(
        "a process is read although its tenant is over its share",
        "app/processes/pipes.py",
        "        self.pause(Pause.SHARE)\n",
        "        pass\n",
        READ_END,
    ),
    Fault(
        "a process that writes fast is read many times in a row",
        "app/processes/pipes.py",
        "PIPE_BYTES = 128 << 10",
        "PIPE_BYTES = 256 << 10",
        READ_END,
    ),
    Fault(
        "lines that were kept are handed over without a turn",
        "app/processes/pipes.py",
        "elif not self._paused & (Pause.SESSION | Pause.SHARE):",
        "elif not self._paused & Pause.SESSION:",
        READ_END,
    ),
    Fault(
        "a flood on stderr is nobody's",
        "app/processes/pipes.py",
        "        self._feed(data)\n        self._took(used_s() - began)\n",
        "        self._feed(data)\n",
        READ_END,
    ),
    Fault(
        "what a reader does is charged without its short steps",
        "app/concurrency/loop_share.py",
        "        self._owed += seconds\n",
        "        self._owed = seconds\n",
        ("tests/concurrency/test_loop_share.py",),
    ),
    Fault(
        "a flood of notifications is read before it is dropped",
        "app/processes/pipes.py",
        "lines = flood.passed(read, now)",
        "lines = read",
        PROCESS,
    ),
    Fault(
        "what a flood holds is never told",
        "app/processes/pipes.py",
        "        self._pass_on(self._flood.take_held())\n",
        "        self._flood.take_held()\n",
        PROCESS,
    ),
    Fault(
        "a flood drops what answers a question",
        "app/protocol/framing.py",
        "if head is None or head[1].startswith(_STATES):",
        "if head is None:",
        FLOOD,
    ),
    Fault(
        "a server that answers fast loses notifications",
        "app/protocol/framing.py",
        "        if self._count <= PER_SECOND:\n            return False\n        key",
        "        key",
        FLOOD,
    ),
    Fault(
        "a line without end does not kill",
        "app/processes/pipes.py",
        '            self._kill("wrote a line without end")\n',
        "            pass\n",
        PROCESS,
    ),
    Fault(
        "a process that reads nothing is let live",
        "app/processes/process.py",
        "if is_stalled or is_mute else 0",
        "if is_mute else 0",
        PROCESS,
    ),
    Fault(
        "a change that was held back is told only while a call runs",
        "app/sessions/sweeping.py",
        " or exchange.holds_back",
        "",
        ("tests/sessions/test_registry.py",),
    ),
    Fault(
        "what a process that was killed for its noise has still to say is heard",
        "app/processes/process.py",
        "        self._stdout.mute()\n        self.kill(cause)\n",
        "        self.kill(cause)\n",
        PROCESS,
    ),
    Fault(
        "a process that was killed for what it does is told about its stderr",
        "app/processes/endings.py",
        "RAISING.get(self.limit) or of_end(self.description) or hint",
        "RAISING.get(self.limit) or hint",
        ("tests/processes/test_endings_advice.py",),
    ),
    Fault(
        "a flood is told as a tool that takes long",
        "app/processes/process.py",
        "if is_late and self._stdout.has_flooded:",
        "if False:",
        ("tests/integration/test_hints.py",),
    ),
    Fault(
        "a certificate that is not trusted is told as a name that is not found",
        "app/backends/checks/_missed.py",
        'if not (has_found_server and entries[index]["what"] == _NAMES)',
        "if True",
        ("tests/backends/checks/test_missed.py",),
    ),
)
