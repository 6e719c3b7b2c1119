"""How many wrong keys one address may try: a few at once, then one now and then.

Right keys are not slowed, except those so short that they could be found by trying: for them a right guess
must look like a wrong one. The memory is bounded, whoever asks from wherever.
"""

from __future__ import annotations

import ipaddress
import math
from collections import OrderedDict

__all__ = ["GUESSABLE", "WrongKeys"]

AT_ONCE = 100
"""Wrong keys an address may send without waiting."""
PER_SECOND = 1.0
"""How soon it may send more."""
MOST_ADDRESSES = 4096
"""Addresses that are remembered; those heard of longest ago are forgotten first."""
GUESSABLE = 24
"""A key with fewer letters might be found by trying (those the server makes have 36)."""


class WrongKeys:
    """What each address has left to try."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._left)

    def wait(self, peer: str, now: float) -> int:
        """Whole seconds this address must wait before a wrong key is looked at again; 0: none."""
        left = self._now_left(_place(peer), now)
        return 0 if left >= 1 else max(1, math.ceil((1 - left) / PER_SECOND))

    def note(self, peer: str, now: float) -> None:
        """This address has sent a wrong key."""
        place = _place(peer)
        self._left[place] = (self._now_left(place, now) - 1, now)
        self._left.move_to_end(place)
        while len(self._left) > MOST_ADDRESSES:
            self._left.popitem(last=False)

    def _now_left(self, place: str, now: float) -> float:
        left, since = self._left.get(place, (float(AT_ONCE), now))
        return min(float(AT_ONCE), left + (now - since) * PER_SECOND)


def _place(peer: str) -> str:
    """An address, or the network of one that comes with billions of neighbours."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return peer[:64]
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((int(address), 64), strict=False))
    return str(address)
