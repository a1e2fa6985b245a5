"""Settings: each value is checked, each error is one line that names the variable."""

import base64
import re
import threading
from pathlib import Path

import pytest

from app.cluster.redis import _address as redis_address
from app.errors import SettingsError
from app.settings import _urls as urls
from app.settings._urls import is_postgresql
from app.settings.hosts import is_loopback, is_wildcard
from app.settings.settings import NAMES, Settings
from tests.certificates import self_signed

KEY = "5e" * 32


def read(tmp_path: Path, **environ: str) -> Settings:
    names = {f"TRUNKLINE_{name.upper()}": value for name, value in environ.items()}
    return Settings.from_env({"TRUNKLINE_DATA_DIR": str(tmp_path / "data"), **names})


def test_the_defaults_are_those_of_the_design(tmp_path):
    settings = read(tmp_path)
    assert (settings.host, settings.port, settings.log_level) == ("127.0.0.1", 8080, "info")
    assert (settings.drain_s, settings.pool_wait_s, settings.keepalive_s) == (30, 30, 15)
    assert (settings.stream_after_s, settings.sandbox) == (15, "auto")
    assert settings.container_engine is None
    assert settings.metrics_per_backend == 0
    assert (settings.max_sessions, settings.max_body_bytes, settings.max_line_bytes) == (10_000, 4 << 20, 16 << 20)
    assert (settings.max_connections, settings.max_connections_per_address) == (10_000, 256)
    assert settings.max_processes >= 8
    assert (settings.public_url, settings.redis_url, settings.node_url, settings.drain_delay_s) == (None, None, None, 0)
    assert settings.allowed_hosts == settings.allowed_origins == settings.trusted_proxies == ()
    assert settings.database_url == f"sqlite:///{tmp_path}/data/trunkline.db"


def test_a_data_directory_and_a_secret_key_are_made_once_and_for_the_owner_only(tmp_path):
    first, second = read(tmp_path), read(tmp_path)
    assert first.secret_key == second.secret_key
    assert len(first.secret_key) == 32
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "data/secret_key").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["secret_key"]


def test_two_first_starts_at_once_agree_on_the_secret_key(tmp_path):
    keys: list[bytes] = []
    threads = [threading.Thread(target=lambda: keys.append(read(tmp_path).secret_key)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 8
    assert len(set(keys)) == 1


@pytest.mark.parametrize(
    "text",
    [KEY, KEY.upper(), base64.b64encode(bytes.fromhex(KEY)).decode(), base64.urlsafe_b64encode(b"\xff" * 32).decode()],
)
def test_a_secret_key_is_hex_or_base64(tmp_path, text):
    assert len(read(tmp_path, secret_key=text).secret_key) == 32


@pytest.mark.parametrize("text", ["5e" * 31, "no!" * 20, "c2hvcnQ="])
def test_a_wrong_secret_key_is_refused_without_being_shown(tmp_path, text):
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_SECRET_KEY: ") as caught:
        read(tmp_path, secret_key=text)
    assert text not in str(caught.value)


def test_secrets_can_come_from_files_and_the_repr_has_none(tmp_path):
    path = tmp_path / "key"
    path.write_text(KEY + "\n")
    settings = read(tmp_path, secret_key_file=str(path))
    assert settings.secret_key == bytes.fromhex(KEY)
    assert "secret_key" not in repr(settings)
    assert "database_url" not in repr(settings)
    assert "redis_url" not in repr(settings)


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"secret_key": KEY, "secret_key_file": "x"}, "not both"),
        ({"secret_key_file": "/nonexistent/key"}, "cannot read '/nonexistent/key': No such file"),
        ({"secret_key_file": "/dev/null"}, "is empty"),
        ({"redis_url_file": "/dev/null"}, "is empty"),
        ({"node_url_file": "/dev/null"}, "there is no such setting"),
        ({"host_file": "/dev/null"}, "there is no such setting"),
    ],
)
def test_file_twins_exist_for_secrets_and_must_be_readable(tmp_path, environ, problem):
    with pytest.raises(SettingsError, match=re.escape(problem)):
        read(tmp_path, **environ)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("host", "not a host"),
        ("host", "http://x"),
        ("port", "abc"),
        ("port", "65536"),
        ("port", "-1"),
        ("port", "80.0"),
        ("port", "9" * 5000),
        ("homes_dir", "~nobody-of-this-name/homes"),
        ("tls_cert", "~nobody-of-this-name/cert.pem"),
        ("public_url", "gw.example.com"),
        ("public_url", "ftp://gw.example.com"),
        ("public_url", "https://user:pass@gw.example.com"),
        ("public_url", "https://gw.example.com/?a=b"),
        *[("public_url", f"https://gw.example.com:{port}") for port in ("0", "65536", "99999", "x")],
        ("allowed_hosts", "gw.example.com:99999"),
        ("allowed_hosts", "good.example.com,*.example.com"),
        ("allowed_hosts", "https://example.com"),
        ("allowed_origins", "example.com"),
        ("allowed_origins", "https://example.com/path"),
        ("allowed_origins", "*"),
        ("allowed_origins", "null"),
        ("trusted_proxies", "10.0.0.1/8"),
        ("trusted_proxies", "proxy.local"),
        ("database_url", "postgresql://u:hunter2@db"),
        ("database_url", "postgresql:///x"),
        ("database_url", "postgresql://u:hunter2@db:port/x"),
        ("database_url", "postgresql://u:hunter2@[::1/x"),
        ("database_url", "postgresql://u:hunter2@db/x y"),
        ("database_url", "mysql://u:hunter2@db/x"),
        ("database_url", "sqlite://"),
        ("database_url", "sqlite:///:memory:"),
        ("redis_url", "hunter2"),
        ("redis_url", "http://:hunter2@redis"),
        ("redis_url", "redis://"),
        ("redis_url", "redis://:hunter2@"),
        ("redis_url", "redis://:hunter2@redis:port"),
        ("redis_url", "redis://:hunter2@redis:0"),
        ("redis_url", "redis://:hunter2@redis:65536"),
        ("redis_url", "redis://:hunter2@redis/zero"),
        ("redis_url", "redis://:hunter2@one,two/0"),
        ("redis_url", "redis://:hunter 2@redis/0"),
        ("redis_url", "redis://:hunter2#@redis/0"),
        ("redis_url", "redis+sentinel://:hunter2@one:26379"),
        ("redis_url", "redis+sentinel://:hunter2@one:26379,/main"),
        ("redis_url", "rediss+sentinel://:hunter2@one:26379/main/x"),
        ("redis_url", "unix://:hunter2@"),
        ("redis_url", "unix://redis.sock"),
        ("redis_url", "redis://:hunter2@redis/0?socket_timeout=5"),
        ("outbound_proxy", "me:hunter2@proxy:3128"),
        ("outbound_proxy", "socks5://me:hunter2@proxy:1080"),
        ("outbound_proxy", "http://me:hunter2@"),
        ("outbound_proxy", "http://me:hunter2@proxy:port"),
        ("outbound_proxy", "http://me:hunter2@proxy/path"),
        ("outbound_proxy", "http://me:hunter@2@proxy"),
        ("outbound_no_proxy", "*.corp.example"),
        ("outbound_no_proxy", "http://corp.example"),
        ("outbound_ca", "/nonexistent/ca.pem"),
        ("outbound_ca", "/dev/null"),
        ("outbound_ca", __file__),
        ("node_name", "Gateway-1"),
        ("node_name", "gateway.1"),
        ("node_name", "-gateway"),
        ("node_name", "a" * 64),
        ("node_url", "10.0.0.5:8080"),
        ("node_url", "ftp://10.0.0.5"),
        ("node_url", "http://u:hunter2@10.0.0.5"),
        ("node_url", "http://10.0.0.5/path"),
        ("node_url", "http://10.0.0.5?a=b"),
        ("node_url", "http://10.0.0.5:0"),
        ("node_url", "http://10.0.0.5:99999"),
        ("node_url", "http://0.0.0.0:8080"),
        ("node_url", "http://[::]:8080"),
        ("node_url", "http://[::1"),
        ("log_level", "loud"),
        ("sandbox", "off"),
        ("container_engine", "podman run"),
        ("container_engine", "-v"),
        ("drain_s", "0"),
        ("drain_s", "-1"),
        ("drain_s", "inf"),
        ("drain_s", "nan"),
        ("drain_delay_s", "-1"),
        ("drain_delay_s", "inf"),
        ("drain_delay_s", "soon"),
        ("pool_wait_s", "soon"),
        ("keepalive_s", "1e999"),
        ("stream_after_s", "0"),
        ("max_processes", "0"),
        ("metrics_per_backend", "all"),
        ("max_sessions", "1e3"),
        ("max_body_bytes", "4MiB"),
        ("max_line_bytes", "1"),
    ],
)
def test_a_wrong_value_is_one_clear_line(tmp_path, name, text):
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, **{name: text})
    message = str(caught.value)
    assert message.startswith(f"TRUNKLINE_{name.upper()}: ")
    assert "\n" not in message
    assert len(message) < 400
    assert "hunter2" not in message


def test_lists_urls_and_hosts_are_taken_in_their_plain_form(tmp_path):
    settings = read(
        tmp_path,
        host="::1",
        public_url="https://GW.example.com:8443/gateway/",
        allowed_hosts=" Gw.example.com , [::1]:8080 ,",
        allowed_origins="https://app.example.com,vscode-webview://abc",
        trusted_proxies="10.0.0.0/8,::1",
        database_url="sqlite+aiosqlite:////var/lib/x.db",
    )
    assert settings.host == "::1"
    assert settings.public_url == "https://GW.example.com:8443/gateway"
    assert settings.allowed_hosts == ("gw.example.com", "[::1]:8080")
    assert settings.allowed_origins == ("https://app.example.com", "vscode-webview://abc")
    assert [str(network) for network in settings.trusted_proxies] == ["10.0.0.0/8", "::1/128"]
    assert settings.database_url == "sqlite:////var/lib/x.db"


def test_what_leads_outward_is_taken_in_its_plain_form(tmp_path):
    certificate, key = self_signed(tmp_path)
    both = tmp_path / "ca.pem"
    both.write_text(f"a remark\n{certificate.read_text()}")
    settings = read(
        tmp_path,
        outbound_proxy="http://me:p%40ss@Proxy.example:3128/",
        outbound_no_proxy=" .Corp.example, 10.0.0.0/8,::1 ",
        outbound_ca=str(both),
    )
    assert settings.outbound_proxy == "http://me:p%40ss@Proxy.example:3128"
    assert [str(each) for each in settings.outbound_no_proxy] == ["corp.example", "10.0.0.0/8", "::1/128"]
    assert settings.outbound_ca == certificate.read_text()
    assert "p%40ss" not in repr(settings)
    both.write_text(certificate.read_text() + key.read_text())
    with pytest.raises(SettingsError, match="has a private key in it"):
        read(tmp_path, outbound_ca=str(both))


def test_an_unknown_name_is_an_error_with_the_nearest_one_suggested(tmp_path):
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_ALLOWED_HOST: .*did you mean TRUNKLINE_ALLOWED_HOSTS\?$"):
        read(tmp_path, allowed_host="x")
    with pytest.raises(SettingsError, match=r"allowed are .*DATA_DIR"):
        read(tmp_path, zzzzzzzz="x")


def test_names_of_scripts_and_tests_are_left_alone(tmp_path):
    read(tmp_path, bin="/usr/bin/trunkline", redis_bin="x", test_seed="1")


def test_an_empty_variable_is_not_set(tmp_path):
    assert read(tmp_path, port="", secret_key="").port == 8080


def test_an_address_for_others_needs_a_secret_key_of_its_own(tmp_path):
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_SECRET_KEY: must be set .*0\.0\.0\.0"):
        read(tmp_path, host="0.0.0.0")
    assert read(tmp_path, host="0.0.0.0", secret_key=KEY).host == "0.0.0.0"


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.8.0.1", True), ("::1", True), ("LOCALHOST", True), ("a.b", False)]
)
def test_loopback(host, loopback):
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_postgresql_server_needs_a_secret_key_of_its_own(tmp_path, scheme):
    url = f"{scheme}://u:p@db:5432/trunkline?sslmode=require"
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_SECRET_KEY: must be set .*PostgreSQL"):
        read(tmp_path, database_url=url)
    settings = read(tmp_path, database_url=url, secret_key=KEY)
    assert settings.database_url == "postgresql://u:p@db:5432/trunkline?sslmode=require"
    assert is_postgresql(settings.database_url)
    assert not is_postgresql(read(tmp_path).database_url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://redis",
        "redis://127.0.0.1:6379/0",
        "redis://user:p%40ss@redis.example.com:6380/15?ssl_cert_reqs=none",
        "rediss://[::1]:6379/1",
        "redis+sentinel://:secret@one:26379,two:26379,three/main/2",
        "rediss+sentinel://one/main",
        "unix:///run/redis/redis.sock?db=1",
        "unix://:secret@/run/redis.sock",
    ],
)
def test_redis_has_these_forms_and_needs_a_secret_key_of_its_own(tmp_path, url):
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_SECRET_KEY: must be set .*REDIS_URL") as caught:
        read(tmp_path, redis_url=url)
    assert url not in str(caught.value)
    assert read(tmp_path, redis_url=url, secret_key=KEY).redis_url == url


def test_settings_and_connections_know_the_same_options_of_redis():
    assert urls.REDIS_OPTIONS == redis_address.OPTIONS


@pytest.mark.parametrize(
    ("url", "plain"),
    [
        ("http://10.0.0.5:8080/", "http://10.0.0.5:8080"),
        ("https://Node-1.internal", "https://node-1.internal"),
        ("http://[FD00::5]:8080", "http://[fd00::5]:8080"),
    ],
)
def test_a_nodes_address_is_kept_in_its_plain_form(tmp_path, url, plain):
    assert read(tmp_path, node_url=url).node_url == plain


@pytest.mark.parametrize(
    ("host", "wildcard"), [("0.0.0.0", True), ("::", True), ("127.0.0.1", False), ("::1", False), ("a.b", False)]
)
def test_wildcard_addresses_name_no_place(host, wildcard):
    assert is_wildcard(host) is wildcard


def test_overrides_win_are_checked_too_and_none_is_no_override(tmp_path):
    environ = {"TRUNKLINE_PORT": "1", "TRUNKLINE_DATA_DIR": str(tmp_path)}
    settings = Settings.from_env(environ, port=2, host=None, secret_key=b"\1" * 32, allowed_hosts=("a", "b"))
    assert (settings.port, settings.host, settings.secret_key) == (2, "127.0.0.1", b"\1" * 32)
    assert settings.allowed_hosts == ("a", "b")
    with pytest.raises(SettingsError, match="TRUNKLINE_PORT"):
        Settings.from_env(environ, port="x")


def test_a_data_directory_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_DATA_DIR: cannot make"):
        Settings.from_env({}, data_dir=tmp_path / "file")


def test_a_kept_secret_key_that_is_broken_is_not_replaced(tmp_path):
    (tmp_path / "secret_key").write_text("oops")
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_DATA_DIR: cannot keep the secret key"):
        Settings.from_env({}, data_dir=tmp_path)
    assert (tmp_path / "secret_key").read_text() == "oops"


def test_a_secret_key_that_was_lost_is_not_silently_another_one(tmp_path):
    (tmp_path / "trunkline.db").touch()
    with pytest.raises(
        SettingsError, match=r"^TRUNKLINE_SECRET_KEY: there is a database, but its key is not in"
    ) as caught:
        Settings.from_env({}, data_dir=tmp_path)
    assert "trunkline secret-key accept" in str(caught.value)
    assert not (tmp_path / "secret_key").exists()
    assert Settings.from_env({}, make=False, data_dir=tmp_path).secret_key == b""
    assert Settings.from_env({"TRUNKLINE_SECRET_KEY": KEY}, data_dir=tmp_path).secret_key == bytes.fromhex(KEY)


def test_every_setting_has_a_name():
    assert "DATA_DIR" in NAMES
    assert all(name.isupper() for name in NAMES)


def test_tls_needs_a_certificate_and_its_key(tmp_path):
    settings = read(tmp_path, tls_cert="/c.pem", tls_key="/k.pem")
    assert (settings.tls_cert, settings.tls_key) == (Path("/c.pem"), Path("/k.pem"))
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_TLS_KEY: must be set where TRUNKLINE_TLS_CERT is"):
        read(tmp_path, tls_cert="/c.pem")
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_TLS_CERT: must be set where TRUNKLINE_TLS_KEY is"):
        read(tmp_path, tls_key="/k.pem")


def test_where_tls_is_served_other_nodes_use_it(tmp_path):
    read(tmp_path, tls_cert="/c.pem", tls_key="/k.pem", node_url="https://10.0.0.5:8080")
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_NODE_URL: must begin with https://"):
        read(tmp_path, tls_cert="/c.pem", tls_key="/k.pem", node_url="http://10.0.0.5:8080")


@pytest.mark.parametrize("name", ["pool_wait_s", "drain_s", "drain_delay_s", "keepalive_s", "fork_template_idle_s"])
def test_no_wait_is_longer_than_a_year(tmp_path, name):
    assert getattr(read(tmp_path, **{name: str(366 * 86_400)}), name) == 366 * 86_400
    with pytest.raises(SettingsError, match=rf"^TRUNKLINE_{name.upper()}: '1e308' is more than a year; allowed are"):
        read(tmp_path, **{name: "1e308"})


@pytest.mark.parametrize("name", ["host", "trusted_proxies", "data_dir"])
def test_a_very_long_value_is_not_repeated_whole(tmp_path, name):
    value = ("/" if name == "data_dir" else "") + "x!" * 2_500
    with pytest.raises(SettingsError, match=rf"^TRUNKLINE_{name.upper()}: ") as caught:
        read(tmp_path, **{name: value})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["data_dir", "host", "port"])
def test_an_empty_option_is_no_default(tmp_path, name):
    option = name.replace("_", "-")
    with pytest.raises(SettingsError, match=rf"^TRUNKLINE_{name.upper()}: the option --{option} is empty$"):
        Settings.from_env({"TRUNKLINE_DATA_DIR": str(tmp_path / "data")}, **{name: ""})  # type: ignore[arg-type]
    assert not (tmp_path / "data").exists() or name != "data_dir"


@pytest.mark.parametrize("text", ["0", "1e-320", "0.0009"])
def test_no_interval_is_nothing(tmp_path, text):
    assert read(tmp_path, keepalive_s="0.001").keepalive_s == 0.001
    with pytest.raises(SettingsError, match=r"^TRUNKLINE_KEEPALIVE_S: .* allowed are numbers of seconds from 0.001 on"):
        read(tmp_path, keepalive_s=text)
