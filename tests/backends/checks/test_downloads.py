"""Commands that download what they start."""

import json

import pytest

from app.admin.importing import parse
from app.backends.checks.downloads import download_of


@pytest.mark.parametrize(
    ("line", "program", "package", "install"),
    [("npx -y notes-mcp", "npx", "notes-mcp", "npm install --global notes-mcp"),
     ("/usr/bin/npx --yes @acme/notes@1.2 --port 3", "npx", "@acme/notes@1.2", "npm install --global @acme/notes@1.2"),
     ("npx -p @acme/notes notes serve", "npx", "@acme/notes", "npm install --global @acme/notes"),
     ("npx --package=@acme/notes notes", "npx", "@acme/notes", "npm install --global @acme/notes"),
     ("cmd /c npx -y notes", "npx", "notes", "npm install --global notes"),
     ("C:\\\\node\\\\npx.cmd -y notes", "npx", "notes", "npm install --global notes"),
     ("npm exec -- notes", "npm exec", "notes", "npm install --global notes"),
     ("pnpm dlx notes", "pnpm dlx", "notes", "npm install --global notes"),
     ("bunx notes", "bunx", "notes", "npm install --global notes"),
     ("bun x notes", "bun x", "notes", "npm install --global notes"),
     ("uvx mcp-time", "uvx", "mcp-time", "pipx install mcp-time` or `uv tool install mcp-time"),
     ("uvx --python 3.12 --from mcp-times time", "uvx", "mcp-times",
      "pipx install mcp-times` or `uv tool install mcp-times"),
     ("uv tool run mcp-time", "uv tool run", "mcp-time", "pipx install mcp-time` or `uv tool install mcp-time"),
     ("pipx run mcp-time", "pipx run", "mcp-time", "pipx install mcp-time` or `uv tool install mcp-time"),
     ("uvx mcp-time@latest", "uvx", "mcp-time@latest", "pipx install mcp-time` or `uv tool install mcp-time@latest"),
     ("uvx mcp-time@1.2", "uvx", "mcp-time@1.2", "pipx install mcp-time==1.2` or `uv tool install mcp-time@1.2"),
     ("uvx mcp[cli]", "uvx", "mcp[cli]", "pipx install 'mcp[cli]'` or `uv tool install 'mcp[cli]'"),
     ("uvx --from git+https://host.example/x@v1 x", "uvx", "git+https://host.example/x@v1",
      "pipx install git+https://host.example/x@v1` or `uv tool install git+https://host.example/x@v1"),
     ("npx -y $(rm)", "npx", "", "npm install --global PACKAGE"),
     ("uv run --python 3.12 --with mcp-time time", "uv run --with", "mcp-time",
      "pipx install mcp-time` or `uv tool install mcp-time"),
     ("uv run --with=mcp-time time", "uv run --with", "mcp-time",
      "pipx install mcp-time` or `uv tool install mcp-time"),
     ("uv run --with $(x) time", "uv run --with", "", "pipx install PACKAGE` or `uv tool install PACKAGE"),
     ("env A=1 -u B npx -y notes", "npx", "notes", "npm install --global notes"),
     ("/usr/bin/env npx notes", "npx", "notes", "npm install --global notes"),
     ("deno run -A npm:@acme/notes@1", "deno run", "@acme/notes@1", "npm install --global @acme/notes@1"),
     ("uvx", "uvx", "", "pipx install PACKAGE` or `uv tool install PACKAGE"),
     ("docker run -i --rm mcp/time", "docker run", "mcp/time", "")],
)  # fmt: skip
def test_what_downloads_is_known_with_what_to_do_instead(line, program, package, install):
    command, *args = line.replace("\\\\", "\\").split()
    assert download_of(command, args) == (program, package, install)


def test_a_program_that_passes_on_to_a_url_is_none_to_install():
    found = download_of("npx", ["-y", "mcp-remote@latest", "https://tickets.example/mcp"])
    assert found is not None
    assert "`url`, and what its `--header` says as `headers`" in found.words
    assert "install" not in found.words


@pytest.mark.parametrize("args", [
    ["bash", "-c", "npx -y notes"], ["sh", "-lc", "cd /srv && A=1 exec npx -y notes"], ["zsh", "-l", "-c", "npx notes"],
    ["bash", "-c", "env B='c d' npx notes; true"], ["env", "-S", "npx notes"], ["cmd", "/c", "npx -y notes"],
    ["env", "bash", "-c", "bash -c 'npx notes'"],
])  # fmt: skip
def test_what_a_shell_downloads_is_known_too(args):
    assert download_of(args[0], args[1:]) == ("npx", "notes", "npm install --global notes")


@pytest.mark.parametrize("args", [
    ["bash", "-c", "echo npx notes"], ["bash", "run.sh", "-c", "npx notes"], ["bash", "-c", "npx 'notes"], ["bash"],
    ["bash", "-c"], ["env"], ["env", "A=1"], ["env", "-S"], ["uv", "run", "a.py", "--with", "x"], ["uv", "run"],
    ["deno", "run", "a.ts", "npm:notes"], ["deno"], ["env"] * 5000, ["env", "-S"] * 5000,
    ["cmd", "/c"] * 5000, ["cmd", "/c"],
])  # fmt: skip
def test_a_shell_that_downloads_nothing_is_left_alone(args):
    assert download_of(args[0], args[1:]) is None


@pytest.mark.parametrize("line", ["notes-mcp", "python -m notes", "uv run notes.py", "npm start", "docker", "bun a.ts"])
def test_what_is_there_already_is_left_alone(line):
    command, *args = line.split()
    assert download_of(command, args) is None


def test_an_import_says_what_is_missing_and_what_helps():
    servers = {
        "notes": {"command": "npx", "args": ["-y", "notes-mcp"]},
        "box": {"command": "docker", "args": ["run", "-i", "x"]},
        "far": {"url": "https://far.example/mcp"},
        "shell": {"command": "bash", "args": ["-c", "npx -y notes-mcp"]},
        "git": {"command": "npx", "args": ["github:acme/notes"]},
    }
    notes, box, far, shell, git = parse(json.dumps({"mcpServers": servers}))
    assert notes.problems == ()
    assert notes.notes[-1] == "notes-mcp is installed once, from npm, when it is registered"
    assert box.notes[-1] == "x is started by the node's container engine (CONTAINER_ENGINE)"
    assert far.notes == ()
    assert shell.notes[-1] == notes.notes[-1]
    assert "publish it to a registry" in git.problems[0]
