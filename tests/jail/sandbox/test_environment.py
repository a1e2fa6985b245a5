"""What a process is told about its proxy."""

from app.domain import BackendSpec
from app.jail.sandbox.environment import environment_of, proxy_environment


def test_every_program_finds_its_spelling():
    found = proxy_environment(3128, bundles=[])
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        assert found[name] == found[name.lower()] == "http://127.0.0.1:3128"
    assert found["NO_PROXY"] == found["no_proxy"] == "localhost,127.0.0.1,::1"
    assert found["NODE_USE_ENV_PROXY"] == "1"
    assert "SSL_CERT_FILE" not in found


def test_the_first_bundle_of_authorities_that_is_there_is_named(tmp_path):
    (tmp_path / "b.pem").touch()
    found = proxy_environment(bundles=[str(tmp_path / each) for each in ("a.pem", "b.pem", "c.pem")])
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"):
        assert found[name] == str(tmp_path / "b.pem")


def test_declared_variables_win_over_the_defaults(monkeypatch):
    monkeypatch.setenv("PATH", "/bin")
    spec = BackendSpec("acme", "echo", "echo-server", env={"PATH": "/opt/bin", "X": "1"})
    environment = environment_of(spec, "/home", "/tmp")
    assert environment == {"PATH": "/opt/bin", "HOME": "/home", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "X": "1"}


def test_a_variable_may_name_the_home_wherever_that_is():
    spec = BackendSpec("acme", "echo", "echo-server", env={"FILE": "${home}/a:${home}/b", "X": "$home ${HOME}"})
    environment = environment_of(spec, "/home/of/one", "/tmp")
    assert (environment["FILE"], environment["X"]) == ("/home/of/one/a:/home/of/one/b", "$home ${HOME}")
