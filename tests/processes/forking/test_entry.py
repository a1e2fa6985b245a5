"""Which commands are programs of Python that can be forked."""

import os
import sys

import pytest

from app.processes.forking._entry import Entry, NotPython, entry_of

PATH = os.environ["PATH"]


def script(tmp_path, first_line: str, name: str = "server") -> str:
    place = tmp_path / name
    place.write_text(f"{first_line}\nprint()\n")
    place.chmod(0o755)
    return str(place)


@pytest.mark.parametrize(
    ("line", "python"),
    [
        (f"#!{sys.executable}", (sys.executable,)),
        (f"#!{sys.executable} -I", (sys.executable, "-I")),
        (f"#!/bin/sh\n'''exec' '{sys.executable}' \"$0\" \"$@\"\n' '''", (sys.executable,)),
    ],
)
def test_a_console_script_runs_by_its_first_line(tmp_path, line, python):
    program = script(tmp_path, line)
    assert entry_of(program, ["--flag"], PATH, None) == Entry(python, "script", program, ("--flag",))


def test_env_looks_for_the_interpreter(tmp_path):
    (tmp_path / "python3").symlink_to(sys.executable)
    program = script(tmp_path, "#!/usr/bin/env python3")
    assert entry_of("server", [], f"{tmp_path}:{PATH}", None).python == (str(tmp_path / "python3"),)
    assert entry_of(program, [], f"{tmp_path}:{PATH}", None).name == program


def test_python_runs_a_module_or_a_script(tmp_path):
    found = entry_of(sys.executable, ["-u", "-X", "utf8", "-Wdefault", "-m", "server", "-v"], PATH, None)
    python = (sys.executable, "-u", "-X", "utf8", "-Wdefault")
    assert found == Entry(python, "module", "server", ("-v",))
    assert found.argv == [*python, "-m", "server", "-v"]
    program = script(tmp_path, "", "server.py")
    assert entry_of(sys.executable, ["-I", program], PATH, None) == Entry((sys.executable, "-I"), "script", program)
    assert entry_of(sys.executable, ["server.py", "x"], PATH, str(tmp_path)).name == "server.py"


@pytest.mark.parametrize(
    ("command", "args", "why"),
    [
        ("no-such-program", (), "runs 'no-such-program', which is not there"),
        ("/bin/ls", (), "is no script of Python"),
        (sys.executable, (), "runs no program"),
        (sys.executable, ("-c", "print()"), "runs Python with `-c`"),
        (sys.executable, ("-i", "-m", "x"), "runs Python with `-i`"),
        (sys.executable, ("relative.py",), "does not run a script of Python with an absolute path"),
    ],
)
def test_other_commands_say_why(command, args, why):
    with pytest.raises(NotPython) as caught:
        entry_of(command, args, PATH, None)
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("#!/bin/sh", "is a program of `sh`, not of Python"),
        ("#!/usr/bin/env node", "is a program of `node`, not of Python"),
        ("#!/usr/bin/env -i python3", "starts its interpreter by `env` with options"),
        (f"#!{sys.executable} -m server", "has a `#!` line with a program in it"),
        ("#!", "has a `#!` line that cannot be read"),
    ],
)
def test_other_scripts_say_why(tmp_path, line, why):
    with pytest.raises(NotPython) as caught:
        entry_of(script(tmp_path, line), (), PATH, None)
    assert str(caught.value) == why
