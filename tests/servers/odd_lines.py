"""Answers a call with the bytes that its argument `hex` says and a newline: `%ID%` in them is its own id, `%PARKED%`
that of the last call of the tool `park`, which is answered once `release` is called, and `%LONG%` 17 MiB."""

import json
import os
import sys

parked = b"null"
for raw in sys.stdin.buffer:
    message = json.loads(raw)
    request_id, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    if request_id is None or method is None:
        continue
    result: object = {}
    if method == "initialize":
        result = {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "odd", "version": "1"},
        }
    name = params.get("name") if method == "tools/call" else None
    if name == "park":
        parked = b"%d" % request_id
        continue
    if name == "say":
        line = bytes.fromhex(params["arguments"]["hex"])
        for name, value in ((b"ID", b"%d" % request_id), (b"PARKED", parked), (b"LONG", b"y" * (17 << 20))):
            line = line.replace(b"%%%b%%" % name, value)
        sys.stdout.buffer.write(line + b"\n")
        sys.stdout.buffer.flush()
        continue
    if name == "is_parked":
        result = {"is_parked": parked != b"null"}
    if name == "echo":
        result = {"content": [{"type": "text", "text": params["arguments"]["text"]}]}
    if name == "release":
        answer = {"content": [{"type": "text", "text": "released"}]}
        os.write(1, json.dumps({"jsonrpc": "2.0", "id": int(parked), "result": answer}).encode() + b"\n")
        parked = b"null"
    os.write(1, json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode() + b"\n")
