"""Faults of HTTP APIs as tools."""

from tests.mutations.fault import Fault

MAKING = ("tests/protocol/openapi/test_making.py",)
REQUESTS = ("tests/protocol/openapi/test_requests.py",)
RESULTS = ("tests/protocol/openapi/test_results.py",)
APIS = ("tests/backends/openapi/test_apis.py",)
REGISTERED = ("tests/admin/resources/test_backends_openapi.py",)
UPSTREAM = ("tests/backends/upstreams/test_api.py",)

FAULTS_OF_OPENAPI = (
    Fault(
        "a value leads out of the path that the document has",
        "app/protocol/openapi/requests.py",
        'any(part in (".", "..") for part in re.split(r"[/\\\\]", text))',
        'text in (".", "..")',
        REQUESTS,
    ),
    Fault(
        "a slash in a value is one of the path",
        "app/protocol/openapi/requests.py",
        'return quote(_text(value), safe="")',
        "return quote(_text(value))",
        REQUESTS,
    ),
    Fault(
        "a caller replaces a header of the backend",
        "app/protocol/openapi/requests.py",
        "elif each.name.lower() not in base.taken:",
        "else:",
        REQUESTS,
    ),
    Fault(
        "an answer shows the credential that it was asked with",
        "app/protocol/openapi/results.py",
        "body = secrets.hidden_in(body)",
        "pass",
        UPSTREAM,
    ),
    Fault(
        "an answer shows it as the address had it",
        "app/protocol/openapi/results.py",
        "if character in _PLAIN:",
        "if True:",
        RESULTS,
    ),
    Fault(
        "an error shows the beginning of it",
        "app/protocol/openapi/results.py",
        "body = body[: next(cut, most)]",
        "body = body[:most]",
        RESULTS,
    ),
    Fault(
        "callers give the credential themselves",
        "app/protocol/openapi/_operations.py",
        'if place in ("query", "header") and name.lower() in dialect.credentials:',
        "if False:",
        MAKING,
    ),
    Fault(
        "a body that a schema needs may be left out",
        "app/protocol/openapi/_operations.py",
        "said is True or (said is not False and bool(needed))",
        "said is True",
        MAKING,
    ),
    Fault(
        "another document is taken for an empty one",
        "app/protocol/openapi/_references.py",
        'if not reference.startswith("#"):',
        "if False:",
        MAKING,
    ),
    Fault(
        "one odd operation takes away the others",
        "app/protocol/openapi/making.py",
        "except _ODD:",
        "except ZeroDivisionError:",
        MAKING,
    ),
    Fault(
        "a credential that is sent is asked for",
        "app/protocol/openapi/api.py",
        "names = {each.lower() for each in sent}",
        "names = set[str]()",
        MAKING,
    ),
    Fault(
        "an error of an API is a result like others",
        "app/protocol/openapi/results.py",
        "if not 200 <= status < 300:",
        "if False:",
        RESULTS,
    ),
    Fault(
        "a cancelled call goes on at the API",
        "app/backends/upstreams/_session.py",
        "if call.is_sessionless or self._wire.cancels_at_once:",
        "if call.is_sessionless:",
        UPSTREAM,
    ),
    Fault(
        "sessions of an older document get the tools of a later one for ever",
        "app/backends/openapi/apis.py",
        "kept = self._kept.pop((tenant, name, spec.openapi_made), None)",
        "kept = next(iter(self._kept.values()), None)",
        APIS,
    ),
    Fault(
        "whoever lost the right meanwhile still registers an API",
        "app/admin/resources/backends.py",
        "    await access.require_still(Scope.TENANT_ADMIN)\n    url = spec.url or made.server",
        "    url = spec.url or made.server",
        REGISTERED,
    ),
)
