"""A stand-in for podman: images and containers are files in the folder CONTAINERS_STORAGE_CONF, and what runs in a
container is a process of this machine. Like a real engine it keeps a container whose client was killed."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

STATE = Path(os.environ["CONTAINERS_STORAGE_CONF"])


def fail(words, status=125):
    sys.stderr.write(f"Error: {words}\n")
    sys.exit(status)


def image(reference):
    for each in sorted((STATE / "images").iterdir()):
        found = json.loads(each.read_text())
        if reference in (found["name"], f"sha256:{found['id']}"):
            return found
    return fail(f"{reference}: image not known")


def pull(reference):
    waiting = STATE / "registry" / f"{reference.replace('/', '_')}.json"
    if not waiting.exists():
        fail(f"initializing source {reference}: manifest unknown")
    waiting.rename(STATE / "images" / waiting.name)


def containers():
    return [json.loads(each.read_text()) for each in sorted((STATE / "containers").iterdir())]


def remove(names):
    for name in names:
        file = STATE / "containers" / name
        if file.exists():
            with suppress(ProcessLookupError):
                os.kill(json.loads(file.read_text())["pid"], signal.SIGKILL)
            file.unlink()


def run(words):
    options = words[: next(at for at, word in enumerate(words) if word.startswith("sha256:"))]
    found, args = image(words[len(options)]), words[len(options) + 1 :]
    values = dict(each.partition("=")[::2] for each in options)
    lines = Path(values["--env-file"]).read_text().splitlines()
    env = dict(line.partition("=")[::2] for line in lines)
    file = STATE / "containers" / values["--name"]
    child = subprocess.Popen([*found["command"], *args], env=env)
    labels = [each.removeprefix("--label=") for each in options if each.startswith("--label=")]
    kept = {"name": file.name, "labels": labels, "options": options, "env": env, "client": sorted(os.environ)}
    written = file.with_suffix(".new")
    written.write_text(json.dumps({**kept, "pid": child.pid, "client_pid": os.getpid()}))
    written.rename(file)
    status = child.wait()
    file.unlink(missing_ok=True)
    sys.exit(status)


command, *rest = sys.argv[1:]
if command == "--version":
    print("podman version 4.3.1")
elif command == "image":
    found = image(rest[-1])
    print(found["id"], json.dumps(found["volumes"]))
elif command == "pull":
    pull(rest[-1])
elif command == "ps":
    wanted = rest[rest.index("--filter") + 1].removeprefix("label=")
    print("\n".join(each["name"] for each in containers() if wanted in each["labels"]))
elif command == "rm":
    remove(rest[rest.index("--") + 1 :])
elif command == "run":
    run(rest)
else:
    fail(f"unknown command {command}")
