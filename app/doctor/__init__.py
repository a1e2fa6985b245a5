"""What works on this machine: one check per thing that a node needs or could use, each well under a second or bounded.

Looks only: makes no directory, no key and no table. Handed plain values; `None` for them means that the settings are
wrong, and what depends on them is left out. A file for each subject of checks; `examination` puts them in order.
"""

from app.doctor.examination import examine
from app.doctor.findings import Check, State, as_json, as_table, is_well
from app.doctor.subject import Subject

__all__ = ["Check", "State", "Subject", "as_json", "as_table", "examine", "is_well"]
