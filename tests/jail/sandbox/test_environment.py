"""What a process is told about its proxy."""

from pathlib import Path

from app.domain import BackendSpec
from app.jail.sandbox.environment import (
    AUTHORITIES,
    authorities_environment,
    environment_of,
    proxy_environment,
    search_path,
    write_authorities,
)


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


def test_the_authorities_of_the_node_are_in_one_file_with_those_of_the_machine(tmp_path):
    bundle = tmp_path / "bundle.pem"
    bundle.write_text("the machine's\n")
    for own in ("an old one\n", "the company's\n"):
        file = write_authorities(tmp_path, own, [str(tmp_path / "none.pem"), str(bundle)])
    assert file == str(tmp_path.resolve() / AUTHORITIES)
    assert Path(file).read_text().split("\n") == ["the machine's", "", "the company's", ""]
    assert Path(file).stat().st_mode & 0o777 == 0o644
    assert sorted(each.name for each in tmp_path.iterdir()) == [AUTHORITIES, "bundle.pem"]
    assert set(authorities_environment(file).values()) == {file}
    assert authorities_environment(file).keys() > {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"}


def test_without_a_bundle_there_are_those_of_the_node_alone(tmp_path):
    assert Path(write_authorities(tmp_path, "the company's\n", [])).read_text().strip() == "the company's"


def test_declared_variables_win_over_the_defaults(monkeypatch):
    monkeypatch.setenv("PATH", "/bin")
    spec = BackendSpec("acme", "echo", "echo-server", env={"PATH": "/opt/bin", "X": "1"})
    environment = environment_of(spec, "/home", "/tmp")
    assert environment == {"PATH": "/opt/bin", "HOME": "/home", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "X": "1"}


def test_a_variable_may_name_the_home_wherever_that_is():
    spec = BackendSpec("acme", "echo", "echo-server", env={"FILE": "${home}/a:${home}/b", "X": "$home ${HOME}"})
    environment = environment_of(spec, "/home/of/one", "/tmp")
    assert (environment["FILE"], environment["X"]) == ("/home/of/one/a:/home/of/one/b", "$home ${HOME}")


def script(path: Path, first_line: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{first_line}\n")
    path.chmod(0o755)
    return path


def test_the_interpreter_beside_a_script_is_found_first(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "/bin")
    folder = tmp_path / "v20/bin"
    tool = script(folder / "tool", "#!/usr/bin/env -S node --no-warnings")
    (tmp_path / "link").symlink_to(tool)
    assert search_path(BackendSpec("acme", "echo", str(tool))) == "/bin"  # there is none yet
    script(folder / "node", "")
    for command in (str(tool), str(tmp_path / "link")):
        assert search_path(BackendSpec("acme", "echo", command)) == f"{folder}:/bin"
    assert search_path(BackendSpec("acme", "echo", "v20/bin/tool", cwd=str(tmp_path))) == f"{folder}:/bin"
    assert search_path(BackendSpec("acme", "echo", str(tool), env={"PATH": "/opt"})) == "/opt"


def test_nobody_else_gets_another_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
    tool = script(tmp_path / "tool", "#!/usr/bin/env sh")
    script(tmp_path / "sh", "")
    absolute = script(tmp_path / "absolute", f"#!{tmp_path}/sh")
    for command in ("tool", "v20/tool", str(absolute), "/bin/ls", str(tmp_path / "missing"), str(tmp_path)):
        assert search_path(BackendSpec("acme", "echo", command)) == f"{tmp_path}:/bin"
    assert search_path(BackendSpec("acme", "echo", str(tool))) == f"{tmp_path}:{tmp_path}:/bin"
