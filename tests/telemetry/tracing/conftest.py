import threading
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def exporters_end() -> Iterator[None]:
    """An exporter does not wait at its end for a collector that hangs: its thread would still log in the next test."""
    yield
    for thread in threading.enumerate():
        if thread.name == "trace exporter":
            thread.join(30)
