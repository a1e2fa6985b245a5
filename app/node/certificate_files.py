"""CertificateFiles: the certificate that a node serves, taken anew when its files have changed."""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from app.cluster.node_status.problems.problem import Problem, Severity
from app.errors import SettingsError
from app.settings.certificate import load, stamp_of
from app.settings.settings import Settings

LOOK_EVERY_S = 30.0
DAY_S = 86_400.0
SOON_S, AT_ONCE_S = 14 * DAY_S, 3 * DAY_S  # before it expires: a warning; critical

log = logging.getLogger(__name__)


class CertificateFiles:
    """`run` is a task of the node. Files that cannot be used change nothing: what was read before is served on."""

    def __init__(self, node: str, cert: Path, key: Path, clock: Callable[[], float] = time.time) -> None:
        """Raises SettingsError: they cannot be used."""
        self._node, self._cert, self._key, self._clock = node, cert, key, clock
        self._served = load(cert, key)
        self._seen = self._served.stamp  # at the last look
        self._refused = ""  # why what is in the files now is not served
        self._asked = asyncio.Event()

    @property
    def context(self) -> ssl.SSLContext:
        """For connections that begin now."""
        return self._served.context

    @property
    def expires_at(self) -> float:
        """Unix time."""
        return self._served.expires_at

    def read_again(self) -> None:
        """Has the files read at once, even if they look as before."""
        self._asked.set()

    async def run(self) -> None:
        """Looks at the files regularly until it is cancelled."""
        while True:
            with anyio.move_on_after(LOOK_EVERY_S):
                await self._asked.wait()
            is_asked = self._asked.is_set()
            self._asked.clear()
            try:
                await self.look(is_asked=is_asked)
            except Exception:
                log.exception("Could not look at the files of the TLS certificate: a bug in the gateway")

    async def look(self, *, is_asked: bool = False) -> None:
        """Reads the files if they have changed since they were read, and not since the last look: the two are not
        written at the same moment. Refused ones are tried at each look, as their permissions may have been the reason.
        """
        stamp = await anyio.to_thread.run_sync(stamp_of, self._cert, self._key)
        is_calm, self._seen = stamp == self._seen, stamp
        if is_asked or (is_calm and (self._refused or stamp != self._served.stamp)):
            await self._read(is_asked=is_asked)

    async def _read(self, *, is_asked: bool) -> None:
        try:
            self._served = await anyio.to_thread.run_sync(load, self._cert, self._key)
        except SettingsError as error:
            known, self._refused = self._refused, str(error)
            if is_asked or self._refused != known:
                log.error("Serving the old TLS certificate, which expires at %s: %s", self._end, error)
        else:
            self._refused = ""
            log.info("Serving the TLS certificate that was read anew; it expires at %s", self._end)

    @property
    def _end(self) -> str:
        return datetime.fromtimestamp(self.expires_at, UTC).strftime("%Y-%m-%d %H:%M UTC")

    def problems(self) -> Iterator[Problem]:
        """It expires soon, or new files were refused."""
        here = partial(Problem, see=("node", self._node))
        left_s = self.expires_at - self._clock()
        if left_s < SOON_S:
            when = f"expires at {self._end}, in {left_s / DAY_S:.1f} days" if left_s > 0 else f"expired at {self._end}"
            severity: Severity = "warning" if left_s >= AT_ONCE_S else "critical"
            words = f"The TLS certificate {when}: {self._cert}."
            do = "Renew it: the gateway takes it from the same files within a minute, without a restart."
            # The same one on several nodes is one problem.
            yield here("certificate_expires", severity, ("certificate", self._served.fingerprint[:16]), words, do)
        if self._refused:
            words = f"The files of the TLS certificate cannot be used, and the old one is served on: {self._refused}."
            do = f"Correct them before {self._end}: the gateway tries again every {LOOK_EVERY_S:.0f} s, and at SIGHUP."
            yield here("certificate_refused", "warning", ("node", self._node), words, do)


def read_certificate(settings: Settings, node: str) -> CertificateFiles | None:
    """That of TLS_CERT and TLS_KEY; None without them. Raises SettingsError: it cannot be used."""
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return CertificateFiles(node, settings.tls_cert, settings.tls_key)
