"""What the dry run says that a server will need."""

import json

import pytest

from app.admin.importing import parse, report, report_json

PG = "postgresql://shop:s3cret@db.internal:5433/shop"


@pytest.mark.parametrize(
    ("entry", "needs"),
    [
        ({"url": "https://far.example/mcp?x=1"}, ["network: far.example:443"]),
        ({"url": "http://10.1.2.3:8080/mcp"}, ["network: 10.1.2.3:8080"]),
        ({"command": "npx", "args": ["-y", "pg-mcp", PG]}, ["network: db.internal:5433"]),
        ({"command": "x", "args": ["--dsn=mysql://[::1]/a"]}, ["network: [::1]:3306"]),
        ({"command": "x", "env": {"DATABASE_URI": PG, "A": "b"}}, ["network: the address in DATABASE_URI"]),
        (
            {"command": "x", "args": ["/srv/a", "--in=/srv/b c", "/srv/a", "-v"], "cwd": "/srv/c"},
            ["file: /srv/a", "file: /srv/b", "file: /srv/c"],
        ),
        (
            {"command": "python3", "args": ["./server.py", "--db=../a"]},
            [f"file: {each} (write where it is on the gateway)" for each in ("./server.py", "../a")],
        ),
        ({"command": "node", "args": ["dist/index.js"]}, ["file: dist/index.js (write where it is on the gateway)"]),
        ({"command": "./serve"}, ["file: ./serve (write where it is on the gateway)"]),
        ({"command": "node", "args": ["dist/index.js"], "cwd": "/srv/a"}, ["file: /srv/a"]),
        ({"command": "npx", "args": ["-y", "@acme/next.js-mcp", "https://h.example/a.js"]}, ["network: h.example:443"]),
        ({"command": "x", "args": ["odd://h/x", "https://h:99999/", "-", "a/b"]}, []),
        ({"command": "x"}, []),
    ],
)
def test_addresses_and_files_of_a_definition(entry, needs):
    (found,) = parse(json.dumps({"mcpServers": {"a": entry}}))
    assert found.needs == needs


def test_the_report_says_what_it_becomes_and_needs_without_secrets():
    servers = {
        "a": {"command": "pg-mcp", "args": [PG, "--api-key", "s3cret"], "env": {"X": "s3cret"}},
        "b": {"url": "https://u:s3cret@far.example/mcp?token=s3cret"},
    }
    entries = parse(json.dumps({"mcpServers": servers}))
    text = report(entries, applied=False)
    assert (
        "pg-mcp 'postgresql://shop:***@db.internal:5433/shop' --api-key '***'; needs network: db.internal:5433" in text
    )
    assert "https://far.example/mcp?token=***; the user in its URL is sent as header `Authorization`; needs" in text
    as_json = report_json(entries, applied=False)
    assert "s3cret" not in text + as_json
    assert [each["needs"] for each in json.loads(as_json)] == [
        ["network: db.internal:5433"],
        ["network: far.example:443"],
    ]
