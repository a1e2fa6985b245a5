"""`trunkline size`: what it prints, what it refuses, and what it asks of a gateway."""

import json

import httpx2
import pytest

from app.cli import main
from app.cli.parser import parse
from app.cli.sizing import figures


def run(capsys, *words: str) -> str:
    assert main(["size", "--users", "400", *words]) == 0
    return capsys.readouterr().out


def refused(capsys, *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main(["size", *words]))
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_the_answer_has_memory_cores_nodes_the_limit_and_settings(capsys):
    out = run(capsys, "time", "git:fork")
    lines = [line.split()[0] for line in out.splitlines() if line.strip()]
    for name in ("time", "git", "Memory", "Cores", "Nodes", "Limit", "Assumed"):
        assert name in lines
    assert "200 of 400 users" in out
    assert "TRUNKLINE_MAX_PROCESSES=" in out
    assert "trunkline backends set git max_processes=" in out
    assert "start=fork" in out


def test_text_and_json_say_the_same(capsys):
    words = ("time", "everything:shared", "--park-s", "300", "--node", "4", "16")
    text, told = run(capsys, *words), json.loads(run(capsys, *words, "--json"))
    assert f"Memory  {told['memory_mib'] / 1024:.1f} GiB" in text
    assert f"Nodes   {told['nodes']} = " in text
    assert f"Limit   {told['binds']}" in text
    assert told["node"]["cores"] == 4
    assert [each["mode"] for each in told["backends"]] == ["exec", "shared"]
    assert f"TRUNKLINE_MAX_PROCESSES={told['settings']['MAX_PROCESSES']}" in text
    assert all(each in text for each in told["assumptions"])


def test_its_figures_are_in_the_package_and_complete():
    known = figures.read()
    languages = [each["language"] for each in known["servers"].values()]
    assert languages.count("Python") >= 2
    assert languages.count("Node") >= 2
    for name, server in known["servers"].items():
        modes = {"exec", "shared"} | ({"fork"} if server["language"] == "Python" else set())
        assert set(server["modes"]) == modes
        for mode in modes:
            backend = figures.measured(known, name, mode, None)
            assert backend.mode == mode
            assert backend.process_mib + backend.fixed_mib > 5
            assert (backend.start_cpu_s > 0) == (mode != "shared")


def test_what_cannot_be_forked_is_executed(capsys):
    told = json.loads(run(capsys, "everything", "time", "--mode", "fork", "--json"))
    assert [each["mode"] for each in told["backends"]] == ["exec", "fork"]


def test_an_own_backend_is_what_is_said_of_it(capsys):
    told = json.loads(run(capsys, "--own", "crm", "150", "1.2", "--json"))
    (crm,) = told["backends"]
    assert (crm["process_mib"], crm["start_cpu_s"], crm["memory_mib"], crm["source"]) == (150, 1.2, 30_000, "given")
    assert any("was given" in each for each in told["assumptions"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--users", "400"], "name 1 to 100 backends; measured are time"),
        (["--users", "400", "crm"], "crm was not measured; give its numbers with --own"),
        (["--users", "400", "time", "time:fork"], "named twice: time"),
        (["--users", "400", "time:forked"], "modes are exec, fork, shared"),
        (["--users", "0", "time"], "allowed are 1 to 999999"),
        (["time"], "--users"),
        (["--users", "9", "time", "--concurrent", "101"], "allowed are 0.1 to 100"),
        (["--users", "9", "time", "--concurrent", "nan"], "allowed are 0.1 to 100"),
        (["--users", "9", "time", "--park-s", "0.5"], "allowed are 1 to 86400"),
        (["--users", "9", "--own", "crm", "x", "1"], "allowed are 1 to"),
        (["--users", "9", "--own", "CRM", "9", "1"], "lower-case letters"),
        (["--users", "9", "time", "--node", "1", "0.25"], "is too small"),
        (["--users", "9", "time:fork", "--from-gateway"], "give names without a mode"),
        (["--users", "9", "time", "--from-gateway"], "which gateway?"),
    ],
)
def test_bad_input_is_named(capsys, words, said):
    assert said in refused(capsys, *words)


# --- from a gateway

MIB = 2**20
SPECS = [
    {"name": "time", "command": "mcp-server-time", "isolation": "session", "timeouts": {"park_s": 300}},
    {"name": "all", "command": "other", "isolation": "shared", "timeouts": None},
    {"name": "far", "command": "", "url": "https://far.example/mcp", "isolation": "session"},
]


def process(backend="time", mib=60, cpu_s=0.6, calls=0, **more):
    return {
        "backend": backend, "state": "leased", "start": "exec", "resident_bytes": mib * MIB, "cpu_s": cpu_s,
        "calls_total": calls, **more,
    }  # fmt: skip


PROCESSES = [
    process(mib=50),
    process(mib=60, cpu_s=1.0, calls=100),
    process(mib=90, cpu_s=0.8, calls=100),
    process(mib=5000, state="starting"),
    process(mib=5000, start="template"),
    process(mib=0),
    process("all", 70),
]


@pytest.fixture
def gateway(monkeypatch):
    asked = []

    def answer(_: object, method: str, url: str, **__: object) -> httpx2.Response:
        asked.append(url)
        items = SPECS if url.endswith("/backends") else PROCESSES
        return httpx2.Response(200, json={"items": items, "total": len(items)})

    monkeypatch.setenv("TRUNKLINE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("TRUNKLINE_KEY", "tlk_x")
    monkeypatch.setattr(httpx2.Client, "request", answer)
    return asked


def test_a_gateways_backends_are_sized_by_what_their_processes_use(gateway, capsys):
    told = json.loads(run(capsys, "--from-gateway", "--tenant", "acme", "--json"))
    assert {url.split("?")[0].rpartition("/acme/")[2] for url in gateway} == {"backends", "processes"}
    time, shared = told["backends"]
    assert (time["name"], time["mode"], time["process_mib"], time["start_cpu_s"]) == ("time", "exec", 60, 0.6)
    assert time["call_cpu_ms"] == pytest.approx(0.6 / 200 * 1000)
    assert time["park_s"] == 300
    assert (shared["name"], shared["mode"], shared["fixed_mib"], shared["processes"]) == ("all", "shared", 70, 2)
    assert any("resident" in each for each in told["assumptions"])


def test_some_of_them_and_own_ones_can_be_sized_together(gateway, capsys):
    told = json.loads(run(capsys, "--from-gateway", "time", "--own", "crm", "150", "1.2", "--json"))
    assert [each["name"] for each in told["backends"]] == ["time", "crm"]


def test_one_without_a_process_to_measure_is_named(gateway, capsys, monkeypatch):
    monkeypatch.setitem(globals(), "PROCESSES", [])
    assert "no process of time is there to be measured" in refused(capsys, "--users", "9", "--from-gateway", "time")


def test_one_that_starts_no_processes_cannot_be_sized(gateway, capsys):
    assert "has no backend far" in refused(capsys, "--users", "9", "--from-gateway", "far")


def test_names_may_stand_before_and_after_options():
    options = parse(["size", "time", "--users", "9"])
    assert options.backends == [("time", None)]
