"""The lines of `ACCESS_LOG=all`: what clients have made up stands in them, and steers nothing."""

import io
import json
import logging
from typing import Any

import pytest

from app.http.transports.access_lines import AccessLine, AccessLines


async def written(tool: str) -> str:
    stream = io.BytesIO()
    lines = AccessLines({}, stream)
    lines.write(AccessLine(*lines.stamp(), "r", "t", "POST", 200, 1.0, 2, 3, tool=tool), {"issuer": tool})
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


@pytest.mark.parametrize(
    "name",
    ["Bearer\tX1y2", "Bearer  X1y2", "BEARER X1y2", "bEarer X1y2", "xBearer X1y2", "Bearer\u2003X1y2", "bearer\nX1y2"],
)
async def test_no_credential_gets_out_whatever_its_spelling(name):
    text = await written(f"{name}z tlk_abcdefgh_{'q' * 40}")
    assert "X1y2" not in text
    assert "qqq" not in text


class Gone(io.RawIOBase):
    """A pipe whose reader has gone, until it is back."""

    def __init__(self) -> None:
        self.is_back, self.taken = False, b""

    def write(self, data: Any) -> int:
        if not self.is_back:
            raise BrokenPipeError(32, "Broken pipe")
        self.taken += bytes(data)
        return len(data)


async def test_no_request_hears_that_nobody_reads_the_lines_any_more(caplog: pytest.LogCaptureFixture) -> None:
    gone: Any = Gone()
    lines = AccessLines({}, gone)
    with caplog.at_level(logging.WARNING):
        for number in range(1000):  # more than are collected
            lines.write(AccessLine(*lines.stamp(), f"{number}", "t", "POST", 200, 1.0, 2, 3, tool="x" * 100))
        lines.close()
        assert not caplog.messages
        gone.is_back = True
        lines.write(AccessLine(*lines.stamp(), "r", "t", "POST", 200, 1.0, 2, 3))
        lines.close()
    assert [json.loads(line)["request"] for line in gone.taken.splitlines()] == ["r"]
    (told,) = caplog.messages
    assert "write 1000 log lines" in told
