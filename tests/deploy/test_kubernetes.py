"""deploy/k8s: valid as Kubernetes sees it, whole, and in agreement with the gateway's settings, ports and paths."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from app.errors import SettingsError
from app.http import health
from app.sessions.routes import new_node_id
from app.sessions.session_ids import tag_of
from app.settings.settings import Settings
from tests.deploy.kustomize import Document, build, load, one
from tests.deploy.test_deploy import DOCKERFILE, exposed, is_setting

DIRECTORY = Path(__file__).resolve().parents[2] / "deploy/k8s"
EXAMPLE = DIRECTORY / "overlays/example"
VERSIONS = ["1.30", kubernetes_validate.latest_version()]
CUSTOM = {"HTTPRoute", "PodMonitor"}  # no part of Kubernetes itself: no schema at hand

INSTALLATIONS = {"base": build(DIRECTORY / "base"), "example": build(EXAMPLE)}
OURS = {"app.kubernetes.io/name": "trunkline"}


@pytest.fixture(params=INSTALLATIONS)
def installation(request: pytest.FixtureRequest) -> list[Document]:
    return INSTALLATIONS[request.param]


def pod(installation: list[Document]) -> Document:
    return one(installation, "Deployment")["spec"]["template"]["spec"]


def gateway(installation: list[Document]) -> Document:
    (container,) = pod(installation)["containers"]
    return container


def variables(container: Document, installation: list[Document]) -> dict[str, str]:
    """What the container's environment will be, on a pod with this name and address."""
    of_the_pod = {"status.podIP": "10.1.2.3", "metadata.name": "trunkline-7c9d8b-x2x4z"}
    found: dict[str, str] = {}
    for source in container["envFrom"]:
        found |= one(installation, "ConfigMap", source["configMapRef"]["name"])["data"]
    for each in container["env"]:
        value = each.get("value") or of_the_pod[each["valueFrom"]["fieldRef"]["fieldPath"]]
        found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda name: found[name[1]], value)
    return found


def memory_bytes(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", text).groups()
    return int(number) * {"Mi": 2**20, "Gi": 2**30}[unit]


# --- as Kubernetes sees it


@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_knows_every_field(installation, version):
    for document in [*installation, *load(EXAMPLE / "secret.example.yaml")]:
        if document["kind"] not in CUSTOM:
            kubernetes_validate.validate(document, version, strict=True)


def test_every_file_belongs_to_an_installation():
    for directory in (DIRECTORY / "base", EXAMPLE):
        (plan,) = load(directory / "kustomization.yaml")
        named = {each for each in plan["resources"] if each.endswith(".yaml")}
        named |= {each["path"] for each in plan.get("patches", [])}
        assert named | {"kustomization.yaml"} == {each.name for each in directory.iterdir()} - {"secret.example.yaml"}


def test_nothing_is_defined_twice_and_the_overlay_changes_what_it_means_to(installation):
    names = [(each["kind"], each["metadata"]["name"]) for each in installation]
    assert len(names) == len(set(names))
    example = INSTALLATIONS["example"]
    assert {each["metadata"].get("namespace") for each in example} == {None, "trunkline"}
    assert [each["kind"] for each in example if "namespace" not in each["metadata"]] == ["Namespace"]
    assert (
        gateway(example)["image"]
        == pod(example)["initContainers"][0]["image"]
        == "registry.example.com/trunkline:CHANGE-ME"
    )
    assert gateway(example)["resources"]["limits"] == {"memory": "16Gi"}
    assert gateway(example)["livenessProbe"] == gateway(INSTALLATIONS["base"])["livenessProbe"]
    assert (
        one(example, "HorizontalPodAutoscaler")["spec"]["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 1800
    )


def selectors(installation: list[Document]) -> Iterator[Any]:
    yield one(installation, "Deployment")["spec"]["selector"]["matchLabels"]
    yield one(installation, "Service")["spec"]["selector"]
    yield one(installation, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
    for each in pod(installation)["topologySpreadConstraints"]:
        yield each["labelSelector"]["matchLabels"]
    for each in installation:
        if each["kind"] == "NetworkPolicy":
            yield each["spec"]["podSelector"]["matchLabels"]
        if each["kind"] == "PodMonitor":
            yield each["spec"]["selector"]["matchLabels"]


def test_everything_selects_the_pods_of_the_deployment(installation):
    assert one(installation, "Deployment")["spec"]["template"]["metadata"]["labels"] == OURS
    assert all(each == OURS for each in selectors(installation))
    assert one(installation, "HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]["name"] == "trunkline"


# --- as the gateway sees it


def test_the_gateway_accepts_its_environment(installation, tmp_path):
    secrets = {"secret_key": "ab" * 32, "redis_url": "rediss://:p@redis:6379/0", "database_url": "postgresql://u:p@h/d"}
    for name, value in secrets.items():
        (tmp_path / name).write_text(value)
    for container in (gateway(installation), *pod(installation)["initContainers"]):
        (mount,) = (each["mountPath"] for each in container["volumeMounts"] if each["name"] == "secrets")
        found = {
            name: value.replace(mount, str(tmp_path)) for name, value in variables(container, installation).items()
        }
        assert all(is_setting(name) for name in found if name != "POD_IP")
        settings = Settings.from_env(found, data_dir=str(tmp_path), host="0.0.0.0")
        assert settings.database_url.startswith("postgresql:")
        if container["name"] == "gateway":
            assert settings.node_url == "http://10.1.2.3:8080"
            assert settings.node_name == "trunkline-7c9d8b-x2x4z"
            assert settings.redis_url == secrets["redis_url"]


def test_the_variables_that_kubernetes_makes_of_the_service_are_kept_out(installation, tmp_path):
    """A Service called `trunkline` would be TRUNKLINE_PORT=tcp://…"""
    assert pod(installation)["enableServiceLinks"] is False
    with pytest.raises(SettingsError, match="TRUNKLINE_PORT"):
        Settings.from_env({"TRUNKLINE_PORT": "tcp://10.0.0.1:80"}, data_dir=str(tmp_path))


def test_the_example_of_secrets_has_what_is_mounted_and_no_node_starts_with_it(installation, tmp_path):
    example, _ = load(EXAMPLE / "secret.example.yaml")
    mounted = {
        Path(value).name
        for name, value in variables(gateway(installation), installation).items()
        if name.endswith("_FILE")
    }
    assert set(example["stringData"]) == mounted
    assert example["metadata"]["name"] == next(
        each["secret"]["secretName"] for each in pod(installation)["volumes"] if each["name"] == "secrets"
    )
    for name, value in example["stringData"].items():
        with pytest.raises(SettingsError, match=name.upper()):
            Settings.from_env({f"TRUNKLINE_{name.upper()}": value}, data_dir=str(tmp_path))
    assert not any(each["kind"] == "Secret" for each in installation)


def test_probes_ask_paths_that_exist_at_the_port_of_the_image(installation):
    container = gateway(installation)
    (port,) = container["ports"]
    assert f"EXPOSE {port['containerPort']}\n" in DOCKERFILE
    assert port["containerPort"] == next(each for each in fields(Settings) if each.name == "port").metadata["default"]
    paths = {getattr(route, "path", "") for route in health.router.routes}
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {each["path"] for each in asked.values()} < paths
    assert {name: each["path"] for name, each in asked.items()} == {
        "startup": "/livez", "liveness": "/livez", "readiness": "/readyz",
    }  # fmt: skip
    assert {each["port"] for each in asked.values()} == {port["name"]}
    assert one(installation, "Service")["spec"]["ports"][0]["targetPort"] == port["name"]


def test_a_pod_may_drain_before_it_is_killed(installation):
    found = variables(gateway(installation), installation)
    drain_s = float(found["TRUNKLINE_DRAIN_S"]) + float(found["TRUNKLINE_DRAIN_DELAY_S"])
    assert pod(installation)["terminationGracePeriodSeconds"] >= drain_s + 20
    assert "lifecycle" not in gateway(installation)
    assert float(found["TRUNKLINE_DRAIN_DELAY_S"]) >= 5


def test_a_rolling_update_takes_no_node_away_before_there_is_another(installation):
    assert one(installation, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert "replicas" not in one(installation, "Deployment")["spec"]
    assert one(installation, "HorizontalPodAutoscaler")["spec"]["minReplicas"] >= 2
    assert one(installation, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_every_container_may_do_as_little_as_it_can(installation):
    spec = pod(installation)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == int(re.findall(r"^USER (\d+):", DOCKERFILE, re.MULTILINE)[0])
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (*spec["initContainers"], *spec["containers"]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        # The root is read-only: these two are all that can be written to.
        assert {"/data", "/tmp"} < {each["mountPath"] for each in container["volumeMounts"]}
        assert {each["name"] for each in container["volumeMounts"]} <= {each["name"] for each in spec["volumes"]}
        assert container["resources"]["limits"].keys() == {"memory"}


# --- scaling


def test_the_autoscaler_asks_for_a_metric_that_is_there_and_leaves_room_in_memory(installation):
    (metric,) = one(installation, "HorizontalPodAutoscaler")["spec"]["metrics"]
    name, sessions = metric["pods"]["metric"]["name"], int(metric["pods"]["target"]["averageValue"])
    assert name in exposed()
    (rule,) = load(DIRECTORY / "prometheus-adapter-values.yaml")[0]["rules"]["custom"]
    assert rule["seriesQuery"].startswith(name + "{")
    assert rule["name"]["as"] == name
    processes = memory_bytes(gateway(installation)["resources"]["limits"]["memory"]) // (100 * 2**20)
    assert 0.5 * processes < sessions < 0.8 * processes


# --- who reaches whom


def policies(installation: list[Document], direction: str) -> list[Document]:
    found = (each["spec"].get(direction, []) for each in installation if each["kind"] == "NetworkPolicy")
    return [rule for rules in found for rule in rules]


def test_every_rule_of_the_network_says_who_and_which_port(installation):
    (port,) = gateway(installation)["ports"]
    incoming, outgoing = policies(installation, "ingress"), policies(installation, "egress")
    assert all(rule["from"] and [each["port"] for each in rule["ports"]] == [port["name"]] for rule in incoming)
    assert all(rule["to"] and rule["ports"] for rule in outgoing)
    ports = {each["port"] for rule in outgoing for each in rule["ports"]}
    stores = {6379, 5432} if installation is INSTALLATIONS["example"] else set()
    assert ports == {port["name"], 53, 443} | stores


def test_the_web_is_reached_and_private_networks_and_the_machines_metadata_are_not(installation):
    blocks = [peer["ipBlock"] for rule in policies(installation, "egress") for peer in rule["to"] if "ipBlock" in peer]
    assert {each["cidr"] for each in blocks} == {"0.0.0.0/0", "::/0"}
    assert {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"} <= set(blocks[0]["except"])


def test_what_is_between_nodes_is_not_reached_from_outside():
    (rule,) = one(INSTALLATIONS["example"], "HTTPRoute")["spec"]["rules"]
    assert {match["path"]["value"] for match in rule["matches"]} == {"/t", "/api", "/.well-known", "/oauth", "/console"}
    service = one(INSTALLATIONS["example"], "Service")
    assert rule["backendRefs"] == [{"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}]


# --- affinity, for those who want it


AFFINITY = load(DIRECTORY / "affinity.yaml")


def test_a_session_goes_to_the_pod_whose_name_its_id_begins_with_or_to_any():
    example = INSTALLATIONS["example"]
    namespace = one(example, "Service")["metadata"]["namespace"]
    headless = one(AFFINITY, "Service", "trunkline-nodes")
    assert headless["spec"]["selector"] == one(example, "Service")["spec"]["selector"]
    assert headless["spec"]["clusterIP"] == "None"
    route = one(AFFINITY, "HTTPRoute", "trunkline-affinity")["spec"]
    for field in ("parentRefs", "hostnames"):
        assert route[field] == one(example, "HTTPRoute")["spec"][field]
    for number, rule in enumerate(route["rules"]):
        pod_name = f"trunkline-{number}"
        by_header, by_query = rule["matches"]
        ((header,), (query,)) = by_header["headers"], by_query["queryParams"]
        assert (header["name"], query["name"]) == ("Mcp-Session-Id", "sessionId")
        for match in (header, query):
            assert match["type"] == "RegularExpression"
            assert re.fullmatch(match["value"], f"{tag_of(new_node_id(pod_name))}.secret")
            assert not re.fullmatch(match["value"], f"{tag_of(new_node_id(pod_name + '0'))}.secret")
        assert [each["name"] for each in rule["backendRefs"]] == [pod_name, "trunkline-any"]
        (endpoint,) = one(AFFINITY, "Backend", pod_name)["spec"]["endpoints"]
        assert endpoint["fqdn"]["hostname"] == f"{pod_name}.trunkline-nodes.{namespace}.svc.cluster.local"
        assert endpoint["fqdn"]["port"] == gateway(example)["ports"][0]["containerPort"]
    assert one(AFFINITY, "Backend", "trunkline-any")["spec"]["fallback"] is True
    assert {each["metadata"]["namespace"] for each in AFFINITY} == {namespace}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_service_of_the_pods_is_valid(version):
    service = one(AFFINITY, "Service", "trunkline-nodes")
    kubernetes_validate.validate(service, version, strict=True)
