"""Containers of real processes, with a stand-in for the engine: how they are started, and that they are removed."""

import os
import signal
from dataclasses import replace

import anyio
import pytest

from app.backends.images import containers as module
from app.backends.images._container import Container, text_of, variables_of, words_of
from app.backends.images.containers import Containers
from app.backends.images.engine import Engine
from app.backends.images.recognition import Mount, recognised_image
from app.domain import ProcessLimits, Sandbox
from app.errors import BackendExited
from app.jail.sandbox.needs import NeedsFinder
from app.jail.sandbox.tiers import Profile, Tier
from app.jail.spawner.client import SpawnFailed
from app.processes.supervisor import Supervisor
from tests.backends.images.rig import Contained, python, spec_of
from tests.processes.rig import Listener, eventually, options_of

PROFILE = Profile(Tier.NONE, "none")
IDENTITY = "a" * 64


def homes(path, name=""):
    found = path / f"homes{name}"
    found.mkdir(mode=0o700, exist_ok=True)
    return found


def containers_of(engine, folder):
    return Containers(Engine(engine.name), NeedsFinder([str(folder)]), folder)


@pytest.fixture
async def containers(engine, tmp_path):
    found = containers_of(engine, tmp_path / "data" / "containers")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(found.run)
        yield found
        tasks.cancel_scope.cancel()
    await found.aclose()


@pytest.fixture
async def running(metrics, tmp_path, containers):
    async with Supervisor(metrics, options_of(homes(tmp_path), confiner=Contained(containers))) as supervisor:
        yield supervisor


async def started(supervisor, spec):
    process = await supervisor.spawn(spec, lambda gone: None)
    listener = Listener()
    process.attach(listener)
    process.send(b'{"jsonrpc":"2.0","method":"x"}')
    assert await listener.line() == b'{"jsonrpc":"2.0","method":"x"}'
    return process


# --- what the engine is told


def asked_by(spec):
    found = recognised_image(spec.command, spec.args)
    assert found is not None
    return found


def words(kind="podman", *args, **fields):
    spec = spec_of(IDENTITY, *args, **fields)
    request = asked_by(spec)
    container = Container("trunkline-1", "n1", IDENTITY, ("/data",), request.mounts, {"nofile": 1000, "nproc": 50})
    return words_of(kind, spec, request, container, "/dev/fd/9")


def test_a_container_has_no_rights_no_network_and_a_root_that_it_cannot_change():
    for kind in ("podman", "docker"):
        found = words(kind)
        for each in (
            "--rm", "--interactive", "--pull=never", "--name=trunkline-1", "--label=trunkline.node=n1",
            "--label=trunkline.backend=acme/echo", "--log-driver=none", "--network=none", "--cap-drop=ALL",
            "--security-opt=no-new-privileges", "--read-only", "--env-file=/dev/fd/9", "--no-healthcheck",
            "--mount=type=tmpfs,destination=/tmp,tmpfs-size=268435456",
            "--mount=type=tmpfs,destination=/data,tmpfs-size=268435456",
            "--memory=1024m", "--memory-swap=1024m", "--pids-limit=512", "--cpus=1",
        ):  # fmt: skip
            assert each in found, each
        assert found[-1] == f"sha256:{IDENTITY}"
    assert {"--read-only-tmpfs=false", "--detach-keys="} <= set(words("podman"))
    assert not {"--read-only-tmpfs=false", "--detach-keys="} & set(words("docker"))
    assert {"--ulimit=nofile=1000:1000", "--ulimit=nproc=50:50"} <= set(words("podman"))
    assert [each for each in words("docker") if "ulimit" in each] == ["--ulimit=nofile=4096:4096"]


def test_limits_that_a_backend_has_not_are_not_set():
    found = words("docker", limits=ProcessLimits(None, None, None, None, None))
    assert not [each for each in found if each.startswith(("--memory", "--pids", "--cpus", "--ulimit"))]
    assert "--mount=type=tmpfs,destination=/tmp" in found


def test_what_the_line_says_of_its_container_is_kept_and_what_is_behind_the_image_is_no_option():
    spec = spec_of(IDENTITY)
    args = ("run", "-v", "/srv/a:/data/:ro", "-v", "/srv/b:/b", "-w", "/w", "-u", "5:6", "img", "--privileged", "-v")
    request = recognised_image("docker", args)
    assert request is not None
    mounts = [Mount("/real/a", "/data/", is_writable=False), Mount("/real/b", "/b", is_writable=True)]
    container = Container("c", "n", IDENTITY, ("/data",), mounts, {})
    found = words_of("podman", spec, request, container, "/dev/fd/9")
    assert "--mount=type=bind,source=/real/a,destination=/data/,readonly,bind-nonrecursive" in found
    assert "--mount=type=bind,source=/real/b,destination=/b" in found
    assert not [each for each in found if "tmpfs,destination=/data" in each]
    assert {"--workdir=/w", "--user=5:6"} <= set(found)
    assert found[found.index(f"sha256:{IDENTITY}") :] == [f"sha256:{IDENTITY}", "--privileged", "-v"]


def test_variables_are_one_file_and_the_line_counts_before_the_backend():
    spec = spec_of(IDENTITY, "-e", "A=line", "-e", "B", env={"A": "backend", "B": "x=y", "C": "${home}/c"})
    found = variables_of(spec, asked_by(spec))
    assert text_of(found) == "A=line\nB=x=y\nC=/tmp/c\n"
    with pytest.raises(ValueError, match="A has a line break"):
        text_of({"A": "1\n2"})


# --- starting


async def test_a_process_is_a_container_and_its_variables_are_in_no_command_line(engine, running, monkeypatch):
    monkeypatch.setenv("TRUNKLINE_SECRET_KEY", "s3cret")
    identity = engine.add("localhost/echo", *python("echo"))
    await started(running, spec_of(identity, "-e", "A=from-the-line", env={"TOKEN": "s3cret", "DOCKER_HOST": "x"}))
    (found,) = engine.containers
    assert found["env"] == {"TOKEN": "s3cret", "DOCKER_HOST": "x", "A": "from-the-line"}
    assert not [each for each in found["options"] if "s3cret" in each or "from-the-line" in each]
    assert not {"TOKEN", "DOCKER_HOST", "TRUNKLINE_SECRET_KEY"} & set(found["client"])
    assert "trunkline.backend=acme/echo" in found["labels"]


async def test_paths_are_mounted_without_links(engine, containers, tmp_path):
    identity = engine.add("localhost/echo", *python("echo"), volumes={"/data": {}})
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    sandbox = Sandbox(read=(str(tmp_path / "b"),), write=(str(tmp_path / "c"),))
    spec = spec_of(identity, "-v", f"{tmp_path}/link:/x:ro", sandbox=sandbox)
    confined = await containers.contain(spec, PROFILE)
    mounts = [each.removeprefix("--mount=") for each in confined.command.argv if "type=bind" in each]
    real = os.path.realpath(tmp_path)
    assert mounts == [
        f"type=bind,source={real}/b,destination={tmp_path}/b,readonly,bind-nonrecursive",
        f"type=bind,source={real}/c,destination={tmp_path}/c",
        f"type=bind,source={real}/a,destination=/x,readonly,bind-nonrecursive",
    ]
    assert "--mount=type=tmpfs,destination=/data,tmpfs-size=268435456" in confined.command.argv
    confined.close()


async def test_what_no_sandbox_opens_no_container_has_also_behind_a_link(engine, containers, tmp_path):
    identity = engine.add("localhost/echo", *python("echo"))
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / "containers").mkdir(exist_ok=True)
    (tmp_path / "to-data").symlink_to(tmp_path / "data" / "containers")
    (tmp_path / "to-shadow").symlink_to("/etc/shadow")
    os.mkfifo(tmp_path / "plain-name")
    for path, why in (
        ("data/containers", "which no sandbox opens"), ("to-data", "which no sandbox opens"),
        ("to-shadow", "which no sandbox opens"), ("data", "contains"), ("nothing", "there is no"),
        ("plain-name", "no container is given one"),
    ):  # fmt: skip
        for how in ("ro", "rw"):
            with pytest.raises(SpawnFailed, match=why):
                await containers.contain(spec_of(identity, "-v", f"{tmp_path}/{path}:/x:{how}"), PROFILE)
        with pytest.raises(SpawnFailed, match=why):
            await containers.contain(spec_of(identity, sandbox=Sandbox(read=(f"{tmp_path}/{path}",))), PROFILE)


async def test_an_image_that_is_not_here_is_not_pulled_by_a_start(engine, running):
    engine.add("localhost/echo", *python("echo"), here=False)
    with pytest.raises(BackendExited, match="the container engine of the node could not start its image") as caught:
        await running.spawn(spec_of(IDENTITY), lambda gone: None)
    assert not caught.value.started
    assert "its image localhost/echo is not on this node as it was registered" in caught.value.stderr[0]
    assert engine.containers == []


# --- removing


async def test_a_container_ends_with_its_process(engine, running):
    process = await started(running, spec_of(engine.add("localhost/echo", *python("echo"))))
    assert len(engine.containers) == 1
    running.stop_soon(process)
    await process.wait_gone()
    await eventually(lambda: engine.containers == [])


async def test_a_container_ends_also_when_its_client_is_killed(engine, running):
    spec = spec_of(engine.add("localhost/echo", *python("echo")))
    process, other = await started(running, spec), await started(running, spec)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait_gone()
    await eventually(lambda: len(engine.containers) == 1)
    other.send(b'{"jsonrpc":"2.0","method":"y"}')
    (left,) = engine.containers
    assert left["client_pid"] == other.pid


async def test_a_container_that_nobody_knows_is_found_later(engine, containers, running, monkeypatch):
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    process = await started(running, spec_of(engine.add("localhost/echo", *python("echo"))))
    (known,) = engine.containers
    stray = engine.state / "containers" / f"trunkline-{'f' * 32}"
    foreign = engine.state / "containers" / "not-ours"
    text = (engine.state / "containers" / known["name"]).read_text()
    foreign.write_text(text.replace(known["name"], foreign.name).replace(str(known["pid"]), "0"))
    stray.write_text(text.replace(known["name"], stray.name).replace(f'"pid": {known["pid"]}', f'"pid": {2**22 + 1}'))
    running.stop_soon(await started(running, process.spec))  # from now on it is looked soon
    await eventually(lambda: not stray.exists())
    assert foreign.exists()
    assert known["name"] in [each["name"] for each in engine.containers]
    foreign.unlink()


async def test_what_cannot_be_removed_now_is_removed_at_the_end(engine, containers, metrics, tmp_path, caplog):
    async with Supervisor(metrics, options_of(homes(tmp_path), confiner=Contained(containers))) as supervisor:
        process = await started(supervisor, spec_of(engine.add("localhost/echo", *python("echo"))))
        program = (engine.state / "podman").read_text()
        (engine.state / "podman").write_text("#!/bin/sh\necho it is broken >&2; exit 1\n")
        os.kill(process.pid, signal.SIGKILL)
        await process.wait_gone()
        await eventually(lambda: "Could not remove containers" in caplog.text)
        (engine.state / "podman").write_text(program)
    await containers.aclose()
    assert engine.containers == []
    assert list((tmp_path / "data" / "containers").iterdir()) == []
    await containers.aclose()


async def test_what_a_node_has_left_that_was_killed_is_removed_by_the_next_one(engine, metrics, tmp_path):
    folder = tmp_path / "data" / "containers"
    dead, living = containers_of(engine, folder), containers_of(engine, folder)
    spec = spec_of(engine.add("localhost/echo", *python("echo")))
    for number, each in enumerate((dead, living)):
        options = options_of(homes(tmp_path, str(number)), confiner=Contained(each))
        async with Supervisor(metrics, options) as supervisor:
            os.kill((await started(supervisor, spec)).pid, signal.SIGKILL)
    assert len(engine.containers) == 2
    os.close(dead._mark)  # as the kernel does when a node is killed
    assert containers_of(engine, folder).clean() == 1
    (left,) = engine.containers
    assert f"trunkline.node={living._node}" in left["labels"]
    assert [each.name for each in folder.iterdir()] == [living._node]
    await living.aclose()
    assert (engine.containers, list(folder.iterdir())) == ([], [])


def test_a_node_that_starts_while_the_engine_is_broken_leaves_the_rest_to_the_next(engine, tmp_path, caplog):
    folder = tmp_path / "containers"
    folder.mkdir()
    (folder / ("0" * 16)).touch()
    (folder / "something").touch()
    broken = replace_program(engine, "#!/bin/sh\nexit 1\n")
    assert containers_of(engine, folder).clean() == 0
    assert "the next start will retry" in caplog.text
    replace_program(engine, broken)
    assert containers_of(engine, folder).clean() == 1
    assert [each.name for each in folder.iterdir()] == ["something"]


def replace_program(engine, text):
    program = engine.state / "podman"
    before = program.read_text()
    program.write_text(text)
    return before


async def test_a_node_without_containers_asks_its_engine_nothing(engine, tmp_path):
    replace_program(engine, f"#!/bin/sh\ntouch {tmp_path}/asked\n")
    containers = containers_of(engine, tmp_path / "containers")
    assert containers.clean() == 0
    await containers.aclose()
    assert not (tmp_path / "asked").exists()
    assert not (tmp_path / "containers").exists()


async def test_secrets_that_do_not_open_start_no_container(engine, running):
    spec = spec_of(engine.add("localhost/echo", *python("echo")), env={"A": "***"})
    with pytest.raises(BackendExited):
        await running.spawn(replace(spec), lambda gone: None)
    assert engine.containers == []
