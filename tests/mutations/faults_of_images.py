"""Faults of images: what a line of `docker run`, or a node that dies, could do with them."""

from tests.mutations.fault import Fault

LINES, IMAGES = ("tests/backends/images/test_recognition.py",), ("tests/backends/images/test_images.py",)
CONTAINERS = ("tests/backends/images/test_containers.py",)
_LINES, _CONTAINERS = "app/backends/images/recognition.py", "app/backends/images/containers.py"
_CONTAINER, _ENGINE = "app/backends/images/_container.py", "app/backends/images/engine.py"

FAULTS_OF_IMAGES = (
    Fault("a container is given a path that no sandbox opens", _LINES, "if (why := why_not(source)) is not None:", "if False:", LINES),
    Fault("an image may be a place of another kind", _LINES, " or found[1] in _OTHER_PLACES:", ":", LINES),
    Fault("a path may end what an engine reads", _LINES, "if is_quoted(source) or others", "if others", LINES),
    Fault("links lead a container to what no sandbox opens", _CONTAINERS, "_plain(Mount(real[each.source],", "_plain(Mount(each.source,", CONTAINERS),
    Fault("a socket of the node is mounted", _CONTAINERS, "if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):", "if False:", CONTAINERS),
    Fault("a container keeps its capabilities", _CONTAINER, '"--cap-drop=ALL",', "", CONTAINERS),
    Fault("a container may gain privileges", _CONTAINER, '"--security-opt=no-new-privileges", ', "", CONTAINERS),
    Fault("a start pulls an image", _CONTAINER, '"--pull=never", ', "", CONTAINERS),
    Fault("podman makes places to write to that have no limit", _CONTAINER, '("--read-only-tmpfs=false", ', '(', CONTAINERS),
    Fault("the engine's client has the gateway's environment", _ENGINE, "for name in names if os.environ.get(name)}", "for name in os.environ}", CONTAINERS),
    Fault("a container outlives its client", _CONTAINERS, "self._ended.add(name)", "pass", CONTAINERS),
    Fault("the containers of a node that lives are removed", _CONTAINERS, "if _is_node(name) and _is_free(self._folder / name):", "if _is_node(name):", CONTAINERS),
    Fault("containers of others are removed", _ENGINE, ".split() if is_container(each)]", ".split()]", CONTAINERS),
    Fault("a tag is resolved anew by every change", "app/backends/images/images.py", "return before is not None and before.reference == request.reference", "return False", IMAGES),
)  # fmt: skip
