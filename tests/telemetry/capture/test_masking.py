"""Mask: what is removed from messages, and what is not."""

import json
import time
from base64 import b64encode, urlsafe_b64encode
from typing import Any
from urllib.parse import quote

import pytest

from app.telemetry.capture import masking
from app.telemetry.capture.masking import MASKED, MAX_BYTES, MAX_TEXT, MAX_VALUES, Mask
from app.text.credentials import names_secret

LOOK_S = masking.MAX_LOOK_S


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage of all other tests may be collected in the middle of a message."""
    monkeypatch.setattr(masking, "MAX_LOOK_S", 60.0)


def shown(value: Any, *values: str) -> Any:
    text = Mask(values).message(json.dumps(value).encode()).text
    assert text is not None
    return json.loads(text)


@pytest.mark.parametrize("name", ["password", "apiKey", "api_key", "client_secret", "Authorization", "access_token",
                                  "token", "sessionToken", "private-key", "dbPasswd", "set-cookie", "accesstoken",
                                  "GITHUBTOKEN", "accessTokenValue", "smtp_pass", "x-auth",
                                  "authorizationHeader"])  # fmt: skip
def test_members_whose_names_say_so_are_masked(name: str) -> None:
    assert names_secret(name)
    assert shown({"a": [{name: "x1"}]}) == {"a": [{name: MASKED}]}
    assert shown({name: {"deep": ["x1", 7, None, True]}}) == {name: {"deep": [MASKED, MASKED, None, True]}}


@pytest.mark.parametrize("name", ["progressToken", "maxTokens", "tokenizer", "keyboard", "monkey", "author",
                                  "tokens_used", "passed", "compass", "valid_tokens_count"])  # fmt: skip
def test_others_are_not(name: str) -> None:
    assert shown({name: "x1"}) == {name: "x1"}


def test_a_schema_keeps_the_types_of_its_parameters() -> None:
    schema = {"inputSchema": {"properties": {"password": {"type": "string", "description": "yours"}}}}
    assert shown(schema) == schema


@pytest.mark.parametrize("text", [
    "tlk_8Jd0sA2f_0123456789abcdefghijklmnopqrstuvwxyz", "Bearer abcdefgh", "key is sk-ant-0123456789abcdefghij",
    "ghp_0123456789abcdefghijABCDEFGHIJ", "AKIAABCDEFGHIJKLMNOP", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.abcdefgh",
    "postgres://me:hunter2x@db/x", "PASSWORD=hunter2x", "api_key: 'hunter2x'",
    "--db-password hunter2x", "https://x/y?a=1&sig=hunter2x", "Cookie: a=1; session=hunter2x", "Basic hunter2x8=",
    "Authorization: Custom hunter2x", "pwd=hunter2x",
    "-----BEGIN RSA PRIVATE KEY-----\nabcd\n-----END RSA PRIVATE KEY-----",
])  # fmt: skip
def test_credentials_are_masked_wherever_they_are(text: str) -> None:
    for value in ({"text": text}, {"content": [{"type": "text", "text": json.dumps({"said": text})}]}, {text: 1}):
        masked = json.dumps(shown(value))
        for secret in ("hunter2x", "0123456789", "abcdefgh", "abcd\\n", "AKIAABCDEF"):
            assert secret not in masked


@pytest.mark.parametrize("said", [
    '{"a":"hunter2-value","a":"b"}', '{"a":"b","a":"hunter2-value"}', '[{"x":[{"a":"hunter2-value","a":1}]}]',
    '{"a":"\\u0068unter2-value","a":"b"}', '{"password":"x1x1x1","password":null}',
    '{"name":"password","value":"x1x1x1","name":"color"}', '{"a":"{\\"b\\":\\"hunter2-value\\",\\"b\\":1}"}',
    '{"a":{"hunter2-value":1},"a":2}', '{"a":123456789012345678901234567890,"a":"b"}',
    '{"a":123456789012345678901234567890}',
])  # fmt: skip
def test_a_member_that_an_object_has_twice_is_masked_each_time(said: str) -> None:
    mask = Mask(["hunter2-value", "123456789012345678901234567890"])
    whole = b'{"jsonrpc":"2.0","id":1,"result":%b}'
    for line in (whole % said.encode(), whole % json.dumps({"content": [{"type": "text", "text": said}]}).encode()):
        masked = mask.message(line)
        assert masked.text is not None
        assert MASKED in masked.text
        assert masked.secrets == 1
        for secret in ("hunter2", "unter2", "x1x1x1", "1234567890123"):
            assert secret not in masked.text


def test_members_that_are_twice_there_are_both_kept() -> None:
    said = '{"a":{"b":"one","b":"two"},"token":"x1x1x1"}'
    assert Mask().message(said.encode()).text == f'{{"a":{{"b":"one","b":"two"}},"token":"{MASKED}"}}'


def test_values_of_the_backend_are_masked_in_every_form() -> None:
    secret = 'q"uo\\te'
    assert shown({"text": f"it is {secret}!"}, secret) == {"text": f"it is {MASKED}!"}
    assert secret not in json.dumps(shown({"text": json.dumps({"inner": secret})}, secret))
    assert shown({"x": "abc123def"}, "Bearer abc123def") == {"x": MASKED}
    assert shown({"x": "true"}, "true") == {"x": "true"}


@pytest.mark.parametrize("form", [
    quote("s3cret+of/server=", safe=""), quote("s3cret+of/server="), b64encode(b"s3cret+of/server=").decode(),
    b64encode(b"user:s3cret+of/server=").decode(), b64encode(b"me:s3cret+of/server=!").decode(),
    urlsafe_b64encode(b"??s3cret+of/server=").decode(),
])  # fmt: skip
def test_values_of_the_backend_are_masked_in_a_url_and_in_base64(form: str) -> None:
    masked = shown({"text": f"x {form} y"}, "s3cret+of/server=")["text"]
    assert MASKED in masked
    assert form not in masked


def test_lines_numbers_and_passwords_of_values_are_masked() -> None:
    values = ("first line\nsecond line", "90817263545", "postgres://me:pazzw0rd@db/x")
    found = shown({"a": "second line", "b": 90817263545, "c": "no pazzw0rd", "d": 908172635}, *values)
    assert found == {"a": MASKED, "b": MASKED, "c": f"no {MASKED}", "d": 908172635}


def test_members_that_only_look_like_a_schema_are_masked() -> None:
    for value in ("x1", {"value": "x1"}, {"type": "x1"}, {"type": "string", "default": "x1", "examples": ["x1"]}):
        assert "x1" not in json.dumps(shown({"properties": {"password": value, "name": "ada"}}))
    assert shown({"credentials": {"properties": {"user": "x1"}}}) == {"credentials": {"properties": {"user": MASKED}}}


@pytest.mark.parametrize("member", ["name", "key", "header"])
def test_a_value_beside_a_secret_name_is_masked(member: str) -> None:
    assert shown([{member: "Authorization", "value": "x1"}]) == [{member: "Authorization", "value": MASKED}]
    assert shown({member: "Cookie", "values": ["x1"]}) == {member: "Cookie", "values": [MASKED]}
    assert shown({member: "get_token", "arguments": {"value": "x1"}})["arguments"] == {"value": "x1"}


def test_json_in_a_text_is_looked_into() -> None:
    value = {"content": [{"text": '{"password": "hunter2x", "user": "ada"}'}]}
    assert shown(value) == {"content": [{"text": json.dumps({"password": MASKED, "user": "ada"}, separators=(",", ":"),
                                                            ensure_ascii=False)}]}  # fmt: skip
    untouched = {"content": [{"text": '{"user":   "ada"}'}]}
    assert shown(untouched) == untouched


INNER = [{"accessToken": "hunter2x"}, {"dbPassword": "correct hunter2x"}, {"password": ["a", "hunter2x"]},
         {"client_secret": {"value": "hunter2x"}}]  # fmt: skip


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("form", ["\n %s", "Result: %s", "```json\n%s\n```", '{"a": 1}\n%s', "- item\n  %s, and more"])
def test_json_anywhere_in_a_text_is_masked(inner: Any, form: str) -> None:
    text = form % json.dumps(inner)
    for value in (text, json.dumps(text), json.dumps(json.dumps(text)), f"see {json.dumps(json.dumps(text))}"):
        assert "hunter2x" not in json.dumps(shown({"text": value}))


@pytest.mark.parametrize("text", [
    "userPassword=hunter2x", "accessToken: hunter2x", "authtoken=hunter2x", "secret => hunter2x",
    "password = 'correct hunter2x'", "postgres://me:pa@hunter2x@db/x", "REDIS://me:hunter2x@db",
    r"postgres:\/\/me:hunter2x@db", "token=" + "x" * 5_000 + "hunter2x", "Cookie: a=" + "x" * 5_000 + "hunter2x",
])  # fmt: skip
def test_more_ways_to_write_a_secret_into_a_text(text: str) -> None:
    assert "hunter2x" not in json.dumps(shown({"text": text}))


def test_the_word_after_a_flag_is_masked() -> None:
    assert shown({"args": ["--db-password", "x1", "-v", "x2"]}) == {"args": ["--db-password", MASKED, "-v", "x2"]}
    assert shown({"required": ["password", "user"]}) == {"required": ["password", "user"]}


def test_texts_that_were_made_to_be_slow_are_not() -> None:
    for part in ("token:'\n", 'token:"\\x', "token:\\'", "a://b:", "token:{", "token:" + "\\" * 8, "basic aaaaaaaa"):
        began = time.thread_time()
        assert Mask().message(json.dumps({"text": part * (200_000 // len(part))}).encode()).is_cut is not None
        assert time.thread_time() - began < 2


def test_what_is_no_json_is_masked_as_a_text() -> None:
    found = Mask(["value-of-env"]).message(b"Traceback: value-of-env password=abc \xff")
    assert found.text is not None
    assert "value-of-env" not in found.text
    assert "abc" not in found.text
    assert found.secrets == 2


def test_long_messages_are_cut_after_masking_and_very_long_ones_left_out() -> None:
    found = Mask().message(json.dumps({"text": "x" * MAX_TEXT}).encode())
    assert found.text is not None
    assert (len(found.text), found.is_cut) == (MAX_TEXT, True)
    assert Mask().message(b"x" * (MAX_BYTES + 1)) == (None, True, 0)


def test_deep_nesting_ends_it() -> None:
    value: Any = "deep-secret-value"
    for _ in range(200):
        value = [value]
    assert "deep" not in json.dumps(shown(value))
    assert Mask().message(b"[" * 100_000).text is not None


@pytest.mark.parametrize(
    "unit",
    ["-eyJaaaaaaaa", "eyJaaaaaaaa.", "-eyJaaaaaaaa.-eyJaaaa-", "-----BEGIN PRIVATE KEY", 'pwd="', "pwd=\\\\\\'", "ab://x:",
     "basic a", "--a-", "authorization: ", "token=[", "bearer ", "sk-", "?sig=&"],
)  # fmt: skip
def test_no_text_is_read_again_and_again(unit: str) -> None:
    """A node does nothing else meanwhile, and whoever writes the text may be hostile."""
    text = unit * (200_000 // len(unit))
    began = time.thread_time()
    Mask(["one-secret"]).text(text)
    assert time.thread_time() - began < 2.0  # quadratic, it is a dozen


JWT = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0x.c2lnbmF0dXJl"


@pytest.mark.parametrize("text", [JWT, f"x {JWT} y", f"key-{JWT}", f"a.b.{JWT}.c", f"aaaaaaaaaaaaaa.{JWT}", JWT[:-12]])
def test_a_jwt_is_masked_wherever_it_begins(text: str) -> None:
    shown = Mask().text(text)
    assert MASKED in shown
    assert "eyJ" not in shown


def test_a_message_that_takes_long_to_look_through_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred thousand short words and many secrets: nobody else's calls go on meanwhile."""
    monkeypatch.setattr(masking, "MAX_LOOK_S", LOOK_S)
    mask = Mask([f"value-{number:05d}-of-env" for number in range(900)])
    began = time.thread_time()
    assert mask.message(json.dumps({"text": ["token!"] * 25_000}).encode()) == (None, True, 0)
    assert time.thread_time() - began < 1.0  # without a limit it is three
    assert mask.message(b'{"text": "value-00007-of-env"}').secrets == 1


def test_with_more_secrets_than_can_be_looked_for_nothing_is_kept() -> None:
    mask = Mask()
    for number in range(100):
        mask.learn(["\n".join(f"{number}/{line}/secret" for line in range(60))])
    assert mask.is_full
    assert len(mask._known) < 2 * MAX_VALUES
    assert mask.message(b'{"text": "anything"}') == (None, True, 0)
    assert mask.text("anything") == MASKED


@pytest.mark.parametrize("unit", ["[]", '{"a":1}', "{}", '""', "1", "[[1]]"])
def test_many_small_values_are_given_up_too(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No text of them is long enough to be looked through."""
    monkeypatch.setattr(masking, "MAX_LOOK_S", 0.0)
    assert Mask().message(f"[{','.join([unit] * 20_000)}]".encode()) == (None, True, 0)


@pytest.mark.parametrize("text", [
    "sk-" + "a" * 20, "pk_" + "a" * 20, "rk-" + "a" * 20, "gho_" + "a" * 20, "github_pat_" + "a" * 20,
    "glpat-" + "a" * 20, "xoxb-" + "a" * 20, "AKIA" + "A" * 16, "ASIA" + "A" * 16,
    "AIza" + "a" * 30, "-----BEGIN PRIVATE KEY-----a", JWT,
    "Authorization: aaaaaaaa", "COOKIE: aaaaaaaa", "Basic aaaaaaa1", "Password=aaaaaaaa", "passwd=aaaaaaaa",
    "PASSPHRASE=aaaaaaaa", "Pwd=aaaaaaaa", "Secret=aaaaaaaa", "Token=aaaaaaaa", "Api-Key=aaaaaaaa",
    "accesskey=aaaaaaaa", "private_KEY=aaaaaaaa", "?Sig=aaaaaaaa", "&signature=aaaaaaaa", "?X-Amz-Signature=aaaaaaaa", "ab://c:aaaaaaaa@d",
    "\u017fecret=aaaaaaaa", "to\u212aen=aaaaaaaa", "coo\u212aie: aaaaaaaa",
])  # fmt: skip
def test_each_form_of_a_credential_is_looked_for_by_itself(text: str) -> None:
    """Also with letters that stand for ours where case is ignored."""
    shown = Mask().text(text)
    assert MASKED in shown
    assert "aaaaaaa" not in shown
