"""A password in DATABASE_URL or REDIS_URL is never printed, whole or in parts, however it was written down: neither by
what reads the URL, nor by what connects with it."""

import json
import logging
import os
import subprocess
import sys
from urllib.parse import quote

import pytest

from app import cli
from app.cli.doctor import storage
from app.cluster.redis.survey import survey
from app.errors import GatewayError, SettingsError
from app.settings.settings import Settings
from app.storage import migrate
from app.storage.engine import Database
from tests.integration.gateway import ROOT

PARTS = ("Winter", "Heron", "Quarry")
# Characters that divide a URL, or that one of those who read it decodes.
NASTY = [
    "Winter@Heron", "Winter/Heron", "Winter#Heron", "Winter?Heron=Quarry", "Winter%Heron", "Winter%zzHeron",
    "Winter:Heron", "Winter@Heron/Quarry?x", "1/Winter@Heron", "1/Winter?Heron=Quarry", "[Winter", "Winter]Heron",
    "Winter Heron", "Winter\\Heron", "@Winter", "Winter@", "\u2100@Winter", "Winter&Heron=Quarry", "Winter,Heron",
    "Winter%00Heron", "Winter%", "Winter@Heron@Quarry", "//Winter", "?Winter", "#Winter", "Winter;Heron",
    "Winter'Heron", 'Winter"Heron', "Winter@Heron:1/Quarry", "Winter\tHeron", "Winter@[::1]/Heron", "1/?Winter=Heron",
    "1/Winter", "Winter\u00a0Heron",
]  # fmt: skip
DATABASE = "postgresql://{}@127.0.0.1:1/trunkline"
REDIS = "redis://{}@127.0.0.1:1/0"
KEY = "6b" * 32


def ways(form: str, password: str) -> list[str]:
    """The URL with the password as it is, encoded, alone, and as an option."""
    encoded = quote(password, safe="")
    return [
        form.format("trunkline:" + password),
        form.format("trunkline:" + encoded),
        form.format(":" + password),
        form.format("trunkline") + "?password=" + encoded,
    ]


def environment(**variables: str) -> dict[str, str]:
    return {"TRUNKLINE_SECRET_KEY": KEY, **{f"TRUNKLINE_{name.upper()}": value for name, value in variables.items()}}


async def what_is_said_of_database(url: str, data_dir: str) -> str:
    """By each that is handed DATABASE_URL."""
    try:
        settings = Settings.from_env(environment(database_url=url), data_dir=data_dir)
    except SettingsError as error:
        return f"{error} {error!r}"
    database = Database(settings.database_url)
    said = [repr(settings), repr(database), str(storage.database(settings.database_url))]
    for fails in (migrate.check, migrate.upgrade):
        with pytest.raises(GatewayError) as failure:
            fails(settings.database_url)
        said.append(f"{failure.value!r} {failure.value.__cause__}")
    with pytest.raises(GatewayError) as failure:
        await database.ping()
    await database.aclose()
    return " ".join([*said, f"{failure.value!r} {failure.value.__cause__}"])


async def what_is_said_of_redis(url: str, data_dir: str) -> str:
    try:
        settings = Settings.from_env(environment(redis_url=url), data_dir=data_dir)
    except SettingsError as error:
        return f"{error} {error!r}"
    assert settings.redis_url is not None
    with pytest.raises((GatewayError, ValueError)) as failure:
        await survey(settings.redis_url)
    return f"{settings!r} {failure.value!r}"


@pytest.mark.parametrize("password", NASTY)
async def test_no_part_of_the_databases_password_is_ever_told(password, tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    for url in ways(DATABASE, password):
        said = await what_is_said_of_database(url, str(tmp_path))
        assert said
        out, err = capfd.readouterr()
        assert not [part for part in PARTS if part in said + caplog.text + out + err], (url, said)


@pytest.mark.parametrize("password", NASTY)
async def test_no_part_of_the_password_of_redis_is_ever_told(password, tmp_path, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    for url in ways(REDIS, password):
        said = await what_is_said_of_redis(url, str(tmp_path))
        assert said
        out, err = capfd.readouterr()
        assert not [part for part in PARTS if part in said + caplog.text + out + err], (url, said)


@pytest.mark.parametrize("name", ["database_url", "redis_url"])
@pytest.mark.parametrize("password", ["Winter@Heron", "Winter/Heron", "Winter#Heron", "Winter?Heron", "Winter%Heron"])
def test_a_password_that_is_not_encoded_is_refused_with_how_to_write_it(name, password, tmp_path):
    form = DATABASE if name == "database_url" else REDIS
    with pytest.raises(SettingsError, match=f"^TRUNKLINE_{name.upper()}: .*@ as %40"):
        Settings.from_env(environment(**{name: form.format("u:" + password)}), data_dir=tmp_path)
    encoded = form.format("u:" + quote(password, safe=""))
    assert getattr(Settings.from_env(environment(**{name: encoded}), data_dir=tmp_path), name) == encoded


@pytest.mark.parametrize("name", ["database_url", "secret_key"])
def test_a_secret_in_the_variable_of_its_file_is_not_told_either(name, tmp_path):
    secret = "Winter" * 6
    for text in (secret, f"postgresql://u:{secret}@db/x"):
        with pytest.raises(SettingsError, match=f"^TRUNKLINE_{name.upper()}_FILE: cannot read the file") as refusal:
            Settings.from_env({f"TRUNKLINE_{name.upper()}_FILE": text}, data_dir=tmp_path)
        assert "Winter" not in str(refusal.value)


@pytest.mark.parametrize("name", ["public_url", "node_url"])
def test_an_address_that_is_none_is_not_repeated(name, tmp_path):
    for text in ("http://u:Winter@Heron[", "http://u:Winter\u2100@Heron", "http://u:Winter@Heron"):
        with pytest.raises(SettingsError) as refusal:
            Settings.from_env(environment(**{name: text}), data_dir=tmp_path)
        assert not [part for part in PARTS if part in str(refusal.value)]


@pytest.mark.parametrize("command", [["migrate"], ["doctor", "--json"], ["keys", "list", "--tenant", "default"]])
def test_no_command_tells_the_password(command, monkeypatch, capfd, tmp_path):
    monkeypatch.setenv("TRUNKLINE_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("TRUNKLINE_SECRET_KEY", KEY)
    for password in ("Winter@Heron/Quarry", quote("Winter@Heron/Quarry", safe="")):
        monkeypatch.setenv("TRUNKLINE_DATABASE_URL", DATABASE.format("u:" + password))
        assert cli.main(command) != 0
        said = "".join(capfd.readouterr())
        assert "atabase" in said or "DATABASE" in said
        assert not [part for part in PARTS if part in said]


@pytest.mark.real
@pytest.mark.parametrize("password", ["Winter@Heron/Quarry", quote("Winter@Heron/Quarry", safe="")])
def test_a_node_that_cannot_start_does_not_tell_it(password, tmp_path):
    urls = {"database_url": DATABASE.format("u:" + password), "redis_url": REDIS.format("u:" + password)}
    done = subprocess.run(
        [sys.executable, "-m", "app", "serve", "--port", "0", "--data-dir", str(tmp_path)],
        env={**os.environ, **environment(log_level="debug", **urls)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert "atabase" in done.stderr or "DATABASE" in done.stderr
    assert not [part for part in PARTS if part in json.dumps([done.stdout, done.stderr])]
