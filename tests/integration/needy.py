"""A server that does not start without what its variables name and its sandbox does not show; and places for that."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.gateway import ROOT
from tests.jail.sandbox.inside import SYSTEM_PYTHON

# One after another, as a program meets them; then it is a server.
NEEDS = """
import os, runpy, sys, threading
for each in os.environ.get("READS", "").split():
    open(each).close()
for each in os.environ.get("WRITES", "").split():
    open(each, "a").close()
stay = threading.Event()
for _ in range(int(os.environ.get("THREADS", "0"))):
    threading.Thread(target=stay.wait, daemon=True).start()
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
ARGV = [SYSTEM_PYTHON, "-c", NEEDS, str(ROOT / "bench/echo_backend.py")]


@contextmanager
def three_places() -> Iterator[Path]:
    """A directory that no sandbox has of its own, with three that everybody may write, and a `file` in each."""
    try:
        found = Path(tempfile.mkdtemp(prefix="trunkline-allow-", dir="/srv"))
    except OSError as error:
        pytest.skip(f"/srv cannot be written: {error}")
    try:
        found.chmod(0o755)
        for name in ("one", "two", "three"):
            (found / name).mkdir()
            (found / name).chmod(0o777)
            (found / name / "file").write_text("x")
        yield found
    finally:
        shutil.rmtree(found)
