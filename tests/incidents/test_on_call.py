"""docs/on-call.md is true: each incident is brought about on two nodes, and the document's commands name its cause."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.documents.test_wire import appears, run, steps_of
from tests.incidents.plays import PLAYS
from tests.incidents.stage import Stage, stage
from tests.integration.gateway import ROOT
from tests.postgres import new_database

ON_CALL = ROOT / "docs/on-call.md"
SECTIONS = {
    "too_many_sessions": '"Too many sessions"',
    "crash_loop": '"My tool does not work at all"',
    "confined_backend": '"It starts on my machine"',
    "memory": '"Everything is slow"',
    "memory_limit": '"It dies with large files"',
    "hanging_tool": '"It never answers"',
    "stolen_key": '"We did not do that"',
    "rotated_keys": '"Nobody can sign in"',
    "changed_command": '"It worked yesterday"',
    "three_at_once": '"Everything at once"',
    "draining_node": '"A node is going away"',
    "no_redis": '"Half of the requests fail"',
}

pytestmark = pytest.mark.timeout(300)


def section(title: str) -> str:
    """The part of the document below the heading that begins so."""
    found = re.split(r"^## ", ON_CALL.read_text(), flags=re.MULTILINE)
    (text,) = [part for part in found if part.startswith(title)]
    return text


def what_is_missing(text: str, environment: dict[str, str], directory: Path) -> str:
    """Runs the commands of a section, and looks for what they are said to print. Empty if all of it is there."""
    steps = steps_of(text)
    assert any(step.expected for step in steps)
    found = zip(steps, run(steps, environment, directory), strict=True)
    missing = [
        f"{line}\n-- is not in what this prints:\n{step.script}\n{output}"
        for step, output in found
        for line in step.expected
        if not appears(line, output)
    ]
    return "\n".join(missing)


@pytest.fixture
def database(postgres_url: str, postgres_template: str) -> Iterator[str]:
    with new_database(postgres_url, postgres_template) as url:
        yield url


def test_the_documents_commands_name_the_cause_of_each_incident(tmp_path: Path, database: str) -> None:
    """One after the other on one stage, those that take something away last."""
    assert set(SECTIONS) == set(PLAYS)
    missing = {}
    with stage(tmp_path, database) as played:
        for name, title in SECTIONS.items():
            told = PLAYS[name](played)
            missing[name] = what_is_missing(section(title), {**played.environment, **told}, tmp_path)
            played.calm()
    assert not any(missing.values()), "\n\n".join(f"## {name}\n{each}" for name, each in missing.items() if each)


def test_the_first_look_shows_every_node_and_a_failed_request_is_found(tmp_path: Path, database: str) -> None:
    with stage(tmp_path, database) as played:
        first_look = ON_CALL.read_text().split("\n## ")[0]
        outputs = run(steps_of(first_look), played.environment, tmp_path)
        assert all(node.url in "".join(outputs) for node in played.nodes.all)
        named = failed_request(played)
        (output,) = run(steps_of(section('"This request')), {**played.environment, "ID": named}, tmp_path)
        assert "session_not_found" in output


def failed_request(played: Stage) -> str:
    played.quiet_client.http.headers["Mcp-Session-Id"] = "gone"
    answer: httpx2.Response = played.quiet_client.call("echo", text="x")
    assert answer.status_code == 404
    return str(answer.headers["x-request-id"])
