"""Codes and refresh tokens: derived from a connection and its turn, so that none is stored and each can be given out a
second time where the first answer was lost."""

import hmac
import re
from base64 import urlsafe_b64encode
from typing import NamedTuple

from app.domain import Connection

_LABEL = b"trunkline connections 1"
_form = re.compile(r"(?P<kind>tlc|tlr)_(?P<id>[0-9a-f]{16})\.(?P<turn>[0-9]{1,9})\.[A-Za-z0-9_-]{32}").fullmatch


class Presented(NamedTuple):
    """What a code (`turn` 0) or a refresh token says of itself."""

    text: str
    connection_id: str
    turn: int


class ConnectionSecrets:
    """Makes and checks them. Secret scanners find them by `tlc_` and `tlr_`."""

    def __init__(self, secret_key: bytes) -> None:
        self._key = hmac.digest(secret_key, _LABEL, "sha256")

    def of(self, connection: Connection) -> str:
        """The code of a connection that waits for it to come back, else the refresh token of its turn."""
        return self._text(connection, connection.turn)

    @staticmethod
    def read(text: str) -> Presented | None:
        """None: it is neither."""
        match = _form(text)
        if match is None or (match["kind"] == "tlc") != (int(match["turn"]) == 0):
            return None
        return Presented(text, match["id"], int(match["turn"]))

    def is_of(self, presented: Presented, connection: Connection) -> bool:
        """Whether it was made for this connection."""
        return hmac.compare_digest(presented.text, self._text(connection, presented.turn))

    def _text(self, connection: Connection, turn: int) -> str:
        body = f"{'tlr' if turn else 'tlc'}_{connection.id}.{turn}"
        mac = hmac.digest(self._key, f"{connection.tenant} {body}".encode(), "sha256")
        return f"{body}.{urlsafe_b64encode(mac).decode()[:32]}"
