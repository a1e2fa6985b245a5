"""What Authlib decides of a request, by what was looked up before it: nothing waits here, and nothing is stored.

Authlib reads requests, authenticates clients, checks redirect addresses, codes, PKCE and scopes, and words the errors
(RFC 6749, 7636, 9207). What a tenant's server adds is in small subclasses: what exists, what `resource` means (RFC
8707), and that a refresh token is a turn of its connection.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from authlib.oauth2 import OAuth2Error
from authlib.oauth2.rfc6749 import AuthorizationServer, ClientMixin, OAuth2Request, grants
from authlib.oauth2.rfc6749.errors import InvalidGrantError, InvalidRequestError, UnauthorizedClientError
from authlib.oauth2.rfc6749.grants import BaseGrant, TokenEndpointMixin
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload
from authlib.oauth2.rfc7636 import CodeChallenge

from app.auth.authorization.access_tokens import LIFE_S, Holder, narrowed
from app.auth.authorization.addresses import JWT_BEARER, METHODS, Addresses
from app.auth.authorization.clients import Client
from app.domain import CLIENT_ISSUER, Connection

CLIENT_ASSERTION = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_is_sha256 = re.compile(r"[A-Za-z0-9_-]{43}").fullmatch  # in base64url (RFC 7636, 4.2)
_SECRET = frozenset({"client_secret_basic", "client_secret_post"})

Fields = Mapping[str, Sequence[str]]  # of a form or a query: each value that a name has


class Refused(OAuth2Error):  # type: ignore[misc]
    """An error with this name."""

    def __init__(self, error: str, description: str, status: int = 400) -> None:
        super().__init__(description=description, error=error, status_code=status)


class Asked(OAuth2Request):  # type: ignore[misc]
    """A request to one of the endpoints. Whether TLS is used is known to a proxy, not to us."""

    def __init__(self, method: str, fields: Fields, authorization: str = "") -> None:
        headers = {"Authorization": authorization} if _is_basic(authorization) else {}
        super().__init__(method, "https://gateway/", headers=headers)
        self.payload = _Payload(fields)

    def is_from(self, client: "_Registered") -> None:
        """The client has said who it is."""
        self.client = client

    @property
    def form(self) -> dict[str, str]:
        found: dict[str, str] = self.payload.data
        return found

    @property
    def args(self) -> dict[str, str]:
        return self.form

    @property
    def repeated(self) -> Sequence[str]:
        """Parameters that are there twice; `resource` may be (RFC 8707)."""
        return [name for name, values in self.payload.datalist.items() if len(values) > 1 and name != "resource"]


def _is_basic(header: str) -> bool:
    """Whether Authlib can read this; it stumbles over other bytes."""
    scheme, _, value = header.partition(" ")
    try:
        return scheme.lower() == "basic" and bool(b64decode(value.strip(), validate=True).decode())
    except ValueError:
        return False


class _Payload(BasicOAuth2Payload):  # type: ignore[misc]
    def __init__(self, fields: Fields) -> None:
        super().__init__({name: values[0] for name, values in fields.items() if values and values[0]})
        self._datalist = {name: list(values) for name, values in fields.items()}


@dataclass(frozen=True)
class Known:
    """What was looked up for a request. `is_proven`: it has an assertion of the client, verified already. `connection`
    is the one whose code or refresh token the request has, as it will be after this turn. `person`: of an assertion of
    the tenant's provider. `make` makes access tokens, `secret_of` codes and refresh tokens."""

    to: Addresses
    client: Client | None
    is_right_secret: Callable[[str], bool]
    make: Callable[[Addresses, str, Holder], str]
    secret_of: Callable[[Connection], str]
    is_proven: bool = False
    connection: Connection | None = None
    person: Holder | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of the token endpoint. `headers` are those of the error, if it is one."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def is_error(self) -> bool:
        return self.status >= 400


def decide_token(asked: Asked, known: Known) -> Decision:
    """What the token endpoint answers."""
    if (wrong := _incomplete(asked, "grant_type")) is not None:
        return wrong
    return _answered(*_Server(known, asked).create_token_response(asked))


def decide_revocation(asked: Asked, known: Known) -> Decision | None:
    """An error where the client is not who it says; None: it may revoke what is its own."""
    try:
        _Server(known, asked).authenticate_client(asked, METHODS, "revocation")
    except OAuth2Error as error:
        return _answered(*error(None))
    return _incomplete(asked, "token")


def is_authenticated(asked: Asked, known: Known) -> bool:
    """Whether a request to the token endpoint comes from the client that it names."""
    try:
        _Server(known, asked).authenticate_client(asked, METHODS, "token")
    except OAuth2Error:
        return False
    return True


def _incomplete(asked: Asked, needed: str) -> Decision | None:
    """The error of a request without this parameter, or with one twice. A name may be anything, and is not repeated."""
    if asked.repeated:
        return _answered(*InvalidRequestError("A parameter is in the request twice.")(None))
    return None if needed in asked.form else _answered(*InvalidRequestError(f"Missing '{needed}' in request.")(None))


def decide_authorization(asked: Asked, known: Known) -> "Ask":
    """What a person is to be asked.

    Raises:
        OAuth2Error: the request is not valid.
    """
    if "response_type" not in asked.form:
        raise InvalidRequestError("Missing 'response_type' in request.")
    grant = _Server(known, asked).get_consent_grant(asked)
    client, uri = known.client, str(grant.redirect_uri)
    assert client is not None
    backend = _backend_of(asked, known)
    return Ask(known.to, client, uri, asked.form.get("state", ""), asked.form["code_challenge"], backend)


@dataclass(frozen=True, slots=True)
class Ask:
    """A valid authorization request: whether this client may use this backend ("" for all of the tenant) for a person,
    who comes back to `redirect_uri`."""

    to: Addresses
    client: Client
    redirect_uri: str
    state: str
    challenge: str
    backend: str


class _Server(AuthorizationServer):  # type: ignore[misc]
    """For one request."""

    def __init__(self, known: Known, asked: Asked) -> None:
        super().__init__()
        self.known, self._asked = known, asked
        self.register_client_auth_method("private_key_jwt", self._by_assertion)
        for grant in (_Refresh, _ClientCredentials, _Assertion):
            self.register_grant(grant)
        self.register_grant(_Code, [_Challenge()])
        self.register_token_generator("default", self._token)

    def query_client(self, client_id: str) -> "_Registered | None":
        client = self.known.client
        return None if client is None or client.client_id != client_id else _Registered(self.known, client)

    def _by_assertion(self, query_client: Any, request: Asked) -> Any:
        is_asked = request.form.get("client_assertion_type") == CLIENT_ASSERTION
        client = self.known.client
        return query_client(client.client_id) if is_asked and self.known.is_proven and client is not None else None

    def _token(self, *, grant_type: str, client: Any, user: Any, **_: Any) -> dict[str, Any]:
        known, request = self.known, self._asked
        connection = user if isinstance(user, Connection) else None
        if connection is not None:
            holder = Holder(connection.issuer, connection.subject, connection.scopes, connection.id, client.client_id)
        elif user is not None:
            holder = user
        else:
            own = client.client.stored.scopes
            holder = Holder(CLIENT_ISSUER, client.client_id, own, client.client.grant, client.client_id)
        backend = _backend_of(request, known, "" if connection is None else connection.backend)
        scopes = narrowed(holder.scopes, backend)
        if not scopes:
            raise Refused("invalid_target", "Nobody may use this resource by this request.")
        holder = Holder(holder.issuer, holder.subject, scopes, holder.grant, holder.client_id)
        token = {
            "access_token": known.make(known.to, backend, holder),
            "token_type": "Bearer",
            "expires_in": LIFE_S,
            "scope": " ".join(sorted(scopes)),
        }
        return token if connection is None else {**token, "refresh_token": known.secret_of(connection)}

    def save_token(self, token: Any, request: Any) -> None:
        """What has to be stored is the connection's turn."""

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Nobody listens."""

    def create_oauth2_request(self, request: Asked) -> Asked:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> tuple[int, Any, Any]:
        return status, body, headers


class _Registered(ClientMixin):  # type: ignore[misc]
    """A client as Authlib asks for it."""

    def __init__(self, known: Known, client: Client) -> None:
        self.client, self.client_id, self._known = client, client.client_id, known

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str | None:
        return None  # it is always sent, and compared

    def get_allowed_scope(self, scope: str | None) -> str:
        return ""  # what a person may use is decided later, by `resource` and the person

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return self.client.redirects_to(redirect_uri)

    def check_client_secret(self, client_secret: str) -> bool:
        return self._known.is_right_secret(client_secret)

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        means = self.client.authentication
        return method in _SECRET if means == "secret" else method == means

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code" and bool(self.client.redirect_uris)

    def check_grant_type(self, grant_type: str) -> bool:
        stored = self.client.stored
        if grant_type == "client_credentials":
            return stored is not None and stored.acts_itself
        return grant_type != JWT_BEARER or (self.client.is_administrators and self.client.authentication != "none")


class _Challenge(CodeChallenge):  # type: ignore[misc]
    """PKCE with S256, always: no other method, and no request without."""

    SUPPORTED_CODE_CHALLENGE_METHOD = ("S256",)

    def validate_code_challenge(self, grant: Any, redirect_uri: str) -> None:
        data = grant.request.payload.data
        if _is_sha256(data.get("code_challenge", "")) is None or data.get("code_challenge_method") != "S256":
            raise InvalidRequestError("PKCE is needed: send 'code_challenge' with the method S256.")
        super().validate_code_challenge(grant, redirect_uri)

    def get_authorization_code_challenge_method(self, authorization_code: Any) -> str:
        return "S256"


class _Code(grants.AuthorizationCodeGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS = METHODS

    def query_authorization_code(self, code: str, client: _Registered) -> "_OfConnection | None":
        return _of(self.server.known, client)

    def delete_authorization_code(self, authorization_code: Any) -> None:
        """It is the connection's first turn that makes it invalid."""

    def authenticate_user(self, authorization_code: "_OfConnection") -> Connection:
        return authorization_code.connection


class _Refresh(grants.RefreshTokenGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS = METHODS
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, refresh_token: str) -> "_OfConnection | None":
        known = self.server.known
        return None if known.connection is None else _OfConnection(known.connection)

    def _validate_token_scope(self, token: Any) -> None:
        """A connection has the scopes that it has, whatever is asked for."""

    def authenticate_user(self, refresh_token: "_OfConnection") -> Connection:
        return refresh_token.connection

    def revoke_old_credential(self, refresh_token: Any) -> None:
        """It is the connection's next turn that makes it invalid."""


class _ClientCredentials(grants.ClientCredentialsGrant):  # type: ignore[misc]
    TOKEN_ENDPOINT_AUTH_METHODS = METHODS[1:]


class _Assertion(BaseGrant, TokenEndpointMixin):  # type: ignore[misc]
    """A person by an assertion of the tenant's provider (RFC 7523, 2.1; ID-JAG). There is no refresh token: the
    provider is asked again."""

    GRANT_TYPE = JWT_BEARER
    TOKEN_ENDPOINT_AUTH_METHODS = METHODS

    def validate_token_request(self) -> None:
        client = self.authenticate_token_endpoint_client()
        if not client.check_grant_type(JWT_BEARER):
            raise UnauthorizedClientError("Only a client that the tenant knows may send assertions.")
        if self.server.known.person is None:
            raise InvalidGrantError("The assertion is not valid here.")
        self.request.is_from(client)

    def create_token_response(self) -> tuple[int, Any, Any]:
        return 200, self.generate_token(user=self.server.known.person), self.TOKEN_RESPONSE_HEADER


class _OfConnection:
    """A code or a refresh token, as Authlib asks for it."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.code_challenge = connection, connection.challenge

    def get_redirect_uri(self) -> str:
        return self.connection.redirect_uri

    def get_scope(self) -> str:
        return ""

    def check_client(self, client: _Registered) -> bool:
        return self.connection.client_id == client.client_id


def _of(known: Known, client: _Registered) -> _OfConnection | None:
    connection = known.connection
    return None if connection is None or connection.client_id != client.client_id else _OfConnection(connection)


def _backend_of(asked: Asked, known: Known, allowed: str = "") -> str:
    """The backend that the request names by `resource`, "" for all of the tenant; `allowed` is what it may name at
    most. Raises Refused."""
    named = asked.payload.datalist.get("resource", [])
    found = {known.to.backend_of(each) for each in named} or {allowed}
    backend = found.pop()
    if found or backend is None or (allowed and backend != allowed):
        raise Refused("invalid_target", "This authorization is not for that resource.")
    return backend


def _answered(status: int, body: Any, headers: Sequence[tuple[str, str]]) -> Decision:
    told = dict(body) if body else {}
    status = 401 if told.get("error") == "invalid_client" else status  # RFC 6749, 5.2: for each way to authenticate
    return Decision(status, told, {name: value for name, value in headers if name.lower() == "www-authenticate"})


__all__ = [
    "Ask", "Asked", "Decision", "Fields", "Known", "OAuth2Error", "decide_authorization",
    "decide_revocation", "decide_token", "is_authenticated",
]  # fmt: skip
