"""mcp-remote as the stdio server that a desktop client starts; the desktop client is the Python SDK 2.x.

`legacy` or `auto` is how that one begins; what follows goes to mcp-remote.
"""
# mypy: ignore-errors
# Its packages are in an environment of its own.

import asyncio
import os
import sys

from mcp import Client, StdioServerParameters
from python_sdk_2 import run

mode, *options = sys.argv[1:]
# As `trunkline connect claude-desktop` writes it.
server = StdioServerParameters(
    command=os.environ["NPM"] + "/node_modules/.bin/mcp-remote",
    args=[os.environ["URL"], "--header", "Authorization:${AUTH}", *options],
    env={"AUTH": f"Bearer {os.environ['KEY']}", "HOME": os.environ["HOME"]},
)
asyncio.run(run(lambda **callbacks: Client(server, mode=mode, **callbacks)))
