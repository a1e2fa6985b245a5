"""uvicorn is as it was when its private names were overridden: in app/edge, and in app/node/serve.py.

A new version of it may do the same in other words. Read what has changed, compare it with what overrides it, run the
suite, and then write the new digest here, and raise the cap in pyproject.toml.
"""

import hashlib
import inspect
from types import ModuleType

import pytest
import uvicorn.protocols.http.flow_control
import uvicorn.protocols.http.httptools_impl
import uvicorn.server

KNOWN = {
    uvicorn.protocols.http.httptools_impl: "1d4e1c579df41684",
    uvicorn.protocols.http.flow_control: "d39d16560df512f3",
    uvicorn.server: "c1be9d133467a42a",
}


def digest_of(module: ModuleType) -> str:
    return hashlib.sha256(inspect.getsource(module).encode()).hexdigest()[:16]


@pytest.mark.parametrize("module", KNOWN, ids=lambda module: module.__name__)
def test_what_is_overridden_of_uvicorn_is_what_was_read(module: ModuleType) -> None:
    assert digest_of(module) == KNOWN[module]
