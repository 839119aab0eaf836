"""Simulations that do not take long, and small files of data."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from simulation.cli import app

Write = Callable[..., Path]
Operate = Callable[..., Result]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """write(name, content) makes one file in the folder and returns the folder; gzipped where the name says so."""

    def put(name: str, content: str | bytes) -> Path:
        data = content.encode() if isinstance(content, str) else content
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return tmp_path

    return put


@pytest.fixture
def operate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Operate:
    """operate(answer, "run", ...): the command as an operator types it, before an aggregator that answers so."""
    token, client = tmp_path / "token", httpx.Client
    token.write_text("the operator's token\n")

    def invoke(answer: Callable[[httpx.Request], httpx.Response], *arguments: str) -> Result:
        monkeypatch.setattr(httpx, "Client", lambda **options: client(transport=httpx.MockTransport(answer), **options))
        return CliRunner().invoke(app, [*arguments, "--operator-token-file", str(token)])

    return invoke
