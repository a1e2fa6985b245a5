"""What the spawner is told."""

from app.domain import BackendSpec
from app.sandbox.composer import environment_of


def test_declared_variables_win_over_the_defaults(monkeypatch):
    monkeypatch.setenv("PATH", "/bin")
    spec = BackendSpec("acme", "echo", "echo-server", env={"PATH": "/opt/bin", "X": "1"})
    environment = environment_of(spec, "/home", "/tmp")
    assert environment == {"PATH": "/opt/bin", "HOME": "/home", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "X": "1"}
