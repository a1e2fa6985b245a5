"""Idempotency-Key: done once, answered as often as it is asked."""

from datetime import timedelta

import anyio
import pytest

from app.admin.idempotency import AnsweredOnce
from app.auth.api_keys import key_id
from app.errors import StorageUnavailable
from app.storage import idempotency as stored
from app.storage.idempotency import IdempotencyRepository
from tests.admin.rig import Rig

KEYS = "/api/v1/tenants/acme/keys"
BODY = {"scopes": ["mcp:connect"]}


async def post(rig: Rig, token: str, body: object = None, *, path: str = KEYS, key: str | None = None):
    return await rig.ask("POST", path, BODY if body is None else body, key=key, headers={"Idempotency-Key": token})


async def test_a_repetition_is_answered_like_the_first_request_and_makes_nothing(rig):
    first = await post(rig, "k1")
    again = await post(rig, "k1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    for name in ("Location", "ETag", "Cache-Control", "Content-Type"):
        assert again.headers[name] == first.headers[name]
    assert ("Idempotency-Replayed" in first.headers, again.headers["Idempotency-Replayed"]) == (False, "true")
    assert len((await rig.ask("GET", KEYS)).json()["items"]) == 1
    assert len(await rig.trail()) == 1
    assert (await post(rig, "k2")).json()["id"] != first.json()["id"]


async def test_another_body_under_the_same_key_is_422(rig):
    await post(rig, "k1")
    answer = await post(rig, "k1", {"scopes": ["tenant:read"]})
    assert (answer.status_code, answer.json()["reason"]) == (422, "invalid_request")
    assert len((await rig.ask("GET", KEYS)).json()["items"]) == 1


async def test_keys_belong_to_a_credential_its_scopes_and_a_path(rig):
    first, one, other = await post(rig, "k1"), *[await rig.key("acme", "tenant:admin") for _ in range(2)]
    for path, key in ((KEYS, one), (KEYS, other), ("/api/v1/tenants/zenith/keys", None)):
        answer = await post(rig, "k1", path=path, key=key)
        assert answer.status_code == 201
        assert answer.json()["id"] != first.json()["id"]
    await rig.admin.keys.revoke("acme", key_id(one) or "", rig.admin.now())
    rig.admin.authenticator.forget(("acme", "key", key_id(one) or ""))
    assert (await post(rig, "k1", key=one)).status_code == 401


async def test_every_kind_of_post_can_be_repeated(rig):
    for path, body in (
        ("/api/v1/tenants", {"name": "new"}),
        ("/api/v1/tenants/acme/backends", {"name": "new", "command": "cat"}),
        ("/api/v1/tenants/acme/backends/echo:restart", None),
        ("/api/v1/tenants/acme/backends/echo:check", None),
    ):
        answers = [await post(rig, "k", body or {}, path=path) for _ in range(2)]
        assert answers[0].is_success
        assert answers[0].status_code == answers[1].status_code
        assert answers[0].content == answers[1].content
    assert [kind for kind, *_ in rig.heard] == ["backend", "restart"]


async def test_what_failed_is_tried_anew(rig):
    path, body = "/api/v1/tenants/later/backends", {"name": "b", "command": "cat"}
    assert (await post(rig, "k1", body, path=path)).status_code == 404
    await rig.ask("POST", "/api/v1/tenants", {"name": "later"})
    assert (await post(rig, "k1", body, path=path)).status_code == 201


async def test_two_at_once_are_done_once(rig):
    statuses = list[int]()

    async def ask() -> None:
        statuses.append((await post(rig, "k1")).status_code)

    async with anyio.create_task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(ask)
    assert 201 in statuses
    assert set(statuses) <= {201, 409}
    assert len((await rig.ask("GET", KEYS)).json()["items"]) == 1
    assert (await post(rig, "k1")).status_code == 201


async def test_the_database_holds_neither_the_key_nor_the_idempotency_key_nor_the_body(rig, dialect):
    made = (await post(rig, "correct-horse-battery", {**BODY, "name": "staple"})).json()["key"]
    async with rig.admin.tenants._database.read() as connection:
        (row,) = (await connection.exec_driver_sql("SELECT * FROM idempotency")).all()
    text = b"|".join(bytes(each) if isinstance(each, bytes | memoryview) else str(each).encode() for each in row)
    for secret in (made, made[13:40], "correct-horse", "staple", "mcp:connect"):
        assert secret.encode() not in text


async def test_answers_are_forgotten_after_a_day_and_the_dead_after_minutes(rig, monkeypatch):
    first = await post(rig, "k1")
    answered = rig.admin.answered_once
    now = rig.admin.now()
    later = AnsweredOnce(answered._repository, b"s" * 32, lambda: now + stored.KEPT + timedelta(minutes=1))
    object.__setattr__(rig.admin, "answered_once", later)
    assert (await post(rig, "k1")).json()["id"] != first.json()["id"]
    repository = IdempotencyRepository(rig.admin.tenants._database)
    for seconds, found in ((0, None), (60, True), (400, None)):
        begun = await repository.begin("acme", b"c" * 32, b"d" * 32, b"b" * 32, now + timedelta(seconds=seconds))
        assert (begun is not None) is bool(found)


async def test_one_credential_cannot_fill_the_database(rig, monkeypatch):
    monkeypatch.setattr(stored, "MAX_PER_CALLER", 2)
    for number in range(2):
        assert (await post(rig, f"k{number}")).status_code == 201
    answer = await post(rig, "k3")
    assert (answer.status_code, answer.json()["reason"]) == (429, "quota_exceeded")
    assert (await post(rig, "k3", key=await rig.key("acme", "tenant:admin"))).status_code == 201


@pytest.mark.parametrize("token", ["", "x" * 256, "a\tb"])
async def test_a_malformed_key_is_422(rig, token):
    assert (await post(rig, token)).status_code == 422
    assert (await rig.ask("GET", KEYS)).json()["items"] == []


async def test_another_secret_key_makes_old_answers_unreadable_not_wrong(rig):
    await post(rig, "k1")
    other = AnsweredOnce(rig.admin.answered_once._repository, b"t" * 32, rig.admin.now)
    object.__setattr__(rig.admin, "answered_once", other)
    assert (await post(rig, "k1")).status_code in (409, 422)


async def test_an_answer_that_cannot_be_kept_is_given_all_the_same(rig, monkeypatch, caplog):
    async def away(*_: object) -> None:
        raise StorageUnavailable

    monkeypatch.setattr(IdempotencyRepository, "keep", away)
    assert (await post(rig, "k1")).status_code == 201
    assert "Could not save the answer" in caplog.text
    monkeypatch.undo()
    again = await post(rig, "k1")  # nobody can tell any more, so it is not done again
    assert (again.status_code, again.headers["Retry-After"]) == (409, "2")


async def test_a_database_that_is_away_is_503_before_anything_is_done(rig, monkeypatch):
    async def away(*_: object) -> None:
        raise StorageUnavailable

    monkeypatch.setattr(IdempotencyRepository, "begin", away)
    assert (await post(rig, "k1")).status_code == 503
    assert (await rig.ask("GET", KEYS)).json()["items"] == []
