"""A federation may begin its runs with given tensors; which they are is part of a run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from shared.errors import SettingsError
from shared.method.parameters import Float32, Parameters
from shared.method.tensors import initial_parameters
from shared.protocol.wire import encode_body
from shared.strategies import build_strategy

if TYPE_CHECKING:
    from conftest import Running

NAME = "pooling.output.bias"
Tensors = Callable[[bytes], dict[str, Float32]]
pytestmark = pytest.mark.anyio


def write_start(path: Path, name: str, value: Float32) -> Path:
    path.write_bytes(encode_body(Parameters({name: value})))
    return path


async def test_named_tensors_begin_as_given_and_the_others_as_drawn(
    running: Running, tensors: Tensors, tmp_path: Path
) -> None:
    async with running() as federation:
        method = federation.settings.method
        expected = initial_parameters(build_strategy("lpsfed", method).tensors(method), 5, exact=True)
    given = np.full(expected[NAME].shape, 0.5, dtype=np.float32)
    start = write_start(tmp_path / "start.safetensors", NAME, given)
    async with running(start=start) as federation:
        (north,) = await federation.joined("north")
        assert (await federation.start_run(rounds=1, clients=1, seed=5)).status_code == 201
        got = tensors((await north.get("/v1/runs/run-1/model")).content)
        assert all(np.array_equal(got[name], (expected | {NAME: given})[name]) for name in expected)
        history = await federation.history()
        assert history["request"]["start"] == hashlib.sha256(start.read_bytes()).hexdigest()


async def test_an_active_run_is_not_resumed_with_another_start(running: Running, tmp_path: Path) -> None:
    async with running() as federation:
        shape = initial_parameters(
            build_strategy("lpsfed", federation.settings.method).tensors(federation.settings.method), 0, exact=True
        )[NAME].shape
    start = write_start(tmp_path / "start.safetensors", NAME, np.zeros(shape, dtype=np.float32))
    async with running(start=start) as federation:
        await federation.joined("north")
        assert (await federation.start_run(rounds=1, clients=1)).status_code == 201
    write_start(start, NAME, np.ones(shape, dtype=np.float32))
    for other in (start, None):
        with pytest.raises(SettingsError, match=r"start: expected the file that run-1 began with"):
            async with running(start=other):
                pass


async def test_a_run_that_asks_for_another_start_is_refused(running: Running) -> None:
    async with running() as federation:
        await federation.joined("north")
        answer = await federation.start_run(rounds=1, clients=1, start="0" * 64)
        assert answer.status_code == 422 and "start: expected none" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("embedding", np.zeros(3, dtype=np.float32), "expected one of"),
        (NAME, np.zeros((1, 1, 1), dtype=np.float32), "of shape"),
        (NAME, None, "finite"),
        (NAME, np.zeros(4, dtype=np.uint32), "expected dtype F32, got another"),
    ],
)
async def test_a_file_that_does_not_fit_is_refused(
    running: Running, tmp_path: Path, name: str, value: Float32 | None, words: str
) -> None:
    async with running() as federation:
        method = federation.settings.method
    shape = {tensor.name: tensor.shape for tensor in build_strategy("lpsfed", method).tensors(method)}[NAME]
    content = np.full(shape, np.nan, dtype=np.float32) if value is None else value
    with pytest.raises(SettingsError, match=f"start: .*{words}"):
        async with running(start=write_start(tmp_path / "start.safetensors", name, content)):
            pass


async def test_a_file_that_is_none_is_refused(running: Running, tmp_path: Path) -> None:
    for content in (None, b"no tensors"):
        path = tmp_path / "start.safetensors"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(SettingsError, match="start: expected a safetensors file"):
            async with running(start=path):
                pass
