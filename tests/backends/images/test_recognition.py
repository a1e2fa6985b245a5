"""Which image a command line stands for, as READMEs write it; and what of it is refused, by name."""

import shlex

import pytest

from app.backends.images.recognition import MAX_MOUNTS, Mount, NotRunnable, recognised_image
from app.backends.packages.recognition import names_package

DIGEST = "sha256:" + "a" * 64
FORMS = [
    ("docker run -i --rm mcp/time", "mcp/time", ()),
    ("docker run mcp/time:1.2 --zone X", "mcp/time:1.2", ("--zone", "X")),
    ("podman run --rm --interactive localhost/notes:latest -v", "localhost/notes:latest", ("-v",)),
    ("docker container run -i -- mcp/time run", "mcp/time", ("run",)),
    ("/usr/local/bin/docker run -i --rm=true ghcr.example/acme/notes", "ghcr.example/acme/notes", ()),
    (f"docker run -i registry.example:5000/a/b_c@{DIGEST}", f"registry.example:5000/a/b_c@{DIGEST}", ()),
    (f"docker run -i a:1@{DIGEST}", f"a:1@{DIGEST}", ()),
    ("cmd /c docker run -i --rm mcp/time", "mcp/time", ()),
    (r"'C:\Program Files\Docker\docker.exe' run -i mcp/time", "mcp/time", ()),
    ("bash -c 'exec docker run -i --rm mcp/time'", "mcp/time", ()),
]


@pytest.mark.parametrize(("line", "reference", "args"), FORMS)
def test_an_image_is_recognised(line, reference, args):
    command, *rest = shlex.split(line)
    found = recognised_image(command, rest)
    assert found is not None
    assert (found.reference, found.args) == (reference, args)
    assert names_package(command, rest)


def read(line: str):
    command, *rest = shlex.split(line)
    return recognised_image(command, rest)


def test_what_the_line_says_of_the_container_is_kept():
    found = read(
        "docker run -ie A=b=c --env=D= -e E -e=F=g -v /srv/a:/a:ro -v/srv/b/:/b --volume /srv/c:/c:rw,cached "
        "--mount type=bind,src=/srv/d,dst=/d,readonly --mount=type=bind,source=/srv/e,target=/e "
        "--name x -w /work --user 1000:100 img arg"
    )
    assert found.env == {"A": "b=c", "D": "", "F": "g"}
    assert list(found.mounts) == [
        Mount("/srv/a", "/a", is_writable=False),
        Mount("/srv/b", "/b", is_writable=True),
        Mount("/srv/c", "/c", is_writable=True),
        Mount("/srv/d", "/d", is_writable=False),
        Mount("/srv/e", "/e", is_writable=True),
    ]
    assert (found.workdir, found.user, found.reference, found.args) == ("/work", "1000:100", "img", ("arg",))
    assert (found.name, found.tag, found.digest) == ("img", "", "")


@pytest.mark.parametrize("line", [
    "docker", "docker ps", "docker compose run x", "node docker run x", "bash -c 'A=b docker run x'",
    "sh -c 'cd /srv && docker run x'", "env A=b docker run x", "bash -c 'docker run x | tee log'",
])  # fmt: skip
def test_what_starts_no_container_is_no_image(line):
    assert read(line) is None
    command, *rest = shlex.split(line)
    assert not names_package(command, rest)


@pytest.mark.parametrize(("line", "words"), [
    ("docker run -i --privileged x", "`docker run --privileged` gives a container rights over the node"),
    ("docker run -i --cap-add=SYS_ADMIN x", "`docker run --cap-add` gives a container rights"),
    ("docker run -i --security-opt seccomp=unconfined x", "--security-opt"),
    ("podman run --pid=host x", "`podman run --pid` gives"),
    ("docker run -i --device /dev/dri x", "`docker run --device` gives a container a device"),
    ("docker run -i --gpus all x", "a device"),
    ("docker run -i --network host x", "`docker run --network host` is about the network"),
    ("docker run -i --net=host x", "`docker run --net host` is about the network"),
    ("docker run -i --network=none x", "`sandbox.network`"),
    ("docker run -i -p 80:80 x", "`docker run -p` opens a port"),
    ("docker run -i -p8080:80 x", "`docker run -p` opens a port"),
    ("docker run -it --rm x", "`docker run -t` gives it a terminal"),
    ("docker run -dit x", "`docker run -d` starts it in the background"),
    ("docker run -i --mount type=bind,source=/,target=/x x", "cannot be opened"),
    ("docker run -i --mount type=volume,source=/srv/a,target=/x x", "write `-v DIRECTORY:TARGET[:ro]`"),
    ("docker run -i --mount source=/srv/a,target=/x x", "write `-v DIRECTORY:TARGET[:ro]`"),
    ("docker run -i --mount type=bind,src=/srv/a,dst=/x,bind-propagation=shared x", "write `-v DIRECTORY"),
    ("docker run -i --mount type=bind,src=/srv/a,dst=/x,ro=false x", "write `-v DIRECTORY"),
    ("docker run -i --tmpfs /x x", "write `-v DIRECTORY:TARGET[:ro]`"),
    ("docker run -i -m 1g x", "give its `limits`"),
    ("docker run -i --env-file .env x", "give them as `env`"),
    ("docker run -i --pull=always x", "leave it out"),
    ("docker run -i --entrypoint sh x", "`docker run --entrypoint` is an option that no container"),
    ("docker run -i --rm=false x", "`docker run --rm` is an option"),
    ("docker run -i --init x", "leave it out"),
    ("docker run -i --\u202ex x", r"`docker run --\u202ex` is"),
    ("docker run -i --rm", "names no image"),
    ("docker run -i -e", "`docker run -e` needs a value"),
    ("docker run -i -e A-B=c x", "a variable is NAME or NAME=VALUE"),
    ("docker run -i -e =c x", "a variable is"),
    ("docker run -i -u 'root --privileged' x", "is no user"),
    ("docker run -i -u -x x", "is no user"),
    ("docker run -i -w work x", "is no absolute path in the container"),
    ("docker run -i -w /proc x", "is no absolute path in the container"),
])  # fmt: skip
def test_an_option_that_no_container_has_is_refused_by_name_with_what_to_do(line, words):
    with pytest.raises(NotRunnable) as caught:
        read(line)
    assert words in str(caught.value)


@pytest.mark.parametrize(("volume", "words"), [
    ("/var/run/docker.sock:/var/run/docker.sock", "no container is given a socket"),
    ("/run/podman/podman.sock:/x", "no container is given a socket"),
    ("/srv/db.socket:/x", "a socket"),
    ("/var/run:/x", "a socket"),
    ("/run:/x", "`/run` and what is in it cannot be opened"),
    ("/:/host", "cannot be opened"),
    ("/etc:/x", "`/etc/shadow` is in it"),
    ("/proc/1/root:/x", "`/proc` and what is in it"),
    ("/srv/../etc/shadow:/x", "must not contain `..`"),
    ("/tmp:/x", "every sandbox has its own"),
    ("data:/x", "name a file or directory of the node"),
    ("./data:/x", "name a file or directory of the node"),
    ("~/data:/x", "name a file or directory of the node"),
    ("${HOME}/data:/x", "name a file or directory of the node"),
    (r"C:\data:/x", "name a file or directory of the node"),
    ("/srv/a", "must be absolute"),
    ("/srv/a:x", "must be absolute"),
    ("/srv/a:/", "more than `/`"),
    ("/srv/a:/x/../..", "without `..`"),
    ("/srv/a:/proc/sys", "which is the kernel's"),
    ("/srv/a://proc", "which is the kernel's"),
    ("/srv/a:/./sys", "which is the kernel's"),
    ("/srv/a:/dev/sda", "which is the kernel's"),
    ("/srv/a,readonly=false:/x", "without `,`"),
    ("/srv/a:/x,y", "must have no `,`"),
    ('/srv/"a:/x', "without `,`"),
    ("/srv/a:/x:z", "write `DIRECTORY:TARGET`"),
    ("/srv/a:/x:ro:rw", "write `DIRECTORY:TARGET`"),
    ("/srv/a:/x:shared", "write `DIRECTORY:TARGET`"),
])  # fmt: skip
def test_a_volume_that_no_sandbox_opens_or_an_engine_would_read_otherwise_is_refused(volume, words):
    with pytest.raises(NotRunnable) as caught:
        recognised_image("docker", ["run", "-i", "-v", volume, "x"])
    assert words in str(caught.value)


@pytest.mark.parametrize("name", [
    "X", "x:", "x@sha256:12", "../x", "/x", "x/../y", "a//b", "http://x.example/y", "docker://x/y", "dir:x", "oci:x",
    "docker-archive:x", "containers-storage:x", "x y", "x\ny", "x:-y", "a" * 600, "", "x;y", "$(x)",
])  # fmt: skip
def test_what_is_not_the_name_of_an_image_is_refused(name):
    with pytest.raises(NotRunnable, match="is not the name of an image"):
        recognised_image("docker", ["run", "-i", "--", name])


def test_what_begins_as_an_option_is_no_image():
    with pytest.raises(NotRunnable):
        recognised_image("docker", ["run", "-i", "--", "-x"])


def test_volumes_are_few():
    many = [word for number in range(MAX_MOUNTS + 1) for word in ("-v", f"/srv/{number}:/{number}")]
    with pytest.raises(NotRunnable, match="at most"):
        recognised_image("docker", ["run", *many, "x"])


def test_a_long_line_is_read_soon():
    with pytest.raises(NotRunnable):
        recognised_image("docker", ["run", "-" + "i" * 60_000 + "!", "a._" * 20_000])
