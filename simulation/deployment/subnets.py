"""A range of addresses -> a subnet for each network of a compose file, where an engine's own pools are too few."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, ip_network

from shared.errors import SettingsError

PREFIX = (
    28  # 13 addresses for containers: the largest network has the aggregator, its gateway, the operator and Prometheus
)
USUAL = "10.201.0.0/16"


def assign_subnets(networks: Iterable[str], within: str) -> dict[str, IPv4Network]:
    """Name of a network -> its subnet, in this order from the beginning of `within`.

    SettingsError for a range that is none, is not private, or is too small.
    """
    names, free = list(networks), _parse_range(within)
    if free.prefixlen > PREFIX or len(names) > 1 << (PREFIX - free.prefixlen):
        raise SettingsError(f"--subnets: expected room for {len(names)} networks of a /{PREFIX}, got {within}")
    return dict(zip(names, free.subnets(new_prefix=PREFIX), strict=False))


def _parse_range(within: str) -> IPv4Network:
    try:
        found = ip_network(within)
    except ValueError as error:
        raise SettingsError(f"--subnets: expected a range such as {USUAL}, got {within} ({error})") from None
    if not isinstance(found, IPv4Network) or not found.is_private:
        raise SettingsError(f"--subnets: expected private addresses of IPv4, got {within}")
    return found
