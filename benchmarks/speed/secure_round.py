"""Milliseconds and bytes of a secure and an open round, without training."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import logging
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from aggregator_service.app import create_app
from aggregator_service.settings import aggregator_settings
from client_service.boundary.aggregator_api import Aggregator, connect
from client_service.boundary.gate import Boundary
from client_service.boundary.ledger import Ledger
from client_service.secure_rounds.exchange import SecureExchange
from client_service.secure_rounds.masking import Masking, open_masking
from client_service.secure_rounds.members import KnownMembers
from client_service.secure_rounds.round_memory import NAME, RoundMemory
from shared.method.declaration import Declaration, TensorSpec
from shared.method.parameters import Parameters
from shared.protocol.gate import pass_gate
from shared.protocol.schemas import RunIn, RunOut
from shared.protocol.secure import client as protocol
from shared.protocol.secure import group, keys, proofs, server, verification
from shared.protocol.secure.graph import announce_bounds
from shared.protocol.secure.messages import CommonTerms, RoundTerms, least_threshold
from shared.protocol.secure.tags import PairKeys
from shared.protocol.signing.enrolment import enrol_client, ensure_key_pair
from shared.protocol.signing.keys import PrivateKey, new_key, read_private
from shared.protocol.signing.members import write_registry
from shared.strategies.lpsfed import make_mixing
from shared.timeouts import CallLimits

URL, TOKEN = "http://127.0.0.1", secrets.token_hex(32)
CALIBRATION = 200_000  # hashes of one kilobyte


@dataclass
class MaskingClient:
    """Client without training; `masking`: only in a secure federation."""

    link: Aggregator
    declaration: Declaration
    masking: Masking | None
    wait: float = 20.0

    async def take_part(self, state: RunOut, content: Parameters) -> None:
        """Sends an update, and fetches the round's answer."""
        assert state.run is not None and state.method is not None
        if self.masking is None:
            await self.link.upload(state.run, state.round, pass_gate(self.declaration, content))
        else:
            terms = self.masking.terms(self.declaration, state.method, state.run, state.round, state)
            with ThreadPoolExecutor(1) as worker:
                await SecureExchange(self.masking, self.link, wait=self.wait, worker=worker).send(terms, content)
        while (given := await self.link.fetch_personalised(state.run, state.round, self.wait)) is None:
            pass
        self.remember_start(state.run, state.round + 1, given)

    def remember_start(self, run: str, number: int, given: Parameters) -> None:
        """Stores the start of a round in a secure federation."""
        if self.masking is not None:
            self.masking.remember_start(run, number, make_mixing(0.0).drop_server_scalars(given))


async def measure_round(clients: int, rounds: int, *, secure: bool) -> tuple[float, float, int, int]:
    """Measures median wall and CPU milliseconds of a round, and a client's bytes.

    Bytes are up and down.
    """
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            return await measure_clients(stack, Path(folder), clients, rounds, secure=secure)


async def measure_clients(
    stack: AsyncExitStack, folder: Path, clients: int, rounds: int, *, secure: bool
) -> tuple[float, float, int, int]:
    """Measures as `measure_round` does, with the aggregator's files below a folder."""
    aggregator = ensure_key_pair("aggregator", folder / "aggregator")
    settings = aggregator_settings(
        state_directory=folder / "aggregator",
        operator_token=TOKEN,
        keys_directory=folder / "keys",
        signing_key_file=aggregator.private,
        secure=secure,
    )
    app = create_app(settings)
    await stack.enter_async_context(app.router.lifespan_context(app))
    pairs = {
        name: enrol_client(name, folder / name, folder / "keys") for name in (f"silo-{n:04d}" for n in range(clients))
    }
    file = write_registry(folder / "members.toml", aggregator.public, [pair.public for pair in pairs.values()])
    taking_part = {}
    for name, pair in pairs.items():
        boundary = Boundary(name, httpx.URL(URL), settings.declaration(), False, 64 << 20)
        key, memory = read_private(pair.private), RoundMemory(Ledger(folder / name / NAME))
        members = KnownMembers(file, memory)
        ledger, way = Ledger(folder / name / "ledger.jsonl"), httpx.ASGITransport(app)
        entered = connect(boundary, ledger, key, limits=CallLimits(), inner=way, trusted_key=members.aggregator)
        link = await stack.enter_async_context(entered)
        await link.join(settings.declaration(), None)
        said = {"noised": False, "changing_members": False}
        masking = open_masking(name, folder / name, key, members, memory, **said) if secure else None
        taking_part[name] = MaskingClient(link, settings.declaration(), masking)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    operator = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=URL, headers=headers)
    async with operator:
        asked = RunIn(rounds=rounds, clients=clients).model_dump(mode="json")
        (await operator.post("/v1/runs", json=asked)).raise_for_status()
    return await _play_rounds(list(taking_part.values()), rounds)


async def _play_rounds(clients: list[MaskingClient], rounds: int) -> tuple[float, float, int, int]:
    generator, wall, cpu = np.random.default_rng(0), [], []
    start = await clients[0].link.fetch_model("run-1")
    for client in clients:
        client.remember_start("run-1", 1, start)
    before = clients[0].link.traffic.up, clients[0].link.traffic.down
    for _ in range(rounds):
        states = await asyncio.gather(*(client.link.fetch_run(None, 0.0) for client in clients))
        contents = [
            _draw_update(client.declaration, generator, place / len(clients)) for place, client in enumerate(clients)
        ]
        began = time.perf_counter(), time.process_time()
        await asyncio.gather(*(map(MaskingClient.take_part, clients, states, contents)))
        wall.append(1000 * (time.perf_counter() - began[0]))
        cpu.append(1000 * (time.process_time() - began[1]))
    traffic = clients[0].link.traffic
    up, down = (traffic.up - before[0]) // rounds, (traffic.down - before[1]) // rounds
    return statistics.median(wall), statistics.median(cpu), up, down


def _draw_update(declaration: Declaration, generator: np.random.Generator, rho: float) -> Parameters:
    arrays = {spec.name: generator.normal(size=spec.shape).astype(np.float32) for spec in declaration.tensors}
    return Parameters(arrays, {"margin": 0.1, "rho": rho})


@dataclass
class PairWork:
    """Work of one round between pairs, played without a network: counts, and CPU seconds.

    agreements: products that give a key. sealed: shares. verified: signatures and proofs of possession. later_...: in
    later rounds of a client's process, whose keys for tags are agreed.
    """

    clients: int
    graph: bool
    agreements: int = 0
    sealed: int = 0
    verified: int = 0
    cpu_seconds: float = 0.0
    later_agreements: int = 0
    later_cpu_seconds: float = 0.0


def count_pair_work(clients: int, *, sparse: bool) -> PairWork:
    """Counts the pair work of a round on the graph or the full graph."""
    found, patched = PairWork(clients, sparse), []
    watched = {
        "agreements": [(group, "agree")],
        "sealed": [(keys, "seal")],
        "verified": [(proofs, "is_signed"), (protocol, "require_possession"), (verification, "require_possession")],
    }
    for name, places in watched.items():
        for module, function in places:
            patched.append((module, function, getattr(module, function)))
            setattr(module, function, _count_calls_of(found, name, getattr(module, function)))
    try:
        federation = _Federation.of(clients)
        began = time.process_time()
        _play_protocol(federation, sparse=sparse)
        found.cpu_seconds = round(time.process_time() - began, 2)
        first = replace(found)
        if sparse:
            began = time.process_time()
            _play_protocol(federation, sparse=sparse)
            found = replace(
                first,
                later_agreements=found.agreements - first.agreements,
                later_cpu_seconds=round(time.process_time() - began, 2),
            )
    finally:
        for module, function, before in patched:
            setattr(module, function, before)
    return found


def _count_calls_of(work: PairWork, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def counting(*given: Any, **named: Any) -> Any:
        count = len(given[1]) if function.__name__ == "agree" else 1
        setattr(work, name, getattr(work, name) + count)
        return function(*given, **named)

    return counting


@dataclass(frozen=True)
class _Federation:
    """Identities of clients, and the keys that each agrees on with the others."""

    identities: dict[str, PrivateKey]
    pairs: dict[str, PairKeys]

    @staticmethod
    def of(clients: int) -> _Federation:
        identities = {f"silo-{n:04d}": new_key() for n in range(clients)}
        return _Federation(identities, {name: PairKeys(key) for name, key in identities.items()})


def _play_protocol(federation: _Federation, *, sparse: bool) -> None:
    """Plays all phases of a round of one number by the protocol's functions alone."""
    identities, pairs = federation.identities, federation.pairs
    names, clients, content = list(identities), len(identities), Parameters({"w": np.ones(1, dtype=np.float32)}, {})
    public = {name: key.public_key() for name, key in identities.items()}
    tensor = TensorSpec(name="w", dtype="F32", shape=(1,))
    digests = dict.fromkeys(("aggregator", "start", "method", "anchor"), "00" * 32)
    common = CommonTerms(**digests, seed=0, rounds=1, graph=announce_bounds(clients) if sparse else None)
    declaration = Declaration(strategy="fedavg", tensors=(tensor,), scalars=())
    least = least_threshold(clients)
    terms = RoundTerms(run="run-1", round=1, threshold=least, declaration=declaration, common=common)
    state, own, vectors = server.SecureRound(terms=terms), {}, {}

    def tell(state: server.SecureRound, message: server.RelayedMessage) -> server.SecureRound:
        verification.verify_message(state, message)
        return server.accept_message(state, message)

    for name in names:
        own[name] = protocol.begin_secure_round(terms, name, identities[name])
        state = tell(state, own[name].message)
    state = server.close_phase(state)
    for name in names:
        own[name] = protocol.share_secrets(own[name], server.make_roster(state), public, identities[name])
        state = tell(state, own[name].message)
    state = server.close_phase(state)
    for name in names:
        own[name] = protocol.check_shares(own[name], server.make_delivery(state, name), identities[name], pairs[name])
        state = tell(state, own[name].message)
    state = server.close_phase(state)
    for name in names:
        sharers = server.make_sharers(state, name)
        own[name], masked = protocol.mask_update(own[name], sharers, content, identities[name], pairs[name])
        state, vectors[name] = server.accept_header(state, masked.header), masked.vector
    state = server.close_phase(state)
    request = server.make_unmask_request(state)
    for name in names:
        own[name], consent = protocol.sign_consent(own[name], request, identities[name], pairs[name])
        state = tell(state, consent)
    state = server.close_phase(state)
    for name in names:
        consents = server.make_consents(state, name)
        state = tell(state, protocol.answer_unmask_request(own[name], consents, pairs[name]))
    server.unmask_mean(state, vectors)


def calibrate_processor() -> float:
    """Measures CPU milliseconds of a fixed amount of work."""
    began, content = time.process_time(), bytes(1024)
    for _ in range(CALIBRATION):
        content = hashlib.sha256(content).digest() + content[32:]
    return 1000 * (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[4, 16, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pairs", type=int, nargs="*", default=[], help="clients: count pair work instead")
    parser.add_argument("--json", action="store_true", help="print one object a line")
    arguments = parser.parse_args()
    logging.disable(logging.INFO)
    for clients in arguments.pairs:
        for sparse in (True, False):
            print(json.dumps(asdict(count_pair_work(clients, sparse=sparse))), flush=True)
    for clients in () if arguments.pairs else arguments.clients:
        unit = calibrate_processor()
        for secure in (False, True):
            wall, cpu, up, down = asyncio.run(measure_round(clients, arguments.rounds, secure=secure))
            kind = "secure" if secure else "open"
            if arguments.json:
                measured = {"cpu_ms": round(cpu), "calibrated": round(cpu / unit, 2), "wall_ms": round(wall)}
                shown = {"clients": clients, "kind": kind, **measured, "bytes_up": up, "bytes_down": down}
                print(json.dumps(shown), flush=True)
                continue
            print(f"{clients} clients, {kind}: {cpu:,.0f} ms CPU ({cpu / unit:.2f} of the calibration), ", end="")
            print(f"{wall:,.0f} ms wall a round; {up:,} bytes up, {down:,} down a client and round", flush=True)


if __name__ == "__main__":
    main()
