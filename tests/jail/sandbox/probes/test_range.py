"""The targets of a probe can be hit."""

import os
import socket
from pathlib import Path

import pytest

from app.jail.sandbox.probes import attempts
from app.jail.sandbox.probes.range import Targets, identity, shooting_range, stand_ins


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_every_address_answers_and_what_is_not_there_has_a_stand_in():
    address = ("127.0.0.1", free_port())
    with shooting_range(Targets({}, {"the gateway": address})) as targets:
        goals = targets.goals["connect"]
        assert goals["the gateway"] == address
        for name, each in goals.items():
            if name != "cloud metadata":
                socket.create_connection(each, 5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address, 5)


def test_a_stand_in_stays_for_the_others_when_one_range_ends():
    addresses = {"the gateway": ("127.0.0.1", free_port())}
    with stand_ins(addresses), shooting_range(Targets({}, addresses)) as targets:
        with shooting_range(Targets({}, addresses)):
            pass
        socket.create_connection(targets.goals["connect"]["the gateway"], 5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(addresses["the gateway"], 5)


def test_what_another_probe_has_made_in_the_same_place_is_in_nobodys_way(tmp_path: Path):
    for name in ("new", *(f".trunkline-probe-{number}" for number in range(3))):
        (tmp_path / name).touch()
    assert attempts.create(str(tmp_path / "new")) == "created"
    assert attempts.fill_past(str(tmp_path), 300, 3) == "303 bytes"


def test_a_stand_in_gives_way_to_who_is_bound_there():
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        with shooting_range(Targets({}, {"the gateway": bound.getsockname()})) as targets:
            assert "the gateway" not in targets.goals["connect"]
            bound.listen()


def test_a_datagram_is_noticed():
    with shooting_range(Targets({}, {})) as targets:
        assert not targets.was_hit()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"?", targets.goals["datagram"]["a port of others"])
        assert targets.was_hit()


def test_files_are_there_and_gone_afterwards():
    with shooting_range(Targets({"a system file": "/etc/passwd"}, {})) as targets:
        paths = targets.goals["read"].values()
        assert all(map(os.path.exists, paths))
        assert targets.goals["change"]["a system file"] == "/etc/passwd"
        assert os.path.exists(targets.goals["unix"]["a socket of others"])
    assert not Path(targets.goals["metadata"]["a file of others"]).exists()


def test_a_process_is_told_from_another_of_its_number():
    assert identity(os.getpid()) == identity(os.getpid())
    assert identity(os.getpid())[1] != identity(1)[1] or os.getpid() == 1
