"""What the settings of a node name that no backend may reach."""

from pathlib import Path

from app.jail.sandbox.probes.targets import targets_of


def test_files_and_addresses_of_the_settings(tmp_path: Path):
    database = tmp_path / "rows.db"
    database.touch()
    urls = {"the database": f"sqlite:///{database}", "Redis": "rediss://:secret@redis.internal/0"}
    targets = targets_of(("0.0.0.0", 8080), tmp_path, urls)
    assert targets.files["the database"] == str(database)
    assert targets.files["the gateway's data"] == str(tmp_path)
    assert targets.addresses == {"the gateway": ("127.0.0.1", 8080), "Redis": ("redis.internal", 6379)}


def test_what_is_not_there_is_not_tried(tmp_path: Path):
    targets = targets_of(("::", 80), tmp_path / "none", {"the database": "postgresql://db/x", "Redis": None})
    assert "the gateway's data" not in targets.files
    assert targets.addresses == {"the gateway": ("::1", 80), "the database": ("db", 5432)}
