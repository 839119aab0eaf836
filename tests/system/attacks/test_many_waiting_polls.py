"""One client that waits many times at once does not take the others' places.

Who: a registered client. Before, it could hold every connection of the port with long polls, half a minute each.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

from aggregator_service.http.signatures import MOST_AT_ONCE
from tests.support.besieged import MOST_MEBIBYTES, Besieged
from tests.support.serving import HOST

MANY = 80  # sent while the first of them still wait
WAITING = "/v1/runs/current?wait=30&after={after}"


def test_beyond_so_many_at_once_a_client_is_told_to_come_again(tmp_path: Path) -> None:
    with ExitStack() as stack, Besieged(tmp_path).running() as besieged:
        besieged.join("ada", "bob")
        idle, lines = besieged.forget_peak(), []
        path = WAITING.format(after=besieged.sequence("ada"))
        for number in range(MANY):
            line = stack.enter_context(socket.create_connection((HOST, besieged.port)))
            signed = besieged.signing("ada").headers("GET", path.encode(), b"")
            head = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: aggregator\r\n{head}\r\n".encode())
            lines.append(line)
            if number % 20 == 19:
                assert besieged.is_answered("bob")
        refused = [line.recv(12) for line in lines[MOST_AT_ONCE:]]
        assert set(refused) == {b"HTTP/1.1 503"}
        assert besieged.is_answered("bob") and besieged.peak - idle < MOST_MEBIBYTES
