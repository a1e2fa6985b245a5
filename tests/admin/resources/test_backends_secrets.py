"""…/backends with secrets in `args` and `url`: never shown, kept where a mark stands for them, compared unseen."""

import pytest

PATH = "/api/v1/tenants/acme/backends"
ARGS = ["-v", "--api-key", "s3cret-1", "--at", "postgres://shop:s3cret-2@db.internal/shop"]
SHOWN = ["-v", "--api-key", "***", "--at", "postgres://shop:***@db.internal/shop"]
URL = "https://far.example/mcp?token=s3cret-3&page=1"
SHOWN_URL = "https://far.example/mcp?token=***&page=1"


@pytest.fixture
async def made(rig):
    """Two backends; and the same rig, which finds their secrets in any answer."""
    for body in ({"name": "pg", "command": "/bin/cat", "args": ARGS}, {"name": "far", "url": URL}):
        answer = await rig.ask("POST", PATH, body)
        assert answer.status_code == 201, answer.text
        assert "s3cret" not in answer.text
    return rig


async def patch(rig, name, body, status=200):
    answer = await rig.ask("PATCH", f"{PATH}/{name}", body)
    assert answer.status_code == status, answer.text
    assert "s3cret" not in answer.text
    return answer


async def spec(rig, name):
    return await rig.admin.backends.get("acme", name)


async def test_no_answer_and_no_entry_of_the_trail_has_one(made):
    assert (await spec(made, "pg")).args == tuple(ARGS)
    assert (await spec(made, "far")).url == URL
    for path in (PATH, PATH + "/pg", PATH + "/far"):
        assert "s3cret" not in (await made.ask("GET", path)).text
    assert (await made.ask("GET", PATH + "/pg")).json()["args"] == SHOWN
    assert (await made.ask("GET", PATH + "/far")).json()["url"] == SHOWN_URL
    await patch(made, "pg", {"args": [*ARGS[:-1], "postgres://shop:s3cret-9@db.internal/shop"]})
    await patch(made, "far", {"url": URL.replace("s3cret-3", "s3cret-9")})
    await made.ask("DELETE", PATH + "/pg")
    assert "s3cret" not in repr(await made.trail("acme"))
    changed = [
        [change.member for change in act.changes] for act in await made.trail("acme") if act.action.endswith("change")
    ]
    assert changed == [["args"], ["url"]]


async def test_a_mark_stands_for_the_secret_that_was_there(made):
    await patch(made, "pg", {"args": ["--first", *SHOWN], "timeouts": {"call_s": 5}})
    assert (await spec(made, "pg")).args == ("--first", *ARGS)
    await patch(made, "pg", {"args": ["--api-key", "***", "-x"]})
    assert (await spec(made, "pg")).args == ("--api-key", "s3cret-1", "-x")
    await patch(made, "far", {"url": SHOWN_URL, "transport": "sse"})
    assert (await spec(made, "far")).url == URL


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("pg", {"args": ["postgres://shop:***@evil.example/shop"]}, "args"),
        ("pg", {"args": ["--name", "***"]}, "args"),
        ("pg", {"args": [*SHOWN, "--token", "***"]}, "args"),
        ("far", {"url": "https://evil.example/mcp?token=***&page=1"}, "url"),
    ],
)
async def test_it_goes_to_no_other_place(made, name, body, field):
    problem = (await patch(made, name, body, 422)).json()
    assert "stands for a secret that is already set in the same place" in str(problem)
    assert field in str(problem)


async def test_a_new_backend_has_no_secret_that_a_mark_could_stand_for(made):
    for body in ({"command": "cat", "args": SHOWN}, {"url": SHOWN_URL}):
        answer = await made.ask("POST", PATH, {"name": "new", **body})
        assert answer.status_code == 422, answer.text
    document = {"mcpServers": {"new": {"command": "cat", "args": SHOWN}, "other": {"command": "cat"}}}
    entries = (await made.ask("POST", PATH + ":import", {"document": document, "apply": True})).json()["entries"]
    assert [each["outcome"] for each in entries] == ["skipped", "created"]
    assert "where a secret should be" in entries[0]["problems"][0]


async def test_a_tag_tells_that_something_changed_and_nothing_else(made):
    before = await made.ask("GET", PATH + "/pg")
    await patch(made, "pg", {"args": [*ARGS[:2], "s3cret-9", *ARGS[3:]]})
    after = await made.ask("GET", PATH + "/pg")
    assert before.headers["etag"] != after.headers["etag"]
    assert before.json()["args"] == after.json()["args"]
    await patch(made, "pg", {"args": ARGS})
    assert (await made.ask("GET", PATH + "/pg")).headers["etag"] not in (before.headers["etag"], after.headers["etag"])


@pytest.mark.parametrize(
    ("name", "body", "different"),
    [
        ("pg", {"args": ARGS}, []),
        ("pg", {"args": SHOWN}, []),
        ("pg", {"args": [*ARGS[:2], "***", *ARGS[3:]]}, []),
        ("pg", {"args": [*ARGS[:2], "s3cret-9", *ARGS[3:]]}, ["args"]),
        ("pg", {"args": []}, ["args"]),
        ("pg", {"url": URL}, ["url"]),
        ("far", {"url": URL}, []),
        ("far", {"url": SHOWN_URL}, []),
        ("far", {"url": URL + "x", "args": []}, ["url"]),
        ("far", {}, []),
    ],
)
async def test_they_are_compared_without_being_shown(made, name, body, different):
    answer = await made.ask("POST", f"{PATH}/{name}:compare", body)
    assert answer.json() == {"different": different}
    act = (await made.trail("acme"))[-1]
    assert (act.action, act.detail) == ("backend.compare", " ".join(sorted(body)))


async def test_a_backend_whose_secrets_do_not_open_is_shown_and_switched_off_and_mended(made):
    made.admin.backends._sealer = type(made.admin.sealer)(b"another key of 32 bytes and more")
    assert (await made.ask("GET", PATH + "/pg")).json()["args"] == SHOWN
    await patch(made, "pg", {"enabled": False})
    await patch(made, "pg", {"args": [*SHOWN, "-x"]}, 422)
    await patch(made, "pg", {"args": ["--api-key", "s3cret-5"]})
    assert (await spec(made, "pg")).args == ("--api-key", "s3cret-5")
