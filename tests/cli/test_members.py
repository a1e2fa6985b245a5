"""`name=value` words as the JSON body of a request."""

import io
import json
from types import SimpleNamespace

import pytest

from app.cli.members import members_of, secrets_given_openly
from app.errors import InvalidRequest
from app.protocol.openapi.document import text_of


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (["limits.sessions=100", "limits.burst=null"], {"limits": {"sessions": 100, "burst": None}}),
        (["timeouts.call_s=1.5", "enabled=false"], {"timeouts": {"call_s": 1.5}, "enabled": False}),
        (["reason=unpaid, ask = billing"], {"reason": "unpaid, ask = billing"}),
        (["reason=2026", "command=7", "text=null"], {"reason": "2026", "command": "7", "text": None}),
        (["env.PORT=8080", "env.EMPTY=", "env.NO=null"], {"env": {"PORT": "8080", "EMPTY": "", "NO": "null"}}),
        (["args[]=--port", "args[]=80", "args[]="], {"args": ["--port", "80", ""]}),
        (['args=["a", "b"]', 'claims={"subject": "sub"}'], {"args": ["a", "b"], "claims": {"subject": "sub"}}),
        (
            ["sandbox.mode=off", "sandbox.network=none", "sandbox.read[]=/srv", "limits.pids=9", "state=keep"],
            {"sandbox": {"mode": "off", "network": "none", "read": ["/srv"]}, "limits": {"pids": 9}, "state": "keep"},
        ),
        (["claims.scopes=realm.roles"], {"claims": {"scopes": "realm.roles"}}),
        (["new=NaN", "other=Infinity", "third=1e999x"], {"new": "NaN", "other": "Infinity", "third": "1e999x"}),
        (["reason=@@home", 'note="7"'], {"reason": "@home", "note": "7"}),
        ([], {}),
    ],
)
def test_words_are_members(words, body):
    assert members_of(words) == body


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["sessions"], "not of the form name=value"),
        (["=1"], "not of the form name=value"),
        (["a=1", "a=2"], "given twice"),
        (["a=1", "a.b=2"], "a single value elsewhere"),
        (["a.b=2", "a=1"], "members elsewhere"),
        (["a..b=1"], "is not a name"),
        ([".".join("abcdefghij") + "=1"], "is not a name"),
        (["args=[1"], "begins like JSON"),
        (["a=@-", "b=@-"], "only one value can come from stdin"),
        (["a=@/nowhere/at/all"], "cannot read"),
    ],
)
def test_what_contradicts_itself_is_refused(words, problem):
    with pytest.raises(InvalidRequest, match=problem):
        members_of(words)


def test_secrets_come_from_files_and_stdin(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("s3cret\n")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"from stdin\r\n")))
    words = [f"env.TOKEN=@{tmp_path}/token", "secret=@-"]
    assert members_of(words) == {"env": {"TOKEN": "s3cret"}, "secret": "from stdin"}
    assert secrets_given_openly([*words, "env.A=b", "token=c", "env.EMPTY=", "reason=d"]) == ["env.A", "token"]


def test_the_secret_of_a_providers_client_is_a_secret_like_others(tmp_path):
    (tmp_path / "secret").write_text("12345\n")
    words = ["sign_in.client_id=gw", f"sign_in.client_secret=@{tmp_path}/secret"]
    assert members_of(words) == {"sign_in": {"client_id": "gw", "client_secret": "12345"}}
    assert members_of(["sign_in.client_secret=7"]) == {"sign_in": {"client_secret": "7"}}
    assert members_of([], unset=["sign_in.client_secret"]) == {"sign_in": {"client_secret": None}}
    assert secrets_given_openly([*words, "sign_in.client_secret=x"]) == ["sign_in.client_secret"]


def test_what_is_in_a_file_is_never_taken_for_json(tmp_path):
    (tmp_path / "number").write_text("7")
    assert members_of([f"note=@{tmp_path}/number"]) == {"note": "7"}


def test_a_document_is_read_from_its_file_and_packed_if_it_is_large(tmp_path):
    small, large = "openapi: 3.1.0\n", "openapi: 3.1.0\n" + "# words\n" * 100_000
    for name, text in (("small", small), ("large", large)):
        (tmp_path / name).write_text(text)
    assert members_of([f"openapi=@{tmp_path}/small"]) == {"openapi": small}
    packed = members_of([f"openapi=@{tmp_path}/large"])["openapi"]
    assert len(packed) < 10_000
    assert text_of(packed) == large.encode()
    assert members_of(["openapi=https://shop.example/openapi.json"])["openapi"] == "https://shop.example/openapi.json"


def test_a_file_with_members_has_words_on_top_of_it(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps({"warm": 1, "timeouts": {"call_s": 5, "idle_s": 60}}))
    body = members_of(["timeouts.call_s=9"], unset=["warm"], file=str(tmp_path / "a.json"))
    assert body == {"warm": None, "timeouts": {"call_s": 9, "idle_s": 60}}
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(InvalidRequest, match="does not hold a JSON object"):
        members_of([], file=str(tmp_path / "a.json"))
