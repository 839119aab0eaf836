"""Connections to one port -> the one service behind it, byte for byte: `python -m shared.web.relay PORT HOST:PORT`.

A network without a way out publishes no ports. This stands between such a network and the machine's loopback: it is
called and connects to the one address of its command line, so nobody behind it can use it to call anybody.
"""

from __future__ import annotations

import asyncio
import signal
import sys

from shared.timeouts import CONNECT_SECONDS, IDLE_SECONDS

CHUNK = 64 << 10  # bytes read at a time; a side that reads slowly slows the other down
MOST_CONNECTIONS = 256


class Relay:
    """Hangs up on callers beyond so many connections at once, and while nobody is behind."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._open = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, from its start to the end of both directions."""
        self._open += 1
        try:
            if self._open <= MOST_CONNECTIONS:
                await self._join(reader, writer)
        except (OSError, TimeoutError):
            pass  # either side hung up or fell silent: the other one sees its connection close
        except asyncio.CancelledError:
            pass  # the relay ends; asyncio of Python 3.11 would log each connection that is still open as an error
        finally:
            self._open -= 1
            writer.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(CONNECT_SECONDS):
            inner_reader, inner_writer = await asyncio.open_connection(self._host, self._port)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, inner_writer))
                both.create_task(_pump(inner_reader, writer))
        except* (OSError, TimeoutError):
            pass
        finally:
            inner_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One direction, until its sender has no more to say."""
    while True:
        async with asyncio.timeout(IDLE_SECONDS):
            chunk = await reader.read(CHUNK)
        if not chunk:
            break
        writer.write(chunk)
        async with asyncio.timeout(IDLE_SECONDS):
            await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def serve(port: int, host: str, behind: int, *, at: str = "0.0.0.0") -> None:
    """Listen until SIGINT or SIGTERM."""
    server = await asyncio.start_server(Relay(host, behind).handle, at, port)
    told = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    await told.wait()
    server.close()


def main(arguments: list[str]) -> int:
    """PORT HOST:PORT."""
    try:
        port, (host, _, behind) = int(arguments[0]), arguments[1].rpartition(":")
        numbers = port, int(behind)
    except (IndexError, ValueError):
        sys.stderr.write("relay: expected PORT HOST:PORT\n")
        return 2
    asyncio.run(serve(numbers[0], host, numbers[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
