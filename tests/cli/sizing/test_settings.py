"""The settings that go with an answer fit it, and its defaults are those of the program."""

from dataclasses import replace

from app.cli.sizing import arithmetic, settings
from app.cli.sizing.arithmetic import Answer, answer
from app.config.settings import Settings
from app.links.shared_processes import ENOUGH_SESSIONS
from tests.cli.sizing.test_arithmetic import DEMAND, LARGE, NODE, SLOW


def sized(*backends, users=400) -> Answer:
    return answer(backends, replace(DEMAND, users=users), LARGE, NODE)


def test_the_nodes_that_are_left_have_room_for_all_processes():
    found = sized(SLOW, users=1600)
    each = settings.of_each_node(found)
    assert found.needed == 4
    assert each["MAX_PROCESSES"] == settings.most_processes(found.parts[0], found)
    assert each["MAX_PROCESSES"] * found.needed > 800
    assert settings.of_backend(found.parts[0], found) == {
        "max_processes": 800 // 4 * 11 // 10 + found.parts[0].warm,
        "start": "exec",
        "warm": "auto",
        "limits.memory_mb": 256,
    }


def test_a_default_that_is_enough_is_not_set():
    assert set(settings.of_each_node(sized(SLOW))) == {"MAX_PROCESSES"}


def test_a_default_that_is_not_is():
    shared = [replace(SLOW, name=f"s{number}", mode="shared", process_mib=0, fixed_mib=1) for number in range(50)]
    forked = [replace(SLOW, name=f"f{number}", mode="fork", process_mib=0.1, fixed_mib=1) for number in range(17)]
    found = settings.of_each_node(sized(*shared, *forked))
    assert found["MAX_SESSIONS"] == 67 * 200 * 11 // 10
    assert found["FORK_TEMPLATES"] == 17
    large = replace(SLOW, process_mib=900)
    assert settings.of_each_node(sized(large))["WARM_MEMORY_MB"] == 1856
    assert settings.of_each_node(sized(large, replace(large, name="other")))["WARM_MEMORY_MB"] == 3648


def test_parked_and_shared_backends_are_told_so():
    found = sized(replace(SLOW, park_s=300), replace(SLOW, name="all", mode="shared", process_mib=0, fixed_mib=40))
    parked, shared = (settings.of_backend(part, found) for part in found.parts)
    assert parked["recovery"] == "respawn"
    assert parked["timeouts.park_s"] == "300"
    assert shared == {"max_processes": 5, "isolation": "shared", "limits.memory_mb": 256}


def test_a_process_may_take_twice_what_was_measured():
    found = sized(replace(SLOW, process_mib=180, fixed_mib=30))
    assert settings.of_backend(found.parts[0], found)["limits.memory_mb"] == 448


def test_the_defaults_are_those_of_the_settings():
    defaults = Settings.from_env({})
    assert defaults.max_sessions == settings.MAX_SESSIONS
    assert defaults.warm_memory_mb == settings.WARM_MEMORY_MB
    assert defaults.fork_templates == settings.FORK_TEMPLATES
    assert arithmetic.SHARED_SESSIONS == ENOUGH_SESSIONS
