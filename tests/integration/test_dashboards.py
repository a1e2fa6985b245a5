"""Grafana's dashboards: every query of them is asked of what a running gateway says, by our PromQL, and by a real
Prometheus where one is installed."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

import anyio
import httpx2
import promql_parser as ast
import pytest
import yaml  # type: ignore[import-untyped]

from tests.alerting import JOB, Scrape, lasting, look
from tests.integration.gateway import ECHO, ROOT, Gateway, running_gateway, until
from tests.integration.remote import free_port
from tests.integration.wire import RpcError, wire
from tests.promql import NAME, Labels, Promql, Samples

GRAFANA = ROOT / "deploy/grafana"
RUN_S = 600.0
VARIABLES = {"$__rate_interval": "5m", "$node": ".*", "$tenant": ".*", "$backend": ".*"}
# What is counted only where it has happened.
MAYBE_EMPTY = {
    "Does Redis answer?",
    "How many requests go to another node?",
    "Is something refused because of overload?",
}

AT_LAST = ("trunkline_process_exits_total", "trunkline_backend_resident_bytes")


def made() -> Any:
    """deploy/grafana/make-dashboards as a module."""
    loader = SourceFileLoader("make_dashboards", str(GRAFANA / "make-dashboards"))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = sys.modules[loader.name] = module_from_spec(spec)
    loader.exec_module(module)
    return module


DASHBOARDS = {path.stem: json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))}
QUERIES = [
    pytest.param(target["expr"], id=f"{name}: {panel['title']} {target['refId']}")
    for name, dashboard in DASHBOARDS.items()
    for panel in dashboard["panels"]
    for target in panel["targets"]
]


def expanded(query: str) -> str:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert "$" not in query, query
    return query


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Scrape, Scrape]]:
    """What a gateway says before and after calls, a failing call, a refused key, and a session that ends."""
    settings = {"METRICS_PER_BACKEND": "5"}
    with running_gateway(tmp_path_factory.mktemp("dashboards") / "data", **settings) as gateway:
        endpoint = gateway.endpoint(ECHO, warm=1)
        before = look(gateway)
        anyio.run(_work, gateway, endpoint)
        yield before, look(gateway)


async def _work(gateway: Gateway, endpoint: Any) -> None:
    async with wire(endpoint) as session:
        for number in range(5):
            await session.call("echo", text=str(number))
        with pytest.raises(RpcError):
            await session.request("no/such/method")
        async with httpx2.AsyncClient(timeout=30) as http:
            await http.post(endpoint.mcp, json={}, headers={"Authorization": "Bearer tlk_wrong"})
            async with http.stream("GET", gateway.url + "/api/v1/unknown"):
                pass
        await until(lambda: _has(gateway, "trunkline_backend_resident_bytes"), 30)  # measured every few seconds
        assert (await session.ask("crash")).reason == "backend_exited"
    # The process whose memory was measured is gone; the warm one may not be measured yet.
    await until(lambda: all(_has(gateway, name) for name in AT_LAST), 30)


def _has(gateway: Gateway, metric: str) -> bool:
    return any(name.startswith(metric + "{") for name in gateway.metrics())


@pytest.fixture(scope="module")
def series(run: tuple[Scrape, Scrape]) -> dict[Labels, Samples]:
    """Ten minutes of that, scraped every 15 seconds."""
    return lasting(*run, RUN_S)


def test_the_files_are_what_their_source_makes():
    source = made()
    assert set(DASHBOARDS) == set(source.DASHBOARDS)
    for name in DASHBOARDS:
        assert (GRAFANA / f"dashboards/{name}.json").read_text() == source.text(name)


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafana_can_provision_a_dashboard(name: str):
    dashboard = DASHBOARDS[name]
    assert dashboard["uid"] == f"trunkline-{name}"
    assert "__inputs" not in dashboard
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    taken = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
    assert len(set(taken)) == len(taken)
    for panel in dashboard["panels"]:
        assert panel["title"].endswith("?"), "a title is a question"
        assert panel["description"].endswith(".")
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    known = {each["name"] for each in dashboard["templating"]["list"]}
    used = {
        found
        for panel in dashboard["panels"]
        for each in panel["targets"]
        for found in re.findall(r"\$(\w+)", each["expr"])
    }
    assert used - {"__rate_interval"} <= known
    assert all(name in json.dumps(dashboard["panels"]) for name in known - {"datasource"})


def test_compose_mounts_what_grafana_reads():
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yml").read_text())["datasources"][0]
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in compose
    path = yaml.safe_load((GRAFANA / "provisioning/dashboards/trunkline.yml").read_text())["providers"][0]["options"][
        "path"
    ]
    assert f"./deploy/grafana/dashboards:{path}:ro" in compose["grafana"]["volumes"]
    assert "./deploy/grafana/provisioning:/etc/grafana/provisioning:ro" in compose["grafana"]["volumes"]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_what_the_gateway_has_and_is_answered(
    query: str, series: Mapping[Labels, Samples], request: pytest.FixtureRequest
):
    names = {dict(labels)[NAME] for labels in series}
    for selector in selectors(ast.parse(expanded(query))):
        if selector.name not in names:
            assert is_maybe_empty(request), f"the gateway has no metric {selector.name}"
            continue
        labels = {label for each in series if dict(each)[NAME] == selector.name for label, _ in each}
        assert {each.name for each in selector.matchers.matchers} <= labels | {NAME}
    answer = Promql(series).query(expanded(query), max(samples[-1][0] for samples in series.values()))
    assert answer or is_maybe_empty(request)


def is_maybe_empty(request: pytest.FixtureRequest) -> bool:
    return any(title in request.node.name for title in MAYBE_EMPTY)


def selectors(node: Any) -> Iterator[Any]:
    """All vector selectors of an expression."""
    if isinstance(node, ast.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "param"):
        below = getattr(node, name, None)
        if below is not None:
            yield from selectors(below)
    for each in getattr(node, "args", ()):
        yield from selectors(each)


@pytest.fixture(scope="module")
def prometheus(
    series: Mapping[Labels, Samples], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, float]]:
    """A real Prometheus that has these series, and the time of their end."""
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("prometheus is not installed (Debian: apt-get install prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    end = float(int(time.time()) - 60)
    last = max(samples[-1][0] for samples in series.values())
    (folder / "run.txt").write_text(openmetrics(series, end - last))
    blocks = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "run.txt"), str(folder / "data")]
    subprocess.run(blocks, check=True, capture_output=True, timeout=120)
    (folder / "none.yml").write_text("{}")
    port = free_port()
    command = ["prometheus", f"--config.file={folder}/none.yml", f"--storage.tsdb.path={folder}/data"]
    command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 60
    try:
        while True:
            try:
                httpx2.get(url + "/-/ready").raise_for_status()
                break
            except httpx2.HTTPError:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.1)
        yield url, end
    finally:
        process.kill()
        process.wait()


def openmetrics(series: Mapping[Labels, Samples], offset: float) -> str:
    """The series as promtool reads them. All are untyped: their names are final."""
    lines = list[str]()
    for labels in sorted(series, key=lambda each: dict(each)[NAME]):
        pairs = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(labels) if name != NAME)
        lines += [f"{dict(labels)[NAME]}{{{pairs}}} {value} {offset + at}" for at, value in series[labels]]
    return "\n".join([*lines, "# EOF", ""])


@pytest.mark.parametrize("query", QUERIES)
def test_a_real_prometheus_answers_the_same(
    query: str, prometheus: tuple[str, float], series: Mapping[Labels, Samples], request: pytest.FixtureRequest
):
    url, end = prometheus
    answer = httpx2.get(url + "/api/v1/query", params={"query": expanded(query), "time": str(end)}, timeout=30).json()
    assert answer["status"] == "success", answer
    assert answer["data"]["result"] or is_maybe_empty(request)
    ours = Promql(series).query(expanded(query), max(samples[-1][0] for samples in series.values()))
    assert isinstance(ours, dict)
    assert len(answer["data"]["result"]) == len(ours)


def test_the_job_of_the_queries_is_that_of_the_configuration():
    configuration = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    assert JOB in {each["job_name"] for each in configuration["scrape_configs"]}
    assert f'job="{JOB}"' in (GRAFANA / "make-dashboards").read_text()
