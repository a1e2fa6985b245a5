"""Which database a command uses, that only `serve` and `migrate` make one, and whose secret key it is."""

import json
import os
import stat
from pathlib import Path

import pytest

from app import cli
from app.cli import database
from app.cli.parser import make_parser
from app.errors import SettingsError
from app.settings.data_directory import default_data_dir
from app.settings.settings import Settings
from tests.cli.test_cli import run

CREATE = ("keys", "create", "--tenant", "default", "--scope", "platform:admin")
KEY, OTHER = "ab" * 32, "cd" * 32
COMMANDS = [
    CREATE,
    ("keys", "list", "--tenant", "default"),
    ("keys", "revoke", "--tenant", "default", "AAAAAAAA"),
    ("import", "mcp.json", "--apply"),
    ("migrate", "--check"),
    ("secret-key", "check"),
    ("secret-key", "accept"),
]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, of a user who has nothing yet."""
    (tmp_path / "home").mkdir()
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.chdir(tmp_path / "empty")
    return tmp_path


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_makes_no_database_and_says_what_to_do(capsys, elsewhere, words):
    document = {"mcpServers": {"notes": {"command": "notes"}}}
    (elsewhere / "empty/mcp.json").write_text(json.dumps(document))
    assert cli.main(words) == 1
    out, err = capsys.readouterr()
    place = elsewhere / "home/.local/share/trunkline/trunkline.db"
    assert out == ""
    assert f"there is no database at {place}" in err
    assert "trunkline serve" in err
    assert "--data-dir" in err
    assert list((elsewhere / "home").iterdir()) == []
    assert [each.name for each in (elsewhere / "empty").iterdir()] == ["mcp.json"]


def test_connect_without_a_database_asks_for_the_backend(capsys, elsewhere):
    assert cli.main(["connect", "cursor"]) == 2
    assert (
        "Give --backend, more than once for several; those of this gateway are not known here"
        in capsys.readouterr().err
    )
    assert list((elsewhere / "home").iterdir()) == []


def test_a_look_at_a_file_needs_no_database(capsys, elsewhere):
    (elsewhere / "mcp.json").write_text(json.dumps({"mcpServers": {"notes": {"command": "notes"}}}))
    assert cli.main(["import", str(elsewhere / "mcp.json")]) == 0
    assert "it does not exist yet" in capsys.readouterr().err
    assert list((elsewhere / "home").iterdir()) == []


def test_every_folder_has_the_same_database_and_each_command_says_which(elsewhere, monkeypatch):
    place = elsewhere / "home/.local/share/trunkline"
    made = run("migrate")
    assert (made.returncode, made.stdout) == (0, "the database is up to date\n")
    assert {each.name for each in place.iterdir()} >= {"trunkline.db", "secret_key"}
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    (elsewhere / "other").mkdir()
    monkeypatch.chdir(elsewhere / "other")
    key = run(*CREATE)
    assert key.returncode == 0
    assert key.stdout.startswith("tlk_")
    assert key.stderr.splitlines()[0] == f"trunkline: database {place}/trunkline.db (the default)"
    listed = run("keys", "list", "--tenant", "default", "--json")
    assert json.loads(listed.stdout)[0]["id"] == key.stdout[4:12]
    assert list((elsewhere / "other").iterdir()) == []


def test_a_data_directory_of_an_earlier_version_stays_in_use_and_that_is_said(elsewhere, capsys, monkeypatch):
    old = elsewhere / "empty/trunkline-data"
    assert cli.main(["migrate", "--data-dir", str(old)]) == 0
    capsys.readouterr()
    assert cli.main([*CREATE]) == 0
    aside = "in the working directory, which takes precedence over the default"
    assert capsys.readouterr().err.splitlines()[0] == f"trunkline: database {old}/trunkline.db ({aside})"
    assert not (elsewhere / "home/.local").exists()


def test_the_default_is_the_users_own(tmp_path):
    home = {"HOME": str(tmp_path)}
    assert default_data_dir(home) == tmp_path / ".local/share/trunkline"
    assert default_data_dir({**home, "XDG_DATA_HOME": "/srv/data"}) == Path("/srv/data/trunkline")
    assert default_data_dir({**home, "XDG_DATA_HOME": "data"}) == tmp_path / ".local/share/trunkline"


@pytest.mark.parametrize("home", ["/nonexistent", "relative", "/dev/null"])
def test_without_a_home_the_data_directory_must_be_named(home):
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_DATA_DIR: must be set: this user has no home directory"):
        Settings.from_env({"HOME": home}, make=False)


def test_somebody_elses_folder_is_not_taken(elsewhere, monkeypatch):
    (elsewhere / "empty/trunkline-data").mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(SettingsError, match="belongs to another user"):
        Settings.from_env({}, make=False)


def test_reading_the_settings_makes_nothing(elsewhere):
    settings = Settings.from_env({"HOME": str(elsewhere / "home")}, make=False)
    assert settings.secret_key == b""
    assert list((elsewhere / "home").iterdir()) == []


def test_variables_of_the_command_line_are_no_misspelt_settings(tmp_path):
    environ = {"TRUNKLINE_URL": "http://x", "TRUNKLINE_KEY": "k", "TRUNKLINE_KEY_FILE": "f"}
    Settings.from_env({**environ, "TRUNKLINE_DATA_DIR": str(tmp_path)})


def test_without_its_secret_key_no_key_is_made(elsewhere, capsys):
    cli.main(["migrate"])
    (elsewhere / "home/.local/share/trunkline/secret_key").unlink()
    capsys.readouterr()
    assert cli.main([*CREATE]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "there is a database, but no secret key" in err
    assert not (elsewhere / "home/.local/share/trunkline/secret_key").exists()


def test_a_schema_that_is_not_ours_is_not_changed(elsewhere, capsys):
    (elsewhere / "home/.local/share/trunkline").mkdir(parents=True)
    (elsewhere / "home/.local/share/trunkline/trunkline.db").touch()
    assert cli.main([*CREATE]) == 1
    assert "Run `trunkline migrate`" in capsys.readouterr().err


# --- whose secret key


@pytest.fixture
def claimed(monkeypatch, capsys) -> None:
    """A database that knows its key."""
    monkeypatch.setenv("TRUNKLINE_SECRET_KEY", KEY)
    assert cli.main(["migrate"]) == 0
    assert cli.main([*CREATE]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("words", [CREATE, ("keys", "list", "--tenant", "default"), ("connect", "cursor")])
def test_another_secret_key_is_refused(claimed, monkeypatch, capsys, words):
    monkeypatch.setenv("TRUNKLINE_SECRET_KEY", OTHER)
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "TRUNKLINE_SECRET_KEY: the database at" in err
    assert "`trunkline secret-key accept`" in err
    assert KEY not in err
    assert OTHER not in err


def test_a_change_can_be_meant_and_taken_back(claimed, monkeypatch, capsys):
    assert cli.main(["secret-key", "check"]) == 0
    monkeypatch.setenv("TRUNKLINE_SECRET_KEY", OTHER)
    assert cli.main(["secret-key", "check"]) == 1
    assert cli.main(["secret-key", "accept"]) == 0
    assert "worthless" in capsys.readouterr().out
    assert cli.main(["secret-key", "check"]) == 0
    assert cli.main([*CREATE]) == 0
    assert cli.main(["secret-key", "accept"]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    monkeypatch.setenv("TRUNKLINE_SECRET_KEY", KEY)
    assert cli.main([*CREATE]) == 2
    assert cli.main(["secret-key", "accept"]) == 0
    assert cli.main([*CREATE]) == 0


def test_doctor_shows_it(claimed, monkeypatch, capsys):
    monkeypatch.setenv("TRUNKLINE_PORT", "0")

    def secret_key() -> dict[str, str]:
        cli.main(["doctor", "--json"])
        checks = json.loads(capsys.readouterr().out)["checks"]
        return next(check for check in checks if check["name"] == "secret key")

    assert secret_key()["detail"] == "from TRUNKLINE_SECRET_KEY; the database was made with it"
    monkeypatch.setenv("TRUNKLINE_SECRET_KEY", OTHER)
    wrong = secret_key()
    assert (wrong["state"], wrong["detail"]) == (
        "missing",
        "from TRUNKLINE_SECRET_KEY; the database was made with another one",
    )
    assert "secret-key accept" in wrong["advice"]


def test_doctor_misses_a_key_that_was_lost(elsewhere, monkeypatch, capsys):
    monkeypatch.setenv("TRUNKLINE_PORT", "0")
    cli.main(["migrate"])
    (elsewhere / "home/.local/share/trunkline/secret_key").unlink()
    capsys.readouterr()
    assert cli.main(["doctor"]) == 1
    assert "there is a database, but its key is not in" in capsys.readouterr().out
    assert cli.main(["serve"]) == 2
    assert "there is a database, but its key is not in" in capsys.readouterr().err


def test_why_a_directory_was_chosen_is_not_said_where_somebody_named_it(elsewhere, monkeypatch, capsys):
    monkeypatch.setenv("TRUNKLINE_DATA_DIR", str(elsewhere / "named"))
    options = make_parser().parse_args(["keys", "list", "--tenant", "default"])
    database.say_which(options, database.settings_only_read(options))
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"trunkline: database {elsewhere}/named/trunkline.db; it does not exist yet"
    )
