"""How many handshakes may come from where."""

from collections import OrderedDict
from collections.abc import Sequence
from ipaddress import IPv6Address, ip_address
from typing import Any

from responses_ws.conf import app_settings
from responses_ws.connection.flow import Bucket
from responses_ws.protocol.errors import RateLimited

MOST = 10_000
"""Addresses that are remembered. Beyond, the one is forgotten that has been silent for the longest time."""


class Addresses:
    """Counts handshakes by address, whatever becomes of them: those without a good key cost most."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def check(self, client: Sequence[Any] | None, *, now: float) -> None:
        """One more comes from ``client``, an ASGI scope's. Raises RateLimited."""
        address = public_address(str(client[0])) if client else None
        if address is None:
            return
        limits = app_settings.limits
        bucket = self._buckets.get(address)
        if bucket is None:
            bucket = Bucket(limits.handshakes_at_once, per_second=limits.handshakes_per_second, now=now)
            self._buckets[address] = bucket
            if len(self._buckets) > MOST:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(address)
        if not bucket.takes(now):
            raise RateLimited(
                "Too many handshakes come from your address. Please try again later.",
                code="too_many_handshakes",
                headers={"retry-after": "1"},
            )

    def __len__(self) -> int:
        return len(self._buckets)

    def clear(self) -> None:
        self._buckets.clear()


def public_address(host: str) -> str | None:
    """By what name an address is counted; None: it is not.

    Of IPv6 a whole /64 is one, since whoever has an address there has all of them. Private ones are those of a proxy
    that does not say for whom it speaks, where all clients would be one, or of people one knows.
    """
    try:
        address = ip_address(host)
    except ValueError:
        # A Unix socket, for one.
        return None
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if not address.is_global:
        return None
    return address.packed[:8].hex() if isinstance(address, IPv6Address) else str(address)


addresses = Addresses()
