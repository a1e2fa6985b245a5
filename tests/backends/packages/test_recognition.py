"""Which package a command line stands for, as READMEs and clients' files write it."""

import shlex

import pytest

from app.backends.packages.recognition import (
    NotInstallable,
    at_version,
    names_package,
    newest_of,
    recognised,
)

FORMS = [
    ("npx -y notes", "npm", ("notes",), "", ()),
    ("npx notes@1.2 --port 3", "npm", ("notes@1.2",), "", ("--port", "3")),
    ("/opt/homebrew/bin/npx --yes @acme/notes@^1.2 serve", "npm", ("@acme/notes@^1.2",), "", ("serve",)),
    ("npx -p @acme/notes -p left-pad notes serve", "npm", ("@acme/notes", "left-pad"), "notes", ("serve",)),
    ("npx --package=@acme/notes notes", "npm", ("@acme/notes",), "notes", ()),
    ("npm exec -y notes -- --flag", "npm", ("notes",), "", ("--flag",)),
    ("npm exec --yes -- notes --flag", "npm", ("notes",), "", ("--flag",)),
    ("npm x notes", "npm", ("notes",), "", ()),
    ("bunx --bun notes@latest", "npm", ("notes@latest",), "", ()),
    ("pnpm dlx notes serve", "npm", ("notes",), "", ("serve",)),
    ("yarn dlx -q notes", "npm", ("notes",), "", ()),
    ("cmd /c npx -y notes serve", "npm", ("notes",), "", ("serve",)),
    ("cmd /c 'npx -y notes'", "npm", ("notes",), "", ()),
    ("CMD.EXE /C npx.cmd notes", "npm", ("notes",), "", ()),
    (r"'C:\Program Files\nodejs\npx.cmd' -y notes", "npm", ("notes",), "", ()),
    ("env npx notes", "npm", ("notes",), "", ()),
    ("bash -lc 'exec npx -y notes serve'", "npm", ("notes",), "", ("serve",)),
    ("uvx mcp-time --zone X", "pypi", ("mcp-time",), "", ("--zone", "X")),
    ("uvx mcp-time@latest", "pypi", ("mcp-time",), "", ()),
    ("uvx mcp-time@1.2", "pypi", ("mcp-time==1.2",), "", ()),
    ("uvx 'mcp-time[cli]>=1,<2' run", "pypi", ("mcp-time[cli]>=1,<2",), "", ("run",)),
    ("uvx --from 'mcp-times==3' time run", "pypi", ("mcp-times==3",), "time", ("run",)),
    ("uvx --with a,b==2 --with c mcp-time", "pypi", ("mcp-time", "a", "b==2", "c"), "", ()),
    ("uv tool run --from mcp-times time", "pypi", ("mcp-times",), "time", ()),
    ("uv tool run --from mcp-times time.exe", "pypi", ("mcp-times",), "time", ()),
    ("uv run --with mcp-times time run", "pypi", ("mcp-times",), "time", ("run",)),
    ("uv run --no-project --with=mcp[cli],more -q mcp run a.py", "pypi", ("mcp[cli]", "more"), "mcp", ("run", "a.py")),
    ("pipx run --spec mcp-times==1 time x", "pypi", ("mcp-times==1",), "time", ("x",)),
    ("pipx run mcp-time", "pypi", ("mcp-time",), "", ()),
]  # fmt: skip


@pytest.mark.parametrize(("line", "registry", "wanted", "program", "args"), FORMS)
def test_a_package_is_recognised(line, registry, wanted, program, args):
    command, *rest = shlex.split(line)
    found = recognised(command, rest)
    assert found is not None
    assert (found.registry, found.wanted, found.program, found.args) == (registry, wanted, program, args)
    assert names_package(command, rest)


def test_a_version_of_python_is_recognised():
    assert recognised("uvx", ["--python", "cpython@3.12.4", "mcp-time"]).python == "3.12"
    assert recognised("uvx", ["-p", "python3.11", "mcp-time"]).python == "3.11"
    assert recognised("uv", ["run", "--with", "mcp-time", "--python", "3.10", "mcp-time"]).python == "3.10"


@pytest.mark.parametrize("line", [
    "node server.js", "npm start", "uv run server.py", "python -m notes", "bash -c 'A=b npx a'",
    "sh -c 'cd /srv && npx a'", "env A=b npx a", "uv run time", "uv run --with a b.py", "uv run --with a python -m b",
    "uv run --with a ./b", "uv run --directory /srv --with a b", "uv run --with", "uv run --with a",
    "sh -c 'npx a $HOME'", "bash -c 'npx a | tee log'",
])  # fmt: skip
def test_what_is_there_already_is_no_package(line):
    command, *rest = shlex.split(line)
    assert recognised(command, rest) is None
    assert not names_package(command, rest)


@pytest.mark.parametrize(("line", "words"), [
    ("npx -y github:acme/notes", "publish it to a registry"), ("npx acme/notes", "publish it to a registry"),
    ("npx ./notes", "publish it to a registry"), ("npx notes@npm:other@1", "publish it to a registry"),
    ("npx git+https://host.example/x.git", "publish it to a registry"),
    ("uvx --from git+https://host.example/x@v1 x", "publish it to a registry"),
    ("uvx --from /srv/project x", "publish it to a registry"), ("uvx 'x @ https://host.example/x.whl'", "publish"),
    ("npx --registry https://host.example notes", "NPM_REGISTRY"),
    ("uvx --index-url=file:///srv/index x", "PYPI_INDEX"),
    ("npx", "names no package"), ("npx -y", "names no package"), ("uvx --from", "needs a value"),
    ("npx -c 'notes serve'", "is an option that no installed package can have"),
    ("uvx --python /opt/python x", "name a version"), ("npx -p notes '../x'", "is not the name of a program"),
    ("uvx --with " + ",".join(f"a{n}" for n in range(40)) + " x", "more than 32 packages"),
])  # fmt: skip
def test_what_cannot_be_installed_says_what_to_do(line, words):
    command, *rest = shlex.split(line)
    with pytest.raises(NotInstallable, match=words):
        recognised(command, rest)


def test_arguments_do_not_make_it_another_package():
    one, other = recognised("npx", ["-y", "notes", "a"]), recognised("bunx", ["notes", "b"])
    assert one.is_same_package(other)
    assert not one.is_same_package(recognised("npx", ["notes@2", "a"]))
    assert not one.is_same_package(None)


@pytest.mark.parametrize(("line", "wanted", "args"), [
    ("npx -y notes serve", "notes@2.0", "-y notes serve"),
    ("npx -y notes@1.0 notes@1.0", "notes@2.0", "-y notes@2.0 notes@1.0"),
    ("npx --package=@acme/notes@^1 -p more notes", "@acme/notes@2.0", "--package=@acme/notes@2.0 -p more notes"),
    ("cmd /c npx notes@latest", "notes@2.0", "/c npx notes@2.0"),
    ("uvx notes", "notes==2.0", "notes"),
    ("uvx notes@1.0 --port 3", "notes==2.0", "notes@2.0 --port 3"),
    (
        "uvx --from notes[web]>=1 --with notes-more notes", "notes[web]==2.0",
        "--from notes[web]==2.0 --with notes-more notes",
    ),
])  # fmt: skip
def test_another_version_is_named_where_one_is_named(line, wanted, args):
    command, *words = line.split()
    request, changed = at_version(command, words, "2.0")
    assert (request.wanted[0], " ".join(changed)) == (wanted, args)
    assert recognised(command, changed) in (request, recognised(command, words))
    assert newest_of(request).wanted == (wanted.replace("==2.0", "").replace("@2.0", ""),)


def test_the_newest_is_a_version_too():
    assert at_version("uvx", ["notes@1.0"], "latest")[0].wanted == ("notes",)
    assert at_version("npx", ["notes@1.0"], "latest") == (recognised("npx", ["notes@latest"]), ("notes@latest",))


@pytest.mark.parametrize(("line", "version", "words"), [
    (["npx", "notes"], "github:a/b", "is not a version"),
    (["npx", "notes"], "", "is not a version"),
    (["npx", "notes"], "-1", "is not a version"),
    (["bash", "-c", "npx -y notes@1.0"], "2.0", "within a longer word"),
])  # fmt: skip
def test_a_version_that_cannot_be_named_is_refused(line, version, words):
    with pytest.raises(NotInstallable, match=words):
        at_version(line[0], line[1:], version)
