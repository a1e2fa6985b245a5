"""For practice: `python -m tests.incidents NAME` brings an incident about and opens a shell for whoever is called.

docs/on-call.md should be all that they need. Leaving the shell ends the play.
"""

import argparse
import os
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path

from app.storage.migrate import upgrade
from tests.incidents.plays import PLAYS
from tests.incidents.stage import stage
from tests.postgres import postgres_server

parser = argparse.ArgumentParser(prog="python -m tests.incidents", description=__doc__)
parser.add_argument("name", choices=sorted(PLAYS))
words = parser.parse_args()
with ExitStack() as stack:
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    url, _ = stack.enter_context(postgres_server())
    upgrade(url)
    played = stack.enter_context(stage(directory, url))
    told = PLAYS[words.name](played)
    print("The incident is on: find out what it is. `exit` ends it.")
    subprocess.run([os.environ.get("SHELL", "/bin/sh")], env={**os.environ, **played.environment, **told}, check=False)
