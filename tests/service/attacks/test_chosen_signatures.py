"""A signature says nothing but that the silo's key has signed.

Who: whoever changes a library beneath a client's gate. Ed25519 signatures hold with any secret number r, and its point
R = r B is sent: whoever chooses r, or knows the key, reads 31 bytes of each signature. Nine requests carried 279 bytes
of interactions while the privacy report was green. RFC 8032 leaves no choice: r follows from key and message. So the
gate signs again and compares, before anything leaves. A patched gate does not: so the aggregator keeps the signature of
each body, and the silo, who alone has the key, signs it again afterwards.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from anyio import to_thread
from typer.testing import CliRunner

from aggregator_service.app import create_app as create_aggregator
from audit.checks.signatures import remake_signatures
from audit.evidence.case import open_case
from audit.evidence.collect import read_aggregator_evidence, read_client_evidence
from audit.evidence.evidence import PartEvidence, write_evidence
from audit.report import make_report
from client_service.boundary import gate
from shared.errors import DataError, SettingsError
from shared.protocol.secure.group import ORDER, multiply_base
from shared.protocol.signing import requests
from shared.protocol.signing.enrolment import read_own_key
from shared.protocol.signing.keys import PrivateKey, new_key
from shared.protocol.signing.requests import (
    RequestTarget,
    Signatory,
    is_deterministic_signature,
    is_valid_claim,
    read_claim,
    sign_request,
)
from simulation.cli import app
from tests.support.questions import has_problem
from tests.support.serving import serve
from tests.support.small import TOKEN, small_aggregator

if TYPE_CHECKING:
    from tests.support.given import Federate, Until

pytestmark = pytest.mark.anyio
SECRET = b"user-07 bought item-03, item-11"  # 31 bytes
TARGETS = [RequestTarget("GET", "/v1/runs/current", ""), RequestTarget("GET", "/v1/runs/current", "wait=5.0&after=1")]


def sign_with_chosen_number(seed: bytes, message: bytes) -> bytes:
    """A signature that holds, whose secret number is SECRET; the key's holder computes it again by r = S - h a."""
    digest = hashlib.sha512(seed).digest()
    scalar = int.from_bytes(digest[:32], "little") & ((1 << 254) - 8) | (1 << 254)
    number = int.from_bytes(SECRET, "little")
    point, public = multiply_base(number), multiply_base(scalar)
    hashed = int.from_bytes(hashlib.sha512(point + public + message).digest(), "little")
    return point + ((number + hashed * scalar) % ORDER).to_bytes(32, "little")


@dataclass(frozen=True)
class ChangedKey:
    """A key as a library that was changed signs with it."""

    key: PrivateKey

    def sign(self, message: bytes) -> bytes:
        return sign_with_chosen_number(self.key.private_bytes_raw(), message)


def sign_by_changed_library(target: RequestTarget, body: bytes, who: Signatory, **more: Any) -> dict[str, str]:
    return sign_request(target, body, Signatory(who.name, ChangedKey(who.key)), **more)  # type: ignore[arg-type]


def signed(target: RequestTarget, sign: Callable[..., dict[str, str]] = sign_request) -> tuple[dict[str, str], Any]:
    who = Signatory("client-1", new_key())
    return sign(target, b"body", who, created=1_795_277_005, nonce="0" * 32), who.key


@pytest.mark.parametrize("target", TARGETS, ids=["without a query", "with one"])
def test_a_chosen_secret_number_gives_a_signature_that_holds_and_that_the_key_does_not_make(
    target: RequestTarget,
) -> None:
    made, key = signed(target)
    assert is_valid_claim(read_claim(made.items()), target, key.public_key()) and is_deterministic_signature(
        made, target, key
    )
    made, key = signed(target, sign_by_changed_library)
    assert is_valid_claim(read_claim(made.items()), target, key.public_key()), "the aggregator believes it"
    assert not is_deterministic_signature(made, target, key)
    carried = base64.b64decode(made[requests.SIGNATURE].split(":")[1])[:32]
    assert carried == multiply_base(int.from_bytes(SECRET, "little")), "it says what was chosen"


async def test_the_gate_lets_no_such_signature_leave(
    federation: Federate, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "sign_request", sign_by_changed_library)
    async with federation(1) as running:
        (silo,) = await running.enter()
        await until(has_problem(silo, "expected the one signature that this client's key makes of the request"))
        assert (await running.operator.get("/v1/clients")).json() == [], "nothing has arrived"


Federated = Callable[..., Any]


@pytest.fixture
def run_silo(federation: Federate, until: Until) -> Federated:
    """`async with run_silo() as (client, aggregator, settings)`: evidence of both after a round of one silo."""

    @asynccontextmanager
    async def run() -> AsyncIterator[tuple[PartEvidence, PartEvidence, Any]]:
        async with federation(1) as running:
            (silo,) = await running.enter()

            async def joined() -> bool:
                return bool((await running.operator.get("/v1/clients")).json())

            await until(joined)
            await running.start(rounds=1)
            await until(running.finished)
            client = await read_client_evidence(silo, "client-1")
            yield client, await read_aggregator_evidence(running.operator, "aggregator"), running.clients[0]

    return run


def patch_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """It signs by a number that it chooses, and no longer compares."""
    monkeypatch.setattr(gate, "sign_request", sign_by_changed_library)
    monkeypatch.setattr(gate, "is_deterministic_signature", lambda *_: True)


def verify(state: Path, *words: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["ledger", "verify", "--state-directory", str(state), *map(str, words)])
    if isinstance(found.exception, (DataError, SettingsError)):
        raise found.exception
    return found.exit_code, found.stdout


async def test_the_silo_finds_the_signatures_that_a_patched_gate_has_sent(
    run_silo: Federated, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    patch_gate(monkeypatch)
    file = tmp_path / "arrivals.json"
    async with run_silo() as (client, aggregator, settings):
        pass
    assert make_report(open_case((client, aggregator))).held, "nobody can tell without the key"
    key = read_own_key("client-1", settings.state_directory)
    made = make_report(open_case((client, aggregator)), keys={"client-1": key})
    (finding,) = [one for one in made.findings if not one.held]
    assert (finding.name, len(finding.faults)) == ("signatures", 2), "a join and an update"
    assert [line.partition(": ")[0] for line in finding.faults] == [
        "client-1, join, accepted",
        "client-1, update of run-1 round 1, accepted",
    ]
    write_evidence(aggregator, file)
    code, text = verify(settings.state_directory, "--arrivals", file)
    assert (code, text.splitlines()) == (1, list(finding.faults))
    assert verify(settings.state_directory)[0] == 0, "the ledger alone is whole"


async def test_an_honest_silo_s_signatures_are_made_again(run_silo: Federated, tmp_path: Path) -> None:
    async with run_silo() as (client, aggregator, settings):
        pass
    key, file = read_own_key("client-1", settings.state_directory), tmp_path / "arrivals.json"
    made = make_report(open_case((client, aggregator)), keys={"client-1": key})
    assert made.held
    assert [one.found for one in made.findings if one.name == "signatures"] == [
        "client-1: 2 signatures, each as the key makes it"
    ]
    assert not any("Signatures of client-1" in line for line in made.not_covered)
    entries = [arrival.model_dump(mode="json") for arrival in aggregator.arrivals]
    file.write_text(json.dumps({"entries": entries, "total": len(entries)}))  # as /v1/arrivals answers
    code, text = verify(settings.state_directory, "--arrivals", file)
    assert code == 0 and text.endswith("entries\n2 signatures, each as the key makes it\n")
    code, text = verify(settings.state_directory, "--arrivals", file, "--json")
    assert json.loads(text)["signatures"] == {"made": 2, "chosen": [], "others": 0, "untold": 0}

    for entry in entries:  # as an earlier version has recorded them
        del entry["head"]["signature"]
    old = aggregator.model_validate(aggregator.model_dump(mode="json") | {"arrivals": entries})
    assert make_report(open_case((client, old))).held
    assert remake_signatures(old.arrivals, "client-1", key).describe() == (
        "0 signatures, each as the key makes it; 2 not recorded"
    )
    file.write_text(json.dumps({"entries": entries, "total": len(entries)}))
    with pytest.raises(DataError, match="expected arrivals that this key has signed, got none of 2"):
        verify(settings.state_directory, "--arrivals", file)


async def test_a_key_that_has_signed_nothing_makes_the_report_red(run_silo: Federated) -> None:
    async with run_silo() as (client, aggregator, _):
        pass
    made = make_report(open_case((client, aggregator)), keys={"client-1": new_key()})
    assert [one.found for one in made.findings if not one.held] == ["client-1: 2 signatures, none by this key"]
    with pytest.raises(SettingsError, match="keys of clients in the evidence, got those of client-2"):
        make_report(open_case((client, aggregator)), keys={"client-2": new_key()})


async def test_the_time_of_a_signature_is_the_second_of_its_entry(run_silo: Federated) -> None:
    """Within a minute of the clock a patched gate had the choice of 121 seconds, 6 to 7 bits a request."""
    async with run_silo() as (client, aggregator, _):
        pass
    assert make_report(open_case((client, aggregator))).held
    intents = [entry for entry in client.entries if entry["kind"] == "intent"]
    assert all(entry["created"] == int(datetime.fromisoformat(entry["time"]).timestamp()) for entry in intents)


async def test_a_time_that_a_patched_gate_has_chosen_makes_the_report_red(
    run_silo: Federated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        gate, "sign_request", lambda *what, created, **more: sign_request(*what, created=created - 17, **more)
    )
    async with run_silo() as (client, aggregator, _):
        pass
    (finding,) = [one for one in make_report(open_case((client, aggregator))).findings if not one.held]
    assert finding.name == "entries" and finding.faults[0] == (
        "client-1, join, accepted: signed at another second than its entry in the ledger says"
    )


async def test_a_ledger_that_stops_saying_the_time_makes_the_report_red(run_silo: Federated) -> None:
    async with run_silo() as (client, aggregator, _):
        pass
    entries = [dict(entry) for entry in client.entries]
    for entry in entries:
        if entry.get("call") == "update":
            entry.pop("created", None)
    changed = client.model_validate(client.model_dump(mode="json") | {"entries": entries})
    faults = {one.name: one.faults for one in make_report(open_case((changed, aggregator))).findings if not one.held}
    assert faults["calls"] == ("client-1: 1 call without the time of the signature, after others with it",)


async def test_what_arrived_is_asked_for_at_the_aggregator(run_silo: Federated, tmp_path: Path) -> None:
    async with run_silo() as (_, _, settings):
        pass
    token, aggregator = tmp_path / "token", small_aggregator(tmp_path / "aggregator", keys_directory=tmp_path / "keys")
    token.write_text(TOKEN)
    with serve(create_aggregator(aggregator)) as url:
        asked = ("--operator-token-file", token, "--aggregator-url", url)
        code, text = await to_thread.run_sync(partial(verify, settings.state_directory, *asked))
    assert code == 0 and text.endswith("entries\n2 signatures, each as the key makes it\n")
