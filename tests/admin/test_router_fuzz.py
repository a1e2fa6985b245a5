"""Generated requests against every operation of the OpenAPI document: no 5xx, and every answer is as it is declared.

A few examples each, always the same; with --fuzz many, always others.
"""

import contextlib
import copy
import socket
import threading
from collections.abc import Iterator

import anyio
import pytest
import schemathesis
import uvicorn
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from app.domain import BackendSpec, Tenant
from tests.admin.rig import open_rig, shared_api

EXAMPLES, MANY = 2, 150
CHECKS = [
    schemathesis.checks.not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
DOCUMENT = copy.deepcopy(shared_api().openapi())
for _operation in (each for methods in DOCUMENT["paths"].values() for each in methods.values()):
    _operation.pop("security", None)  # who asks is not generated
OPERATIONS = {
    (method.upper(), path): operation
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
}
FITTING, UNFITTING = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
# Any text is a path; what has nothing else has nothing that would not fit.
CASES = [
    pytest.param(mode, *named, id=f"{mode.value}-{' '.join(named)}")
    for named, operation in OPERATIONS.items()
    for mode in (FITTING, UNFITTING)
    if mode is FITTING or "requestBody" in operation or any(p["in"] != "path" for p in operation.get("parameters", ()))
]
KNOWN = {
    "tenant": "acme", "backend": "echo", "toolset": "all", "guide": "style", "recipe": "twice",
    "session": "a1b2c3d4e5f6", "process": "a1b2c3d4e5f6a7b8",
}  # fmt: skip


@pytest.fixture(scope="module")
def served(url_for_many: str) -> Iterator[tuple[str, str]]:
    """The address of the API, in a thread of its own, and the platform administrator's key."""
    listener = socket.create_server(("127.0.0.1", 0))
    ready, key, server = threading.Event(), list[str](), list[uvicorn.Server]()

    async def run() -> None:
        async with open_rig(url_for_many) as rig:
            await rig.admin.tenants.create(Tenant("doomed"))
            await rig.admin.backends.create("doomed", BackendSpec("doomed", KNOWN["backend"], "cat"))
            rig.node.add_session("acme", KNOWN["session"])
            rig.node.add_process("acme", KNOWN["process"])
            key.append(rig.root)
            server.append(uvicorn.Server(uvicorn.Config(rig.app, log_config=None, lifespan="off", ws="none")))
            ready.set()
            with contextlib.suppress(KeyboardInterrupt):
                await server[0].serve([listener])

    thread = threading.Thread(target=anyio.run, args=[run], kwargs={"backend_options": {"use_uvloop": True}})
    thread.start()
    assert ready.wait(20)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", key[0]
    server[0].should_exit = True
    thread.join(20)
    listener.close()


@pytest.mark.parametrize(("mode", "method", "path"), CASES)
def test_what_is_generated_from_the_document_is_answered_as_the_document_says(
    served: tuple[str, str], mode: GenerationMode, method: str, path: str, request: pytest.FixtureRequest
) -> None:
    base_url, key = served
    many = bool(request.config.getoption("--fuzz"))
    operation = schemathesis.openapi.from_dict(DOCUMENT)[path][method]

    @settings(
        max_examples=MANY if many else EXAMPLES,
        derandomize=not many,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), known=st.booleans())
    def ask(case: schemathesis.Case, known: bool) -> None:
        for name in set(KNOWN) & set(case.path_parameters or {}) if known else ():
            case.path_parameters[name] = KNOWN[name]  # else few would get past 404
        if case.path_parameters.get("tenant") == "acme" and method == "DELETE":
            case.path_parameters["tenant"] = "doomed"  # the others are needed by what comes after
        response = case.call(base_url=base_url, headers={"Authorization": f"Bearer {key}"}, timeout=30)
        case.validate_response(response, checks=CHECKS)

    ask()
