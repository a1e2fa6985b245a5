"""docker-compose.yml, what it mounts, and the balancer that it puts in front of two nodes."""

import re
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from app.cluster.journal_writer import MAX_STORED_BYTES
from app.errors import SettingsError
from app.settings.settings import Settings
from tests.deploy.test_deploy import UNIT, is_setting

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
NODES = ["gateway-1", "gateway-2"]
SECRETS = ROOT / "deploy/secrets"

# What the compose specification knows and we use; a misspelt key would be without effect, or refused only at the start.
SERVICE_KEYS = {
    "build", "image", "restart", "environment", "secrets", "ports", "volumes", "networks", "read_only", "tmpfs",
    "cap_drop", "security_opt", "pids_limit", "mem_limit", "ulimits", "stop_grace_period", "healthcheck", "command",
    "depends_on", "profiles", "user", "shm_size",
}  # fmt: skip


def default_of(setting: str) -> Any:
    return next(each for each in fields(Settings) if each.name == setting).metadata["default"]


def environment(name: str) -> dict[str, str]:
    """What the service is given where the user's shell sets nothing."""
    return {
        variable: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for variable, value in SERVICES[name]["environment"].items()
    }


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def test_up_starts_two_nodes_with_all_they_need_and_the_single_node_waits_to_be_named():
    started = {name for name, service in SERVICES.items() if not service.get("profiles")}
    assert started == {*NODES, "migrate", "balancer", "redis", "postgres", "prometheus", "grafana"}
    assert set(SERVICES) - started == {"gateway", "jaeger"}
    assert {key for key in COMPOSE if not key.startswith("x-")} == {
        "name",
        "services",
        "networks",
        "volumes",
        "secrets",
    }


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_hardened_pinned_and_watched(name):
    service = SERVICES[name]
    assert set(service) <= SERVICE_KEYS
    assert re.fullmatch(r"trunkline:local|[a-z/]+:v?[0-9]+\.[0-9]+(\.[0-9]+)?(-bookworm)?", service["image"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert not service.get("privileged")
    assert "mem_limit" in service
    health = service["healthcheck"]
    if name == "migrate":
        assert health == {"disable": True}
        assert service["restart"] == "no"
    else:
        assert set(health) <= {"test", "interval", "timeout", "retries", "start_period"}
        assert health["test"][0] in ("CMD", "CMD-SHELL")


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_names_is_declared(name):
    service = SERVICES[name]
    assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    assert set(service["networks"]) <= set(COMPOSE["networks"])
    volumes = {each.split(":")[0] for each in service.get("volumes", [])}
    assert {each for each in volumes if not each.startswith("./")} <= set(COMPOSE["volumes"])
    assert all((ROOT / each).exists() for each in volumes if each.startswith("./"))
    for other, wanted in service.get("depends_on", {}).items():
        ends = SERVICES[other]["healthcheck"] == {"disable": True}
        assert wanted == {"condition": "service_completed_successfully" if ends else "service_healthy"}


def test_no_secret_has_a_value_in_the_compose_file():
    for service in SERVICES.values():
        for variable, value in service.get("environment", {}).items():
            if re.search(r"PASSWORD|SECRET|KEY|TOKEN|DATABASE_URL|REDIS_URL", variable):
                assert variable.endswith("_FILE")
                assert str(value).startswith("/run/secrets/")
                assert str(value).removeprefix("/run/secrets/") in service["secrets"]
    assert all(
        set(each) == {"file"} and each["file"].startswith("./deploy/secrets/") for each in COMPOSE["secrets"].values()
    )
    assert (SECRETS / ".gitignore").read_text().splitlines()[1:] == ["*", "!.gitignore"]


def test_nothing_is_published_beyond_this_machine_and_redis_and_the_database_not_at_all():
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert "ports" not in service or name in ("balancer", "prometheus", "grafana", "jaeger", "gateway")
    assert COMPOSE["networks"]["inside"]["internal"] is True
    assert SERVICES["redis"]["networks"] == SERVICES["postgres"]["networks"] == ["inside"]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What deploy/make-secrets makes, somewhere else."""
    place = tmp_path_factory.mktemp("deploy")
    (place / "secrets").mkdir()
    script = place / "make-secrets"
    script.write_text((ROOT / "deploy/make-secrets").read_text())
    for _ in range(2):  # the second time changes nothing
        done = subprocess.run(["sh", script], capture_output=True, text=True, timeout=60, check=True)
        before = {each.name: each.read_text() for each in (place / "secrets").iterdir()}
    assert done.stdout.count("there already") == len(before)
    return place / "secrets"


def test_make_secrets_makes_each_secret_that_the_compose_file_names(secrets):
    made = {each.name: each.read_text().strip() for each in secrets.iterdir()}
    assert set(made) == set(COMPOSE["secrets"])
    assert all(Path(each["file"]).name == name for name, each in COMPOSE["secrets"].items())
    assert len({made["secret_key"], made["redis_password"], made["postgres_password"]}) == 3
    assert secrets.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", [*NODES, "migrate", "gateway"])
def test_the_settings_in_the_compose_file_exist_and_are_accepted(name, secrets, tmp_path):
    variables = environment(name)
    assert all(map(is_setting, variables))
    variables = {key: value.replace("/run/secrets", str(secrets)) for key, value in variables.items()}
    settings = Settings.from_env(variables, data_dir=str(tmp_path), host="0.0.0.0")
    assert settings.public_url is None
    if name in NODES:
        assert settings.node_url == f"http://{name}:8080"
        assert settings.node_name == name
        assert settings.redis_url == f"redis://:{(secrets / 'redis_password').read_text().strip()}@redis:6379/0"
        assert "postgres" in settings.database_url


def test_the_balancer_knows_the_nodes_by_the_names_that_stand_in_session_ids():
    configuration = (ROOT / "deploy/haproxy/haproxy.cfg").read_text()
    assert re.findall(r"^    server (\S+) ", configuration, re.MULTILINE) == NODES


def test_a_missing_secret_key_is_named(tmp_path):
    with pytest.raises(SettingsError, match="TRUNKLINE_SECRET_KEY_FILE: cannot read"):
        Settings.from_env({"TRUNKLINE_SECRET_KEY_FILE": str(tmp_path / "none")}, data_dir=str(tmp_path))


@pytest.mark.parametrize("name", [*NODES, "gateway"])
def test_a_node_may_drain_before_it_is_killed(name):
    (unit_s,) = map(int, re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE))
    delay_s = float(environment(name).get("TRUNKLINE_DRAIN_DELAY_S", 0))
    assert seconds(SERVICES[name]["stop_grace_period"]) > default_of("drain_s") + delay_s + 10
    assert unit_s > default_of("drain_s") + 10


def test_redis_throws_nothing_away_and_keeps_nothing():
    command = " ".join(SERVICES["redis"]["command"])
    assert "--maxmemory-policy noeviction" in command
    assert "--save '' --appendonly no" in command
    (megabytes,) = map(int, re.findall(r"--maxmemory (\d+)mb", command))
    assert megabytes * 2**20 > len(NODES) * MAX_STORED_BYTES * 1.5  # and routes, which are small
    assert megabytes < 0.75 * float(SERVICES["redis"]["mem_limit"].removesuffix("m"))


def test_prometheus_scrapes_every_node_of_the_compose_file_and_the_balancer():
    document = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    nodes, balancer = document["scrape_configs"]
    assert nodes["job_name"] == "trunkline"
    assert nodes["static_configs"] == [{"targets": [f"{name}:8080" for name in NODES]}]
    assert nodes["authorization"]["credentials_file"] == "/run/secrets/metrics_key"
    assert balancer["static_configs"] == [{"targets": ["balancer:8404"]}]
    assert document["rule_files"] == ["/etc/prometheus/rules.yml"]
    assert 'job="trunkline"' in (ROOT / "deploy/prometheus/rules.yml").read_text()
