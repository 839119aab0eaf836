"""Connections to one port -> the one service behind it: `python -m shared.web.relay PORT HOST:PORT [AUTHORITY]`.

A network without a way out publishes no ports. This stands between such a network and the machine's loopback: it is
called and connects to the one address of its command line, so nobody behind it can use it to call anybody. With an
AUTHORITY (PEM) it connects by TLS, to whoever shows a certificate of it for HOST; what it passes on is the same.
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
    """Hangs up on callers beyond so many connections at once, and while nobody is behind, or another one."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._host, self._port, self._tls = host, port, tls
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
        """OSError or TimeoutError, told on stderr, where the service behind it is not reached."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._connect_again()
        except (OSError, TimeoutError) as error:
            sys.stderr.write(f"relay: {self._host}:{self._port}: not reached ({type(error).__name__})\n")
            raise

    async def _connect_again(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A name that is not known yet and a service that is about to listen are tried again for some seconds."""
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
    else:  # TLS has no end of one direction; to an HTTP service the end of a request's is the end of both anyway
        writer.close()


async def serve_relay(port: int, relay: Relay, *, at: str = "0.0.0.0") -> None:
    """Listen until SIGINT or SIGTERM."""
    server = await asyncio.start_server(relay.handle, at, port)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    await stopping.wait()
    server.close()


def main(arguments: list[str]) -> int:
    """PORT HOST:PORT [AUTHORITY]."""
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
