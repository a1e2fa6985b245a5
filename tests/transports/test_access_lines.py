"""The lines of `ACCESS_LOG=all`: what clients have made up stands in them, and steers nothing."""

import io
import json

import pytest

from app.transports.access_lines import NOT_YET, AccessLine, AccessLines


async def written(tool: str) -> str:
    stream = io.BytesIO()
    lines = AccessLines({}, stream)
    lines.write(AccessLine("", NOT_YET, "r", "t", "POST", 200, 1.0, 2, 3, tool=tool), {"issuer": tool})
    lines.close()
    return stream.getvalue().decode()


@pytest.mark.parametrize("code", [0x00, 0x0A, 0x1B, 0x7F, 0x85, 0x9B, 0x2028, 0x2029, 0x202E, 0x2066])
async def test_what_steers_a_terminal_or_ends_a_line_leaves_escaped(code):
    text = await written(f"a{chr(code)}[31mb")
    assert chr(code) not in text.removesuffix("\n")
    line = json.loads(text)
    assert line["tool"] == line["issuer"] == f"a{chr(code)}[31mb"


async def test_names_in_any_language_stay_as_they_are():
    assert "wetter-für-zürich-天気" in await written("wetter-für-zürich-天気")
