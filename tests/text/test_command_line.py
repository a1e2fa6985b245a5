"""What is behind `cmd /c`, `bash -c` and their like; and what stays as it is."""

import pytest

from app.text.command_line import MAX_SCRIPT, MAX_WRAPPERS, plain

ROAMING = r"C:\Users\kim\AppData\Roaming\npm"


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["npx", "-y", "x"], ["npx", "-y", "x"]),
        (["cmd", "/c", "npx", "-y", "x"], ["npx", "-y", "x"]),
        (["cmd.exe", "/C", 'npx -y x "a b"'], ["npx", "-y", "x", "a b"]),
        (["CMD", "/d", "/s", "/c", "npx.cmd", "x"], ["npx", "x"]),
        (["cmd", "/c", ROAMING + r"\notes-mcp.cmd"], ["notes-mcp"]),
        (["powershell.exe", "-NoProfile", "-ExecutionPolicy", "Bypass", "-Command", "npx x"], ["npx", "x"]),
        (["pwsh", "-c", r'& "C:\Program Files (x86)\nodejs\npx.cmd" -y x'], ["npx", "-y", "x"]),
        (["powershell", "npx", "x"], ["npx", "x"]),
        (["wsl", "bash", "-ic", "npx -y x"], ["npx", "-y", "x"]),
        (["wsl.exe", "-d", "Debian", "--", "npx", "x"], ["npx", "x"]),
        (["wsl.exe", "zsh", "-ic", "npx", "-y", "x"], ["npx", "-y", "x"]),
        (["bash", "-lc", "source ~/.nvm/nvm.sh && nvm use 22 >/dev/null 2>&1 && npx -y x"], ["npx", "-y", "x"]),
        (["/bin/zsh", "-l", "-c", "exec uvx x --at 'a b'"], ["uvx", "x", "--at", "a b"]),
        (["sh", "-c", "npx x --key $KEY"], ["npx", "x", "--key", "${KEY}"]),
        (["sh", "-c", "npx x\n"], ["npx", "x"]),
        (["env", "-u", "X", "npx", "x"], ["npx", "x"]),
        (["env", "-S", "npx -y x"], ["npx", "-y", "x"]),
        ([r"C:\Program Files\nodejs\node.exe", r"D:\npm\bin\npx-cli.js", "-y", "x"], ["npx", "-y", "x"]),
        (["node", "/usr/lib/node_modules/npm/bin/npm-cli.js", "exec", "x"], ["npm", "exec", "x"]),
        (["/opt/homebrew/bin/uvx", "x"], ["uvx", "x"]),
        (["/Users/kim/.nvm/versions/node/v22/bin/npx", "x"], ["npx", "x"]),
        ([r"C:\Python313\python.exe", "-m", "x"], ["python", "-m", "x"]),
        (["bash", "-c", "export PATH=/opt/node/bin:$PATH && npx x"], ["npx", "x"]),
    ],
)
def test_the_program_that_is_started_in_the_end(words, program):
    assert list(plain(words).words) == program


@pytest.mark.parametrize(
    "words",
    [
        ["bash", "run.sh"],
        ["bash", "-c"],
        ["sh", "-c", ""],
        ["sh", "-c", "a | b"],
        ["sh", "-c", "a || b"],
        ["sh", "-c", "a & b"],
        ["sh", "-c", "a; b"],
        ["sh", "-c", "x $(cat key)"],
        ["sh", "-c", "x `cat key`"],
        ["sh", "-c", "x < file"],
        ["sh", "-c", "x *.json"],
        ["sh", "-c", "x '$5'"],
        ["sh", "-c", "x 'a"],
        ["sh", "-c", "source .venv/bin/activate && python server.py"],
        ["sh", "-c", "x " + "y" * MAX_SCRIPT],
        ["powershell", "-File", "start.ps1"],
        ["cmd", "/c"],
        ["env"],
        ["env", "A=B"],
        ["exec"],
        [""],
        [],
        ["/Users/kim/shop/.venv/bin/python", "server.py"],
        [r"C:\shop\.venv\Scripts\python.exe", "server.py"],
        ["/opt/homebrew/bin/own-server"],
        ["/usr/bin/npx", "x"],
        ["node", "dist/index.js"],
    ],
)
def test_what_does_more_than_start_one_program_stays_as_it_is(words):
    line = plain(words)
    assert (list(line.words), line.wrappers) == (words, ())


def test_variables_and_the_working_directory_come_along():
    line = plain(["bash", "-c", "cd /srv/shop && export A=1 && B='b c' exec uv run server.py"])
    assert (line.words, line.env, line.cwd) == (("uv", "run", "server.py"), {"A": "1", "B": "b c"}, "/srv/shop")
    assert line.wrappers == ("sh -c", "exec")
    line = plain(["powershell", "-Command", "$env:TOKEN='t'; $env:A = 'b'; npx x"])
    assert (line.words, line.env) == (("npx", "x"), {"TOKEN": "t", "A": "b"})
    line = plain(["env", "-C", "/srv", "A=B=C", "x"])
    assert (line.words, line.env, line.cwd) == (("x",), {"A": "B=C"}, "/srv")
    assert plain(["wsl", "--cd", "/srv", "--", "x"]).cwd == "/srv"


def test_one_in_another_ends():
    words = ["env"] * (MAX_WRAPPERS + 2) + ["x"]
    assert plain(words).words == ("env", "env", "x")
