"""Server of an app: runs until a signal, and reports when it is ready."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn
from fastapi import FastAPI

from shared.errors import SettingsError
from shared.files import PRIVATE
from shared.timeouts import GRACE_SECONDS, KEEP_ALIVE_SECONDS, READY_BEAT_SECONDS, READY_SECONDS
from shared.web.connection import LONGEST_HEAD, Connection, ServerConfig
from shared.web.connection_limits import ConnectionLimiter
from shared.web.health import READY_PIPE, READY_WORD
from shared.web.listening import PORT, ListenSettings

if TYPE_CHECKING:
    from shared.web.tls import TlsIdentity

START_CHECK_SECONDS = 0.05
UPTIME = Path("/proc/uptime")  # independent of the machine's clock, and readable by a shell


def seconds_since_boot(uptime: Path = UPTIME) -> float:
    """Returns the seconds since boot, as the container sees them.

    Raises SettingsError on a system without /proc.
    """
    try:
        return float(uptime.read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        raise SettingsError(f"ready_file: expected a system with {uptime}, got none") from None


def require_writable_ready_file(file: Path) -> None:
    """Removes an old ready file, and raises SettingsError if none can be written."""
    seconds_since_boot()
    try:
        file.unlink(missing_ok=True)
        with tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise _ready_file_error(file, error) from None


def write_ready(file: Path) -> None:
    """Writes the ready file, valid for READY_SECONDS, in one step.

    Raises SettingsError if it cannot be written.
    """
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        partial.write_text(f"{int(seconds_since_boot() + READY_SECONDS)}\n", encoding="ascii")
        partial.replace(file)
    except OSError as error:
        raise _ready_file_error(file, error) from None


def _ready_file_error(file: Path, error: OSError) -> SettingsError:
    return SettingsError(f"ready_file: expected a writable path, got {file} ({error.strerror})")


async def keep_ready(
    file: Path, unready_reason: Callable[[], str | None], logger: structlog.stdlib.BoundLogger
) -> None:
    """Keeps the ready file while the service is ready, until cancelled.

    A file that cannot be written is logged once.
    """
    refused = False
    try:
        while True:
            if unready_reason() is None:
                refused = _write_or_log(file, logger, logged=refused)
            else:
                file.unlink(missing_ok=True)
            await asyncio.sleep(READY_BEAT_SECONDS)
    finally:
        file.unlink(missing_ok=True)


async def notify_parent(unready_reason: Callable[[], str | None]) -> None:
    """Notifies the parent process once, by its pipe, that the service is ready."""
    given = os.environ.pop(READY_PIPE, "")
    if not given.isdecimal():
        return
    with os.fdopen(int(given), "wb", buffering=0) as pipe:
        os.set_inheritable(pipe.fileno(), False)  # what this process starts does not keep it open
        while unready_reason() is not None:
            await asyncio.sleep(START_CHECK_SECONDS)
        with suppress(BrokenPipeError):  # the parent has closed its end
            pipe.write(READY_WORD)


def _write_or_log(file: Path, logger: structlog.stdlib.BoundLogger, *, logged: bool) -> bool:
    try:
        write_ready(file)
    except SettingsError as error:
        if not logged:
            logger.error("ready_file_refused", reason=str(error))
        return True
    return False


class _Server(uvicorn.Server):
    """uvicorn server that ends long polls before it waits for connections.

    Raises SettingsError for an address that is taken, belongs to another machine, or is not allowed.
    """

    def __init__(self, config: uvicorn.Config, on_shutdown: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_shutdown = on_shutdown
        self.signalled = False

    @property
    def closed_reason(self) -> str | None:
        """Reason why the port is closed; None while it is open."""
        listening = self.started and not self.should_exit and all(one.is_serving() for one in self.servers)
        return None if listening else "the port is closed"

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles a signal without raising it again, which would cut off the lifespan's end."""
        del frame
        self.signalled = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        except SystemExit as end:  # uvicorn's own way to say so
            if not isinstance(end.__context__, OSError):
                raise
            raise SettingsError(_describe_bind_error(self.config.host, self.config.port, end.__context__)) from None

    async def drain_after(self, ready: Callable[[], Awaitable[None]]) -> None:
        """Stops accepting once `ready` returns, and ends after the last open connection."""
        await ready()
        for one in self.servers:
            one.close()
        await finish_accepting()
        while self.server_state.connections and not self.should_exit:
            await asyncio.sleep(START_CHECK_SECONDS)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_shutdown()
        await finish_accepting()
        await super().shutdown(sockets)


async def finish_accepting() -> None:
    """Finishes all accepted connections before the server closes.

    asyncio's `Server.close` fails a connection that is accepted and not yet set up: its socket would stay open, and
    its caller would wait until the process ends. Close the server right after this returns, without waiting in
    between.
    """
    while accepting := [one for one in asyncio.all_tasks() if _is_accepting(one)]:
        await asyncio.wait(accepting)


def _is_accepting(task: asyncio.Task[Any]) -> bool:
    return getattr(task.get_coro(), "__name__", "") == "_accept_connection2"  # of `BaseSelectorEventLoop`


def _describe_bind_error(host: str, port: int, error: OSError) -> str:
    """Describes why an address cannot be used, and what to do."""
    if error.errno == errno.EADDRINUSE:
        return f"port: expected a free one, got {host}:{port}, which is taken: end what listens there, or set another"
    return f"host, port: expected an address of this machine to listen on, got {host}:{port} ({error.strerror})"


def build_server(
    app: FastAPI,
    *,
    host: str,
    port: int,
    on_shutdown: Callable[[], None],
    tls: ssl.SSLContext | None = None,
    limiter: ConnectionLimiter | None = None,
    trusted_proxies: tuple[str, ...] = (),
) -> _Server:
    """Makes the server of an app; the caller runs the app's lifespan.

    TLS begins in `Connection`.
    """
    config = ServerConfig(
        app,
        host=host,
        port=port,
        http=Connection,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        h11_max_incomplete_event_size=LONGEST_HEAD,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    config.limiter, config.context = limiter or ConnectionLimiter(), tls
    return _Server(config, on_shutdown)


async def run_server(
    app: FastAPI,
    settings: ListenSettings,
    *,
    identities: Mapping[str, TlsIdentity],
    on_shutdown: Callable[[], None],
    unready_reason: Callable[[], str | None],
    logger: structlog.stdlib.BoundLogger,
    starting_reason: Callable[[], str | None] = lambda: None,
    listen: Callable[[ListenSettings], list[socket.socket]] | None = None,
    drain: Callable[[], Awaitable[None]] | None = None,
    background: Sequence[Coroutine[None, None, None]] = (),
    log_warnings: bool = True,
) -> bool:
    """Serves until SIGINT or SIGTERM, or until `drain` returns, inside the app's lifespan.

    Returns whether a signal asked it to end. Errors of the lifespan reach the caller unchanged.

    identities: certificates that are watched for renewal; that called PORT is the port's own. unready_reason: what
    `/health/ready` refuses with, None if the service is ready; `settings.ready_file` says the same. starting_reason:
    why the parent process is not notified yet although the service is ready. listen: opens other sockets than the
    usual one at the settings' address. drain: returns once no further connection is to be accepted; open ones may
    finish. background: jobs that run meanwhile. log_warnings: whether the settings' warnings are logged.

    Signals are handled from before the lifespan begins until it has ended: the first process of a container ignores a
    signal that it does not handle.
    """

    def stopping() -> None:
        logger.info("stopping")
        on_shutdown()

    for what in settings.list_warnings() if log_warnings else ():
        logger.warning("caution", what=what)
    server = build_server(
        app,
        host=settings.host,
        port=settings.port,
        on_shutdown=stopping,
        tls=identities[PORT].context if PORT in identities else None,
        limiter=settings.connection_limiter(),
        trusted_proxies=settings.trusted_proxies,
    )
    if (file := settings.ready_file) is not None:
        require_writable_ready_file(file)
    notice = notify_parent(lambda: server.closed_reason or unready_reason() or starting_reason())
    jobs = [notice, *background]
    if identities:
        from shared.web.tls import watch_certificates  # see `ListenSettings.identities`

        jobs.append(watch_certificates(identities.values(), logger))
    if file is not None:
        jobs.append(keep_ready(file, lambda: server.closed_reason or unready_reason(), logger))
    if drain is not None:
        jobs.append(server.drain_after(drain))
    with server.capture_signals():
        async with run_background_jobs(*jobs), app.router.lifespan_context(app):
            await server.serve(None if listen is None else listen(settings))
    logger.info("stopped")
    return server.signalled


def open_shared_socket(settings: ListenSettings) -> socket.socket:
    """Opens a socket at an address that several processes of one user share.

    Raises SettingsError as for a socket of one process.
    """
    host, port = settings.host, settings.port
    # With its protocol by name: asyncio sends small answers at once by such sockets alone.
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise SettingsError(_describe_bind_error(host, port, error)) from None
    return listener


def open_private_socket(place: Path) -> socket.socket:
    """Opens a unix socket for this user alone.

    Its folder must be for this user alone, too. Raises SettingsError if it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(place))
        place.chmod(PRIVATE)
    except OSError as error:
        listener.close()
        raise SettingsError(f"{place}: expected a path where a socket can be made ({error.strerror})") from None
    return listener


@asynccontextmanager
async def run_background_jobs(*jobs: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Runs endless jobs while the body runs, and cancels them after it."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task
