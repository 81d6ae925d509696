"""Addresses of clients."""

from __future__ import annotations

import ipaddress

LOOPBACK = ("127.0.0.1", "localhost", "::1")  # names and addresses of this machine


def network(address: str) -> str:
    """Return what stands for one client: an IPv4 address, or the first 64 bits of an IPv6 address,
    which one household has.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.IPv6Network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)
