"""A node with another SECRET_KEY than the nodes that use its Redis does not start."""

import os
import subprocess
import sys
from pathlib import Path

from app.cluster.redis.key_check import NAME, check_value
from tests.integration.gateway import ROOT, running_gateway
from tests.programs import run_program
from tests.redis_servers import client_of


def test_it_says_so_in_one_line_and_what_to_do(empty_redis: str, tmp_path: Path) -> None:
    with client_of(empty_redis) as client:
        client.set(NAME, check_value(bytes.fromhex("ab" * 32)), px=60_000)
        settings = {"DATA_DIR": str(tmp_path), "REDIS_URL": empty_redis, "SECRET_KEY": "cd" * 32, "PORT": "0"}
        environment = {**os.environ, **{f"TRUNKLINE_{name}": value for name, value in settings.items()}}
        command = [sys.executable, "-m", "app", "serve"]
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stdout) == (2, "")
        last = done.stderr.splitlines()[-1]
        assert last.startswith("trunkline: TRUNKLINE_SECRET_KEY: the nodes that use this Redis have another one")
        assert "redis-cli DEL trunkline:key" in last
        assert "Traceback" not in done.stderr
        assert client.get(NAME) == check_value(bytes.fromhex("ab" * 32))


def test_a_gateway_with_another_key_than_its_database_does_not_start_until_that_is_meant(tmp_path: Path) -> None:
    key, other = "ab" * 32, "cd" * 32
    with running_gateway(tmp_path / "data", SECRET_KEY=key) as gateway:
        environment = gateway.environment
        assert f"data directory: {tmp_path}/data" in gateway.log_tail()
    changed = {**environment, "TRUNKLINE_SECRET_KEY": other}
    done = run_program(["serve", "--port", "0"], changed)
    assert (done.returncode, done.stdout) == (2, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"trunkline: TRUNKLINE_SECRET_KEY: the database at {tmp_path}/data/trunkline.db was made with"
    )
    assert "trunkline secret-key accept" in last
    assert "Traceback" not in done.stderr
    assert run_program(["secret-key", "accept"], changed).returncode == 0
    with running_gateway(tmp_path / "data", SECRET_KEY=other) as gateway:
        assert gateway.api("GET", "/tenants")["items"]
    assert run_program(["serve", "--port", "0"], environment).returncode == 2
