"""This network namespace -> its own IPv4 addresses, and the machine's own address on each of its networks."""

from __future__ import annotations

import fcntl
import socket
import struct
from ipaddress import IPv4Interface

GET_ADDRESS, GET_NETMASK = 0x8915, 0x891B  # SIOCGIFADDR, SIOCGIFNETMASK of Linux
LONGEST_NAME = 15  # bytes of an interface's name


def own_interfaces() -> tuple[IPv4Interface, ...]:
    """One address for each interface that has one, without loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        interfaces = [_interface_address(asking, name) for _, name in socket.if_nameindex()]
    return tuple(interface for interface in interfaces if interface is not None and not interface.is_loopback)


def machine_addresses(interfaces: tuple[IPv4Interface, ...]) -> tuple[str, ...]:
    """The first address of each network, which a bridge gives to the machine that the containers run on."""
    wide = [interface for interface in interfaces if interface.network.num_addresses > 2]
    firsts = [(interface.ip, interface.network.network_address + 1) for interface in wide]
    return tuple(dict.fromkeys(str(first) for ip, first in firsts if first != ip))


def _interface_address(asking: socket.socket, name: str) -> IPv4Interface | None:
    """None for an interface without an IPv4 address."""
    try:
        address, mask = (_query_interface(asking, what, name) for what in (GET_ADDRESS, GET_NETMASK))
    except OSError:
        return None
    return IPv4Interface(f"{address}/{mask}")


def _query_interface(asking: socket.socket, what: int, name: str) -> str:
    request = struct.pack("256s", name.encode()[:LONGEST_NAME])
    return socket.inet_ntoa(fcntl.ioctl(asking.fileno(), what, request)[20:24])
