"""Relay from a port to one service: `python -m shared.web.relay PORT HOST:PORT [AUTHORITY]`.

A network without a way out publishes no ports. The relay stands between such a network and the machine's loopback. It
connects only to the address of its command line, so that the service behind it cannot call out through it. With an
AUTHORITY (PEM) it connects by TLS and requires its certificate for HOST.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
import sys

from shared.timeouts import CONNECT_AGAIN_SECONDS, CONNECT_PAUSE_SECONDS, CONNECT_SECONDS, IDLE_SECONDS

CHUNK = 64 << 10  # bytes read at a time; a side that reads slowly slows the other down
MOST_CONNECTIONS = 256


class Relay:
    """Relay of connections, closed beyond MOST_CONNECTIONS or while the service is down."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._open = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relays one connection until both directions have ended."""
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
        inner_reader, inner_writer = await self._connect()
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pump(reader, inner_writer))
                both.create_task(_pump(inner_reader, writer))
        except* (OSError, TimeoutError):
            pass
        finally:
            inner_writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to the service, retrying for CONNECT_SECONDS.

        Raises OSError or TimeoutError, written to stderr, where it cannot be reached.
        """
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._connect_again()
        except (OSError, TimeoutError) as error:
            sys.stderr.write(f"relay: {self._host}:{self._port}: not reached ({type(error).__name__})\n")
            raise

    async def _connect_again(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Retries a connection while the name is unknown or the service is starting."""
        loop = asyncio.get_running_loop()
        last = loop.time() + CONNECT_AGAIN_SECONDS
        while True:
            try:
                return await asyncio.open_connection(self._host, self._port, ssl=self._tls)
            except OSError as error:
                if isinstance(error, ssl.SSLError) or loop.time() >= last:
                    raise
            await asyncio.sleep(CONNECT_PAUSE_SECONDS)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copies one direction until its sender ends it."""
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
    else:  # TLS has no end of one direction; to an HTTP service the end of a request's is the end of both anyway
        writer.close()


async def serve_relay(port: int, relay: Relay, *, at: str = "0.0.0.0") -> None:
    """Listens until SIGINT or SIGTERM."""
    server = await asyncio.start_server(relay.handle, at, port)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await stopping.wait()
    server.close()


def main(arguments: list[str]) -> int:
    """Runs the relay with arguments PORT HOST:PORT [AUTHORITY]."""
    try:
        port, (host, _, behind) = int(arguments[0]), arguments[1].rpartition(":")
        relay = Relay(host, int(behind), _trust_context(*arguments[2:3]))
    except (IndexError, ValueError):
        sys.stderr.write("relay: expected PORT HOST:PORT [AUTHORITY]\n")
        return 2
    except OSError as error:  # an ssl.SSLError is one
        sys.stderr.write(f"relay: {arguments[2]}: expected certificates of an authority as PEM ({error})\n")
        return 2
    asyncio.run(serve_relay(port, relay))
    return 0


def _trust_context(authority: str | None = None) -> ssl.SSLContext | None:
    return None if authority is None else ssl.create_default_context(cafile=authority)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
