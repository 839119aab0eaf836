"""A whole federation whose every id and title is a canary: none may be seen anywhere but in its own silo.

What is searched: each byte on the way to the aggregator and back, every log record, every error, all that the
aggregator keeps, the ledgers and the metrics. What is searched for: each canary as it is and in each usual encoding.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

import httpx
import numpy as np
import polars as pl
import pytest
from fastapi import FastAPI
from safetensors.numpy import load

from client_service.data.interaction_files import write_shard
from client_service.federation.training_run import TrainingRun
from shared.method.parameters import Parameters
from tests.support.federation import Federation, run_federation
from tests.support.questions import uploads
from tests.support.small import SMALL, small_aggregator, small_client

if TYPE_CHECKING:
    from conftest import Until

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("impatient")]
USERS, ITEMS = 14, 12
SAMPLE = 6  # bytes at the front of a canary that already give it away


def canary(kind: str, client: int, number: int) -> str:
    """16 random bytes as hex; every third one written in letters outside ASCII instead."""
    content = np.random.default_rng([len(kind), client, number]).bytes(16)
    return content.hex() if number % 3 else "".join(chr(0x1F00 + byte) for byte in content)


def canaries(client: int) -> dict[str, list[str]]:
    sizes = {"user": USERS, "items": ITEMS, "title-": ITEMS}
    return {kind: [canary(kind, client, number) for number in range(size)] for kind, size in sizes.items()}


def written(text: str) -> set[bytes]:
    """Every way in which a canary could be seen."""
    plain = text.encode()
    forms = [plain, text.encode("utf-16-le"), text.encode("utf-16-be"), json.dumps(text)[1:-1].encode()]
    forms += [
        quote(text, safe="").encode(),
        quote_plus(text).encode(),
        text.upper().encode(),
        repr(plain)[2:-1].encode(),
    ]
    if text.isascii():
        forms.append(bytes.fromhex(text))
    for content in list(forms):
        forms += [content.hex().encode(), content.hex().upper().encode()]
        for shift in range(3):  # base64 of a text that stands somewhere inside another
            coded = base64.b64encode(b"\0" * shift + content)[4 if shift else 0 : -4]
            forms += [coded, coded.replace(b"+", b"-").replace(b"/", b"_")]
    return {form for form in forms if len(form) >= SAMPLE}


WORDS = {text: written(text) for client in (1, 2) for texts in canaries(client).values() for text in texts}


def seen(content: bytes) -> list[str]:
    """The canaries that this content shows."""
    return [text for text, forms in WORDS.items() if any(form in content for form in forms)]


def shard(folder: Path, client: int) -> Path:
    """A shard of canaries alone: ids of users and items, titles."""
    names, rng, rows = canaries(client), np.random.default_rng(client), []
    for user in names["user"]:
        chosen = rng.permutation(ITEMS)[:7]
        splits = ("train",) * 5 + ("valid", "test")
        rows += [(user, names["items"][item], split) for item, split in zip(chosen, splits, strict=True)]
    pairs = pl.DataFrame(rows, schema=["user", "item", "split"], orient="row")
    titled = pl.DataFrame({"item": names["items"], "title": names["title-"]})
    write_shard(folder, folder.name, pairs, titled)
    return folder


@dataclass
class Tap(httpx.AsyncBaseTransport):
    """The wire itself, beneath the gate: it keeps every byte of every request and answer."""

    app: FastAPI
    bytes: list[bytes] = field(default_factory=list)
    updates: list[bytes] = field(default_factory=list)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        sent = await request.aread()
        self.bytes += [request.method.encode(), str(request.url).encode(), request.url.raw_path, sent]
        self.bytes += [part for header in request.headers.raw for part in header]
        if request.url.path.endswith("/update"):
            self.updates.append(sent)
        answer = await httpx.ASGITransport(self.app).handle_async_request(request)
        content = b"".join([part async for part in answer.aiter_raw()])
        self.bytes += [content, *(part for header in answer.headers.raw for part in header)]
        return httpx.Response(answer.status_code, headers=answer.headers, stream=httpx.ByteStream(content))


class Journal(logging.Handler):
    """All log records of all loggers, as text with everything that hangs on them."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[bytes] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if record.name == "httpx" and ("http://silo" in line or "http://operator" in line):
            return  # the test's own questions to both services, told by the test's own client
        told = [line, repr(record.args), repr(record.msg)]
        if record.exc_info:
            told.append(logging.Formatter().formatException(record.exc_info))
        self.lines.append("\n".join(told).encode())


@pytest.fixture
def journal() -> Iterator[Journal]:
    """Every logger that there is now or will be, at its most talkative."""
    found, root = Journal(), logging.getLogger()
    named = [
        logging.getLogger(name) for name in ("client_service", "aggregator_service", "httpx", "httpcore", "uvicorn")
    ]
    before = [(one, one.level) for one in (root, *named)]
    for one, _ in before:
        one.setLevel(logging.DEBUG)
    root.addHandler(found)
    yield found
    root.removeHandler(found)
    for one, level in before:
        one.setLevel(level)


@asynccontextmanager
async def federation_of_canaries(folder: Path) -> AsyncIterator[tuple[Federation, list[Tap]]]:
    """Two silos of canaries and their aggregator, with a tap on each wire."""
    clients = [small_client(shard(folder / "shards" / f"client-{client}", client), folder) for client in (1, 2)]
    settings = small_aggregator(folder / "aggregator", keys_directory=folder / "keys")
    async with run_federation(settings, clients) as running:
        taps = [Tap(running.app) for _ in clients]
        for client, tap in zip(clients, taps, strict=True):
            await running.enter(client, line=tap)
        yield running, taps


async def provoked(http: httpx.AsyncClient, paths: tuple[str, ...]) -> list[bytes]:
    """The answers to all kinds of bad requests, each with canaries in it. All of them are refusals."""
    answers, words = [], canaries(1)
    for text in (words["user"][0], words["items"][1], words["title-"][3]):
        bodies: list[Any] = [
            {"users": text},
            {"users": [text], "k": text},
            {"users": [text], text: text},
            {"client": text, "declaration": text},
            {"client": "client-1", "declaration": {"strategy": text, "tensors": [{"name": text, "shape": [text]}]}},
            {"rounds": text, "method": {text: text, "width": text, "start": text, "anchor": {"graph": text}}},
            {"basket": [{text: text}]},
            [text],
            text,
        ]
        for path in paths:
            answers += [await http.post(path, json=body) for body in bodies]
            cut = f'{{"users": ["{text}'.encode()
            answers.append(await http.post(path, content=cut, headers={"Content-Type": "application/json"}))
            answers.append(await http.post(path, content=text.encode(), headers={"Content-Type": "text/plain"}))
        safe = quote(text, safe="")
        for path in (
            f"/{safe}",
            f"/v1/{safe}",
            f"/v1/items/{safe}x/similar",
            f"/v1/users/{safe}/recommendations?k={safe}",
            f"/v1/users/{safe}/recommendations?exclude_seen={safe}",
            f"/v1/ledger?after={safe}&limit={safe}",
            f"/v1/runs/{safe}",
            f"/v1/runs/{safe}/rounds/1/anchor",
            f"/v1/runs/run-1/rounds/{safe}/clients/{safe}/personalized?wait={safe}",
            f"/v1/runs/current?wait={safe}",
        ):
            answers.append(await http.get(path))
            answers.append(await http.patch(path))
            if not path.startswith(("/v1/items/", "/v1/users/")):  # whatever follows there is an id
                answers.append(await http.delete(path))
    assert [answer.status_code for answer in answers if answer.status_code < 400] == []
    assert all(answer.headers["content-type"] == "application/problem+json" for answer in answers)
    return [
        part for answer in answers for part in (answer.content, *(v for header in answer.headers.raw for v in header))
    ]


def test_the_search_finds_a_canary_however_it_is_written() -> None:
    for text in (canary("user", 1, 0), canary("user", 1, 1)):
        shown = [
            text.encode(),
            json.dumps({"a": text}).encode(),
            quote(text).encode(),
            text.encode("utf-16"),
            base64.b64encode(f"x{text}".encode()),
            base64.urlsafe_b64encode(text.encode()),
            f"some text {text.encode().hex()}".encode(),
            repr(text.encode()).encode(),
        ]
        assert [text in seen(b"..." + content + b"...") for content in shown] == [True] * len(shown)
    assert seen(bytes.fromhex(canary("user", 1, 1))) == [canary("user", 1, 1)]
    assert seen(b"nothing of the kind" * 100) == []


async def test_no_id_and_no_title_leaves_its_silo(tmp_path: Path, until: Until, journal: Journal) -> None:
    async with federation_of_canaries(tmp_path) as (running, taps):
        await running.start()
        await until(running.finished)
        for client, http in enumerate(running.silos.values(), start=1):
            names = canaries(client)
            shown = await http.get(f"/v1/users/{quote(names['user'][0], safe='')}/recommendations?k=3")
            inside = shown.content + (await http.get(f"/v1/items/{quote(names['items'][1], safe='')}/similar")).content
            assert len(seen(inside)) > 3  # inside the silo they are shown, so that the rest of this test says something
            await http.post("/v1/recommendations", json={"users": names["user"], "allow": names["items"]})
            await http.post("/v1/recommendations", json={"basket": names["items"][:2], "exclude": names["title-"]})
            done = {"event": names["user"][1], "user": names["user"][0], "item": names["items"][1]}
            assert (await http.post("/v1/interactions", json={"interactions": [done]})).json()["accepted"] == 1
            await http.put(f"/v1/items/{quote(names['items'][1], safe='')}", json={"title": names["title-"][0]})
            await http.delete(f"/v1/users/{quote(names['user'][1], safe='')}")
            errors = await provoked(http, ("/v1/recommendations", "/v1/interactions"))
            errors += await provoked(running.operator, ("/v1/clients", "/v1/runs"))
            told = [
                (await http.get(f"/{path}")).content for path in ("metrics", "v1/status", "v1/ledger", "v1/quality")
            ]
            assert [content for content in (*errors, *told) if seen(content)] == []
        kept = [(await running.operator.get(path)).content for path in ("/metrics", "/v1/runs", "/v1/runs/run-1")]
    files = [path for path in (tmp_path / "aggregator").rglob("*") if path.is_file()]
    kept += [path.read_bytes() for path in files]
    kept += [str(path).encode() for path in files]
    ledgers = [(settings.state_directory / "ledger.jsonl").read_bytes() for settings in running.clients]
    crossed = [part for tap in taps for part in tap.bytes]
    assert len(files) > 1 and len(crossed) > 100 and len(journal.lines) > 50 and all(ledgers)
    assert any(b'"route": "/v1/clients"' in line for line in journal.lines)  # calls are in the journal
    for where in (crossed, journal.lines, kept, ledgers):
        assert [seen(content) for content in where if seen(content)] == []


def rows_of(values: np.ndarray) -> set[bytes]:
    """Each row of a matrix as float32 bytes, but for rows of zeros alone."""
    return {row.tobytes() for row in np.atleast_2d(values).astype("<f4") if row.any()}


async def test_the_wire_carries_exactly_the_declared_tensors_and_nothing_of_the_private_model(
    tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    private: list[tuple[str, np.ndarray]] = []
    fit = TrainingRun.fit

    def remembered(part: TrainingRun, *args: Any) -> Any:
        update = fit(part, *args)
        training = part._training
        named = dict(training.model.named_parameters()) | dict(training.model.named_buffers())
        kept = {
            name.removeprefix("encoder."): value.detach().numpy().copy()
            for name, value in named.items()
            if "." not in name.removeprefix("encoder.")
        }
        private.extend((name, value) for name, value in kept.items() if value.ndim == 2)
        private.append(("eigenvalues", training.spectrum.eigenvalues[:, None]))
        private.append(("singular values", training.spectrum.singular[:, None]))
        return update

    monkeypatch.setattr(TrainingRun, "fit", remembered)
    async with federation_of_canaries(tmp_path) as (running, taps):
        await running.start()
        await until(running.finished)
        qualities = [(await http.get("/v1/quality")).json() for http in running.silos.values()]
    assert {"embedding", "kernels", "basis", "eigenvalues"} <= {name for name, _ in private}
    for settings, tap, quality in zip(running.clients, taps, qualities, strict=True):
        declared = settings.declaration()
        assert len(tap.updates) == 2
        for body in tap.updates:
            arrays = load(body)
            assert {name: value.shape for name, value in arrays.items()} == {s.name: s.shape for s in declared.tensors}
            assert {value.dtype for value in arrays.values()} == {np.dtype(np.float32)}
            header = json.loads(body[8 : 8 + int.from_bytes(body[:8], "little")])
            assert set(json.loads(header["__metadata__"]["scalars"])) == {"margin", "rho"}
            for name, value in private:
                width = 1 if value.shape[1] == 1 else SMALL.width
                for row in rows_of(value[:, :width] if name != "basis" else value):
                    if len(row) >= 8:
                        assert row not in body, name
        crossed = b"\n".join(tap.bytes)
        figures = {entry[name] for entry in quality["rounds"] for name in ("recall", "ndcg", "loss") if entry[name]}
        figures |= set(quality["test"].values())
        texts = {repr(figure).encode() for figure in figures if len(repr(figure)) > 8}
        doubles = {np.float64(figure).tobytes() for figure in figures}
        assert len(texts) >= 2 and [one for one in texts | doubles if one in crossed] == []


def numbers_in(value: Any) -> set[float]:
    """All numbers of a JSON value that are no whole ones: written out they are long enough to be told from others."""
    if isinstance(value, dict):
        return set().union(*(numbers_in(one) for one in value.values()))
    if isinstance(value, list):
        return set().union(*map(numbers_in, value))
    return {value} if isinstance(value, float) and len(repr(value)) > 8 else set()


def told(figure: float) -> set[bytes]:
    """Every way in which a figure could be seen."""
    return {repr(figure).encode(), f"{figure:.6f}".encode(), np.float64(figure).tobytes()}


async def test_what_joining_was_worth_stays_in_the_silo(tmp_path: Path, until: Until, journal: Journal) -> None:
    async with federation_of_canaries(tmp_path) as (running, taps):
        await running.start()
        await until(running.finished)
        silos = list(running.silos.values())
        comparisons = [(await http.get("/v1/quality")).json()["comparison"] for http in silos]
    ledgers = [(settings.state_directory / "ledger.jsonl").read_bytes() for settings in running.clients]
    left = b"\n".join([*(part for tap in taps for part in tap.bytes), *journal.lines, *ledgers])
    kept = [path.read_bytes() for path in (tmp_path / "aggregator").rglob("*") if path.is_file()]
    for comparison in comparisons:
        figures = numbers_in(comparison)
        assert len(figures) > 10 and comparison["groups"][0]["users"] == USERS
        forms = {form for figure in figures for form in told(figure)}
        assert [form for form in forms for content in (left, *kept) if form in content] == []
    planted = next(iter(numbers_in(comparisons[0])))
    assert any(form in json.dumps({"rho": planted}).encode() for form in told(planted)), "the search finds a leak"


@pytest.mark.parametrize("form", ["tensor", "in a declared tensor's place", "scalar", "float64"])
async def test_a_planted_leak_is_stopped_at_the_gate(
    tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    fit = TrainingRun.fit

    def leaking(part: TrainingRun, *args: Any) -> tuple[Parameters, float]:
        update, seconds = fit(part, *args)
        embedding = part._training.model.encoder.embedding.detach().numpy()
        arrays, scalars = dict(update.arrays), dict(update.scalars)
        if form == "tensor":
            arrays["embedding"] = embedding
        elif form == "scalar":
            scalars[canary("user", 1, 1)] = float(embedding[0, 0])
        elif form == "float64":
            arrays["pooling.hidden.bias"] = arrays["pooling.hidden.bias"].astype(np.float64)
        else:
            arrays["pooling.hidden.weight"] = embedding
        return Parameters(arrays, scalars), seconds

    monkeypatch.setattr(TrainingRun, "fit", leaking)
    async with federation_of_canaries(tmp_path) as (running, taps):
        await running.start()

        async def refused() -> bool:
            return all("expected" in problem for problem in await running.problems())

        await until(refused)
        history = await running.history()
        assert history["phase"] == "open" and [one["received"] for one in history["rounds"][0]["participants"]] in (
            [],
            [False, False],
        )
    for settings, tap in zip(running.clients, taps, strict=True):
        assert tap.updates == []
        assert uploads(settings) == []
