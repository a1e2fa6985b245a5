"""Lines of a backend, mutated, with three calls in flight: one that was damaged touches no call but its own.

5,000 lines, always the same; with --fuzz half a million.
"""

import json
import random
from collections.abc import Iterator

import pytest

from app.protocol.commands import Answer, Command, Failed, Several
from app.protocol.exchange import Exchange
from tests.protocol.test_exchange import call

LINES, MANY_LINES = 5_000, 500_000
FIRST_ID = 10**9  # so long that no damage makes one of another
FORMS = (
    '{"jsonrpc":"2.0","id":%d,"result":%s}',
    '{"result":%s,"jsonrpc":"2.0","id":%d}',
    '{"jsonrpc": "2.0", "id": %d, "error": {"code": -32000, "message": "no", "data": %s}}',
    '{"jsonrpc":"2.0","id":%d,"method":"sampling/createMessage","params":{"x":%s}}',
    '{"method":"roots/list","params":{"x":%s},"jsonrpc":"2.0","id":%d}',
)
SPLINTERS = (
    b"",
    *(bytes([each]) for each in b',]}{[":-.e\\ tn\t\xe9'),
    b"\\ud83d",
    b"NaN",
    b"null",
    b"[" * 1500,
    b"}{",
)


def lines(randomly: random.Random, ids: list[int]) -> Iterator[tuple[int, bytes]]:
    """Without end: the id of the call whose answer it was (or of one of equal id that the backend asks with), and the
    line; its payload names the ids of the others."""
    while True:
        mine = randomly.choice(ids)
        payload = json.dumps({"text": f'"id":{randomly.choice(ids)},', "deep": [{"id": randomly.choice(ids)}] * 2})
        form = randomly.choice(FORMS)
        written = form % ((mine, payload) if form.index("%d") < form.index("%s") else (payload, mine))
        line = bytearray(written.encode())
        for _ in range(randomly.randint(1, 3)):
            at = randomly.randrange(len(line))
            if randomly.random() < 0.1:
                del line[at:]
            else:
                line[at : at + randomly.randint(0, 2)] = randomly.choice(SPLINTERS)
            if not line:
                break
        yield mine, bytes(line)


def ended(exchange: Exchange, command: Command) -> Iterator[bytes]:
    """The calls that are over with this command."""
    if isinstance(command, Several):
        for line in command.lines:
            yield from ended(exchange, exchange.receive(line, 0.0))
    elif isinstance(command, Answer | Failed):
        yield command.call.gateway_id


def test_a_damaged_line_touches_no_call_but_its_own(request: pytest.FixtureRequest) -> None:
    many = bool(request.config.getoption("--fuzz"))
    randomly, exchange = random.Random(0), Exchange(60.0)
    exchange.number_from(FIRST_ID)
    ids: list[int] = []
    count, answered = MANY_LINES if many else LINES, 0
    for number in range(count):
        while len(ids) < 3:
            ids.append(call(exchange, str(number * 3 + len(ids)))[1]["id"])
        mine, line = next(lines(randomly, ids))
        touched = list(ended(exchange, exchange.receive(line, 0.0)))
        assert touched in ([], [b"%d" % mine]), line
        if touched:
            ids.remove(mine)
            answered += 1
        for our_id in list(exchange.questions.open):
            exchange.questions.refuse(our_id, "nobody is there")
        assert set(exchange.calls) == {b"%d" % each for each in ids}
    assert answered > count / 4
