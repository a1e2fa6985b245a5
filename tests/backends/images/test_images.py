"""What a command that names an image is resolved to, and what no container of the gateway can have."""

from dataclasses import replace

import pytest

from app.backends.images import images as module
from app.backends.images.engine import Engine
from app.backends.images.images import NO_ENGINE, Images
from app.domain import BackendSpec, Package, Sandbox
from app.domain.resources.backends import AllowList
from app.errors import InvalidRequest
from tests.backends.images.rig import python

TIME = BackendSpec("acme", "time", "docker", args=("run", "-i", "--rm", "mcp/time"))


@pytest.fixture
def images(engine):
    return Images(Engine(engine.name))


async def test_a_tag_becomes_the_id_that_it_has_now_and_stays_that(engine, images):
    identity = engine.add("mcp/time", *python("echo"))
    spec = await images.resolved(TIME)
    assert spec.package == Package("oci", "mcp/time", "latest", "", identity)
    assert (spec.command, spec.args) == (TIME.command, TIME.args)
    later = engine.add("mcp/time", *python("slow"))
    assert (await images.resolved(spec, spec)).package == spec.package
    other = replace(spec, args=("run", "-i", "-e", "A=b", "mcp/time", "--zone", "X"), package=None)
    assert (await images.resolved(other, spec)).package == spec.package
    assert (await images.resolved(replace(spec, command="podman"), spec)).package == spec.package
    engine.add("mcp/time:2", *python("echo"))
    newer = await images.resolved(replace(spec, args=("run", "mcp/time:2")), spec)
    assert (newer.package.version, newer.package.lock == later) == ("2", False)


async def test_an_update_gets_what_the_name_means_now(engine, images):
    engine.add("mcp/time", *python("echo"))
    spec = await images.resolved(TIME)
    with pytest.raises(InvalidRequest, match=r"cannot be had: `podman pull` failed .*manifest unknown"):
        await images.updated(spec)
    identity = engine.add("mcp/time", *python("slow"), here=False)
    assert (await images.updated(spec)).package == replace(spec.package, lock=identity)
    made_here = replace(TIME, args=("run", "localhost/time"))
    identity = engine.add("localhost/time", *python("echo"))
    assert (await images.updated(made_here)).package.lock == identity


async def test_what_is_not_here_is_pulled_by_the_engine_in_this_act(engine, images):
    identity = engine.add("mcp/time", *python("echo"), here=False)
    assert (await images.resolved(TIME)).package.lock == identity


async def test_what_the_engine_cannot_get_is_refused_in_its_words(images):
    with pytest.raises(InvalidRequest) as caught:
        await images.resolved(TIME)
    assert str(caught.value).startswith("the image mcp/time cannot be had: `podman pull` failed (exit status 125): ")
    assert "manifest unknown" in str(caught.value)


async def test_without_an_engine_a_sentence_says_what_to_do():
    with pytest.raises(InvalidRequest) as caught:
        await Images(None).resolved(TIME)
    assert (str(caught.value), "CONTAINER_ENGINE" in NO_ENGINE) == (NO_ENGINE, True)


async def test_an_engine_that_is_not_there_or_none_is_named(tmp_path, engine):
    with pytest.raises(InvalidRequest, match="CONTAINER_ENGINE is 'nerdctl-x', and this node has no such program"):
        await Images(Engine("nerdctl-x")).resolved(TIME)
    other = tmp_path / "other"
    other.write_text("#!/bin/sh\necho runc version 1\n")
    other.chmod(0o755)
    with pytest.raises(InvalidRequest, match="the engine does not say which image that is, but runc"):
        await Images(Engine(str(other))).resolved(TIME)


async def test_an_engine_that_hangs_is_given_up(tmp_path, monkeypatch):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setattr("app.backends.images.engine.ASK_S", 0.1)
    monkeypatch.setattr(module, "ACT_S", 0.2)
    with pytest.raises(InvalidRequest, match=r"could not be had within|has not ended after"):
        await Images(Engine(str(slow))).resolved(TIME)


@pytest.mark.parametrize("volumes", [{"/proc/x": {}}, {"x": {}}, {"/a,b": {}}, {f"/{n}": {} for n in range(17)}])
async def test_volumes_that_no_container_can_have_are_refused(engine, images, volumes):
    engine.add("mcp/time", *python("echo"), volumes=volumes)
    with pytest.raises(InvalidRequest, match="the image declares volumes that no container can have"):
        await images.resolved(TIME)


@pytest.mark.parametrize(("fields", "words", "member"), [
    ({"sandbox": Sandbox(network="web")}, "a container has no network yet", "sandbox/network"),
    ({"sandbox": Sandbox(network="host")}, "a container has no network yet", "sandbox/network"),
    ({"sandbox": Sandbox(network=AllowList(("a.internal:1",)))}, "a container has no network yet", "sandbox/network"),
    ({"sandbox": Sandbox(mode="off")}, "confined by its engine in any case", "sandbox/mode"),
    ({"state": "keep"}, "name a directory with `-v`", "state"),
    ({"start": "fork"}, "no container is forked", "start"),
    ({"start": "auto"}, "no container is forked", "start"),
    ({"cwd": "/srv"}, "as `-w DIRECTORY`", "cwd"),
    ({"env": {"A": "b\nc"}}, "the variable A has a line break", "env"),
    ({"args": ("run", "-e", "A=b\r", "mcp/time")}, "the variable A has a line break", "env"),
    ({"args": ("run", "--privileged", "mcp/time")}, "rights over the node", "args"),
])  # fmt: skip
async def test_what_no_container_can_have_is_refused_also_later(engine, images, fields, words, member):
    engine.add("mcp/time", *python("echo"))
    known = await images.resolved(TIME)
    for before in (None, known):
        with pytest.raises(InvalidRequest, match=words) as caught:
            await images.resolved(replace(known, **fields), before)
        assert caught.value.field == member


async def test_a_command_that_was_registered_before_there_were_images_stays_as_it_is(images):
    changed = replace(TIME, max_processes=3, cwd="/srv")
    assert await images.resolved(changed, TIME) == changed
