"""Where a node gets packages: its settings, else the configuration of npm, uv and pip there."""

from pathlib import Path

import pytest

from app.backends.packages.registries import MAX_OTHER_HOSTS, RegistryRule, of_pypi
from app.jail.egress.outgoing import Outgoing
from app.jail.egress.refusals import Refused
from app.text.public_addresses import split_authority


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody's, on a machine without configuration of its own."""
    real = open

    def without_etc(path, *args, **options):
        if str(path).startswith("/etc/"):
            raise FileNotFoundError(path)
        return real(path, *args, **options)

    monkeypatch.setattr("builtins.open", without_etc)
    return tmp_path


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_setting_counts_and_nothing_else(home):
    put(home / ".config/uv/uv.toml", 'index-url = "https://other.example/index"\n')
    source = of_pypi("https://u:p@pkg.example:8443/index", {"UV_INDEX": "https://more.example/x"}, home)
    assert source.places == {("pkg.example", 8443)}
    assert source.env == {"UV_DEFAULT_INDEX": "https://u:p@pkg.example:8443/index", "UV_NO_CONFIG": "1"}
    assert (source.files, source.has_default) == ({}, False)


def test_what_uv_is_configured_to_use_is_handed_to_it(home):
    text = (
        '[[index]]\nurl = "http://pkg.example/index"\ndefault = true\n[pip]\nfind-links = ["https://more.example/x"]\n'
    )
    put(home / ".config/uv/uv.toml", text)
    source = of_pypi(None, {"UV_INDEX": "own=https://own.example/x", "UV_OFFLINE": "1"}, home)
    assert source.places == {("pkg.example", 80), ("more.example", 443), ("own.example", 443)}
    assert source.files == {"uv.toml": text}
    assert source.env == {"UV_INDEX": "own=https://own.example/x", "UV_CONFIG_FILE": "{files}/uv.toml"}
    assert not source.has_default


DEFAULT = "https://pkg.example/index"


def test_else_what_pip_is_configured_to_use(home, tmp_path):
    own = tmp_path / "index" / "simple"
    own.mkdir(parents=True)
    text = f"[global]\nindex-url = {DEFAULT}\nextra-index-url = file://{own}\n"
    put(home / ".config/pip/pip.conf", text)
    source = of_pypi(None, {"PIP_FIND_LINKS": "/nowhere"}, home)
    assert source.places == {("pkg.example", 443)}
    assert source.read == (str(tmp_path / "index"),)
    assert source.env == {
        "UV_DEFAULT_INDEX": DEFAULT, "UV_INDEX": f"file://{own}",
        "UV_FIND_LINKS": "/nowhere", "UV_INDEX_STRATEGY": "unsafe-best-match", "UV_NO_CONFIG": "1",
    }  # fmt: skip


def test_without_any_uv_has_a_default_of_its_own(home):
    source = of_pypi(None, {}, home)
    assert (source.places, source.has_default) == (frozenset(), True)
    assert source.also(["pkg.example:443"]).places == {("pkg.example", 443)}


@pytest.mark.parametrize("broken", ["[", "[global]\nindex-url", "\0", "[[index]]\nurl = 3\n"])
def test_a_configuration_that_cannot_be_read_is_none(home, broken):
    put(home / ".config/uv/uv.toml", broken)
    put(home / ".config/pip/pip.conf", broken)
    assert of_pypi(None, {}, home).places == frozenset()


async def permits(rule: RegistryRule, where: str) -> bool:
    host, port = split_authority(where)
    try:
        await rule.permit(Outgoing("packages", "packages", "", host, port or 0))
    except Refused:
        return False
    return True


async def test_only_registries_are_reached_and_a_few_hosts_that_they_name():
    rule = RegistryRule([("127.0.0.1", 4873), ("pkg.example", 443)])
    assert await permits(rule, "127.0.0.1:4873")
    for where in ("127.0.0.1:4874", "127.0.0.1:443", "pkg.example:80", "other.example:80", "169.254.169.254:80"):
        assert not await permits(rule, where)
    for number in range(MAX_OTHER_HOSTS):
        assert await permits(rule, f"files{number}.example:443")
    assert not await permits(rule, "one-more.example:443")
    assert await permits(rule, "files0.example:443")
    assert await permits(rule, "pkg.example:443")
