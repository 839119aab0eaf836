"""An app on a real socket of loopback, behind the server that both services use."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI

from shared.web.listening import PORT, ListenSettings
from shared.web.server import build_server

HOST = "127.0.0.1"


@contextmanager
def serve(
    app: FastAPI, settings: ListenSettings | None = None, wind_down: Callable[[], None] = lambda: None
) -> Iterator[str]:
    """The app in a thread of its own, as `run_server` would serve it; its address."""
    chosen = settings or ListenSettings()
    identities, listening = chosen.identities(), socket.create_server((HOST, 0))
    server = build_server(
        app,
        host=HOST,
        port=listening.getsockname()[1],
        on_shutdown=wind_down,
        tls=identities[PORT].context if identities else None,
        limiter=chosen.connection_limiter(),
        trusted_proxies=chosen.trusted_proxies,
    )
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(app.router.lifespan_context(app)):
        serving = portal.start_task_soon(server.serve, [listening])
        try:
            yield f"{'https' if identities else 'http'}://{HOST}:{server.config.port}"
        finally:
            server.should_exit = True
            serving.result()
