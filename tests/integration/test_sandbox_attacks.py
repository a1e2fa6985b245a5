"""What a hostile server tries against the promises of docs/security.md: in the highest tier of this machine, and where
there are no namespaces."""

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.integration.gateway import ROOT, Gateway, running_gateway
from tests.integration.stopwatch import waited_for_a_processor
from tests.integration.wire import wire

SLEEP_S = 70_000 + os.getpid() % 10_000  # by which the daemons of this run are known
ATTACKER = [sys.executable, "-I", "-S", str(ROOT / "tests/servers/attacker.py")]
NO_BUBBLEWRAP = """
from app.jail.sandbox import machine
def find_none(path=None): raise FileNotFoundError("there is no bwrap")
machine.find_bubblewrap = find_none
"""
SLOWEST_S = 2.0  # answers of a node that nothing stops, on a busy machine

pytestmark = pytest.mark.timeout(120)


class WithoutNamespaces(Gateway):
    FIRST = NO_BUBBLEWRAP


@pytest.fixture(scope="module", params=[Gateway, WithoutNamespaces], ids=["highest", "without namespaces"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with running_gateway(tmp_path_factory.mktemp("target") / "data", request.param) as gateway:
        [node] = gateway.api("GET", "/nodes")["items"]
        enforced = node["sandbox"]["networks"]["none"]["enforced"]
        if not {"files", "network", "processes"} <= set(enforced):
            gateway.stop()
            pytest.skip(f"this machine enforces only {enforced}")
        yield gateway


def hostile(gateway: Gateway, *words: str, **fields: Any) -> Any:
    fields.setdefault("sandbox", {})
    return gateway.endpoint([*ATTACKER, *(words or (str(SLEEP_S),))], **fields)


async def attempted(gateway: Gateway, *names: tuple[str, Any], **fields: Any) -> dict[str, list[Any]]:
    """What came of these attempts."""
    async with wire(hostile(gateway, **fields)) as session:
        return dict(json.loads(await session.call("attempt", names=names)))


async def test_files_of_the_gateway_the_machine_and_others_cannot_be_read_written_or_linked(target: Gateway) -> None:
    victim = hostile(target, state="keep")
    async with wire(victim) as session:
        await session.call("attempt", names=[("descriptors", None)])
        (kept,) = (target.data_dir / "homes").glob(f"{victim.tenant}.*/kept/*/home")
        secret = kept / "note"
        secret.write_text("another tenant's")
        secret.chmod(0o666)
        paths = [target.data_dir / "secret_key", target.data_dir / "trunkline.db", secret, Path("/etc/shadow")]
        paths += [Path(f"/proc/{target.pid}/{name}") for name in ("environ", "root/etc/shadow", "mem", "fd/0")]
        kinds = ("read", "read_through", "empty", "steal")
        found = await attempted(target, *((kind, str(path)) for path in paths for kind in kinds), state="keep")
    assert [what for what, (came, *_) in found.items() if came == "got"] == []


async def test_other_processes_cannot_be_signalled_or_read_and_nothing_is_inherited(target: Gateway) -> None:
    spawner = next(each.pid for each in psutil.Process(target.pid).children())
    others = [("descriptors", None), ("environments", None), ("huge_pages", None)]
    pids = (target.pid, spawner, os.getpid())
    tries = [(kind, pid) for kind in ("kill", "signal_by_pipe") for pid in pids]
    found = await attempted(target, *others, *tries)
    assert found.pop("environments None") == ["got", 0]
    assert found.pop("descriptors None") == ["got", [0, 1, 2]]
    assert found.pop("huge_pages None") == ["EINVAL"]
    assert [what for what, (came, *_) in found.items() if came == "got"] == []


async def test_no_network_is_none_and_web_leads_neither_to_the_machine_nor_to_a_cloud_s_metadata(
    target: Gateway,
) -> None:
    port = int(target.url.rpartition(":")[2])
    found = await attempted(target, ("connect", ["127.0.0.1", port]), ("connect", ["::1", port]))
    assert [came for came, *_ in found.values() if came == "got"] == []
    hosts = ("127.0.0.1", "localhost", "[::1]", "[::ffff:7f00:1]", "169.254.169.254", "168.63.129.16", "2130706433")
    tries: list[tuple[str, Any]] = [("connect", ["127.0.0.1", port])]
    if not isinstance(target, WithoutNamespaces):  # there it is a rule for ports
        tries += [("ask_the_proxy", f"{host}:{number}") for host in hosts for number in (80, 443, port)]
    found = await attempted(target, *tries, sandbox={"network": "web"})
    assert [what for what, (came, *_) in found.items() if came == "got"] == []


@pytest.mark.parametrize("mode", ["bytes", "names"])
def test_a_check_of_a_hostile_server_is_answered_and_holds_up_nobody(target: Gateway, mode: str) -> None:
    endpoint = hostile(target, mode)
    is_over, slowest, gateway = threading.Event(), 0.0, psutil.Process(target.pid)

    def bystander() -> None:
        nonlocal slowest
        while not is_over.wait(0.02):
            began, waited_before = time.monotonic(), waited_for_a_processor([gateway])
            httpx2.get(target.url + "/livez", timeout=60)
            waited_s = waited_for_a_processor([gateway]) - waited_before
            slowest = max(slowest, time.monotonic() - began - waited_s)

    thread = threading.Thread(target=bystander)
    thread.start()
    try:
        check = target.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:check")
    finally:
        is_over.set()
        thread.join()
    assert check["failure"]["detail"] == "the backend ended: exit status 3"
    assert json.dumps(check["missed"], ensure_ascii=False).encode()
    assert slowest < SLOWEST_S


def test_what_leads_to_the_gateway_s_data_cannot_be_declared(target: Gateway, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(target.data_dir)
    for path in (target.data_dir, target.data_dir / "homes", target.data_dir.parent, tmp_path / "link"):
        endpoint = hostile(target, sandbox={"read": [str(path)]})
        check = target.api("POST", f"/tenants/{endpoint.tenant}/backends/{endpoint.name}:check")
        assert check["failure"]["reason"] == "backend_exited", path
        assert "which no sandbox opens" in " ".join(check["failure"]["stderr"]), path


async def test_a_working_directory_below_the_home_is_made_in_every_tier(target: Gateway) -> None:
    for state in ("none", "keep"):
        found = await attempted(target, ("descriptors", None), cwd="work", state=state)
        assert found == {"descriptors None": ["got", [0, 1, 2]]}
