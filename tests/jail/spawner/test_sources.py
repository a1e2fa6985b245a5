"""Sources: one that brings about an error, and the others."""

import os
from collections.abc import Iterator

import pytest

from app.jail.spawner._sources import Sources


@pytest.fixture
def pipes() -> Iterator[list[int]]:
    """The reading ends of three pipes that can be read."""
    pairs = [os.pipe() for _ in range(3)]
    for _, writer in pairs:
        os.write(writer, b"x")
    yield [reader for reader, _ in pairs]
    for pair in pairs:
        for each in pair:
            os.close(each)


def fails() -> None:
    raise ValueError("a bug")


def test_an_error_costs_only_the_source_that_has_brought_it_about(
    pipes: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    sources, heard = Sources(), list[int]()
    sources.watch(pipes[0], lambda: heard.append(0), is_vital=True)
    sources.watch(pipes[1], fails)
    sources.watch(pipes[2], lambda: heard.append(2))
    sources.wait(0)
    sources.wait(0)
    assert sorted(heard) == [0, 0, 2, 2]
    assert capsys.readouterr().err.count("ValueError: a bug") == 1


def test_an_error_in_what_the_spawner_needs_ends_it(pipes: list[int]) -> None:
    sources = Sources()
    sources.watch(pipes[0], fails, is_vital=True)
    with pytest.raises(ValueError, match="a bug"):
        sources.wait(0)


def test_a_source_that_took_the_number_of_a_failed_one_is_heard(pipes: list[int]) -> None:
    sources, heard = Sources(), list[str]()

    def replaced() -> None:
        sources.unwatch(pipes[0])
        sources.watch(pipes[0], lambda: heard.append("new"))
        raise ValueError

    sources.watch(pipes[0], replaced)
    sources.wait(0)
    sources.wait(0)
    assert heard == ["new"]


def test_what_is_not_watched_can_be_unwatched(pipes: list[int]) -> None:
    Sources().unwatch(pipes[0])
