"""The edge before an application of the test's own."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.certificates import self_signed
from tests.http.edge.rig import Edge, open_edge


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    """What a gateway serves with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


@pytest.fixture
def trust(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    """What a client trusts."""
    return ssl.create_default_context(cafile=certificate[0])


@pytest.fixture(params=["http", "https"])
async def edge(request: pytest.FixtureRequest, tls: ssl.SSLContext, trust: ssl.SSLContext) -> AsyncIterator[Edge]:
    is_tls = request.param == "https"
    async with open_edge(tls=(lambda: tls) if is_tls else None) as edge:
        edge.trust = trust if is_tls else None
        yield edge
