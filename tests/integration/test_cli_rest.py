"""The commands over REST: a real gateway, and the real command line in processes of its own, in an empty folder."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.integration.gateway import ECHO, Gateway, running_gateway
from tests.integration.wire import wire
from tests.programs import run_program


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("cli") / "data") as gateway:
        yield gateway


class Line:
    """A shell of somebody elsewhere, who knows the gateway's address and has a key."""

    def __init__(self, folder: Path, url: str, key: str) -> None:
        self.folder = folder
        known = {name: value for name, value in os.environ.items() if not name.startswith("TRUNKLINE_")}
        home = {"HOME": str(folder / "home"), "XDG_DATA_HOME": ""}
        self.environment = {**known, **home, "TRUNKLINE_URL": url, "TRUNKLINE_KEY": key}
        (folder / "home").mkdir()
        (folder / "empty").mkdir()

    def run(self, *words: str, code: int = 0, stdin: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
        (self.folder / "stdin").write_text(stdin)
        here = f"import os; os.chdir({str(self.folder / 'empty')!r}); "
        done = run_program(
            words,
            {**self.environment, **changes},
            first=here + f"os.dup2(os.open({str(self.folder / 'stdin')!r}, os.O_RDONLY), 0)",
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert list((self.folder / "home").iterdir()) == list((self.folder / "empty").iterdir()) == []
        return done

    def json(self, *words: str, code: int = 0, **changes: str) -> object:
        return json.loads(self.run(*words, "--json", code=code, **changes).stdout)


@pytest.fixture
def line(gateway: Gateway, tmp_path: Path) -> Line:
    return Line(tmp_path, gateway.url, gateway.admin_key)


def test_a_tenants_life(line, gateway):
    made = line.run("tenants", "create", "life", "limits.sessions=20")
    assert made.stdout == "created tenant life\n"
    gateway_line, next_line = made.stderr.splitlines()
    assert gateway_line == f"trunkline: gateway {gateway.url}"
    assert next_line.startswith("next: trunkline backends create NAME --tenant life -- ")
    assert line.json("tenants", "show", "life")["limits"]["sessions"] == 20
    line.run("tenants", "set", "life", "limits.sessions=100", "limits.burst=null", "--unset", "limits.processes")
    shown = line.json("tenants", "show", "life")
    assert [shown["limits"][name] for name in ("sessions", "burst", "processes")] == [100, None, None]
    assert gateway.api("GET", "/tenants/life") == shown
    assert "life" in [tenant["name"] for tenant in line.json("tenants", "list")]
    whole = line.run("tenants", "list").stdout
    header, *rows = whole.splitlines()
    assert header.startswith("name")
    assert any(row.startswith("life ") for row in rows)
    assert line.run("tenants", "list", COLUMNS="20").stdout == whole  # a pipe has no width
    assert line.run("tenants", "delete", "life").stderr.endswith("deleted life\n")
    assert "Tenant not found" in line.run("tenants", "show", "life", code=1).stderr


def test_a_backends_life(line, gateway):
    tenant = gateway.add_tenant()
    of = ("--tenant", tenant)
    # Options may stand between the members.
    made = line.run("backends", "create", "echo", *of, "warm=1", "--json", "env.PORT=8080", "--", *ECHO)
    assert json.loads(made.stdout)["args"] == ECHO[1:]
    assert "the value of env.PORT is in the list of processes" in made.stderr
    assert line.run("backends", "check", "echo", *of).stdout.startswith("ok ")
    line.run("backends", "set", "echo", *of, "timeouts.call_s=30", "env.TOKEN=@-", stdin="s3cret\n")
    shown = line.json("backends", "show", "echo", *of)
    assert (shown["timeouts"]["call_s"], shown["env"]) == (30, {"PORT": "***", "TOKEN": "***"})
    line.run("backends", "set", "echo", *of, "--unset", "env.PORT")
    assert line.json("backends", "show", "echo", *of)["env"] == {"TOKEN": "***"}
    line.run("backends", "set", "echo", *of, "command=/nowhere/at/all")
    broken = line.run("backends", "check", "echo", *of, code=1)
    assert broken.stdout.startswith("ok ")
    assert "failure.reason" in broken.stdout
    assert "restarted echo" in line.run("backends", "restart", "echo", *of).stderr
    assert "echo" in line.run("backends", "list", *of).stdout
    line.run("backends", "delete", "echo", *of)
    assert "there are no backends" in line.run("backends", "list", *of).stderr


def test_what_is_made_has_the_name_that_the_command_says(line, gateway):
    of = ("--tenant", gateway.add_tenant())
    (line.folder / "guide.json").write_text('{"name": "one", "text": "x"}')
    refused = line.run("guides", "create", "two", *of, "--file", str(line.folder / "guide.json"), code=2)
    assert "the command says 'two', and name=value or the file 'one'" in refused.stderr
    assert line.json("guides", "list", *of) == []
    assert line.run("guides", "create", "one", *of, "--file", str(line.folder / "guide.json")).stdout.startswith(
        "created"
    )


def test_tools_are_listed_and_called_like_any_client_does(line, gateway):
    tenant = gateway.add_tenant()
    of = ("--tenant", tenant)
    line.run("backends", "create", "echo", *of, "--", *ECHO)
    listed = line.run("tools", "echo", *of).stdout
    assert re.search(r"^echo +\[text=string\] +echo \(benchmark tool\)$", listed, re.MULTILINE)
    assert line.run("call", "echo", "echo", "text=7", *of).stdout == "7\n"
    assert line.json("call", "echo", "progress", *of, "n=3")["isError"] is False
    refused = line.run("call", "echo", "sleep", "ms=soon", *of, code=2)
    assert refused.stderr.endswith("trunkline: ms must be a number, not 'soon'\n")
    assert "did you mean `echo`?" in line.run("tools", "ecko", *of, code=1).stderr
    failed = line.run("call", "echo", "crash", *of, code=1)
    assert failed.stderr.splitlines()[-1].startswith("trunkline: ")
    # Calls of one key find what earlier ones have left.
    before, after = (json.loads(line.run("call", "echo", "whoami", *of).stdout) for _ in range(2))
    assert (before["process"], before["count"] + 1) == (after["process"], after["count"])
    reader = line.run("keys", "create", *of, "--scope", "tenant:read").stdout.strip()
    assert (
        "--scope mcp:connect` makes such a key" in line.run("tools", "echo", *of, code=1, TRUNKLINE_KEY=reader).stderr
    )
    assert "is the key right" in line.run("tools", "echo", *of, code=1, TRUNKLINE_KEY="tlk_x").stderr


def test_a_tool_that_fails_is_exit_code_1_with_its_words_on_stderr(line, gateway):
    tenant = gateway.add_tenant()
    of = ("--tenant", tenant)
    line.run("backends", "create", "time", *of, "--", str(Path(sys.executable).with_name("mcp-server-time")))
    failed = line.run("call", "time", "get_current_time", "timezone=Mars", *of, code=1)
    assert failed.stdout == ""
    assert "Invalid timezone" in failed.stderr
    assert line.json("call", "time", "get_current_time", "timezone=Mars", *of, code=1)["isError"] is True


def test_the_console_script_does_the_same(line, gateway):
    done = subprocess.run(
        [str(Path(sys.executable).with_name("trunkline")), "tenants", "list", "--json"],
        cwd=line.folder / "empty",
        env=line.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, f"trunkline: gateway {gateway.url}\n")
    assert "default" in [tenant["name"] for tenant in json.loads(done.stdout)]


def test_keys_over_rest(line, gateway):
    tenant = gateway.add_tenant()
    of = ("--tenant", tenant)
    made = line.run("keys", "create", *of, "--scope", "tenant:read", "--name", "laptop", "--expires-days", "7")
    key, identifier = made.stdout.strip(), made.stdout[4:12]
    assert key.startswith("tlk_")
    assert key not in made.stderr
    assert re.search(rf"Its id is {identifier}; it expires on \d{{4}}-\d\d-\d\d\.", made.stderr)
    assert "there are no entries" in line.run("audit", "list", *of, "action=nothing").stderr
    # The key works, from a file as well; what it may not do is said with the request's id, which the log has.
    (line.folder / "key").write_text(key + "\n")
    assert line.json("keys", "list", *of, "--key-file", str(line.folder / "key"))[0]["id"] == identifier
    assert line.json("keys", "list", *of, TRUNKLINE_KEY="", TRUNKLINE_KEY_FILE=str(line.folder / "key"))
    refused = line.run("keys", "create", *of, "--scope", "tenant:read", code=1, TRUNKLINE_KEY=key)
    assert "trunkline: Forbidden: this needs the scope tenant:admin" in refused.stderr
    assert "  request id: " in refused.stderr
    rotated = line.json("keys", "rotate", identifier, *of)
    assert (rotated["name"], rotated["scopes"]) == ("laptop", ["tenant:read"])
    assert rotated["key"].startswith("tlk_")
    assert line.json("keys", "show", identifier, *of)["revoked_at"] is None
    line.run("keys", "rotate", rotated["id"], *of, "--revoke")
    assert line.json("keys", "show", rotated["id"], *of)["revoked_at"] is not None
    assert f"{identifier} still works" in line.run("keys", "rotate", identifier, *of).stderr
    for verb in ("revoke", "delete"):  # to revoke twice is no error, as over REST
        assert f"revoked {identifier}" in line.run("keys", verb, identifier, *of).stderr
    assert f"{identifier} is revoked." in line.run("keys", "rotate", identifier, *of).stderr
    assert len(line.json("keys", "list", *of)) == 5


def test_keys_are_on_the_database_unless_a_gateway_is_named(line, gateway):
    here = {"TRUNKLINE_DATA_DIR": str(gateway.data_dir)}
    words = ("keys", "list", "--tenant", "default")
    database = f"trunkline: database {gateway.data_dir}/trunkline.db\n"
    assert line.run(*words, **here).stderr == f"trunkline: gateway {gateway.url}\n"
    assert line.run(*words, **here, TRUNKLINE_URL="").stderr == database
    assert line.run(*words, "--data-dir", str(gateway.data_dir)).stderr == database
    assert "give one of them" in line.run(*words, "--data-dir", "/x", "--url", gateway.url, code=2).stderr
    # The same columns, wherever they come from.
    tables = [line.run(*words, **here, TRUNKLINE_URL=url).stdout.splitlines()[0] for url in ("", gateway.url)]
    assert tables[0].split() == tables[1].split()
    only = line.run("keys", "rotate", "AbCd1234", "--tenant", "default", **here, TRUNKLINE_URL="", code=2)
    assert "set TRUNKLINE_URL and TRUNKLINE_KEY" in only.stderr


def test_issuers_over_rest(line, gateway):
    tenant = gateway.add_tenant()
    of = ("--tenant", tenant)
    name = "https://idp.example.com"
    made = line.json("issuers", "create", name, *of, "algorithms[]=HS256", "secret=@-", stdin="x" * 40)
    assert (made["issuer"], made["algorithms"]) == (name, ["HS256"])
    line.run("issuers", "set", made["id"], *of, "audience[]=https://gw.example.com")
    assert line.json("issuers", "show", made["id"], *of)["audience"] == ["https://gw.example.com"]
    assert made["id"] in line.run("issuers", "list", *of).stdout
    checked = line.run("issuers", "check", made["id"], *of, "token=@-", stdin="no.jwt.at-all\n", code=1).stdout
    assert checked.startswith("ok ")
    assert "rules\n  rule " in checked
    line.run("issuers", "delete", made["id"], *of)
    assert line.json("issuers", "list", *of) == []


def test_sessions_are_listed_shown_and_closed(line, gateway):
    tenant = gateway.add_tenant()
    url = gateway.add_backend(tenant, "echo", ECHO[0], ECHO[1:])
    initialize = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
    }
    accept = {"Accept": "application/json, text/event-stream", "Authorization": f"Bearer {gateway.key(tenant)}"}
    assert gateway.http.post(f"{url}/mcp", json=initialize, headers=accept).status_code == 200
    of = ("--tenant", tenant)
    (session,) = line.json("sessions", "list", *of)
    assert session["id"] in line.run("sessions", "list", *of, COLUMNS="80").stdout
    assert f"id                {session['id']}\n" in line.run("sessions", "show", session["id"], *of).stdout
    assert "there is no session nobody\n" in line.run("sessions", "show", "nobody", *of, code=1).stderr
    assert line.run("processes", "list", *of).stdout.splitlines()[0].startswith("id ")
    everywhere = line.run("sessions", "list", "--tenant", "-", "sort=memory").stdout.splitlines()
    assert everywhere[0].split()[:3] == ["id", "tenant", "backend"]
    assert any(session["id"] in each and tenant in each for each in everywhere)
    assert tenant in line.run("use", "list", "sort=cpu").stdout
    line.run("sessions", "close", session["id"], *of)
    assert "Session not found" in line.run("sessions", "close", session["id"], *of, code=1).stderr
    assert "session.end" in line.run("audit", "list", *of).stdout
    assert gateway.url in str(line.json("nodes", "list")) or line.json("nodes", "list")


async def test_a_session_is_inspected_and_followed(line, gateway, tmp_path):
    endpoint = gateway.endpoint(ECHO)
    at, file = ("--tenant", endpoint.tenant), tmp_path / "seen.jsonl"
    async with wire(endpoint) as session:
        (row,) = line.json("sessions", "list", *at)
        opened = line.json("inspect", row["id"], *at, "--reason", "ticket 4711", "--payloads", "--minutes", "10")
        assert opened["reason"] == "ticket 4711"
        line.run("inspect", row["id"], *at, "--reason", "twice", code=1)
        await session.call("echo", text="again \x1b[2J")
        (listed,) = line.json("inspections", "list", *at)
        assert listed["id"] == opened["id"]
        shown = line.run("inspections", "messages", opened["id"], *at).stdout
        assert "tools/call" in shown
        assert "\x1b" not in shown
        messages = line.json("inspections", "messages", opened["id"], *at)
        assert [each["side"] for each in messages] == ["client", "backend", "backend", "client"]
    line.run("inspections", "messages", opened["id"], *at, "--follow", "--jsonl", str(file))  # until the session's end
    assert [json.loads(text)["number"] for text in file.read_text().splitlines()] == [1, 2, 3, 4]
    assert file.stat().st_mode & 0o777 == 0o600
    line.run("inspections", "messages", opened["id"], *at, "--jsonl", str(file), code=2)
    assert line.json("inspections", "show", opened["id"], *at)["ending"] == "session_ended"
    line.run("inspections", "show", "unknown", *at, code=1)


def test_a_refusal_has_title_detail_hint_and_request_id(line, gateway):
    told = line.run("tenants", "set", "default", "limits.sessions=many", code=1).stderr.splitlines()
    assert told[0] == f"trunkline: gateway {gateway.url}"
    assert told[1].startswith("trunkline: Unprocessable Content: ")
    assert any(each.startswith("  limits.sessions: ") for each in told)
    identifier = told[-1].removeprefix("  request id: ")
    assert len(identifier) == 16
    unknown = line.run("tenants", "list", code=1, TRUNKLINE_KEY="nobody").stderr
    assert "trunkline: Unauthorized: " in unknown
    assert "  hint: Send `Authorization: Bearer <key>`" in unknown


def test_a_change_is_in_the_trail_under_the_id_that_the_gateway_was_given(line):
    line.run("tenants", "create", "trail", "limits.sessions=3")
    (act,) = line.json("audit", "list", "--tenant", "trail", "--limit", "1")
    assert act["action"] == "tenant.create"
    assert len(act["request_id"]) == 16


def test_a_gateway_that_is_not_there_is_exit_code_1(line):
    told = line.run("tenants", "list", "--url", "http://127.0.0.1:1", code=1).stderr
    assert "http://127.0.0.1:1 does not answer" in told
    assert "Request id: " in told


# --- what stands between


class Unsteady(BaseHTTPRequestHandler):
    """Loses its first answer, is not ready at the second, and tells where else to go after the third."""

    seen: list[tuple[str, str | None, str | None]]
    answers: list[tuple[int, dict[str, str], bytes] | None]

    def _do(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        type(self).seen.append((self.command, self.headers["Idempotency-Key"], self.headers["Authorization"]))
        answer = type(self).answers.pop(0)
        if answer is None:
            self.close_connection = True
            return
        status, headers, body = answer
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = _do  # noqa: N815 - as http.server wants them

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def unsteady(line: Line) -> Iterator[type[Unsteady]]:
    Unsteady.seen, Unsteady.answers = [], []
    with HTTPServer(("127.0.0.1", 0), Unsteady) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        line.environment["TRUNKLINE_URL"] = f"http://127.0.0.1:{server.server_port}"
        yield Unsteady
        server.shutdown()
        thread.join()


def test_a_lost_answer_and_a_short_pause_are_met_with_the_same_request(line, unsteady):
    unsteady.answers = [None, (503, {"Retry-After": "0"}, b"{}"), (201, {}, b'{"name": "acme"}')]
    assert line.json("tenants", "create", "acme") == {"name": "acme"}
    assert [method for method, _, _ in unsteady.seen] == ["POST"] * 3
    keys = {key for _, key, _ in unsteady.seen}
    assert len(keys) == 1
    assert None not in keys


def test_who_has_lost_an_answer_waits_for_as_long_as_the_request_is_under_way(line, unsteady):
    """An installation, for one."""
    problem = b'{"title": "Conflict", "status": 409}'
    unsteady.answers = [None, *[(409, {"Retry-After": "0"}, problem)] * 5, (201, {}, b'{"name": "acme"}')]
    assert line.json("tenants", "create", "acme") == {"name": "acme"}
    assert len({key for _, key, _ in unsteady.seen}) == 1
    unsteady.answers = [(409, {}, problem)]
    line.run("tenants", "create", "acme", code=1)


def test_what_was_deleted_by_a_lost_answer_is_deleted(line, unsteady):
    problem = b'{"title": "Not Found", "status": 404}'
    unsteady.answers = [None, (404, {}, problem), (404, {}, problem)]
    assert "deleted acme" in line.run("tenants", "delete", "acme").stderr
    line.run("tenants", "delete", "acme", code=1)


def test_whatever_a_refusal_says_is_shown(line, unsteady):
    problem = {"title": "Too Many Requests", "status": 429, "detail": "full", "limit": {"name": "sessions", "used": 20}}
    unsteady.answers = [(429, {"X-Request-Id": "abc"}, json.dumps({**problem, "hint": "wait"}).encode())]
    told = line.run("sessions", "list", code=1).stderr.splitlines()[1:]
    assert told == [
        "trunkline: Too Many Requests: full",
        "  limit: name=sessions used=20",
        "  hint: wait",
        "  request id: abc",
    ]


def test_nodes_that_did_not_answer_are_named(line, unsteady):
    page = {"items": [{"id": "a"}], "next_cursor": "x", "total": 5, "silent_nodes": ["node-b"]}
    unsteady.answers = [(200, {}, json.dumps(page).encode())]
    told = line.run("sessions", "list", "--limit", "1").stderr
    assert "trunkline: these are the first 1 of 5; use --limit for more\n" in told
    assert "trunkline: silent_nodes: node-b\n" in told


def test_no_redirect_takes_the_key_along(line, unsteady):
    elsewhere = {"Location": "http://127.0.0.1:1/elsewhere\x1b[2J"}
    unsteady.answers = [(302, elsewhere, b""), (502, {"Content-Type": "text/html"}, b"<h1>no</h1>")]
    told = line.run("tenants", "list", code=1).stderr
    assert "answers 302 and redirects to 'http://127.0.0.1:1/elsewhere" in told
    assert "\x1b" not in told
    assert "this is not a gateway's answer" in line.run("tenants", "list", code=1).stderr


def test_connect_asks_the_gateway_that_the_other_commands_use(line, gateway):
    tenant = gateway.add_tenant()
    gateway.add_backend(tenant, "only", ECHO[0], ECHO[1:])
    made = json.loads(line.run("connect", "cursor", "--tenant", tenant).stdout)
    assert made["mcpServers"]["only"]["url"] == f"{gateway.url}/t/{tenant}/only/mcp"
    refused = line.run("connect", "cursor", "--tenant", tenant, "--backend", "other", code=2)
    assert f"there is no 'other': the tenant {tenant} has only" in refused.stderr
    nowhere = line.run("connect", "cursor", "--tenant", "nobody", "--backend", "only", code=2)
    assert "there is no tenant 'nobody'; there are default" in nowhere.stderr
    user = gateway.key(tenant)
    unchecked = line.run("connect", "cursor", "--tenant", tenant, "--backend", "other", TRUNKLINE_KEY=user)
    assert "was not checked" in unchecked.stderr


def test_connect_writes_the_address_that_the_console_shows(start_gateway, tmp_path):
    gateway = start_gateway(PUBLIC_URL="https://gw.example.com/gw")
    gateway.add_backend("default", "only", ECHO[0], ECHO[1:])
    line = Line(tmp_path, gateway.url, gateway.admin_key)
    made = json.loads(line.run("connect", "cursor").stdout)
    assert made["mcpServers"]["only"]["url"] == "https://gw.example.com/gw/t/default/only/mcp"
