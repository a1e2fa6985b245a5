"""EdgeProtocol: uvicorn's HTTP protocol, for clients that nobody knows yet."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http.client_address import TrustedProxies, scheme_before

NO_PROXIES = TrustedProxies()


class EdgeProtocol(HttpToolsProtocol):
    """Gives each request the address of its client, also behind a proxy of ours."""

    def __init__(self, *args: Any, proxies: TrustedProxies = NO_PROXIES, **options: Any) -> None:
        super().__init__(*args, **options)
        self._proxies = proxies
        self._is_proxied = False

    def connection_made(self, transport: Any) -> None:
        """uvicorn's; from here on it is known whether the other end is a proxy of ours."""
        super().connection_made(transport)
        self._is_proxied = self.client is not None and self.client[0] in self._proxies

    def on_headers_complete(self) -> None:
        """uvicorn's, which starts the request."""
        if self._is_proxied:
            self._believe_the_proxy()
        super().on_headers_complete()

    def _believe_the_proxy(self) -> None:
        assert self.client is not None
        self.scope["client"] = (self._proxies.client_behind(self.client[0], self.headers), 0)
        self.scope["scheme"] = scheme_before(self.headers) or self.scope["scheme"]
