"""A stdio server that goes wrong in one way: misbehave.py MODE. Standard library only.

at-once         writes two lines to stderr and exits with status 7
in-handshake    reads `initialize`, writes to stderr and exits
in-call         answers the handshake, exits in the first tools/call
garbage         writes lines that are not JSON, and answers nothing
silent          reads everything, answers nothing
never           answers the handshake, never a tools/call
slow            writes the inode of its stdin to the file `path`, answers after `seconds`
family          as a good server, with a child and a grandchild in a session of its own; answers with that inode
stubborn        as `family`, and all of them ignore SIGTERM and the end of stdin
noisy           a good server that writes a banner and blank lines to stdout
"""

import json
import os
import signal
import sys
import time


def send(message: dict) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def start_family() -> None:
    """A child, and a grandchild that has left for a session of its own; both sleep."""
    ready, tell = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            os.write(tell, b"\n")
        time.sleep(3600)
        os._exit(0)
    os.read(ready, 1)


def take_time(path: str, seconds: float) -> None:
    with open(path + ".part", "w") as file:
        file.write(str(os.fstat(0).st_ino))
    os.rename(path + ".part", path)
    time.sleep(seconds)


def serve(mode: str) -> None:
    says: object = []
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode in ("family", "stubborn"):
        start_family()
        says = os.fstat(0).st_ino
    if mode == "noisy":
        sys.stdout.write("Welcome to the server!\n\n   \n")
    for line in sys.stdin:
        message = json.loads(line)
        method, request_id = message.get("method"), message.get("id")
        if request_id is None or method is None or mode == "silent":
            continue
        if mode == "in-handshake":
            sys.stderr.write("cannot find the database\n")
            sys.exit(4)
        if method == "initialize":
            send(
                {
                    "id": request_id,
                    "result": {
                        "protocolVersion": message["params"]["protocolVersion"],
                        "capabilities": {"tools": {}},
                        "serverInfo": {"name": "misbehave", "version": "1"},
                    },
                }
            )
        elif method == "tools/call":
            if mode == "in-call":
                sys.stderr.write("Traceback: it broke\n")
                sys.stderr.flush()
                os._exit(5)
            if mode == "slow":
                take_time(**message["params"]["arguments"])
            if mode != "never":
                send({"id": request_id, "result": {"content": [{"type": "text", "text": json.dumps(says)}]}})
        else:
            send({"id": request_id, "result": {}})
    while mode == "stubborn":
        time.sleep(3600)


def main() -> None:
    mode = sys.argv[1]
    if mode == "at-once":
        sys.stderr.write("no such module: tool_server\nset TOOL_TOKEN first\n")
        sys.exit(7)
    if mode == "garbage":
        for number in range(100):
            sys.stdout.write(f"{{this is not JSON {number}\n")
        sys.stdout.flush()
    serve("silent" if mode == "garbage" else mode)


if __name__ == "__main__":
    main()
