"""Outbound: fetches documents by URL without giving access to the network that the gateway is in.

The name is resolved once, every address is checked, and the connection goes to a checked address with the original
Host and SNI: a second look-up cannot change it. Or the node's proxy resolves it (`outbound_proxy.py`). No redirects.
"""

import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address
from socket import SOCK_STREAM
from urllib.parse import urlencode

import anyio
import httpx2

from app.auth.outbound_proxy import NodeProxy, client_context
from app.auth.outbound_urls import FetchFailed, FetchRefused, OutboundUrl, Policy, UrlRefused
from app.text.public_addresses import Address, Network

DEADLINE_S = 5.0  # for all of it: name, connection, document
CONNECT_S = 2.0  # leaves time for a second address
MAX_BYTES, MAX_CHUNKS = 2**20, 4096  # of a document; a parser takes its time for each chunk, however short
MAX_ADDRESSES = 4  # of one name that are tried

_REFUSALS = frozenset({400, 401})  # of a token endpoint (RFC 6749, 5.2)

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class Outbound:
    """Fetches what its policy allows, from public addresses by https unless networks are listed."""

    def __init__(
        self,
        allow: Iterable[Network] = (),
        *,
        resolve: Resolve | None = None,
        tls: ssl.SSLContext | None = None,
        proxy: NodeProxy | None = None,
        ca: str | None = None,
    ) -> None:
        self._policy = Policy(allow)
        self._resolve = resolve or _resolve
        self._tls, self._proxy, self._ca = tls, proxy, ca

    def check(self, text: str) -> OutboundUrl:
        """As `Policy.check`."""
        return self._policy.check(text)

    async def get(self, text: str) -> bytes:
        """The document.

        Raises:
            UrlRefused: the URL, or an address of its host, is not allowed.
            FetchFailed: no answer in time, or not a document of at most `MAX_BYTES`.
        """
        return await self._ask(text, None)

    async def post(self, text: str, form: Mapping[str, str]) -> bytes:
        """The answer to a form. Raises as `get`; FetchRefused where the host says why not."""
        return await self._ask(text, urlencode(form).encode())

    async def _ask(self, text: str, form: bytes | None) -> bytes:
        url = self.check(text)
        try:
            with anyio.fail_after(DEADLINE_S):
                if self._proxy is not None and self._proxy.serves(url):
                    self._policy.require_by_proxy(url, is_granted=False)
                    return await self._ask_at(None, url, form)
                return await self._ask_one_of(await self._checked_addresses(url), url, form)
        except TimeoutError:
            raise FetchFailed(f"no answer within {DEADLINE_S:.0f} s") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise FetchFailed(f"{type(error).__name__}: {error}") from error

    async def _checked_addresses(self, url: OutboundUrl) -> list[Address]:
        if url.literal is not None:
            return [url.literal]
        try:
            addresses = [ip_address(each) for each in await self._resolve(url.host, url.port)]
        except (OSError, UnicodeError) as error:
            raise FetchFailed(f"the name {url.host} cannot be resolved: {error}") from error
        except ValueError as error:  # an IPv6 zone that this Python does not know
            raise UrlRefused(str(error)) from None
        if not addresses:
            raise FetchFailed(f"the name {url.host} has no address")
        # All of them: a name that also points into a private network is not to be trusted.
        for address in addresses:
            self._policy.require(address, url)
        return addresses

    async def _ask_one_of(self, addresses: Sequence[Address], url: OutboundUrl, form: bytes | None) -> bytes:
        *others, last = addresses[:MAX_ADDRESSES]
        for address in others:
            try:
                return await self._ask_at(address, url, form)
            except (httpx2.ConnectError, httpx2.ConnectTimeout):  # so it was not sent
                continue
        return await self._ask_at(last, url, form)

    async def _ask_at(self, address: Address | None, url: OutboundUrl, form: bytes | None) -> bytes:
        """At this address of the host; None: where the proxy finds it."""
        host = f"[{address}]" if address is not None and address.version == 6 else str(address)
        origin = f"{url.scheme}://{url.authority}" if address is None else f"{url.scheme}://{host}:{url.port}"
        headers = {"Host": url.authority, "Accept": "application/json", "Accept-Encoding": "identity"}
        if form is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        if self._tls is None:  # reading the certificate authorities takes 90 ms, too long for the event loop
            self._tls = await anyio.to_thread.run_sync(client_context, self._ca)
        if address is None and self._proxy is not None:
            transport = self._proxy.transport(self._tls)
        else:
            transport = httpx2.AsyncHTTPTransport(verify=self._tls, trust_env=False)
        timeout = httpx2.Timeout(DEADLINE_S, connect=CONNECT_S)
        async with (
            httpx2.AsyncClient(transport=transport, trust_env=False, follow_redirects=False, timeout=timeout) as client,
            client.stream(
                "GET" if form is None else "POST",
                origin + url.target,
                headers=headers,
                content=form,
                extensions={"sni_hostname": url.host},  # also the name that the certificate must have
            ) as response,
        ):
            if form is not None and response.status_code in _REFUSALS:
                body = await _body(response)
                raise FetchRefused(f"the answer is HTTP {response.status_code}", body)
            return await _document(response)


async def _resolve(host: str, port: int) -> list[str]:
    found = await anyio.getaddrinfo(host, port, type=SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def _document(response: httpx2.Response) -> bytes:
    if response.status_code != 200:
        raise FetchFailed(f"the answer is HTTP {response.status_code}; redirects are not followed")
    if response.headers.get("content-encoding", "identity") != "identity":
        raise FetchFailed("the answer has a Content-Encoding, which was not requested")
    return await _body(response)


async def _body(response: httpx2.Response) -> bytes:
    chunks, size = [], 0
    async for chunk in response.aiter_raw():
        size += len(chunk)
        if size > MAX_BYTES:
            raise FetchFailed(f"the document has more than {MAX_BYTES} bytes")
        chunks.append(chunk)
        if len(chunks) > MAX_CHUNKS:
            raise FetchFailed(f"the document comes in more than {MAX_CHUNKS} chunks")
    return b"".join(chunks)
