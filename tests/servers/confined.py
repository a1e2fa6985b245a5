"""Does what ordinary Python servers do (threads, processes, asyncio, HTTP on a pair of sockets) and writes as JSON what
came of it, or which rights it has."""

import asyncio
import json
import multiprocessing
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler

CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def http() -> int:
    ours, theirs = socket.socketpair()
    server = threading.Thread(target=lambda: Handler(theirs, ("pair", 0), None))  # type: ignore[arg-type]
    server.start()
    with ours, theirs:
        ours.sendall(b"GET / HTTP/1.0\r\n\r\n")
        status = int(ours.recv(4096).split()[1])
        ours.shutdown(socket.SHUT_WR)
        server.join()
    return status


async def converse() -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec("cat", stdin=pipe, stdout=pipe)
    told, _ = await process.communicate(b"hello")
    await asyncio.to_thread(os.getpid)
    return told.decode()


def works() -> dict[str, object]:
    with ThreadPoolExecutor(4) as threads:
        squares = list(threads.map(lambda x: x * x, range(4)))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        absolutes = pool.map(abs, [-1, -2])
    with tempfile.TemporaryFile() as file:
        written = file.write(b"x")
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", "print(6 * 7)"], capture_output=True, check=True).stdout
    return {
        "threads": squares, "processes": absolutes, "subprocess": answer.decode().strip(), "file": written,
        "asyncio": asyncio.run(converse()), "http": http(),
    }  # fmt: skip


def rights() -> dict[str, object]:
    with open("/proc/self/status") as file:
        status = {name: value.strip() for name, _, value in (line.partition(":") for line in file)}
    return {
        "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(),
        "capabilities": [int(status[name], 16) for name in CAPABILITIES],
        "no_new_privs": status["NoNewPrivs"], "filters": status.get("Seccomp_filters"),
        "limits": {name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in ("CORE", "NOFILE")},
    }  # fmt: skip


if __name__ == "__main__":
    wanted = works() if sys.argv[1] == "works" else rights()
    print(json.dumps(wanted), flush=True)
