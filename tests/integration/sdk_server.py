"""The official Python SDK's server on a port of its own: `sdk_server.py streamable|json|stateless|sse PORT`.

It wants the header `Authorization: Bearer sdk`, and tells which headers it got. With `SDK_TLS` (a certificate and its
key) it speaks TLS, and with `SDK_CLIENTS` (an authority) it wants certificates of it.
"""

import asyncio
import json
import os
import ssl
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("sdk")


class Name(BaseModel):
    name: str


@server.tool()
async def echo(text: str) -> str:
    return text


@server.tool()
async def headers(ctx: Context) -> str:
    return json.dumps(dict(ctx.headers or {}))


@server.tool()
async def count(ctx: Context, until: int) -> str:
    for number in range(until):
        await ctx.report_progress(number + 1, until)
        await asyncio.sleep(0.01)
    return "done"


@server.tool()
async def ask(ctx: Context) -> str:
    answer = await ctx.elicit("Who?", Name)
    return answer.data.name if answer.action == "accept" else answer.action


@server.tool()
async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "awake"


@server.tool()
async def die() -> str:
    os._exit(3)


@server.resource("note://one")
def note() -> str:
    return "a note"


def guarded(app):
    async def whole(scope, receive, send):
        if scope["type"] == "http" and dict(scope["headers"]).get(b"authorization") != b"Bearer sdk":
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    return whole


if __name__ == "__main__":
    kind, port = sys.argv[1:]
    apps = {
        "streamable": server.streamable_http_app,
        "json": lambda: server.streamable_http_app(json_response=True),
        "stateless": lambda: server.streamable_http_app(stateless_http=True),
        "sse": server.sse_app,
    }
    # By default it closes connections that are idle for 5 s, on a busy machine just when a call is sent: nobody would
    # know whether it was carried out.
    config = uvicorn.Config(guarded(apps[kind]()), host="127.0.0.1", port=int(port), log_level="warning")
    config.timeout_keep_alive = 3600
    config.ssl_certfile, config.ssl_ca_certs = os.environ.get("SDK_TLS"), os.environ.get("SDK_CLIENTS")
    config.ssl_cert_reqs = ssl.CERT_NONE if config.ssl_ca_certs is None else ssl.CERT_REQUIRED
    uvicorn.Server(config).run()
