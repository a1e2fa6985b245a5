"""What was made of documents, for sessions."""

import pytest

from app.backends.openapi import apis
from app.backends.openapi.apis import Apis
from app.domain import BackendSpec
from app.errors import BackendUnavailable
from app.protocol.openapi.api import encoded, packed
from app.protocol.openapi.making import api_of
from tests.protocol.openapi.documents import SHOP

STORED = packed(encoded(api_of(SHOP)))


class Stored:
    def __init__(self, digest: str = "one", data: bytes | None = STORED) -> None:
        self.digest, self.data, self.asked = digest, data, 0

    async def api(self, tenant: str, name: str) -> tuple[str, bytes] | None:
        self.asked += 1
        assert (tenant, name.partition("-")[0]) == ("acme", "shop")
        return None if self.data is None else (self.digest, self.data)


def spec(name: str = "shop", made: str = "one") -> BackendSpec:
    return BackendSpec("acme", name, "", url="https://shop.example", openapi="sha256:x", openapi_made=made)


async def test_it_is_read_once_and_shared():
    stored = Stored()
    known = Apis(stored.api)
    assert await known.of(spec()) is await known.of(spec("shop:check"))
    assert stored.asked == 1
    assert len((await known.of(spec())).api.operations) == 6


async def test_another_version_is_read_again_and_replaces_it():
    stored = Stored()
    known = Apis(stored.api)
    first = await known.of(spec())
    stored.digest = "two"
    second = await known.of(spec(made="two"))
    assert second is not first
    assert await known.of(spec()) is not first  # its spec is as old as a cache may be: it gets what there is now
    assert stored.asked == 3


async def test_the_least_recently_used_go_first(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(apis, "MAX_KEPT", 2)
    stored = Stored()
    known = Apis(stored.api)
    for name in ("shop-a", "shop-b", "shop-a", "shop-c", "shop-a", "shop-b"):
        await known.of(spec(name))
    assert stored.asked == 4


@pytest.mark.parametrize("data", [None, b"", b"broken"])
async def test_what_is_not_there_is_said(data: bytes | None):
    with pytest.raises(BackendUnavailable, match="again"):
        await Apis(Stored(data=data).api).of(spec())
