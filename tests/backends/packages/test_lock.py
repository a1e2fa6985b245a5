"""Locks: what is refused in one, whoever has written it."""

import json
from dataclasses import replace

import pytest

from app.backends.packages._lock import MAX_LOCK_BYTES, Lock, LockRefused, read_lock, scripts_in

INTEGRITY = "sha512-" + "A" * 86 + "=="
HASH = "--hash=sha256:" + "0" * 64


def npm(**packages) -> Lock:
    told = {"node_modules/notes": {"version": "1.0.0", "integrity": INTEGRITY}} | packages
    return Lock("npm", "notes", json.dumps({"dependencies": {"notes": "1.0.0"}, "packages": told}))


def pypi(content: str) -> Lock:
    return Lock("pypi", "Mcp.Notes", content, "3.11")


def test_what_has_versions_and_hashes_is_read_again():
    for lock in (
        npm(),
        pypi(f"mcp-notes==1.0 \\\n    {HASH} \\\n    {HASH}\nother==2 ; sys_platform == 'x' \\\n    {HASH}\n"),
    ):
        assert read_lock(lock.text, lock.hash) == lock
    assert npm().version == "1.0.0"
    assert pypi(f"mcp-notes==1.0 {HASH}").version == "1.0"


def test_another_lock_than_the_named_one_is_refused():
    with pytest.raises(LockRefused, match="not the lock that the backend names"):
        read_lock(npm().text, pypi("").hash)


def test_the_same_package_for_another_python_is_another_lock():
    lock = pypi(f"mcp-notes==1.0 {HASH}")
    assert lock.hash != replace(lock, python="3.12").hash


FROM = "resolved"


@pytest.mark.parametrize("other", [
    {"version": "1", "integrity": "sha1-AAAA"}, {"version": "1"},
    {"version": "1", "integrity": INTEGRITY, "link": True},
    {"version": "1", "integrity": INTEGRITY, FROM: "git+ssh://git@host.example/x.git#1"},
    {"version": "1", "integrity": INTEGRITY, FROM: "file:../x"},
])  # fmt: skip
def test_a_package_of_npm_without_a_hash_or_from_elsewhere_is_refused(other):
    with pytest.raises(LockRefused, match="node_modules/other"):
        npm(**{"node_modules/other": other}).check()


@pytest.mark.parametrize("place", ["../other", "node_modules/../../x", "packages/x", "node_modules//x"])
def test_a_package_of_npm_in_another_place_is_refused(place):
    with pytest.raises(LockRefused, match="is no package of a registry"):
        npm(**{place: {"version": "1", "integrity": INTEGRITY}}).check()


HOST = "https://host.example"


@pytest.mark.parametrize("content", [
    "mcp-notes==1.0\n", f"mcp-notes>=1.0 {HASH}\n", f"mcp-notes==1.0 {HASH}\n--index-url {HOST}\n",
    f"mcp-notes==1.0 {HASH}\nother @ https://host.example/x.whl {HASH}\n", "", f"other==1 {HASH}\n",
])  # fmt: skip
def test_a_requirement_of_python_without_a_version_or_a_hash_is_refused(content):
    with pytest.raises(LockRefused):
        pypi(content).check()


def test_what_is_too_large_or_no_lock_at_all_is_refused():
    with pytest.raises(LockRefused, match="larger than"):
        pypi(f"mcp-notes==1.0 {HASH}\n" + "#" * MAX_LOCK_BYTES).check()
    for content in ("[", "[]", '{"packages": []}', '{"packages": {"a": 1}}'):
        with pytest.raises(LockRefused, match="cannot be read"):
            Lock("npm", "notes", content).check()


def test_scripts_that_are_not_run_are_known():
    lock = npm(
        **{"node_modules/a/node_modules/@b/c": {"version": "1", "integrity": INTEGRITY, "hasInstallScript": True}}
    )
    assert scripts_in(lock) == ["@b/c"]
    assert scripts_in(pypi(f"mcp-notes==1.0 {HASH}")) == []
