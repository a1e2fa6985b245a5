"""Complaint: why a child has not become its backend, in its own words."""

import errno
import json
from typing import NamedTuple

from app.jail.spawner.wire import FORK_STAGE

_MAX_ERRNO = 4095  # the kernel's own limit
_MAX_STAGE = 64  # characters
_UNREADABLE = "the fork says what cannot be read"


class Complaint(NamedTuple):
    errno: int
    stage: str
    message: str


def complaint_of(word: bytes) -> Complaint:
    """What a child says before it ends. A fork has run code of the backend by then, so it may be anything."""
    try:
        told = json.loads(word)
    except (ValueError, RecursionError):
        told = None
    if isinstance(told, dict):
        number, stage, message = told.get("errno"), told.get("stage"), told.get("message")
        if type(number) is int and 0 < number <= _MAX_ERRNO and isinstance(stage, str) and isinstance(message, str):
            return Complaint(number, _printable(stage)[:_MAX_STAGE], _printable(message))
    return Complaint(errno.ECHILD, FORK_STAGE, _UNREADABLE)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)
