"""Which of two versions is newer."""

import pytest

from app.backends.packages._versions import is_newer


@pytest.mark.parametrize("registry", ["npm", "pypi"])
@pytest.mark.parametrize(("old", "new"), [
    ("1.0.0", "1.0.1"), ("1.9", "1.10"), ("2026.8.31", "2026.10.19"), ("1.0.0-beta.2", "1.0.0-beta.11"),
    ("1.0a1", "1.0b1"), ("1.0rc1", "1.0"), ("0.9.9", "1.0.0-alpha"), ("1.0.0-1", "1.1.0"),
    ("1.0+build.2", "1.1+build.1"),
])  # fmt: skip
def test_numbers_count_as_numbers_and_what_is_before_a_version_as_older(registry, old, new):
    assert is_newer(registry, new, old)
    assert not is_newer(registry, old, new)


def test_each_registry_has_rules_of_its_own():
    assert is_newer("pypi", "1.0.post1", "1.0")
    assert is_newer("pypi", "1.0-1", "1.0")
    assert is_newer("npm", "1.0.0", "1.0.0-1")
    assert is_newer("pypi", "1!0.1", "9.9")
    assert is_newer("pypi", "1.0a1", "1.0.dev3")


@pytest.mark.parametrize(("one", "other"), [
    ("1.0", "1.0.0"), ("v1", "1"), ("1.0+a", "1.0+b"), ("", "1"), ("1", "latest"),
])  # fmt: skip
def test_what_is_the_same_or_no_version_is_not_newer(one, other):
    for registry in ("npm", "pypi"):
        assert not is_newer(registry, one, other)
        assert not is_newer(registry, other, one)
