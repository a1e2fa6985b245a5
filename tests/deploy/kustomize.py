"""The part of `kustomize build` that deploy/k8s uses: the program itself is in no package registry that tests have.

Refuses what it does not know rather than leaving it out. Names of generated ConfigMaps get no digest behind them.
"""

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

Document = dict[str, Any]
KNOWN = {"apiVersion", "kind", "namespace", "resources", "images", "configMapGenerator", "patches"}
CLUSTER_WIDE = {"Namespace"}
# Lists that a strategic merge joins by a key; all others are replaced. (Only where a patch of ours reaches.)
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "ports": "containerPort",
}


def build(directory: Path) -> list[Document]:
    """All resources, as they would be applied."""
    plan = load(directory / "kustomization.yaml")[0]
    assert set(plan) <= KNOWN, set(plan) - KNOWN
    documents: list[Document] = []
    for name in plan["resources"]:
        path = directory / name
        documents += build(path) if path.is_dir() else load(path)
    for generated in plan.get("configMapGenerator", []):
        _config_map(documents, generated)
    for patch in plan.get("patches", []):
        assert set(patch) == {"path"}
        for document in load(directory / patch["path"]):
            target = one(documents, document["kind"], document["metadata"]["name"])
            target.update(_merged(target, document))
    for document in documents:
        if "namespace" in plan and document["kind"] not in CLUSTER_WIDE:
            document["metadata"]["namespace"] = plan["namespace"]
        _set_images(document, plan.get("images", []))
    return documents


def load(path: Path) -> list[Document]:
    """The documents of a file."""
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def one(documents: list[Document], kind: str, name: str = "trunkline") -> Document:
    """The only document of this kind and name."""
    (found,) = (each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def _config_map(documents: list[Document], generated: Document) -> None:
    assert set(generated) <= {"name", "behavior", "literals"}
    values = dict(literal.split("=", 1) for literal in generated["literals"])
    if generated.get("behavior", "create") == "merge":
        one(documents, "ConfigMap", generated["name"])["data"].update(values)
        return
    documents.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generated["name"]}, "data": values})


def _merged(old: Any, new: Any, field: str = "") -> Any:
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{key: _merged(old[key], value, key) if key in old else value for key, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list) and field in MERGE_KEYS:
        key = MERGE_KEYS[field]
        changed = {each[key]: each for each in new}
        kept = [_merged(each, changed.pop(each[key], {})) for each in old]
        return kept + list(changed.values())
    return new


def _set_images(node: Any, images: list[Document]) -> None:
    if isinstance(node, list):
        for each in node:
            _set_images(each, images)
    elif isinstance(node, dict):
        for image in images:
            if node.get("image") == image["name"]:
                node["image"] = f"{image['newName']}:{image['newTag']}"
        for each in node.values():
            _set_images(each, images)
