"""What the HTTP headers of an MCP request mean."""

from typing import NamedTuple

from app.text.memo import memo

JSON = "application/json"
EVENTS = "text/event-stream"


class Accepted(NamedTuple):
    json: bool
    events: bool


@memo(256)
def parse_accept(value: bytes | None) -> Accepted:
    """What an Accept header allows; without one everything is (RFC 9110, 12.5.1)."""
    if value is None or not value.strip():
        return Accepted(True, True)
    ranges = [_media_range(part) for part in value.decode("latin-1").split(",")]
    wanted = {media for media, quality in ranges if quality > 0}
    return Accepted(
        not wanted.isdisjoint({JSON, "application/*", "*/*"}), not wanted.isdisjoint({EVENTS, "text/*", "*/*"})
    )


def _media_range(part: str) -> tuple[str, float]:
    media, *parameters = (word.strip().lower() for word in part.split(";"))
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return media, float(value)
            except ValueError:
                return media, 0.0
    return media, 1.0


@memo(256)
def is_json(content_type: bytes | None) -> bool:
    """Whether a Content-Type is application/json, with any parameters."""
    return content_type is not None and content_type.split(b";", 1)[0].strip().lower() == JSON.encode()


@memo(256)
def parse_version(values: tuple[bytes, ...]) -> str | None:
    """The MCP-Protocol-Version header, or None. Some clients send it twice; different values are joined, so that they
    name no known version."""
    versions = [word.strip() for value in values for word in value.decode("latin-1").split(",")]
    return ", ".join(dict.fromkeys(filter(None, versions))) or None
