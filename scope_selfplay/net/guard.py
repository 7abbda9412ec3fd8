"""What every call to a configured endpoint obeys: allowed URLs and addresses, keys, and pauses."""

import ipaddress
import math
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import aiohttp
import click
from aiohttp.abc import AbstractResolver, ResolveResult

from scope_selfplay.base.errors import ConfigError

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
LONGEST_PAUSE = 300.0
"""Seconds. A server that asks for more is asked again after this."""


_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16")))
"""Cloud metadata services that are not at link-local addresses: AWS over IPv6, Alibaba, Azure."""
_NAT64 = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48")))


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


def checked_url(url: str, *, what: str = "endpoint") -> str:
    """`url` without a trailing slash. Raises ConfigError, which calls it `what`, when it may not be called."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{what} {url!r}: {error}") from None
    if "@" in parts.netloc:
        # It may hold a password, which no log should.
        raise ConfigError(f"{what}: the URL of {host} names a user; give the key by an environment variable")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise ConfigError(f"{what} {url!r}: expected http(s)://host:port without user, query or fragment")
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


def served_key(variable: str | None, option: str, host: str, *, may: str) -> str | None:
    """The key that clients of a server must send, as `secret`; without one it is said what everybody at `host` may."""
    key = secret(variable, option)
    if key is None and host not in LOOPBACK:
        click.echo(f"warning: {host} without {option}: everyone who reaches the port {may}", err=True)
    return key


def retry_after(header: str | None) -> float:
    """Seconds that a Retry-After header asks for, as a number or as a date; 0 without one."""
    if header is None:
        return 0.0
    try:
        seconds = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except (ValueError, TypeError, ArithmeticError, LookupError):
            # The library raises whatever its parts do: for a year of 16 digits, OverflowError.
            return 0.0
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (moment - datetime.now(UTC)).total_seconds()
    return min(max(seconds, 0.0), LONGEST_PAUSE) if math.isfinite(seconds) else 0.0


def _is_link_local(host: str) -> bool:
    """Whether an address is link-local or a metadata service's, also as it is written inside of another one."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(each.is_link_local or each in _METADATA for each in (address, *_inner(address)))


def _inner(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> Iterator[ipaddress.IPv4Address]:
    """The IPv4 addresses that an IPv6 one leads to: mapped, compatible, NAT64, 6to4, Teredo."""
    if isinstance(address, ipaddress.IPv4Address):
        return
    last = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if any(address in network for network in _NAT64) or not int(address) >> 32:
        yield last
    yield from (each for each in (address.ipv4_mapped, address.sixtofour, *(address.teredo or ())) if each)
