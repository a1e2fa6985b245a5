"""`trunkline doctor`: checks what a node needs on this machine. Each check takes well under a second or has a timeout.

Checks are read-only: they create no directory, no key and no table. One file per subject; `examination` has the order.
"""

from app.cli.doctor.examination import examine
from app.cli.doctor.findings import Check, State, as_json, as_table, is_well

__all__ = ["Check", "State", "as_json", "as_table", "examine", "is_well"]
