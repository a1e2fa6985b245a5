"""A program of its own that calls one tool of one backend over and over, and does nothing else.

Its arguments are URL, KEY and how many seconds it rests between two calls. Each line of its output is when a call began
(time.monotonic, the same clock for all processes of a machine), after how many seconds it had its answer, and what was
wrong with that, if anything. It ends with its stdin.
"""

import http.client
import json
import select
import sys
import time
from urllib.parse import urlsplit

TEXT = "bystander"


class Session:
    """One Streamable HTTP session on one connection."""

    def __init__(self, url: str, key: str) -> None:
        where = urlsplit(url)
        self._connection = http.client.HTTPConnection(where.netloc, timeout=30)
        self._path = where.path
        self._headers = {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }

    def post(self, **message: object) -> tuple[int, bytes]:
        body = json.dumps({"jsonrpc": "2.0", **message})
        self._connection.request("POST", self._path, body, self._headers)
        response = self._connection.getresponse()
        content = response.read()
        session = response.getheader("Mcp-Session-Id")
        if session is not None:
            self._headers["Mcp-Session-Id"] = session
        return response.status, content

    def open(self) -> None:
        client = {"name": "bystander", "version": "1"}
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client}
        self.post(id=0, method="initialize", params=hello)
        self.post(method="notifications/initialized")

    def call(self, number: int) -> str:
        """What is wrong with the answer; nothing, as a rule."""
        params = {"name": "echo", "arguments": {"text": f"{TEXT} {number}"}}
        try:
            status, content = self.post(id=number, method="tools/call", params=params)
        except (OSError, http.client.HTTPException) as error:
            return repr(error)
        return "" if status == 200 and f'"{TEXT} {number}"'.encode() in content else f"{status} {content!r}"


def main() -> None:
    session, rest_s = Session(sys.argv[1], sys.argv[2]), float(sys.argv[3])
    session.open()
    number = 0
    while not select.select([sys.stdin], [], [], rest_s)[0]:
        number += 1
        began_at = time.monotonic()
        wrong = session.call(number)
        print(began_at, time.monotonic() - began_at, wrong, flush=True)


if __name__ == "__main__":
    main()
