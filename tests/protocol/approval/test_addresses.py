"""What counts as an address, and what only has dots and slashes."""

import pytest

from app.protocol.approval._addresses import addresses


@pytest.mark.parametrize(
    "text",
    [
        "https://a.example/b", "HTTP://A.B", "ftp://a", "www.a.b", "evil.com", "sub.evil.io:8080/x", "//evil.com/p",
        "javascript:alert(1)", "data:text/html,x", "mailto:a@b", "a@b.example", "a (at) b (dot) com", "a at b dot com",
        "evil[.]com", "evil dot com", "203.0.113.7", "2001:db8::7", "::1", "~/.ssh", "/etc/passwd", "/etc", "/a/b/c",
        "C:\\keys", "\\\\host\\share", "../x", "$HOME_DIR", "${SECRET}", "%APPDATA%", "the .env file", "id_rsa", "ui://a/b",
    ],
)  # fmt: skip
def test_an_address(text: str) -> None:
    assert addresses(text)
    assert addresses(f"Like {text}.")


@pytest.mark.parametrize(
    "text",
    [
        "and/or",
        "e.g. this",
        "package.json",
        "README.md",
        "Node.js",
        "1.2.3",
        "12:30:00",
        "a: b",
        "10 / 2",
        "~5 files",
        "...",
    ],
)
def test_no_address(text: str) -> None:
    assert addresses(text) == set()
