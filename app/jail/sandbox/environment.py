"""The environment of a process, and the variables by which it finds its proxy."""

import os
from collections.abc import Iterable
from pathlib import Path

from app.domain import HOME_WORD, BackendSpec
from app.domain.resources.backends import PROXY_PORT

NO_PROXY = "localhost,127.0.0.1,::1"

# Of Debian and Alpine, of Fedora, of openSUSE.
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem",
)  # fmt: skip


def environment_of(spec: BackendSpec, home: str, tmpdir: str) -> dict[str, str]:
    """The environment of one process: of the gateway's own only PATH. The spawner adds its marker."""
    path = os.environ.get("PATH", os.defpath)
    declared = {name: value.replace(HOME_WORD, home) for name, value in spec.env.items()}
    return {"PATH": path, "HOME": home, "TMPDIR": tmpdir, "LANG": "C.UTF-8", **declared}


def proxy_environment(port: int = PROXY_PORT, bundles: Iterable[str] = BUNDLES) -> dict[str, str]:
    """For a process whose listener is at this port of its loopback.

    Where the machine has a bundle of certificate authorities, programs that bring their own use that one.
    """
    http = f"http://127.0.0.1:{port}"
    # Not socks5h: httpx, which many servers use, would not start without a package that few have.
    values = {"http_proxy": http, "https_proxy": http, "all_proxy": http, "no_proxy": NO_PROXY}
    variables = {**values, **{name.upper(): value for name, value in values.items()}, "NODE_USE_ENV_PROXY": "1"}
    bundle = next((each for each in bundles if Path(each).is_file()), None)
    if bundle is not None:
        variables |= dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"), bundle)
    return variables
