"""`trunkline connect --write`: the servers get into a file of somebody's, and nothing else in it is touched."""

import json
import os
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest

from app import cli
from app.admin.client_config import CLIENTS, PASTE_HERE, Target, put
from app.admin.client_config import _files as files
from app.admin.client_config._merging import merged_json, merged_toml
from app.errors import Conflict, GatewayError, InvalidRequest
from app.text.jsonc import read

BASE = "https://gw.example.com"
FILES = [name for name, client in CLIENTS.items() if client.file is not None]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A person who has no settings yet, in an empty project."""
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLINE_DIR", "CLINE_MCP_SETTINGS_PATH", "GATEWAY_KEY"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "home"
    (home / "project").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home / "project")
    return home


def connect(client: str, *backends: str, words: tuple[str, ...] = (), write: str | None = "") -> int:
    named = [word for backend in backends for word in ("--backend", backend)]
    writing = [] if write is None else ["--write", write] if write else ["--write"]
    return cli.main(["connect", client, "--tenant", "acme", "--url", BASE, *named, *words, *writing])


def url(backend: str) -> str:
    return f"{BASE}/t/acme/{backend}/mcp"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def servers(path: Path) -> Any:
    document = tomllib.loads(path.read_text()) if path.suffix == ".toml" else read(path.read_text()).value
    return next(document[member] for member in ("mcpServers", "servers", "mcp_servers") if member in document)


def backups(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.*.bak"))


# --- several backends


@pytest.mark.parametrize("client", CLIENTS)
def test_several_backends_are_in_one_text(capsys, client):
    assert connect(client, "time", "notes", "time", write=None) == 0
    out = capsys.readouterr().out
    for backend in ("time", "notes"):
        assert out.count(url(backend)) == 1
    if client == "claude-code":
        assert out.count("claude mcp add") == 2
    elif client in ("openai-agents", "langchain"):
        compile(out, client, "exec")
    else:
        document = tomllib.loads(out) if client == "codex" else json.loads(out)
        assert [*next(document[each] for each in ("mcpServers", "servers", "mcp_servers") if each in document)] == [
            "time", "notes",
        ]  # fmt: skip


# --- where it goes


@pytest.mark.parametrize(
    ("client", "place", "closed"),
    [
        ("claude-code", "project/.mcp.json", False),
        ("claude-desktop", ".config/Claude/claude_desktop_config.json", True),
        ("cursor", ".cursor/mcp.json", True),
        ("vscode", "project/.vscode/mcp.json", False),
        ("windsurf", ".codeium/windsurf/mcp_config.json", True),
        ("codex", ".codex/config.toml", True),
    ],
)
def test_a_file_is_made_where_its_client_looks_for_it(capsys, home, client, place, closed):
    before = os.umask(0o022)
    try:
        assert connect(client, "time", "notes") == 0
    finally:
        os.umask(before)
    assert list(servers(home / place)) == ["time", "notes"]
    assert url("time") in (home / place).read_text()
    assert mode(home / place) == (0o600 if closed else 0o644)
    out, err = capsys.readouterr()
    assert f"{home / place}: time added, notes added" in out
    assert "Goes into" not in err
    assert [each.name for each in (home / place).parent.iterdir()] == [(home / place).name]  # nothing left beside it


def test_other_places_of_a_client_are_known(home, monkeypatch):
    client = CLIENTS["claude-desktop"].file
    assert client is not None
    assert client.paths({}, "darwin") == ["~/Library/Application Support/Claude/claude_desktop_config.json"]
    monkeypatch.setenv("CODEX_HOME", str(home / "elsewhere"))
    assert connect("codex", "time") == 0
    assert list(servers(home / "elsewhere/config.toml")) == ["time"]


def test_of_the_two_files_of_cline_the_one_that_exists_is_taken(home, capsys, monkeypatch):
    of_extension = home / ".config/Code/User/globalStorage/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"
    of_command_line = home / ".cline/data/settings/cline_mcp_settings.json"
    assert connect("cline", "time") == 2
    assert "none of the usual files exists: name yours with --write FILE" in capsys.readouterr().err
    for path, backend in ((of_extension, "time"), (of_command_line, "notes")):
        path.parent.mkdir(parents=True)
        path.write_text("{}")
        assert connect("cline", backend) == 0
        assert list(servers(path)) == [backend]
        path.rename(path.with_suffix(".old"))
    for path in (of_extension, of_command_line):
        path.write_text("{}")
    assert connect("cline", "time") == 2
    assert "there are several such files" in capsys.readouterr().err
    monkeypatch.setenv("CLINE_MCP_SETTINGS_PATH", str(home / "mine.json"))
    assert connect("cline", "time") == 0
    assert list(servers(home / "mine.json")) == ["time"]


def test_a_file_can_be_named(home, capsys):
    assert connect("cursor", "time", write="~/project/.cursor/mcp.json") == 0
    assert list(servers(home / "project/.cursor/mcp.json")) == ["time"]
    assert not (home / ".cursor").exists()


@pytest.mark.parametrize("client", ["openai-agents", "langchain"])
def test_a_program_is_not_merged(capsys, client):
    assert connect(client, "time") == 2
    assert "is configured in a program" in capsys.readouterr().err


# --- what stays

WITH_COMMENTS = """\
// my servers
{
\t"theme": "dark", // not yours
\t"mcpServers": {
\t\t/* local */
\t\t"files": { "command": "npx", "args": ["-y", "files"], "disabled": true },
\t\t"time": {
\t\t\t"command": "uvx", // of before
\t\t\t"args": ["mcp-server-time", "--token", "hunter2"],
\t\t\t"env": { "A": "1" },
\t\t\t"autoApprove": ["now"]
\t\t}, // last
\t},
\t"other": [1, 2.50, 1e3, {"x": null}],
}
// the end
"""


def test_everything_else_stays_as_it_was_comments_included(home, capsys):
    path = home / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_text(WITH_COMMENTS)
    path.chmod(0o640)
    assert connect("cursor", "time", "notes") == 0
    text = path.read_text()
    for kept in ("// my servers", "// not yours", "/* local */", "// last", "// the end", "1, 2.50, 1e3"):
        assert kept in text
    assert '"files": { "command": "npx", "args": ["-y", "files"], "disabled": true }' in text
    entries = servers(path)
    assert list(entries) == ["files", "time", "notes"]
    bearer = {"Authorization": "Bearer ${env:GATEWAY_KEY}"}
    assert entries["time"] == {"url": url("time"), "headers": bearer, "autoApprove": ["now"]}
    assert entries["notes"] == {"url": url("notes"), "headers": bearer}
    assert mode(path) == 0o640
    (backup,) = backups(path)
    assert backup.read_text() == WITH_COMMENTS
    assert mode(backup) == 0o600
    out, err = capsys.readouterr()
    assert "time replaced (was uvx), notes added" in out
    assert str(backup) in out
    assert "hunter2" not in out + err


@pytest.mark.parametrize("client", FILES)
def test_what_is_there_already_is_not_written_again(home, capsys, client):
    assert connect(client, "time", write="file.toml") == 0
    path = home / "project/file.toml"
    before = path.stat()
    assert connect(client, "time", write="file.toml") == 0
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert backups(path) == []
    assert "has time already" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "", " \n", "{}", "{ }", "{\n}\n", '{"mcpServers": {}}', '{"mcpServers": null}', '{"a": 1}', '{"a": 1 // x\n}',
        '{ // only a comment\n}', '{"mcpServers": {"a": {"command": "x"}}}', '{"mcpServers": {"a": {"command": "x"},}}',
        '{\n    "mcpServers": {\n        "a": {} // c\n        // d\n    }\n}', '{"mcpServers": {\n"a": {},\n}\n}',
        '{"mcpServers": {"time": null}}', '{"mcpServers": {"time": "x"}, "b": "}\\\\\\" // no comment"}',
        '{\n\t"mcpServers": {\n\t\t"time": {"url": "https://old.example", "headers": {"X": "1"}, "timeout": 9}\n\t}\n}',
    ],
)  # fmt: skip
def test_any_form_of_the_file_gets_the_servers_and_loses_nothing(text):
    documents = [CLIENTS["cursor"].file.document(Target(name, url(name))) for name in ("time", "notes")]
    before = read(text).value if text.strip() else {}
    merged = merged_json(text, documents)
    after = read(merged.text).value
    for name in ("time", "notes"):
        assert after["mcpServers"][name]["url"] == url(name)
        assert after["mcpServers"][name]["headers"] == {"Authorization": "Bearer ${env:GATEWAY_KEY}"}
    others = {name: entry for name, entry in (before.get("mcpServers") or {}).items() if name != "time"}
    assert others.items() <= after["mcpServers"].items()
    assert {**before, "mcpServers": 0} == {**after, "mcpServers": 0}
    assert merged_json(merged.text, documents).changes == {}
    if "//" not in text and ",}" not in text and ",\n}" not in text:
        assert json.loads(merged.text) == after  # plain JSON stays plain
    assert after["mcpServers"]["time"].get("timeout") == (9 if "timeout" in text else None)


def test_at_the_same_address_headers_that_are_not_ours_stay(home):
    path = home / ".cursor/mcp.json"
    path.parent.mkdir()
    headers = {"authorization": "Bearer old", "X-Team": "a"}
    path.write_text(json.dumps({"mcpServers": {"time": {"url": url("time"), "headers": headers}}}))
    assert connect("cursor", "time") == 0
    kept = servers(path)["time"]["headers"]
    assert kept == {"Authorization": "Bearer ${env:GATEWAY_KEY}", "X-Team": "a"}


def test_a_question_of_vs_code_is_asked_once(home):
    path = home / "project/.vscode/mcp.json"
    path.parent.mkdir()
    path.write_text('{"inputs": [{"id": "time-key", "type": "promptString", "description": "mine"}], "servers": {}}')
    assert connect("vscode", "time", "notes") == 0
    document = json.loads(path.read_text())
    assert [(each["id"], each["description"]) for each in document["inputs"]] == [
        ("time-key", "mine"), ("notes-key", "API key for notes"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "the name of a member is missing"),
        ("[]", "it is not an object"),
        ('{"mcpServers": []}', "its `mcpServers` is not an object"),
        ('{"a": 1, "a": 2}', "line 1: 'a' stands twice"),
        ('{"a": 1}\n{"b": 2}', "line 1: there is text after the end"),
        ('{"a": NaN}', "a value is missing or malformed"),
        ('{"a": tru}', "a value is missing or malformed"),
        ('{"a" 1}', "a colon is missing"),
        ('{"a": 1 "b": 2}', "a comma or '}' is missing"),
        ('{"a": "x\n"}', "a value is missing or malformed"),
        ("{'a': 1}", "the name of a member is missing"),
        ("{} /* open", "line 1: there is text after the end"),
        ("[" * 100_000, "nested too deeply"),
        ("theme = 'dark'", "it is not JSON: line 1"),
    ],
)
def test_a_file_that_is_not_understood_is_left_alone(home, capsys, text, problem):
    path = home / ".cursor/mcp.json"
    path.parent.mkdir()
    path.write_text(text)
    assert connect("cursor", "time") == 2
    err = capsys.readouterr().err
    assert problem in err
    assert str(path) in err
    assert "by hand" in err
    assert path.read_text() == text
    assert backups(path) == []


# --- TOML

CODEX = """\
model = "o9" # mine

[mcp_servers.files]
command = "npx"
args = [
  "-y", # yes
  "[mcp_servers.time]",
]

[mcp_servers."time"] # of before
command = "uvx"
args = [
  "mcp-server-time",
]
startup_timeout_sec = 20

[mcp_servers.time.env]
TOKEN = "hunter2"

[mcp_servers.time.tools.now]
approval = "never"

[notice]
text = '''
[mcp_servers.time]
url = "no"
'''"""


def test_toml_keeps_its_form_its_comments_and_what_is_not_ours(home, capsys):
    path = home / ".codex/config.toml"
    path.parent.mkdir()
    path.write_text(CODEX)
    assert connect("codex", "time", "notes") == 0
    text, document = path.read_text(), tomllib.loads(path.read_text())
    assert text.startswith(CODEX[: CODEX.index('command = "uvx"')])
    assert text.count("# of before") == 1
    assert document["mcp_servers"] == {
        "files": {"command": "npx", "args": ["-y", "[mcp_servers.time]"]},
        "time": {
            "url": url("time"), "bearer_token_env_var": "GATEWAY_KEY", "startup_timeout_sec": 20,
            "tools": {"now": {"approval": "never"}},
        },
        "notes": {"url": url("notes"), "bearer_token_env_var": "GATEWAY_KEY"},
    }  # fmt: skip
    assert document["notice"] == tomllib.loads(CODEX)["notice"]
    assert backups(path)[0].read_text() == CODEX
    assert "time replaced (was uvx), notes added" in capsys.readouterr().out
    assert connect("codex", "time", "notes") == 0
    assert path.read_text() == text


IN_PIECES = """\
[mcp_servers.time.http_headers]
X = "1"
[b]
[mcp_servers.time.env]
A = "b"
[mcp_servers.other.env]
Q = "1"
[mcp_servers.time.env.deep]
z = 1
"""  # tomlkit loses count of them


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mcp_servers = 3", "is not an object"),
        ("a = ", "it is not TOML"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        (IN_PIECES, "in a form that cannot be changed safely"),
    ],
)
def test_toml_that_is_not_understood_is_left_alone(home, capsys, text, problem):
    path = home / ".codex/config.toml"
    path.parent.mkdir()
    path.write_text(text)
    assert connect("codex", "time") == 2
    assert problem in capsys.readouterr().err
    assert path.read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        'mcp_servers = {time = {command = "x"}}',
        '[mcp_servers]\ntime = {command = "x"} # mine\n',
        'mcp_servers.time.command = "x"\na = 1 # mine\n',
        "[mcp_servers]\ntime = 3\n",
        '[mcp_servers.time]\ncommand = "x"\n[b] # mine\nc = 1\n[mcp_servers.time.env]\nA = "b"\n',
    ],
)
def test_toml_has_tables_in_every_form(text):
    documents = [CLIENTS["codex"].file.document(Target("time", url("time")))]
    changed = merged_toml(text, documents).text
    after = tomllib.loads(changed)
    assert after.pop("mcp_servers") == {"time": {"url": url("time"), "bearer_token_env_var": "GATEWAY_KEY"}}
    assert after == {name: value for name, value in tomllib.loads(text).items() if name != "mcp_servers"}
    assert changed.count("# mine") == text.count("# mine")


@pytest.mark.parametrize("text", ["", "a = 1", "a = 1\n", "[a]\n[[b]]\nc = 1\n[[b]]\n", "\n\n# x\n", "[mcp_servers]\n"])
def test_toml_gets_a_new_table_behind_everything(text):
    documents = [CLIENTS["codex"].file.document(Target("time", url("time")))]
    after = tomllib.loads(merged_toml(text, documents).text)
    assert after.pop("mcp_servers") == {"time": {"url": url("time"), "bearer_token_env_var": "GATEWAY_KEY"}}
    assert after == {name: value for name, value in tomllib.loads(text).items() if name != "mcp_servers"}


# --- the key


@pytest.mark.parametrize("client", ["cline", "claude-desktop"])
def test_a_key_in_the_text_closes_the_file(home, capsys, monkeypatch, client):
    monkeypatch.setenv("MY_KEY", "tlk_secret")
    path = home / "project/mcp.json"
    path.write_text('{"mcpServers": {}}')
    path.chmod(0o664)
    assert connect(client, "time", words=("--key-env", "MY_KEY"), write="mcp.json") == 0
    assert "Bearer tlk_secret" in path.read_text()
    assert mode(path) == 0o600
    out, err = capsys.readouterr()
    assert "only you can" in out
    assert "tlk_secret" not in out + err
    # Without the key the one that is there stays.
    assert connect(client, "time", "notes", write="mcp.json") == 0
    entries = servers(path)
    assert "Bearer tlk_secret" in str(entries["time"])
    assert PASTE_HERE in str(entries["notes"])
    assert PASTE_HERE in capsys.readouterr().err
    assert mode(path) == 0o600


@pytest.mark.parametrize("client", ["cursor", "vscode", "windsurf", "codex", "claude-code"])
def test_no_other_client_has_the_key_in_its_file(home, monkeypatch, client):
    monkeypatch.setenv("MY_KEY", "tlk_secret")
    assert connect(client, "time", words=("--key-env", "MY_KEY"), write="file") == 0
    assert "tlk_secret" not in (home / "project/file").read_text()


# --- the file itself


def test_a_link_stays_and_what_it_leads_to_is_changed(home):
    real, link = home / "dotfiles.json", home / ".cursor/mcp.json"
    link.parent.mkdir()
    real.write_text("{}")
    link.symlink_to(real)
    assert connect("cursor", "time") == 0
    assert link.is_symlink()
    assert list(servers(real)) == ["time"]
    assert len(backups(real)) == 1


def test_line_ends_and_the_mark_at_the_beginning_stay(home):
    path = home / "project/mcp.json"
    path.write_bytes(b'\xef\xbb\xbf{\r\n  "mcpServers": {}\r\n}\r\n')
    assert connect("cursor", "time", write="mcp.json") == 0
    content = path.read_bytes()
    assert content.startswith(b"\xef\xbb\xbf{\r\n")
    assert content.count(b"\n") == content.count(b"\r\n") > 5
    assert backups(path)[0].read_bytes() == b'\xef\xbb\xbf{\r\n  "mcpServers": {}\r\n}\r\n'


@pytest.mark.parametrize("kind", ["directory", "pipe", "bytes", "large"])
def test_what_is_no_text_file_is_refused(home, capsys, kind):
    path = home / "project/mcp.json"
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"\xff" if kind == "bytes" else b" " * (files.MAX_BYTES + 1))
    assert connect("cursor", "time", write="mcp.json") == 2
    assert "mcp.json" in capsys.readouterr().err


def test_what_another_program_writes_meanwhile_is_not_lost(home):
    path = home / "project/mcp.json"
    path.write_text("{}")
    documents = [CLIENTS["cursor"].file.document(Target("time", url("time")))]

    def meanwhile(text):
        path.write_text('{"mine": 1}')
        return merged_json(text, documents)

    with pytest.raises(Conflict, match="in the meantime"):
        put(path, meanwhile, is_secret=False)
    assert path.read_text() == '{"mine": 1}'
    path.unlink()
    with pytest.raises(Conflict, match="in the meantime"):
        put(path, meanwhile, is_secret=False)
    assert path.read_text() == '{"mine": 1}'
    assert [each.name for each in path.parent.iterdir()] == ["mcp.json"]


@pytest.mark.parametrize("written_before", [0, 1])
def test_a_disk_that_is_full_leaves_everything_as_it_was(home, monkeypatch, written_before):
    path = home / "project/mcp.json"
    path.write_text("{}")
    written = []

    def full(descriptor):
        written.append(descriptor)
        if len(written) > written_before:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    documents = [CLIENTS["cursor"].file.document(Target("time", url("time")))]
    with pytest.raises(GatewayError, match="No space left"):
        put(path, lambda text: merged_json(text, documents), is_secret=False)
    assert path.read_text() == "{}"
    assert [each.name for each in path.parent.iterdir()] == ["mcp.json"]


def test_a_file_of_another_user_stays_theirs(home, monkeypatch):
    path = home / "project/mcp.json"
    path.write_text("{}")
    documents = [CLIENTS["cursor"].file.document(Target("time", url("time")))]
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(InvalidRequest, match="belongs to another user"):
        put(path, lambda text: merged_json(text, documents), is_secret=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_does_not_take_a_persons_file(home):
    path = home / "project/mcp.json"
    path.write_text("{}")
    os.chown(path, 60002, 60003)
    assert connect("cursor", "time", write="mcp.json") == 0
    for each in (path, *backups(path)):
        assert (each.stat().st_uid, each.stat().st_gid) == (60002, 60003)
