"""The command `trunkline`: real processes where it matters, `main()` elsewhere."""

import asyncio
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from app import __version__, cli
from app.auth.api_keys import ApiKeys, KeyMaker
from app.settings.settings import Settings
from app.storage.access.api_keys import ApiKeyRepository
from app.storage.audit_queries import AuditLog, Which
from app.storage.engine import Database
from tests.databases import migrate


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One with a database, as the gateway leaves it."""
    monkeypatch.setenv("TRUNKLINE_DATA_DIR", str(tmp_path / "data"))
    migrate(Settings.from_env(os.environ).database_url)
    return tmp_path / "data"


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A real process, as the console script starts it."""
    command = [str(Path(sys.executable).with_name("trunkline")), *arguments]
    return subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False
    )


async def verify(text: str) -> frozenset[str]:
    """The scopes of the key, as a gateway on the same data directory would see them."""
    settings = Settings.from_env(os.environ)
    database = Database(settings.database_url)
    try:
        principal = await ApiKeys(ApiKeyRepository(database), KeyMaker(settings.secret_key)).verify(text)
        return principal.scopes
    finally:
        await database.aclose()


async def test_the_first_administrators_key_comes_from_a_fresh_database(data_dir):
    done = run("keys", "create", "--tenant", "default", "--scope", "platform:admin", "--json")
    assert (done.returncode, done.stderr) == (0, f"trunkline: database {data_dir}/trunkline.db\n")
    answer = json.loads(done.stdout)
    assert set(answer) == {"id", "key", "tenant", "scopes", "expires_at"}
    assert (answer["tenant"], answer["scopes"]) == ("default", ["platform:admin"])
    assert await verify(answer["key"]) == {"platform:admin"}


def test_without_json_the_key_stands_alone_on_stdout(capsys):
    assert cli.main(["keys", "create", "--tenant", "default", "--scope", "mcp:connect", "--expires-days", "1"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("tlk_")
    assert out.count("\n") == 1
    assert out.strip() not in err
    assert f"{datetime.now(UTC) + timedelta(days=1):%Y-%m-%d}" in err


def test_keys_are_listed_and_revoked(capsys):
    create = ["keys", "create", "--tenant", "default", "--json", "--name", "ci", "--scope"]
    made = []
    for scope in ("mcp:connect:echo", "tenant:read"):
        assert cli.main([*create, scope]) == 0
        made.append(json.loads(capsys.readouterr().out))
    assert cli.main(["keys", "revoke", "--tenant", "default", made[0]["id"]]) == 0
    capsys.readouterr()
    assert cli.main(["keys", "list", "--tenant", "default", "--json"]) == 0
    listed = {key["id"]: key for key in json.loads(capsys.readouterr().out)}
    assert set(listed) == {each["id"] for each in made}
    assert listed[made[0]["id"]]["revoked_at"] is not None
    assert listed[made[1]["id"]]["revoked_at"] is None
    assert cli.main(["keys", "list", "--tenant", "default"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:5] == ["id", "name", "enabled", "scopes", "expires_at"]
    assert len(lines) == 2
    assert any(made[0]["id"] in line and "mcp:connect:echo" in line for line in lines)
    assert not any(each["key"] in str(lines) for each in made)


async def acts() -> list[tuple[str, dict[str, tuple[object, object]]]]:
    """What the audit trail says, oldest first."""
    database = Database(Settings.from_env(os.environ).database_url)
    try:
        found = [entry.act for entry in reversed(await AuditLog(database).list(Which(None), limit=9))]
    finally:
        await database.aclose()
    return [(act.action, {each.member: (each.old, each.new) for each in act.changes}) for act in found]


def test_the_trail_says_what_was_changed_and_a_second_revocation_changes_nothing(capsys):
    assert cli.main(["keys", "create", "--tenant", "default", "--json", "--name", "ci", "--scope", "tenant:read"]) == 0
    made = json.loads(capsys.readouterr().out)
    for _ in range(2):
        assert cli.main(["keys", "revoke", "--tenant", "default", made["id"]]) == 0
    (create, created), (revoke, revoked) = asyncio.run(acts())
    assert (create, revoke) == ("key.create", "key.revoke")
    assert (created["name"], created["scopes"]) == ((None, "ci"), (None, ["tenant:read"]))
    assert made["key"] not in str(created)
    assert list(revoked) == ["revoked_at"]
    was, is_now = revoked["revoked_at"]
    assert was is None
    assert is_now


def test_long_lists_are_whole(capsys):
    for _ in range(5):
        cli.main(["keys", "create", "--tenant", "default", "--scope", "mcp:connect"])
    capsys.readouterr()
    cli.main(["keys", "list", "--tenant", "default"])
    assert len(capsys.readouterr().out.splitlines()) == 1 + 5


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["keys", "create", "--tenant", "nobody", "--scope", "mcp:connect"], 1, "Tenant not found"),
        (["keys", "list", "--tenant", "nobody"], 1, "Tenant not found"),
        (["keys", "revoke", "--tenant", "default", "AAAAAAAA"], 1, "Key not found"),
        (["keys", "create", "--tenant", "default", "--scope", "mcp:*"], 2, "there is no scope 'mcp:*'"),
        (["keys", "create", "--tenant", "acme", "--scope", "platform:admin"], 2, "only keys of the tenant default"),
        (["serve", "--port", "x"], 2, "TRUNKLINE_PORT: 'x' is not a whole number"),
        (["serve", "--nodes", "2"], 2, "TRUNKLINE_REDIS_URL: must be set for --nodes"),
    ],
)
def test_a_failure_is_one_line_and_an_exit_code(capsys, arguments, code, message):
    assert cli.main(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("trunkline: database ")]
    assert len(lines) == 1
    assert lines[0].startswith("trunkline: ")
    assert message in lines[0]


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["keys"],
        ["fly"],
        ["serve", "--nodes", "0"],
        ["serve", "--nodes", "65"],
        ["serve", "--nodes", "two"],
        ["serve", "--nodes", "2", "--member", "1"],
        ["keys", "create", "--tenant", "default"],
        ["keys", "create", "--tenant", "UP", "--scope", "mcp:connect"],
        ["keys", "create", "--tenant", "default", "--scope", "mcp:connect", "--expires-days", "0"],
        ["keys", "create", "--tenant", "default", "--scope", "mcp:connect", "--name", "a\nb"],
    ],
)
def test_wrong_usage_is_exit_code_2(capsys, arguments):
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: trunkline" in capsys.readouterr().err


def test_migrate_checks_first_and_then_does(capsys, data_dir):
    other = ["--data-dir", str(data_dir / "other")]
    assert cli.main(["migrate", "--check", *other]) == 1
    assert "`trunkline migrate` create one" in capsys.readouterr().err
    assert not (data_dir / "other").exists()
    assert cli.main(["migrate", *other]) == 0
    assert cli.main(["migrate", "--check", *other]) == 0
    assert (data_dir / "other/trunkline.db").exists()


def test_wrong_settings_are_one_line_and_exit_code_2_in_a_real_process():
    done = run("serve", TRUNKLINE_PROT="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "trunkline: TRUNKLINE_PROT: there is no such setting; did you mean TRUNKLINE_PORT?\n"


def test_python_dash_m_app_is_the_same_command():
    command = [sys.executable, "-m", "app", "version"]
    done = subprocess.run(command, cwd=Path(cli.__file__).parents[2], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"trunkline {__version__}\n", "")


def test_help_has_examples_and_every_scope(capsys):
    for arguments, expected in ((["--help"], "trunkline serve --demo"), (["keys", "create", "--help"], "tenant:admin")):
        with pytest.raises(SystemExit) as caught:
            cli.main(arguments)
        assert caught.value.code == 0
        assert expected in capsys.readouterr().out


# --- what a shell can do to a command


def shell(line: str, *, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """A line for bash in which `$T` is the command."""
    program = str(Path(sys.executable).with_name("trunkline"))
    env = {**os.environ, "T": program, **environ}
    return subprocess.run(
        ["bash", "-c", line], env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("$T version >/dev/full", "No space left on device"),
        ("$T keys create --help >/dev/full", "No space left on device"),
        ("$T version >&-", "it is closed"),
        ("$T keys list --tenant default --json >&-", "it is closed"),
    ],
)
def test_stdout_that_takes_nothing_is_one_line_and_exit_code_1(line, why):
    done = shell(line)
    said = [each for each in done.stderr.splitlines() if not each.startswith("trunkline: database ")]
    assert (done.returncode, said) == (1, [f"trunkline: cannot write to stdout: {why}"])


@pytest.mark.parametrize("where", [">/dev/full", ">&-", "--json >/dev/full"])
def test_a_key_that_cannot_be_shown_is_named_with_how_to_remove_it(where):
    done = shell(f"$T keys create --tenant default --scope mcp:connect {where}")
    assert (done.returncode, done.stdout) == (1, "")
    line = done.stderr.splitlines()[-1]
    made = json.loads(run("keys", "list", "--tenant", "default", "--json").stdout)[0]["id"]
    assert line.startswith(f"trunkline: the key {made} was made, and cannot be shown: stdout: ")
    assert f"trunkline keys revoke {made} --tenant default" in line
    assert "Traceback" not in done.stderr


def test_without_stderr_nothing_else_is_on_stdout():
    done = shell("$T keys list --tenant default --json 2>&-")
    assert (done.returncode, done.stdout) == (0, "[]\n")


def test_names_that_stdout_has_no_letters_for_are_one_line(data_dir):
    assert cli.main(["keys", "create", "--tenant", "default", "--scope", "mcp:connect", "--name", "mü"]) == 0
    done = run("keys", "list", "--tenant", "default", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == [
        "trunkline: cannot write to stdout: ascii has no '\\xfc' (set PYTHONIOENCODING=utf-8)"
    ]


def test_an_argument_that_is_not_text_is_one_line_and_exit_code_2():
    done = shell("$T keys list --tenant $'a\\xfb'")
    assert (done.returncode, done.stderr) == (2, "trunkline: the argument 'a\\udcfb' is not UTF-8 text\n")


def test_a_working_directory_that_is_gone_matters_only_to_relative_paths(tmp_path):
    gone = 'mkdir gone && cd gone && rmdir "$PWD" && $T keys list --tenant default'
    assert shell(gone, cwd=tmp_path).returncode == 0
    done = shell(f"{gone} --data-dir here", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "trunkline: TRUNKLINE_DATA_DIR: the working directory was removed: give an absolute path"
    )
    done = shell(f"unset TRUNKLINE_DATA_DIR; {gone}", cwd=tmp_path, HOME=str(tmp_path))
    assert done.returncode == 1
    assert "there is no database at" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("module", ["app.cli.parser", "sqlalchemy", "app.errors"])
def test_ctrl_c_while_modules_are_imported_is_exit_code_130_without_a_word(module):
    program = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests may ignore it, as with `&` in a script
class AtImport:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, AtImport())
from app.cli import main
sys.exit(main())
"""
    command = [sys.executable, "-c", program, "keys", "list", "--tenant", "default"]
    done = subprocess.run(
        command, cwd=Path(cli.__file__).parents[2], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
