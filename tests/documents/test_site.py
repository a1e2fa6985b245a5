"""The documents as a site: it is built without a network, every link leads somewhere, every page is in the menu."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FROM_ELSEWHERE = re.compile(rb"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']?(https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `scripts/docs` builds it; MkDocs is strict, so a dead link or anchor, or a page without a place, fails."""
    if not (ROOT / ".venv/bin/mkdocs").exists():
        pytest.skip("there is no .venv with mkdocs (scripts/test makes it)")
    out = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        ["scripts/docs", "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_every_document_is_a_page(site: Path):
    pages = {str(page.relative_to(site).with_suffix(".md")) for page in site.rglob("*.html")}
    documents = {str(each.relative_to(ROOT)) for each in (ROOT / "docs").rglob("*.md")}
    assert documents <= pages
    assert (site / "index.html").exists()


def test_nothing_is_loaded_from_elsewhere(site: Path):
    assert [page.name for page in site.rglob("*.html") if FROM_ELSEWHERE.search(page.read_bytes())] == []


def test_it_can_be_searched(site: Path):
    assert b"toolset" in (site / "search/search_index.json").read_bytes()


def test_an_unknown_option_is_answered_with_the_usage():
    done = subprocess.run(["scripts/docs", "--no"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "--serve" in done.stderr
