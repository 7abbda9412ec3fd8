"""What every call to a configured endpoint obeys: which URLs and addresses, how many bytes, what pauses."""

import asyncio
import ipaddress
import math
import os
import socket
from collections.abc import Collection
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from scope_selfplay.errors import ConfigError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
LONGEST_PAUSE = 300.0
"""Seconds. A server that asks for more is asked again after this."""


class GuardedResolver(AbstractResolver):
    """Resolves names as usual, but never to a link-local address (cloud metadata services live there)."""

    def __init__(self) -> None:
        self._inner = aiohttp.ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        for result in found:
            if _is_link_local(result["host"].partition("%")[0]):
                raise OSError(f"{host} resolves to the link-local address {result['host']}")
        return found

    async def close(self) -> None:
        await self._inner.close()


class GuardedSession:
    """One pool of kept-alive connections. No redirects, no proxy of the environment, no cookies."""

    def __init__(self, url: str, *, token: str | None, connections: int, max_response: int) -> None:
        """`url` is a checked one; `max_response`: bytes of one body."""
        self.url = url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._connections = connections
        self._max_response = max_response
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections, resolver=GuardedResolver()),
            headers=self._headers,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def exchange(
        self, method: str, path: str, body: bytes | None, seconds: float
    ) -> tuple[aiohttp.ClientResponse, bytes | None]:
        """One request with a JSON body or none: the response, and its bytes or None where they are too many.

        Raises TimeoutError after `seconds`, and aiohttp.ClientError or OSError for a connection that fails.
        """
        assert self._session is not None, "use `async with`"
        headers = {"Content-Type": "application/json"} if body is not None else {}
        async with (
            asyncio.timeout(seconds),
            self._session.request(
                method, self.url + path, data=body, headers=headers, allow_redirects=False
            ) as response,
        ):
            return response, await _read_capped(response, self._max_response)


def checked_url(url: str, allowed_hosts: Collection[str], *, what: str = "endpoint") -> str:
    """`url` without a trailing slash. Raises ConfigError, which calls it `what`, when it may not be called."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{what} {url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
        raise ConfigError(f"{what} {url!r}: expected http(s)://host:port without user, query or fragment")
    if host not in allowed_hosts:
        raise ConfigError(f"{what} {url!r}: the host {host} is not allowed; allowed: {sorted(allowed_hosts)}")
    if _is_link_local(host):
        raise ConfigError(f"{what} {url!r}: link-local addresses are never called")
    return url.rstrip("/")


def secret(variable: str | None, setting: str) -> str | None:
    """The value of an environment variable that a setting names. Raises ConfigError where it is not set, or holds
    what no header can carry.
    """
    if variable is None:
        return None
    value = os.environ.get(variable, "").strip()
    if not value:
        raise ConfigError(f"{setting}: the environment variable {variable} is not set")
    if not value.isprintable():
        raise ConfigError(
            f"{setting}: the environment variable {variable} holds a line break, a control character or no UTF-8"
        )
    return value


def retry_after(header: str | None) -> float:
    """Seconds that a Retry-After header asks for, as a number or as a date; 0 without one."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except ValueError:
            return 0.0
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), LONGEST_PAUSE) if math.isfinite(seconds) else 0.0


async def _read_capped(response: aiohttp.ClientResponse, limit: int) -> bytes | None:
    """The whole body; None as soon as it has more than `limit` bytes."""
    data = bytearray()
    async for part in response.content.iter_any():
        data += part
        if len(data) > limit:
            return None
    return bytes(data)


def _is_link_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_link_local
    except ValueError:
        return False
