"""What programs expect of the machine around them, in every tier: a place for relative paths, /dev/shm, semaphores, a
locale, a time zone, authorities, names, git in folders of others, interpreters where users have them."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.backends.checks._missed import findings
from app.domain import ProcessLimits
from app.domain.resources.backends import AllowList
from app.errors import BackendExited
from app.jail.sandbox.cgroup_roots import CgroupRoots
from app.jail.sandbox.machine import examine
from app.jail.sandbox.tiers import Tier
from tests.certificates import self_signed
from tests.jail.sandbox.inside import IS_ROOT, open_directory, why_not
from tests.jail.sandbox.tried import Trial, trial

SOMEBODY = 60001
NETWORKS = ("none", "web", "host", AllowList(("db.example:5432",)))
# In every run the lowest that shows not everything, and the highest.
QUICK = (Tier.KERNEL, Tier.ASSISTED if IS_ROOT else Tier.NAMESPACES)
TIERS = [
    pytest.param(tier, id=tier.name.lower(), marks=() if tier in QUICK else pytest.mark.long)
    for tier in Tier
    if tier is not Tier.NONE
]


@pytest.fixture(params=TIERS)
async def here(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Trial]:
    tier: Tier = request.param
    if tier not in examine(CgroupRoots(), lambda name: SOMEBODY).tiers or (tier >= Tier.NAMESPACES and why_not()):
        pytest.skip("this machine does not have it")
    async with trial(tier, tmp_path) as found:
        yield found


@pytest.fixture
def place():
    """A directory that belongs to somebody else, if these tests may make such a one."""
    with open_directory() as found:
        yield found


def of_somebody(directory: Path) -> None:
    if IS_ROOT:
        subprocess.run(["chown", "--recursive", "--no-dereference", f"{SOMEBODY}", str(directory)], check=True)


# --- where it starts

WHERE = """
import json, os
known = open('notes.txt').read() if os.path.exists('notes.txt') else ''
open('notes.txt', 'a').write('x')
print(json.dumps([os.getcwd() == os.environ['HOME'], os.environ.get('PWD', os.getcwd()) == os.getcwd(), known]))
"""


async def test_without_a_cwd_it_starts_in_its_own_home(here):
    for _ in range(2):
        assert await here.python(WHERE) == [True, True, ""]


async def test_without_a_cwd_it_starts_in_the_home_that_is_kept(here):
    kept = {"state": "keep", "keeper": ("acme", "ann")}
    assert [await here.python(WHERE, **kept) for _ in range(2)] == [[True, True, ""], [True, True, "x"]]


async def test_a_relative_cwd_is_made_below_its_home(here):
    code = (
        "import json, os; open('notes.txt', 'w'); print(json.dumps(os.path.relpath(os.getcwd(), os.environ['HOME'])))"
    )
    assert await here.python(code, cwd="a/b") == "a/b"


# --- memory that processes share

FILLED = """
import errno, json, os
size = os.statvfs('/dev/shm'); size = size.f_blocks * size.f_frsize
number = 0
with open('/dev/shm/big', 'wb', 0) as file:
    try:
        for _ in range((size >> 20) + 1): file.write(bytes(1 << 20))
    except OSError as error: number = error.errno
os.unlink('/dev/shm/big')
print(json.dumps([size >> 20, errno.errorcode.get(number)]))
"""


async def test_shared_memory_is_full_before_the_memory_of_the_process_is(here):
    if here.tier < Tier.NAMESPACES:
        pytest.skip("it has none of its own")
    for memory_mb, size_mb in ((512, 64), (32, 16), (None, 64)):
        assert await here.python(FILLED, limits=ProcessLimits(memory_mb=memory_mb)) == [size_mb, "ENOSPC"]


SHARING = """
import json, multiprocessing
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.shared_memory import SharedMemory
def queue():
    made = multiprocessing.Queue()
    made.put(3)
    return made.get(timeout=60)
def memory():
    made = SharedMemory(create=True, size=1 << 20)
    made.buf[0] = 4
    try: return made.buf[0]
    finally: made.close(); made.unlink()
def pool():
    with ProcessPoolExecutor(2) as made: return sum(made.map(abs, [-1, -2, -3]))
def tried(do):
    try: return do()
    except OSError as error: return error.strerror
if __name__ == '__main__':
    print(json.dumps([tried(do) for do in (lambda: bool(multiprocessing.Lock()), queue, memory, pool)]))
"""


async def test_the_semaphores_and_the_shared_memory_of_multiprocessing_work(here):
    said = await here.python(SHARING)
    if here.tier is Tier.KERNEL:  # it has no /dev/shm that is not everybody's; the next test is for that
        assert said == ["Permission denied"] * 4
    else:
        assert said == [True, 3, 4, 6]


async def test_a_check_says_where_there_is_no_shared_memory(here):
    log = os.memfd_create("missed")
    done = await here.run([sys.executable, "-I", "-c", SHARING], missed_log=log)
    missed = findings(os.pread(log, 1 << 16, 0), done.process.spec, (), has_failed=False).missed
    os.close(log)
    found = [(each.what, each.proposal, each.note) for each in missed]
    if here.tier is Tier.KERNEL:
        assert [each[:2] for each in found] == [("/dev/shm", None)]
        assert "`multiprocessing`). Tier 2 has one" in str(found[0][2])
    else:
        assert found == []


# --- locale and time

SAID = """
import json, locale, subprocess, sys
text = 'caf\\u00e9 \\u2192'
locale.setlocale(locale.LC_ALL, '')
done = subprocess.run(['sort'], input=text.encode(), capture_output=True, check=True)
open(text, 'w').write(text)
print(json.dumps([sys.stdout.encoding, sys.getfilesystemencoding(), done.stdout.decode().strip(), open(text).read()]))
"""


async def test_text_is_utf_8_without_any_package_of_locales(here):
    for env in ({}, {"LC_ALL": "C.UTF-8"}):
        assert await here.python(SAID, env=env) == ["utf-8", "utf-8", "caf\u00e9 \u2192", "caf\u00e9 \u2192"]


TIMES = """
import datetime, json, os, time, zoneinfo
zone = zoneinfo.ZoneInfo('Europe/Zurich')
print(json.dumps([
    time.localtime(1782900000).tm_gmtoff, str(datetime.datetime(2026, 7, 1, tzinfo=zone).utcoffset()),
    os.path.realpath('/etc/localtime'), datetime.datetime(2026, 7, 1).astimezone().tzname()]))
"""


async def test_the_time_zone_is_that_of_the_machine_or_the_one_that_is_declared(here):
    outside = subprocess.run(
        ["/usr/bin/python3", "-c", TIMES], env={"PATH": os.environ["PATH"]}, capture_output=True, check=True
    )
    assert await here.python(TIMES) == json.loads(outside.stdout)
    assert await here.python(TIMES, env={"TZ": "Asia/Kathmandu"}) == [
        20700, "2:00:00", os.path.realpath("/etc/localtime"), "+0545",
    ]  # fmt: skip


# --- authorities and names

# A server that no authority vouches for but one of its own, and three clients: with the authorities of the machine, and
# with that one.
CLIENTS = """
import json, os, ssl, subprocess, sys, threading, socket
certificate, key = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
listener = socket.create_server(('127.0.0.1', 0))
def answer(line):
    try:
        with context.wrap_socket(line, server_side=True) as spoken:
            spoken.recv(4096)
            spoken.sendall(b'HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\nConnection: close\\r\\n\\r\\nok')
    except OSError: pass
def serve():
    while True: threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()
threading.Thread(target=serve, daemon=True).start()
url = 'https://localhost:%d/' % listener.getsockname()[1]
python = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())"
node = "fetch(process.argv[1]).then(r => r.text()).then(console.log, e => { console.error(e.cause); process.exit(1) })"
programs = {'python': [sys.executable, '-c', python], 'node': ['node', '-e', node], 'curl': ['curl', '-sSm', '60']}
told = {}
for name, program in programs.items():
    own = {'SSL_CERT_FILE': certificate, 'CURL_CA_BUNDLE': certificate, 'NODE_EXTRA_CA_CERTS': certificate}
    try: done = [subprocess.run([*program, url], env={**os.environ, **more}, capture_output=True, text=True)
        for more in ({}, own)]
    except FileNotFoundError: continue
    told[name] = [[each.returncode, each.stdout.strip(), each.stderr] for each in done]
print(json.dumps([told, len(ssl.create_default_context().get_ca_certs())]))
"""
DISTRUSTED = {"python": "self-signed certificate", "node": "SELF_SIGNED", "curl": "self-signed certificate"}


async def test_clients_know_the_authorities_of_the_machine_and_one_that_is_declared(here, place):
    certificate, key = self_signed(place, "localhost")
    key.chmod(0o644)
    # Its own loopback is enough; without one of its own there is that of the machine.
    network = "web" if here.tier >= Tier.NAMESPACES else "host"
    told, known = await here.python(CLIENTS, str(certificate), str(key), network=network, read=[str(place)])
    assert known > 10  # authorities of the machine
    for name, (before, after) in told.items():
        assert before[0] != 0
        assert DISTRUSTED[name].lower() in before[2].lower(), (name, before)
        assert after[:2] == [0, "ok"], (name, after)
    assert told.keys() == {"python", *filter(shutil.which, ("node", "curl"))}


NAMED = """
import json, pwd, os, socket
kinds = (socket.AF_INET, 0)
found = [sorted({each[4][0] for each in socket.getaddrinfo('localhost', 80, kind)})[0] for kind in kinds]
print(json.dumps([found, socket.gethostbyname('localhost'), pwd.getpwuid(os.getuid()).pw_dir != '',
    os.path.isfile('/etc/resolv.conf'), socket.gethostbyname(socket.gethostname())]))
"""


async def test_localhost_is_found_with_every_network(here):
    for network in NETWORKS:
        found, by_name, *files, own = await here.python(NAMED, network=network)
        assert found == [by_name, by_name] == ["127.0.0.1"] * 2
        assert files == [True, True]
        assert own.startswith("127.") or here.tier < Tier.NAMESPACES


# --- folders and programs of others


async def test_git_reads_a_folder_of_somebody_else(here, place):
    repository = place / "repository"
    subprocess.run(["git", "init", "--quiet", str(repository)], check=True)
    of_somebody(repository)
    code = (
        "import json, subprocess, sys; argv = ['git', '-C', sys.argv[1], 'status', '--short', '--branch'];"
        "done = subprocess.run(argv, capture_output=True, text=True);"
        "print(json.dumps([done.returncode, done.stdout.startswith('## '), done.stderr]))"
    )
    said = await here.python(code, str(repository), read=[str(repository)])
    if here.tier is Tier.BASE and IS_ROOT:  # nothing would keep what the folder's settings name from the node's files
        assert said[:2] == [128, False]
        assert "dubious ownership" in said[2]
    else:
        assert said == [0, True, ""]


NODE = "#!/usr/bin/env node\nconsole.log(JSON.stringify([process.execPath, require('./package.json').name]))\n"


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed (Debian: apt-get install nodejs)")
async def test_a_program_of_nvm_is_run_by_the_node_beside_it_whatever_the_path_of_the_gateway(here, place, monkeypatch):
    version = place / "somebody/.nvm/versions/node/v20.1.0"
    package = version / "lib/node_modules/tool"
    package.mkdir(parents=True)
    (version / "bin").mkdir()
    shutil.copy(Path(str(shutil.which("node"))).resolve(), version / "bin/node")
    (package / "package.json").write_text('{"name": "tool"}')
    (package / "index.js").write_text(NODE)
    (package / "index.js").chmod(0o755)
    (version / "bin/tool").symlink_to("../lib/node_modules/tool/index.js")
    (place / "tool").symlink_to(version / "bin/tool")
    of_somebody(place)
    monkeypatch.setenv("PATH", "/nowhere")
    for program in (version / "bin/tool", place / "tool"):
        done = await here.run([str(program)])
        assert done.said == [str(version / "bin/node"), "tool"], done
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    declared = await here.run([str(version / "bin/tool")], env={"PATH": f"/nowhere:{version / 'bin'}"})
    assert declared.said[0] == str(version / "bin/node")


async def test_a_program_of_pyenv_is_run_by_its_own_python(here, place):
    version = place / "somebody/.pyenv/versions/3.x"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", "--copies", str(version)], check=True)
    for line in (f"#!{version}/bin/python3", "#!/usr/bin/env python3"):
        program = version / "bin/tool"
        program.write_text(f"{line}\nimport json, ssl, sys\nprint(json.dumps(sys.executable))\n")
        program.chmod(0o755)
        of_somebody(place)
        assert (await here.run([str(program)])).said == f"{version}/bin/python3"


@pytest.mark.skipif(shutil.which("java") is None, reason="apt-get install default-jre-headless")
async def test_java_finds_its_settings_and_knows_its_memory_whoever_starts_it(here):
    done = await here.run(["sh", "-c", "java -XshowSettings:vm -version"], limits=ProcessLimits(memory_mb=1000))
    assert (done.description, "Runtime Environment" in done.stderr) == ("exit status 0", True), done.stderr
    heap = re.search(r"Max\. Heap Size \(Estimated\): ([0-9.]+)M", done.stderr)
    assert heap is not None, done.stderr
    assert float(heap[1]) <= 1000 / 4


@pytest.mark.skipif(shutil.which("chromium") is None, reason="apt-get install chromium")
async def test_chromium_finds_its_settings_whoever_starts_it(here):
    done = await here.run(["sh", "-c", "chromium --version >&2"])
    assert (done.description, "Chromium " in done.stderr) == ("exit status 0", True), done.stderr


async def test_a_program_that_its_user_may_not_execute_is_no_fault_of_the_sandbox(here, place):
    program = place / "closed/tool"
    program.parent.mkdir(mode=0o700)
    shutil.copy("/bin/true", program)
    program.chmod(0o700 if IS_ROOT else 0o600)
    of_somebody(place)
    with pytest.raises(BackendExited, match=r"^Permission denied: ") as caught:
        await here.run([str(program)])
    assert "owner" in str(caught.value.hint)
