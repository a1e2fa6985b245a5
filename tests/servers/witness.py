"""An MCP server that writes down what it does before it does it, for whoever checks afterwards. Standard library only.

Its argument is a directory; each process appends to a file of its own there, a JSON object a line: that it was
initialised, for whom (the name of the client), and where the node stands (which adds that to PATH, the only variable
that a process has of its node), each executed call by its `call`, each message sent by its number.
Tools: mark(call, ms) answers after so many milliseconds; tell(call, count, gap_ms) answers at once and sends so many
log messages afterwards, numbered through the life of the process. Each answer and each message says whose it is.
"""

import itertools
import json
import os
import sys
import threading
import time

PROCESS = f"{os.fstat(0).st_ino}-{time.monotonic_ns():x}"
PLACE = int(os.environ["PATH"].rpartition("/place-")[2])
journal = os.open(os.path.join(sys.argv[1], f"{PROCESS}.journal"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
numbers = itertools.count(1)
telling = threading.Lock()  # one call's messages after the other's
whose = ""


def write(record: str, **fields: object) -> None:
    line = {"record": record, "process": PROCESS, **fields, "at": time.monotonic()}
    os.write(journal, json.dumps(line).encode() + b"\n")


def send(**message: object) -> None:
    os.write(1, json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n")


def tell(count: int, gap_s: float) -> None:
    with telling:
        for _ in range(count):
            number = next(numbers)
            write("Sent", number=number)
            data = {"process": PROCESS, "whose": whose, "number": number, "at": time.monotonic()}
            send(method="notifications/message", params={"level": "info", "data": data})
            time.sleep(gap_s)


def call(request_id: object, params: dict) -> None:
    arguments = params.get("arguments") or {}
    name = arguments["call"]
    write("Executed", call=name)
    text = json.dumps({"process": PROCESS, "whose": whose, "call": name})
    result = {"content": [{"type": "text", "text": text}]}
    if arguments.get("ms"):
        threading.Timer(arguments["ms"] / 1000, send, kwargs={"id": request_id, "result": result}).start()
        return
    send(id=request_id, result=result)
    if params["name"] == "tell":
        threading.Thread(target=tell, args=(arguments["count"], arguments["gap_ms"] / 1000), daemon=True).start()


def handle(message: dict) -> None:
    global whose
    method, request_id, params = message.get("method"), message.get("id"), message.get("params") or {}
    if request_id is None or method is None:
        return
    if method == "initialize":
        whose = params["clientInfo"]["name"]
        write("Initialised", place=PLACE, whose=whose)
        about = {"name": "witness", "version": "1"}
        version = params["protocolVersion"]
        capabilities: dict = {"tools": {}, "logging": {}}
        send(id=request_id, result={"protocolVersion": version, "capabilities": capabilities, "serverInfo": about})
    elif method == "tools/call":
        call(request_id, params)
    elif method == "tools/list":
        tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("mark", "tell")]
        send(id=request_id, result={"tools": tools})
    elif method == "server/discover":
        send(id=request_id, error={"code": -32601, "message": "no such method"})
    else:
        send(id=request_id, result={})


for line in sys.stdin:
    handle(json.loads(line))
os._exit(0)
