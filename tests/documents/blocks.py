"""The fenced blocks of the documents."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^( *)```(\w*) *([^\n]*)\n(.*?)^ *```[ ]*$", re.MULTILINE | re.DOTALL)

_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One fence. `kind` is the word behind the language; `heading` the one that it stands under."""

    page: str
    line: int
    language: str
    kind: str
    body: str
    heading: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Every document of the repository."""
    folders = (
        ROOT,
        *(
            ROOT / each
            for each in ("docs", "docs/decisions", "deploy", "bench", "tests", "tests/chaos", "tests/conformance")
        ),
    )
    return sorted(str(page.relative_to(ROOT)) for folder in folders for page in folder.glob("*.md"))


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    found = []
    for match in _BLOCK.finditer(text):
        before = text[: match.start()]
        headings = _HEADING.findall(_BLOCK.sub("", before))
        _, language, kind, body = match.groups()
        found.append(Block(page, before.count("\n") + 1, language, kind, body, headings[-1] if headings else ""))
    return found


def fences_of(page: str) -> int:
    """How many lines open or close one."""
    return len(re.findall(r"^ *(?:```|~~~)", (ROOT / page).read_text(), re.MULTILINE))
