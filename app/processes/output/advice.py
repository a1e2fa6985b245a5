"""What helps where a process was ended for something that it does, or does not trust whom it talks to. Pure."""

import re
from collections.abc import Iterable

# By how the end is described.
_OF_ENDS = {
    "lines in a minute that are no JSON": (
        "They were on its stdout, which is for messages alone: have it write its log to stderr. Is it a server for "
        "stdio?"
    ),
    "a line without end": (
        "A message of it has far more bytes than MAX_LINE_BYTES, a setting of the gateway: have the tool answer in "
        "parts."
    ),
    "does not read its input": (
        "It is stuck, or does not read its stdin while it works: the end of its stderr may say at what."
    ),
    "closed its input or output": (
        "It has to keep its stdin and stdout open: a wrapper that starts the server in the background does not."
    ),
}
_distrusts = re.compile(
    r"certificate.verify.failed|self[- ]signed certificate|unable to (get|verify) \w+ .*certificate|"
    r"certificate has expired|UNABLE_TO_(GET|VERIFY)_|x509: ",
    re.IGNORECASE,
).search
TRUST = (
    "It does not trust the certificate of the server that it talks to. If that is right, name a file with its "
    "authority in `env` (SSL_CERT_FILE; for Node NODE_EXTRA_CA_CERTS), and the same file in `sandbox.read`."
)


def of_end(description: str) -> str | None:
    """For whoever called a process that ended so."""
    return next((words for part, words in _OF_ENDS.items() if part in description), None)


def of_words(stderr: Iterable[str]) -> str | None:
    """From what it has said itself."""
    return TRUST if _distrusts("\n".join(stderr)) else None
