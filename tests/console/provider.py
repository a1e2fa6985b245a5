"""A provider of OpenID Connect that knows one person, over real HTTP: /authorize and /token check what they must."""

import base64
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.auth.test_jwks import jwk

CLIENT = "trunkline-console"


class Provider:
    """`claims`: of the next tokens, besides the usual ones. `lifetime_s`: how long they live. `told`:
    states, codes and tokens that have passed."""

    def __init__(self, audience: str = "console-of-the-test") -> None:
        self.audience, self.claims, self.lifetime_s = audience, dict[str, Any](), 600
        self._key = rsa.generate_private_key(65537, 2048)
        self._codes, self.told = dict[str, dict[str, str]](), list[str]()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                if url.path == "/authorize":
                    location = provider._authorize({name: values[0] for name, values in parse_qs(url.query).items()})
                    self.send_response(302)
                    self.send_header("Location", location)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                else:
                    self._answer(200, provider.documents().get(url.path, {}))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                self._answer(*provider._token({name: values[0] for name, values in parse_qs(body).items()}))

            def _answer(self, status: int, document: object) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def documents(self) -> dict[str, Any]:
        urls = {"authorization_endpoint": "/authorize", "token_endpoint": "/token", "jwks_uri": "/jwks"}
        document = {"issuer": self.url, **{name: self.url + path for name, path in urls.items()}}
        return {"/jwks": {"keys": [jwk(self._key, "RS256")]}, "/.well-known/openid-configuration": document}

    def _authorize(self, asked: dict[str, str]) -> str:
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        self.told += [code, asked["state"]]
        return asked["redirect_uri"] + "?" + urlencode({"code": code, "state": asked["state"], "iss": self.url})

    def _token(self, form: dict[str, str]) -> tuple[int, object]:
        asked = self._codes.pop(form.get("code", ""), None)
        challenge = (
            base64.urlsafe_b64encode(sha256(form.get("code_verifier", "").encode()).digest()).rstrip(b"=").decode()
        )
        if asked is None or challenge != asked["code_challenge"] or form.get("redirect_uri") != asked["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        return 200, {"access_token": self.token(), "token_type": "Bearer", "id_token": "not for us"}

    def token(self) -> str:
        now = int(time.time())
        usual = {"iss": self.url, "sub": "alice", "aud": self.audience, "iat": now, "exp": now + self.lifetime_s}
        self.told.append(jwt.encode({**usual, **self.claims}, self._key, "RS256", {"kid": "RS256"}))
        return self.told[-1]


@contextmanager
def provider() -> Iterator[Provider]:
    made = Provider()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()
