"""docs/protocol.md names every revision we speak and every code that the sessionless era answers with."""

import re
from pathlib import Path

from app.http.transports.sessionless_http import _STATUS
from app.protocol.eras import sessionless_envelope as sessionless
from app.protocol.eras.sessionless_envelope import SUPPORTED

TEXT = (Path(__file__).parents[2] / "docs/protocol.md").read_text()


def codes_in(heading: str) -> set[int]:
    """The first cells of the table below a heading."""
    section = TEXT.split(heading, 1)[1].split("\n## ", 1)[0]
    return {int(code) for code in re.findall(r"^\| `(-\d+)`", section, re.MULTILINE)}


def test_every_revision_has_a_column() -> None:
    head = TEXT.split("## Revisions", 1)[1].split("|---", 1)[0]
    assert {cell.strip() for cell in head.split("|") if cell.strip()} == set(SUPPORTED)


def test_every_code_of_the_sessionless_era_has_a_row() -> None:
    codes = {
        value for name, value in vars(sessionless).items() if name.isupper() and isinstance(value, int) and value < 0
    }
    assert codes <= set(_STATUS)
    assert codes_in("## Validation of 2026-07-28 requests") == set(_STATUS)
