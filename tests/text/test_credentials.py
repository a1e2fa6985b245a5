"""Which parts of a command line or an address are secret, how it is shown, and how the secrets come back."""

import time

import pytest

from app.text.credentials import MARK, MAX_LOOKED_AT, hidden, hidden_in, names_secret, restored, secrets_in

RANDOM = "ZmFrZTEyMzQ1Njc4OTBhYmNkZWZnaGlqa2xtbm9w"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJub2JvZHkifQ.c2lnbmF0dXJl"
HIDDEN = [
    # options, variables and headers
    (["--api-key", "abc"], ["--api-key", MARK]),
    (["--apiKey=abc"], [f"--apiKey={MARK}"]),
    (["--access-token=abc d"], [f"--access-token={MARK}"]),
    (["--db-password", "12345"], ["--db-password", MARK]),
    (["--password", "-x1"], ["--password", MARK]),
    (["--client_secret", "s"], ["--client_secret", MARK]),
    (["-e", "GITHUB_TOKEN=abc"], ["-e", f"GITHUB_TOKEN={MARK}"]),
    (["--env=API_KEY=abc"], [f"--env=API_KEY={MARK}"]),
    (["--header", "Authorization: Bearer abcdef"], ["--header", f"Authorization: Bearer {MARK}"]),
    (["--header=X-Api-Key: abc"], [f"--header=X-Api-Key: {MARK}"]),
    (["-H", "'Cookie: a=b'"], ["-H", f"'Cookie: {MARK}'"]),
    (["--headers", "X-API-Key", "abc"], ["--headers", "X-API-Key", MARK]),
    (["--headers", "Authorization", "Bearer abcdef"], ["--headers", "Authorization", f"Bearer {MARK}"]),
    # addresses
    (["postgres://u:pw@db:5432/shop?sslmode=off"], [f"postgres://u:{MARK}@db:5432/shop?sslmode=off"]),
    (["postgresql+asyncpg://u:p@s/w#x@db/shop"], [f"postgresql+asyncpg://u:{MARK}@db/shop"]),
    (["redis://:pw@h:1/0"], [f"redis://:{MARK}@h:1/0"]),
    (["mongodb+srv://u:p%40@c.example/?authSource=admin"], [f"mongodb+srv://u:{MARK}@c.example/?authSource=admin"]),
    (["--dsn=mysql://root:1@h/d"], [f"--dsn=mysql://root:{MARK}@h/d"]),
    (["u:p@tcp(h:3306)/d"], [f"u:{MARK}@tcp(h:3306)/d"]),
    (["https://u:p@h/x?api_key=123456&y=z"], [f"https://u:{MARK}@h/x?api_key={MARK}&y=z"]),
    (["https://h/sse?key=abc&mode=1"], [f"https://h/sse?key={MARK}&mode=1"]),
    (["https://h/a?X-Amz-Signature=abc"], [f"https://h/a?X-Amz-Signature={MARK}"]),
    ([f"https://h/api/{RANDOM}/mcp"], [f"https://h/api/{MARK}/mcp"]),
    (["https://" + "a" * 40 + "@h/x"], [f"https://{MARK}@h/x"]),
    # lists of settings
    (["Server=h;User Id=u;Password=p w;X=1"], [f"Server=h;User Id=u;Password={MARK};X=1"]),
    (["host=h password=pw dbname=d"], [f"host=h password={MARK} dbname=d"]),
    (["AccountName=a;AccountKey=abc=="], [f"AccountName=a;AccountKey={MARK}"]),
    (['{"apiKey": "abc", "a": "b"}'], [f'{{"apiKey": "{MARK}", "a": "b"}}']),
    (['{\\"token\\":\\"abc\\"}'], [f'{{\\"token\\":\\"{MARK}\\"}}']),
    (["npx x --api-key 'abc' --b c"], [f"npx x --api-key '{MARK}' --b c"]),
    # known keys, wherever they are
    (["sk-abcdefghijklmnopqrstu"], [MARK]),
    (["--with", "x:" + "ghp_" + "a" * 36], ["--with", f"x:{MARK}"]),
    (["npm_" + "a" * 36], [MARK]),
    ([JWT], [MARK]),
    (["tlk_abcdefgh_" + "x" * 40], [MARK]),
    # too long to be looked at
    (["x" * (MAX_LOOKED_AT + 1)], [MARK]),
]
PLAIN = [
    ["-y", "files-mcp@1.2.0", "/srv/notes"],
    ["--max-tokens", "100"],
    ["--token-file", "/run/key"],
    ["--credentials-file=/run/key"],
    ["--secret-name", "shop"],
    ["--password"],
    ["--no-password", "--verbose"],
    ["--token", "--verbose"],
    ["--access-token", "${TOKEN}"],
    ["--header", "Authorization:${AUTH}"],
    ["-e", "TOKEN", "img/a:1"],
    ["-e", "TOKEN="],
    ["postgresql://u@db/x"],
    ["mysql://root:@h/d"],
    ["https://h:8080/@scope/x"],
    ["https://h/a?token=${TOKEN}&page=2"],
    ["git+https://h/a@main"],
    ["http://127.0.0.1:9000/mcp"],
    ["a=b", "C:\\x", "key=value"],
    ["--key", "id"],
    ['{"a": "b"}'],
    [""],
    [],
]


@pytest.mark.parametrize(("words", "shown"), HIDDEN)
def test_a_secret_is_not_shown_and_the_rest_is(words, shown):
    assert list(hidden(words)) == shown
    assert secrets_in(words)
    assert sum(word.count(MARK) for word in shown) == len(secrets_in(words))


@pytest.mark.parametrize("words", PLAIN)
def test_what_is_no_secret_is_shown(words):
    assert list(hidden(words)) == words
    assert secrets_in(words) == []


@pytest.mark.parametrize(("words", "shown"), HIDDEN)
def test_what_is_shown_is_shown_in_the_same_way_again_and_brings_the_secret_back(words, shown):
    assert list(hidden(shown)) == shown
    assert list(restored(shown, words)) == words
    assert list(restored(["--first", *shown], ["--first", *words])) == ["--first", *words]


def test_a_secret_comes_back_where_it_was_and_nowhere_else():
    stored = ["--api-key", "a", "--at", "postgres://u:p@db/x", "--token", "t"]
    assert restored(["--new", "--api-key", MARK], stored) == ("--new", "--api-key", "a")
    assert restored(["--token", MARK, "--api-key", MARK], stored) == ("--token", "t", "--api-key", "a")
    assert restored(["--api-key", "b"], stored) == ("--api-key", "b")
    # To another host, or behind another option, it would be shown to somebody else.
    for changed in (["--at", f"postgres://u:{MARK}@other/x"], ["--name", MARK], [MARK], ["--at", MARK]):
        assert restored(changed, stored) == tuple(changed)
    # Of two that are shown alike it is not clear which is meant, unless they stand where they stood.
    twice = ["--key-a", "--token", "1x", "--token", "2y"]
    assert restored(["--key-a", "--token", MARK, "--token", MARK], twice) == tuple(twice)
    assert restored(["--token", MARK], twice) == ("--token", MARK)


def test_one_word():
    assert hidden_in("https://u:p@h/") == f"https://u:{MARK}@h/"
    assert names_secret("apiKey")
    assert not names_secret("maxTokens")


@pytest.mark.parametrize(
    "text",
    ["postgres://:" * 1300, "a=" * 8000, "/a1" * 5000, '"a":"' * 3000, "--token " * 2000, "x:" * 8000, "eyJ." * 4000,
     "u:" + "@" * 16000, "- " * 8000, "https://" * 2000],
)  # fmt: skip
def test_a_long_word_is_read_at_once(text):
    began = time.thread_time()
    hidden_in(text[:MAX_LOOKED_AT])
    assert time.thread_time() - began < 1
