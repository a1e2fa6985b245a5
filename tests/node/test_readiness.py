"""`degraded` of /readyz can be read by somebody who was woken up: what is wrong, what it costs, what to do."""

import re
from typing import get_args

import pytest

from app.limits.overload import MarkName
from app.node.readiness import (
    changes_words,
    database_words,
    nodes_words,
    overload_words,
    redis_words,
    routes_words,
    slow_words,
)
from app.settings.settings import NAMES
from app.storage import _database_errors as failures
from app.storage import _sqlite_file as sqlite_file
from app.storage import database_watch as watch

REFUSED = "Error 111 connecting to 127.0.0.1:6379. Connection refused."
OTHER_KEY = "it is used by nodes with another TRUNKLINE_SECRET_KEY"
POLICY = "its maxmemory-policy is allkeys-lru; it should be noeviction"
FULL = "it refuses commands: command not allowed when used memory > 'maxmemory'."
REPLICA = "You can't write against a read only replica."
NODE = "http://10.0.0.7:8080"
RELEASE = "it is of another release: version 3 of the protocol between nodes, here 4"
READ_ONLY = "The database is read-only: it may be a standby"
WORDS = [
    redis_words(REFUSED, is_up=False),
    redis_words(OTHER_KEY, is_up=False),
    redis_words(POLICY, is_up=True),
    redis_words(FULL, is_up=True),
    redis_words(REPLICA, is_up=False),
    redis_words("it refuses commands: ERR something new", is_up=True),
    *(overload_words("new sessions are refused: 97% of memory is used", mark) for mark in get_args(MarkName)),
    nodes_words({NODE: "it has another SECRET_KEY"}),
    nodes_words({NODE: RELEASE}),
    nodes_words({NODE: "their clocks are too far apart"}),
    nodes_words({NODE: "its certificate is not trusted here: self-signed certificate"}),
    nodes_words({NODE: "it does not believe this one"}),
    database_words("the database does not answer"),
    database_words(READ_ONLY),
    database_words(sqlite_file.GONE),
    *map(changes_words, (failures.FULL, failures.IO_ERROR, failures.LOCKED, failures.NO_THREAD, failures.LACKS)),
    slow_words(watch.SLOW),
    routes_words(),
]


@pytest.mark.parametrize("words", WORDS)
def test_every_degradation_says_what_to_do(words):
    wrong, found, advice = words.partition(". Do: ")
    assert found
    assert wrong[0].isupper()
    assert advice
    assert words.endswith(".")
    assert "{" not in words
    for setting in re.findall(r"TRUNKLINE_([A-Z_]+)", words):
        assert setting in NAMES


def test_it_names_what_was_found():
    assert REFUSED in WORDS[0]
    assert "refused with 503" in WORDS[0]
    assert "the same TRUNKLINE_SECRET_KEY" in WORDS[1]
    assert "CONFIG SET maxmemory-policy noeviction" in WORDS[2]
    assert "raise its maxmemory" in WORDS[3]
    assert "must name the master" in WORDS[4]
    assert NODE in nodes_words({NODE: RELEASE})
    assert "finish the upgrade" in nodes_words({NODE: RELEASE})


def test_a_database_that_takes_no_changes_is_not_one_that_is_away():
    assert "must name the primary" in database_words(READ_ONLY)
    assert "`trunkline doctor`" in database_words("the database does not answer")

    assert "mount" in database_words(failures.READ_ONLY_FILE)
    assert "free space" in changes_words(failures.FULL)
    assert "fuser" in changes_words(failures.LOCKED)


def test_each_node_has_a_sentence_of_its_own():
    words = nodes_words({NODE: RELEASE, "http://10.0.0.8:8080": "their clocks are too far apart"})
    assert words.count("Do: ") == 2
    assert "NTP" in words
