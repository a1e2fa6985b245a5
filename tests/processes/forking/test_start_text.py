"""What a template is told, and by which interpreters it can be read."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from app.jail.spawner import forked
from app.processes.forking._entry import Entry
from app.processes.forking.start import Task


@pytest.mark.parametrize("name", ["importing.py", "inside.py"])
def test_what_runs_in_the_backend_s_interpreter_is_for_old_ones_too_and_knows_only_the_standard_library(name):
    tree = ast.parse((Path(forked.__file__).parent / name).read_text(), feature_version=(3, 9))
    imported = {each.module for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)}
    imported |= {alias.name for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names}
    assert {str(each).split(".")[0] for each in imported} <= sys.stdlib_module_names


def test_it_is_text_that_any_quotes_survive():
    """The task is data: a name with quotes and line ends is no code."""
    task = Task("record", Entry((sys.executable,), "script", '/it\'s a\n"server".py', ("'", "\\", "\n")))
    text = task.text.replace("run(json.loads(", "print(json.loads(").replace(", preload, be_different)", ")")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    told = ast.literal_eval(done.stdout)
    assert (told["name"], told["args"]) == ('/it\'s a\n"server".py', ["'", "\\", "\n"])
    assert told["argv"] == task.entry.argv
