"""What a backend offers is known by its definition."""

from dataclasses import replace

from app.backends.catalog.entries import definition_of
from app.domain import BackendSpec

PG = BackendSpec("acme", "pg", "pg-mcp", ("--password", "s3cret"), {"TOKEN": "t0ken"}, sealed=b"1")
FAR = BackendSpec("acme", "far", "", url="https://far.example/mcp?token=s3cret", sealed=b"1")


def test_a_stored_definition_is_no_way_to_try_secrets():
    """It would be, if the same secret always gave the same: then who has the database tries words until one fits."""
    for spec, other in ((PG, {"args": ("--password", "0ther")}), (FAR, {"url": "https://far.example/mcp?token=0ther"})):
        assert definition_of(spec) == definition_of(replace(spec, **other))
        assert definition_of(spec) != definition_of(replace(spec, sealed=b"2"))


def test_what_is_started_otherwise_is_another_definition():
    assert definition_of(PG) != definition_of(replace(PG, args=("--other", "s3cret")))
    assert definition_of(PG) != definition_of(replace(PG, command="other"))
    assert definition_of(PG) == definition_of(replace(PG, enabled=False, version=7))
    plain = BackendSpec("acme", "echo", "cat", ("-v",))
    assert definition_of(plain) != definition_of(replace(plain, args=("-n",)))
    assert definition_of(plain) != definition_of(replace(plain, env={"A": "b"}))
