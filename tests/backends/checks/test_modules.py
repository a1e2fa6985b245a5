"""Modules beside a script, or of the gateway's user, that a program did not find in its sandbox."""

from pathlib import Path

import pytest

from app.backends.checks._modules import missed_modules
from app.domain import BackendSpec, Sandbox

SAYS = ("Traceback (most recent call last):", "ModuleNotFoundError: No module named 'helper'")


def found(home: Path, *args: object, says: tuple[str, ...] = SAYS, **fields: object) -> list[tuple[str, object]]:
    spec = BackendSpec("acme", "x", "python3", tuple(map(str, args)), **fields)  # type: ignore[arg-type]
    missed = missed_modules(spec, says, str(home))
    assert all(each.note for each in missed)
    return [(each.what, each.proposal) for each in missed]


@pytest.mark.parametrize("module", ["helper.py", "helper/__init__.py"])
def test_a_module_beside_the_script_or_above_it_is_named_with_the_entry_that_shows_it(tmp_path, module):
    (tmp_path / "home" / "src").mkdir(parents=True)
    script = tmp_path / "home" / "src" / "server.py"
    script.touch()
    for place in (script.parent, script.parent.parent):
        path = place / module
        path.parent.mkdir(exist_ok=True)
        path.touch()
        shown = str(place / module.removesuffix("/__init__.py"))
        assert found(tmp_path, script) == [(shown, {"read": [shown]})]
        assert found(tmp_path, script, sandbox=Sandbox(read=(shown,))) == []
        path.unlink()
        if path.parent != place:
            path.parent.rmdir()


def test_a_module_in_the_working_directory_is_named(tmp_path):
    (tmp_path / "helper").mkdir()
    says = ("/usr/bin/python3: No module named helper",)
    assert found(tmp_path, "-m", "helper", cwd=str(tmp_path), says=says)[0][0] == str(tmp_path / "helper")


def test_packages_of_the_gateway_s_user_are_named_with_what_it_takes_besides(tmp_path):
    packages = tmp_path / ".local/lib/python3.11/site-packages"
    (packages / "helper").mkdir(parents=True)
    assert found(tmp_path, "server.py") == [(str(packages), {"read": [str(packages)]})]
    spec = BackendSpec("acme", "x", "python3")
    assert "PYTHONPATH" in str(missed_modules(spec, SAYS, str(tmp_path))[0].note)


@pytest.mark.parametrize("says", ["No module named 'helper.sub'", "No module named '../helper'", "no helper", ""])
def test_words_that_mean_another_thing_name_nothing(tmp_path, says):
    (tmp_path / "helper").mkdir()
    (tmp_path / "server.py").touch()
    assert found(tmp_path, tmp_path / "server.py", says=(says,)) == []
    assert found(tmp_path, tmp_path / "gone" / "server.py") == []
