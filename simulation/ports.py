"""Free ports of this machine: found for a service, or required of one."""

from __future__ import annotations

import socket

from shared.errors import SettingsError
from shared.web.address import write_address

HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Finds free ports that the system gives to no other process for a minute.

    Each is left in TIME_WAIT by a connection that its own side has closed first: a server, which reuses addresses, may
    listen there; a process that asks for any free port, or calls out, gets another one.
    """
    sockets = [socket.create_server((HOST, 0)) for _ in range(count)]
    try:
        for listener in sockets:
            with socket.create_connection(listener.getsockname()):
                listener.accept()[0].close()
        return [listener.getsockname()[1] for listener in sockets]
    finally:
        for listener in sockets:
            listener.close()


def free_port_from(first: int) -> int:
    """Finds the first free port from this one on; any free one after a hundred."""
    for port in range(first, first + 100):
        if is_free(port):
            return port
    return free_ports(1)[0]


def is_free(port: int) -> bool:
    """Tells whether this port of loopback is free."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
        return True


def require_free_port(host: str, port: int) -> None:
    """Raises SettingsError if the port is taken, or the host is not of this machine."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise SettingsError(f"host: expected a name or an address of this machine, got {host!r} ({error})") from None
    with socket.socket(family, kind, protocol) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            listener.bind(address)
        except OSError as error:
            words = (
                "end the process that listens there, or choose another port with --port"
                if port
                else "choose one by --port"
            )
            expected = f"port: expected a free one, got {write_address(host, port)} ({error.strerror})"
            raise SettingsError(f"{expected}: {words}") from None
