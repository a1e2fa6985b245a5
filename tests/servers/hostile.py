"""An MCP server that behaves until its tool `attack` is called: hostile.py MODE [TIMES]. Standard library only.

Then it does what MODE says, so many times as much, and answers if it still can. Every other call is answered at once
with how many lines `notifications/cancelled` it has read. The attacks are the functions of ATTACKS; `early` and
`banner` begin before anybody has spoken to it.
"""

import json
import os
import resource
import signal
import sys
import time

MODE = sys.argv[1]
TIMES = int(sys.argv[2]) if len(sys.argv) > 2 else 1
MIB = 1 << 20


def write(data: bytes, descriptor: int = 1) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def send(**message: object) -> None:
    write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")


def answer(request_id: object, text: str = "done") -> None:
    send(id=request_id, result={"content": [{"type": "text", "text": text}]})


def lines(line: bytes, count: int) -> None:
    """So many times the same line; `%d` in it is its number."""
    for first in range(0, count * TIMES, 500):
        numbers = range(first, min(first + 500, count * TIMES))
        write(b"".join((line % number if b"%d" in line else line) + b"\n" for number in numbers))


def told(method: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": "notifications/" + method, "params": params}).encode()


# --- what it writes


def log_messages(request: dict) -> None:
    lines(told("message", level="info", data="x" * 40), 15_000)


def progress(request: dict) -> None:
    token = request["params"]["_meta"]["progressToken"]
    lines(told("progress", progressToken=token, progress=0).replace(b'"progress": 0', b'"progress": %d'), 15_000)


def strange_progress(request: dict) -> None:
    lines(told("progress", progressToken="nobody's", progress=1), 15_000)


def list_changes(request: dict) -> None:
    lines(told("tools/list_changed"), 15_000)


def updates(request: dict) -> None:
    lines(told("resources/updated", uri="x://%d"), 15_000)


def strange_cancels(request: dict) -> None:
    lines(told("cancelled", requestId="nobody's"), 15_000)


def questions(request: dict) -> None:
    lines(b'{"jsonrpc":"2.0","id":%d,"method":"roots/list"}', 2_000)


def pings(request: dict) -> None:
    lines(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}', 15_000)


def unasked_answers(request: dict) -> None:
    lines(b'{"jsonrpc":"2.0","id":9%d,"result":{}}', 15_000)


def wrong_ids(request: dict) -> None:
    for wrong in (b"-1", b'"x"', b"1.5", b"null", b"{}", b"[]", b"true", b"1" * 400, b'"\\ud800"'):
        lines(b'{"jsonrpc":"2.0","id":%b,"result":{"whose":"nobody knows"}}' % wrong, 1)


def many_answers(request: dict) -> None:
    lines(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"done"}]}}' % request["id"], 100)


def blank_lines(request: dict) -> None:
    write(b"\n" * 10_000 * TIMES)


def noise(request: dict) -> None:
    lines(b"INFO this is no JSON", 1_001)
    signal.pause()


def long_line(request: dict) -> None:
    write(b'{"jsonrpc":"2.0","id":%d,"result":{"x":"' % request["id"])
    for _ in range(5 * TIMES):
        write(b"x" * MIB)
    write(b'"}}\n')


def endless_line(request: dict) -> None:
    while True:
        write(b"x" * MIB)


def half_a_line(request: dict) -> None:
    write(b'{"jsonrpc":"2.0","id":%d,"result":{"x":"' % request["id"])
    os._exit(0)


def odd(value: bytes, request: dict) -> None:
    """An answer with this value in it."""
    write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"done"}],"x":%b}}\n' % (
        request["id"], value,
    ))  # fmt: skip


def stderr(request: dict) -> None:
    for _ in range(10 * TIMES):
        write((b"complaint \x1b[2J" * 10 + b"\n") * 7_000, 2)


def stderr_line(request: dict) -> None:
    for _ in range(10 * TIMES):
        write(b"y" * MIB, 2)


# --- what it does


def deaf(request: dict) -> None:
    answer(request["id"])
    signal.pause()


def silent(request: dict) -> None:
    while json.loads(sys.stdin.readline())["method"] != "notifications/cancelled":
        pass
    answer(request["id"], "late")


def dies(request: dict) -> None:
    os._exit(5)


def kills_itself(request: dict) -> None:
    os.kill(0, signal.SIGKILL)


def closes_stdout(request: dict) -> None:
    os.close(1)
    signal.pause()


def closes_stdin(request: dict) -> None:
    os.close(0)
    signal.pause()


def closes_stderr(request: dict) -> None:
    os.close(2)


def stubborn(request: dict) -> None:
    """Daemons, children and zombies; all ignore SIGTERM and hold the pipes, and the parent does not wait for EOF."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(TIMES):
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                signal.pause()
            signal.pause()
        if os.fork() == 0:
            os._exit(0)  # a zombie
        if os.fork() == 0:
            if os.fork() == 0:
                os.setsid()
                signal.pause()
            os._exit(0)  # its child is a daemon
    answer(request["id"])
    while True:
        signal.pause()


def dies_with_a_daemon(request: dict) -> None:
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.pause()
    os._exit(5)


# --- what it takes: each stops at what is refused to it, and says how far it came


def memory(request: dict) -> None:
    taken = [bytearray(b"x") * MIB for _ in range(150 * TIMES)]
    answer(request["id"], str(len(taken)))


def forks(request: dict) -> None:
    count = 0
    for _ in range(20 * TIMES):
        try:
            if os.fork() == 0:
                signal.pause()
        except OSError:
            break
        count += 1
    answer(request["id"], str(count))


def spin(request: dict) -> None:
    """On more cores than the machine has, for 0.2 s times."""
    until = time.monotonic() + 0.2 * TIMES
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            while time.monotonic() < until:
                pass
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    answer(request["id"], str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime))


def descriptors(request: dict) -> None:
    count = 0
    try:
        while count < 250 * TIMES:
            last = os.open("/dev/null", os.O_RDONLY)
            count += 1
    except OSError:
        os.close(last)  # one is needed to answer
    answer(request["id"], str(count))


def disk(request: dict) -> None:
    """Into its home and its directory for temporary files, in turn."""
    written = 0
    try:
        for number in range(30 * TIMES):
            where = os.environ["HOME"] if number % 2 else os.environ["TMPDIR"]
            with open(f"{where}/{number}", "wb") as file:
                file.write(b"x" * MIB)
            written += 1
    except OSError:
        pass
    answer(request["id"], str(written))


ODD = {
    "nan": b"NaN", "latin-1": b'"caf\xe9"', "bare-surrogate": b'"\xed\xa0\xbd"', "broken-off": b'"the end',
    "surrogate": b'"cut \\ud83d"', "deep": b"[" * 5000 + b"]" * 5000, "huge-int": b"1" * 20_000,
    "duplicate-keys": b'1,"x":2,"x":{"x":3,"x":4}',
}  # fmt: skip
ATTACKS = {
    each.__name__.replace("_", "-"): each
    for each in (
        log_messages, progress, strange_progress, list_changes, updates, strange_cancels, questions, pings,
        unasked_answers, wrong_ids, many_answers, blank_lines, noise, long_line, endless_line, half_a_line, stderr,
        stderr_line, deaf, silent, dies, kills_itself, closes_stdout, closes_stdin, closes_stderr, stubborn,
        dies_with_a_daemon, memory, forks, spin, descriptors, disk,
    )
}  # fmt: skip
ANSWER_THEMSELVES = frozenset({
    "many-answers", "long-line", "deaf", "silent", "stubborn", "memory", "forks", "spin", "descriptors", "disk",
})  # fmt: skip


def attack(request: dict) -> None:
    if MODE in ODD:
        odd(ODD[MODE], request)
        return
    if MODE in ATTACKS:
        ATTACKS[MODE](request)
    if MODE not in ANSWER_THEMSELVES:
        answer(request["id"])


def main() -> None:
    cancelled = 0
    if MODE == "early":
        lines(b'{"jsonrpc":"2.0","id":7%d,"result":{}}', 20)
    if MODE == "banner":
        write(b"\x1b[1mWelcome!\x1b[0m\r\n\r\n   \n\xff\xfe not text\n{'a': 1}\n")
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        method = request.get("method")
        cancelled += method == "notifications/cancelled"
        if method == "initialize":
            info = {"name": "hostile", "version": "1"}
            version = request["params"]["protocolVersion"]
            send(
                id=request["id"], result={"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            )
        elif method == "tools/call" and request["params"]["name"] == "attack":
            attack(request)
        elif method is not None and "id" in request:
            answer(request["id"], str(cancelled))


if __name__ == "__main__":
    main()
