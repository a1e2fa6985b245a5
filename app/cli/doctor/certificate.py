"""Checks of the certificate that the gateway serves TLS with."""

import stat
import time
from datetime import UTC, datetime
from pathlib import Path

from app.cli.doctor.findings import Check, State
from app.errors import SettingsError

NAME = "certificate"
SOON_DAYS = 14
DAY_S = 86_400.0


def certificate(cert: Path | None, key: Path | None) -> Check:
    if cert is None or key is None:
        return Check(NAME, State.OK, "none: plain http, for a proxy with TLS in front (TRUNKLINE_TLS_CERT)")
    # Here, because reading certificates takes a while to import, and every command imports this module.
    from app.settings.certificate import load  # noqa: PLC0415

    try:
        expires_at = load(cert, key).expires_at
    except SettingsError as error:
        return Check(NAME, State.MISSING, str(error), "The gateway does not start with it (docs/operations.md, TLS).")
    days = (expires_at - time.time()) / DAY_S
    detail = f"{cert}, until {datetime.fromtimestamp(expires_at, UTC):%Y-%m-%d}"
    if key.stat().st_mode & stat.S_IROTH:
        return Check(NAME, State.OPTIONAL, f"{detail}; everybody on this machine can read {key}", f"chmod o= {key}")
    if days < SOON_DAYS:
        advice = "Renew it: a gateway that runs takes it from the same files within a minute."
        return Check(NAME, State.OPTIONAL, f"{detail}: it expires in {days:.1f} days", advice)
    return Check(NAME, State.OK, detail)
