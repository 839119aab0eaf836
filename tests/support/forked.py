"""Real processes of a service that start at once: forked from one that has imported the services already.

A client becomes a server and starts a trainer: each Python that it starts runs the patch, too.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from multiprocessing.context import ForkServerProcess
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["aggregator_service.__main__", "client_service.settings"])


def start_service(package: str, environment: Mapping[str, str], log: Path, *, patch: str = "") -> ForkServerProcess:
    """`python -m package` in this environment, once `patch` has changed it; it writes into the log."""
    process = FORKS.Process(target=_serve, args=(package, dict(environment), log, patch))
    process.start()
    return process


def _serve(package: str, environment: dict[str, str], log: Path, patch: str) -> None:
    os.environ.update(environment)
    sys.argv = [package]
    if patch and package == "client_service":
        place = log.with_suffix(".patch")
        place.mkdir(exist_ok=True)
        (place / "sitecustomize.py").write_text(patch)
        os.environ["PYTHONPATH"] = os.pathsep.join((str(place), *filter(None, [os.environ.get("PYTHONPATH")])))
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    if package != "client_service":
        exec(patch, {})
    sys.exit(import_module(f"{package}.__main__").main())
