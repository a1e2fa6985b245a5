"""From an Authorization header to a Principal, and what is remembered for how long."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, cast

import anyio
import pytest
from prometheus_client import CollectorRegistry, Counter

from app.auth import authenticator as module
from app.auth.api_keys import ApiKeys, KeyMaker, key_id
from app.auth.authenticator import Authenticator
from app.auth.authorization.access_tokens import Holder, OwnTokens, SigningKeys
from app.auth.authorization.addresses import Addresses
from app.auth.tokens import Target, Tokens
from app.errors import StorageUnavailable, Unauthenticated
from tests.auth.fakes import NOW, FakeStore

maker = KeyMaker(b"s" * 32)


@dataclass
class Rig:
    """An authenticator with hands on its clock and store."""

    store: FakeStore = field(default_factory=FakeStore)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    elapsed_s: float = 1000.0
    authenticator: Authenticator = field(init=False)

    def __post_init__(self) -> None:
        failures = Counter("failures", "", ["reason"], registry=self.registry)
        keys = ApiKeys(self.store, maker, self.now)
        self.authenticator = Authenticator(keys, failures, lambda: self.elapsed_s, lambda: self.now().timestamp())

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.elapsed_s - 1000)

    def failures(self, reason: str) -> float | None:
        return self.registry.get_sample_value("failures_total", {"reason": reason})

    async def refuse(self, header: bytes | None) -> Unauthenticated:
        with pytest.raises(Unauthenticated) as caught:
            await self.authenticator.authenticate(header)
        return caught.value


@dataclass
class OwnRig(Rig):
    """With access tokens of the tenant's own authorization server, which stand on `grants`; `key` holds one."""

    grants: set[str] = field(default_factory=lambda: {"g"})

    def __post_init__(self) -> None:
        failures = Counter("failures", "", ["reason"], registry=self.registry)
        keys, unused = ApiKeys(self.store, maker, self.now), cast(Any, None)
        tokens, clocks = (
            Tokens(unused, unused, unused, self.now),
            (lambda: self.elapsed_s, lambda: self.now().timestamp()),
        )
        self.own = OwnTokens(SigningKeys(b"s" * 32), self, keys, tokens, self.now)
        self.authenticator = Authenticator(keys, failures, *clocks, tokens=tokens, own=self.own)
        self.key = str(key_id(self.store.add(maker)))

    async def standing(self, tenant: str, grants: Collection[str], now: datetime) -> set[str]:
        return self.grants & set(grants)

    def header(self, backend: str = "") -> bytes:
        holder = Holder("key", self.key, {"mcp:connect"}, "g", "cli")
        return bearer(self.own.make(Addresses("https://gw", "acme"), backend, holder))


@pytest.fixture
def rig() -> Rig:
    return Rig()


def bearer(text: str) -> bytes:
    return b"Bearer " + text.encode()


async def test_a_verified_header_is_remembered_for_thirty_seconds(rig):
    header = bearer(rig.store.add(maker))
    assert rig.authenticator.remembered(header) is None
    principal = await rig.authenticator.authenticate(header)
    assert rig.authenticator.remembered(header) is principal
    rig.elapsed_s += 29.9
    assert await rig.authenticator.authenticate(header) is principal
    assert rig.store.lookups == 1
    rig.elapsed_s += 0.1
    assert rig.authenticator.remembered(header) is None
    assert await rig.authenticator.authenticate(header) == principal
    assert rig.store.lookups == 2


async def test_a_key_is_not_remembered_beyond_its_expiry(rig):
    header = bearer(rig.store.add(maker, expires_at=NOW + timedelta(seconds=10)))
    assert await rig.authenticator.authenticate(header)
    rig.elapsed_s += 9
    assert rig.authenticator.remembered(header)
    rig.elapsed_s += 1
    assert rig.authenticator.remembered(header) is None
    await rig.refuse(header)
    assert rig.failures("expired") == 1


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  ", b"bEaReR "])
async def test_the_scheme_has_no_case(rig, scheme):
    assert await rig.authenticator.authenticate(scheme + rig.store.add(maker).encode())


@pytest.mark.parametrize(
    ("header", "reason", "was_sent"),
    [
        (None, "missing", False),
        (b"", "scheme", False),
        (b"Basic dXNlcjpwYXNz", "scheme", False),
        (b"Bearer", "scheme", False),
        (b"tlk_x", "scheme", False),
        (b"Bearer ", "malformed", True),
        (b"Bearer tlk_x", "malformed", True),
        (b"Bearer a, Bearer b", "malformed", True),
        (b"Bearer \xff", "malformed", True),
        (b"Bearer " + b"a" * 17_000, "malformed", True),
    ],
)
async def test_other_headers_are_refused_and_counted_without_a_lookup(rig, header, reason, was_sent):
    error = await rig.refuse(header)
    assert error.token_was_sent is was_sent
    assert rig.failures(reason) == 1
    assert rig.store.lookups == 0
    if header is not None:
        assert rig.authenticator.remembered(header) is None


@pytest.mark.parametrize(
    ("header", "actual"),
    [
        (b"Bearer ", "no credential"),
        (b"Bearer a, Bearer b", "several credentials"),
        (b"Bearer \xff\xfe", "other bytes than printable ASCII"),
        (b"Bearer a\tb", "other bytes than printable ASCII"),
        (b"Bearer " + b"a" * 17_000, "more bytes"),
    ],
)
async def test_the_log_says_what_is_wrong_with_the_form_of_a_header(rig, header, actual):
    assert (await rig.refuse(header)).facts["actual"] == actual


async def test_a_flood_of_one_bad_key_asks_the_store_once_in_five_seconds(rig):
    header = bearer(maker.make().text)
    for _ in range(100):
        await rig.refuse(header)
    assert rig.store.lookups == 1
    assert rig.failures("unknown") == 100
    rig.elapsed_s += 5
    await rig.refuse(header)
    assert rig.store.lookups == 2


async def test_all_refusals_read_the_same(rig):
    headers = [
        bearer(maker.make().text),
        bearer(rig.store.add(maker, digest=bytes(32))),
        bearer(rig.store.add(maker, revoked_at=NOW)),
        bearer(rig.store.add(maker, expires_at=NOW)),
        b"Bearer nonsense",
    ]
    assert len({str(await rig.refuse(header)) for header in headers}) == 1


async def test_a_forgotten_identity_is_looked_up_again_and_others_are_not(rig):
    mine, theirs = rig.store.add(maker), rig.store.add(maker)
    principal = await rig.authenticator.authenticate(bearer(mine))
    await rig.authenticator.authenticate(bearer(theirs))
    rig.authenticator.forget(principal.identity)
    assert rig.authenticator.remembered(bearer(mine)) is None
    assert rig.authenticator.remembered(bearer(theirs))
    rig.authenticator.forget_tenant("zenith")
    assert rig.authenticator.remembered(bearer(theirs))
    rig.authenticator.forget_tenant("acme")
    assert rig.authenticator.remembered(bearer(theirs)) is None


async def test_everything_can_be_forgotten(rig):
    mine = rig.store.add(maker)
    await rig.authenticator.authenticate(bearer(mine))
    await rig.refuse(bearer(maker.make().text))
    rig.authenticator.forget_everything()
    assert not rig.authenticator._known
    assert not rig.authenticator._refused


async def test_what_was_read_before_a_revocation_is_not_remembered_after_it(rig):
    text = rig.store.add(maker)
    rig.store.gate = anyio.Event()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.authenticator.authenticate, bearer(text))
            await anyio.wait_all_tasks_blocked()
            rig.authenticator.forget(("acme", "key", key_id(text)))
            rig.store.gate.set()
    assert rig.authenticator.remembered(bearer(text)) is None


async def test_a_store_that_is_away_is_neither_a_refusal_nor_remembered(rig):
    header = bearer(rig.store.add(maker))
    rig.store.is_down = True
    with pytest.raises(StorageUnavailable):
        await rig.authenticator.authenticate(header)
    rig.store.is_down = False
    assert await rig.authenticator.authenticate(header)


async def test_both_tables_are_bounded_and_the_oldest_goes(rig, monkeypatch):
    monkeypatch.setattr(module, "TABLE_SIZE", 3)
    good = [bearer(rig.store.add(maker)) for _ in range(5)]
    for header in good:
        await rig.authenticator.authenticate(header)
        await rig.refuse(bearer(maker.make().text))
    assert [rig.authenticator.remembered(header) is not None for header in good] == [False, False, True, True, True]
    assert len(rig.authenticator._known) == len(rig.authenticator._refused) == 3


async def test_use_reaches_the_store_through_the_authenticator(rig):
    text = rig.store.add(maker)
    await rig.authenticator.authenticate(bearer(text))
    await rig.authenticator.flush_last_used()
    assert list(rig.store.touched) == [("acme", key_id(text))]


async def test_a_crowd_with_one_key_asks_the_store_once(rig):
    text = rig.store.add(maker)
    rig.store.gate = anyio.Event()
    found = []

    async def ask() -> None:
        found.append(await rig.authenticator.authenticate(bearer(text)))

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        rig.store.gate.set()
    assert len(found) == 100
    assert rig.store.lookups == 1


async def test_what_another_node_has_let_in_is_confirmed_once_until_something_about_it_is_revoked(rig):
    text = rig.store.add(maker)
    principal = await rig.authenticator.authenticate(bearer(text))
    lookups = rig.store.lookups
    for _ in range(3):
        await rig.authenticator.confirm(principal)
    rig.authenticator.forget(("acme", "key", "another"))
    await rig.authenticator.confirm(principal)
    assert rig.store.lookups == lookups + 1
    rig.authenticator.forget_everything()
    await rig.authenticator.confirm(principal)
    assert rig.store.lookups == lookups + 2
    rig.elapsed_s += 30
    await rig.authenticator.confirm(principal)
    assert rig.store.lookups == lookups + 3


async def test_what_another_node_lets_in_was_good_thirty_seconds_ago_or_when_it_was_confirmed(rig):
    authenticator = rig.authenticator
    principal = await authenticator.authenticate(bearer(rig.store.add(maker)))
    authenticator.forget_everything()
    rig.elapsed_s += 20
    authenticator.forget_everything()
    assert authenticator.known_good_since(principal) == 0
    await authenticator.confirm(principal)
    authenticator.forget_everything()
    assert authenticator.known_good_since(principal) == 2  # the third may mean it
    assert authenticator.known_good_since(replace(principal, subject="another")) == 0
    rig.elapsed_s += 20
    assert authenticator.known_good_since(replace(principal, subject="another")) == 1  # the first was long ago
    rig.elapsed_s += 11
    assert authenticator.known_good_since(principal) == 3


@pytest.mark.parametrize("change", [{"revoked_at": NOW}, {"expires_at": NOW}, {"tenant": "zenith"}, None])
async def test_a_key_that_is_gone_is_not_confirmed(rig, change):
    text = rig.store.add(maker)
    principal = await rig.authenticator.authenticate(bearer(text))
    record = rig.store.records.pop(key_id(text))
    if change is not None:
        rig.store.records[key_id(text)] = replace(record, **change)
    rig.authenticator.forget_everything()
    with pytest.raises(Unauthenticated):
        await rig.authenticator.confirm(principal)


async def test_nothing_is_confirmed_by_a_store_that_is_away(rig):
    principal = await rig.authenticator.authenticate(bearer(rig.store.add(maker)))
    rig.store.is_down = True
    with pytest.raises(StorageUnavailable):
        await rig.authenticator.confirm(principal)


class Outage:
    """A database that is away since its trail was read last; `age_s` is how long ago that was."""

    def __init__(self, rig: Rig) -> None:
        self.age_s, self.is_away = 0.0, False
        failures = Counter("failures", "", ["reason"], registry=CollectorRegistry())
        storage = module.Storage(lambda: self.is_away, lambda: self.age_s)
        keys = ApiKeys(rig.store, maker, rig.now)
        rig.authenticator = Authenticator(
            keys, failures, lambda: rig.elapsed_s, lambda: rig.now().timestamp(), storage=storage
        )
        self._rig = rig

    def begin(self) -> None:
        self._rig.store.is_down, self.age_s = True, 2.0

    def last(self, seconds: float) -> None:
        self._rig.elapsed_s += seconds
        self.age_s += seconds


async def test_while_the_database_is_away_what_was_good_is_good_until_the_trail_is_thirty_seconds_old(rig):
    outage = Outage(rig)
    header = bearer(rig.store.add(maker))
    principal = await rig.authenticator.authenticate(header)
    rig.elapsed_s += 29.0
    outage.begin()
    for _ in range(27):
        outage.last(1.0)
        assert await rig.authenticator.authenticate(header) is principal
    assert outage.age_s == 29.0
    outage.last(1.0)
    assert rig.authenticator.remembered(header) is None
    with pytest.raises(StorageUnavailable):
        await rig.authenticator.authenticate(header)
    rig.store.is_down = False
    assert await rig.authenticator.authenticate(header) == principal


async def test_while_the_database_is_away_nobody_new_and_nobody_of_long_ago_comes_in(rig):
    outage = Outage(rig)
    new, old = bearer(rig.store.add(maker)), bearer(rig.store.add(maker))
    await rig.authenticator.authenticate(old)
    rig.elapsed_s += 40.0  # it was not asked for since
    outage.begin()
    for header in (new, old):
        with pytest.raises(StorageUnavailable):
            await rig.authenticator.authenticate(header)


async def test_while_the_database_is_away_neither_the_revoked_nor_the_expired_come_in(rig):
    outage = Outage(rig)
    revoked = bearer(rig.store.add(maker))
    expiring = bearer(rig.store.add(maker, expires_at=rig.now() + timedelta(seconds=31)))
    gone = await rig.authenticator.authenticate(revoked)
    await rig.authenticator.authenticate(expiring)
    rig.elapsed_s += 29.5
    outage.begin()
    outage.last(1.0)
    await rig.authenticator.authenticate(expiring)
    rig.authenticator.forget(gone.identity)  # a notice
    outage.last(1.0)
    for header in (revoked, expiring):
        with pytest.raises(StorageUnavailable):
            await rig.authenticator.authenticate(header)


async def test_a_database_that_is_known_to_be_away_is_not_asked_and_once_a_second_at_most_otherwise(rig):
    outage = Outage(rig)
    header = bearer(rig.store.add(maker))
    await rig.authenticator.authenticate(header)
    rig.elapsed_s += 29.5
    outage.begin()
    outage.last(1.0)
    for _ in range(5):
        await rig.authenticator.authenticate(header)
    assert rig.store.lookups == 2
    outage.is_away = True
    for _ in range(5):
        outage.last(1.0)
        await rig.authenticator.authenticate(header)
    assert rig.store.lookups == 2


async def test_while_the_database_is_away_what_was_confirmed_stays_confirmed_as_long(rig):
    outage = Outage(rig)
    principal = await rig.authenticator.authenticate(bearer(rig.store.add(maker)))
    other = await rig.authenticator.authenticate(bearer(rig.store.add(maker)))
    for each in (principal, other):
        await rig.authenticator.confirm(each)
    rig.elapsed_s += 29.0
    outage.begin()
    outage.last(27.0)
    await rig.authenticator.confirm(principal)
    rig.authenticator.forget(other.identity)
    with pytest.raises(StorageUnavailable):
        await rig.authenticator.confirm(other)
    outage.last(1.0)
    with pytest.raises(StorageUnavailable):
        await rig.authenticator.confirm(principal)


async def test_a_crowd_that_another_node_has_let_in_asks_the_store_once_after_each_revocation(rig):
    mine, other = rig.store.add(maker), rig.store.add(maker)
    principal = await rig.authenticator.authenticate(bearer(mine))
    rig.store.lookups = 0
    for _ in range(3):
        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(rig.authenticator.confirm, principal)
    assert rig.store.lookups == 1
    rig.authenticator.forget(("acme", "key", key_id(other)))
    await rig.authenticator.confirm(principal)
    assert rig.store.lookups == 1
    rig.elapsed_s += module.REMEMBER_S + 1
    await rig.authenticator.confirm(principal)
    assert rig.store.lookups == 2
    record = rig.store.records[key_id(mine)]
    rig.store.records[key_id(mine)] = replace(record, revoked_at=NOW)
    rig.authenticator.forget(principal.identity)
    for _ in range(2):
        with pytest.raises(Unauthenticated):
            await rig.authenticator.confirm(principal)


# --- tokens of a tenant's own authorization server

ECHO, REST = Target("acme", "echo", "https://gw"), Target("acme", "", "https://gw")


async def test_a_token_of_our_own_is_for_mcp_endpoints_only_also_when_it_is_remembered():
    rig = OwnRig()
    header = rig.header()
    for is_remembered in (False, True):
        assert (rig.authenticator.remembered(header) is not None) is is_remembered
        for target in (REST, None):
            with pytest.raises(Unauthenticated):
                await rig.authenticator.authenticate(header, target)
            with pytest.raises(Unauthenticated):
                await rig.authenticator.authenticate_again(header, target)
        principal = await rig.authenticator.authenticate(header, ECHO)
        assert (principal.tenant, principal.subject, principal.grant) == ("acme", rig.key, "g")
        assert await rig.authenticator.authenticate_again(header, ECHO) == principal
    assert (rig.failures("audience") or 0) >= 4


async def test_what_a_token_of_our_own_was_remembered_for_is_in_its_scopes():
    rig = OwnRig()
    principal = await rig.authenticator.authenticate(rig.header("files"), ECHO)
    assert principal.scopes == {"mcp:connect:files"}
    assert rig.authenticator.remembered(rig.header("files")) is None  # another token


async def test_a_token_of_our_own_ends_with_what_it_stands_on_and_is_remembered_until_somebody_says_so():
    rig = OwnRig()
    header = rig.header()
    principal = await rig.authenticator.authenticate(header, ECHO)
    await rig.authenticator.confirm(principal)
    rig.grants.clear()
    assert await rig.authenticator.authenticate(header, ECHO) is principal
    rig.authenticator.forget_grants("zenith")
    assert rig.authenticator.remembered(header) is principal
    rig.authenticator.forget_grants("acme")
    with pytest.raises(Unauthenticated):
        await rig.authenticator.authenticate(header, ECHO)
    with pytest.raises(Unauthenticated):
        await rig.authenticator.confirm(principal)
    assert rig.failures("revoked") == 2


async def test_a_token_of_our_own_is_not_remembered_beyond_its_end():
    rig = OwnRig()
    header = rig.header()
    rig.elapsed_s += 590
    await rig.authenticator.authenticate(header, ECHO)
    rig.elapsed_s += 10
    with pytest.raises(Unauthenticated):
        await rig.authenticator.authenticate(header, ECHO)
