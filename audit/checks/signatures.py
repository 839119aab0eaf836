"""Makes arrived signatures again with the client's private key, and compares them.

Ed25519 by RFC 8032 follows from key and message alone. A signature whose secret number was chosen verifies too, and
tells 31 bytes to a reader who knows the number or the key. The aggregator cannot tell; the owner of the private key
can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from audit.checks.findings import AuditFinding, make_finding
from audit.checks.records import describe_arrival
from audit.evidence.case import AuditCase
from audit.evidence.evidence import read_evidence
from shared.errors import DataError, SettingsError
from shared.protocol.schemas import ArrivalOut, ArrivalsOut
from shared.protocol.signing.keys import PrivateKey
from shared.protocol.signing.requests import (
    RequestTarget,
    is_deterministic_signature,
    is_valid_claim,
    read_claim,
    rebuild_headers,
)
from shared.words import count_noun

CHOSEN = "its signature verifies but is not the one that the client's key makes: it may hide 31 bytes"


@dataclass(frozen=True)
class RemadeSignatures:
    """Result of making a client's signatures again.

    made: signatures that the key makes again. chosen: a line for each that verifies and that the key does not make.
    others: of another key, or of another request than the call's. untold: arrivals recorded without a signature.
    """

    made: int
    chosen: tuple[str, ...]
    others: int
    untold: int

    def describe(self) -> str:
        """Describes the result where no signature was chosen."""
        said = f"{count_noun(self.made, 'signature')}, each as the key makes it"
        others = f"; {self.others:,} by another key or of another request" if self.others else ""
        return said + others + (f"; {self.untold:,} not recorded" if self.untold else "")


def remake_signatures(arrivals: Iterable[ArrivalOut], client: str, key: PrivateKey) -> RemadeSignatures:
    """Makes the signatures of a client's bodies again, and compares.

    key: the client's private key.
    """
    made = others = untold = 0
    chosen: list[str] = []
    for arrival in arrivals:
        if arrival.client != client:
            continue
        if arrival.head is None or arrival.head.signature is None or arrival.nonce is None:
            untold += 1
        elif not _is_signed_by(arrival, key):
            others += 1
        elif is_deterministic_signature(_kept_headers(arrival), _expected_target(arrival), key):
            made += 1
        else:
            chosen.append(f"{client}, {describe_arrival(arrival)}: {CHOSEN}")
    return RemadeSignatures(made, tuple(chosen), others, untold)


def find_signer(arrivals: Iterable[ArrivalOut], key: PrivateKey) -> str | None:
    """Returns the client that has signed with this key; None if none has."""
    return next((arrival.client for arrival in arrivals if _is_signed_by(arrival, key)), None)


def _is_signed_by(arrival: ArrivalOut, key: PrivateKey) -> bool:
    headers = _kept_headers(arrival)
    return bool(headers) and is_valid_claim(read_claim(headers.items()), _expected_target(arrival), key.public_key())


def _kept_headers(arrival: ArrivalOut) -> dict[str, str]:
    """Returns the headers of the recorded signature, if any."""
    kept = None if arrival.head is None else arrival.head.signature
    if kept is None or arrival.nonce is None:
        return {}
    return rebuild_headers(arrival.client, kept.created, arrival.nonce, bytes.fromhex(kept.sha256), kept.value)


def _expected_target(arrival: ArrivalOut) -> RequestTarget:
    """Returns the target of the call as the gate writes it."""
    if arrival.call == "join":
        return RequestTarget("POST", "/v1/clients", "")
    place = f"/v1/runs/{arrival.run}/rounds/{arrival.round}/clients/{arrival.client}"
    return RequestTarget("PUT", f"{place}/{arrival.call}", "")


def check_signatures(case: AuditCase, keys: Mapping[str, PrivateKey]) -> AuditFinding:
    """Checks that each signature is the one that its client's key makes.

    Raises SettingsError for a key of no client.
    """
    if strangers := sorted(set(keys) - set(case.clients)):
        raise SettingsError(f"expected signing keys of clients in the evidence, got those of {', '.join(strangers)}")
    remade = {name: remake_signatures(case.arrivals, name, key) for name, key in keys.items()}
    return make_finding(
        "signatures",
        "every signature of a body is the one that the client's key makes, signed again and compared",
        "; ".join(f"{name}: {found.describe()}" for name, found in remade.items()),
        [*(line for found in remade.values() for line in found.chosen), *_unsigned(remade)],
    )


def _unsigned(remade: Mapping[str, RemadeSignatures]) -> Iterator[str]:
    for name, found in remade.items():
        if found.others and not found.made and not found.chosen:
            yield f"{name}: {count_noun(found.others, 'signature')}, none by this key"


def read_arrivals(path: Path) -> tuple[ArrivalOut, ...]:
    """Reads arrivals from the aggregator's evidence or an answer of its /v1/arrivals.

    Raises DataError for another file.
    """
    try:
        return ArrivalsOut.model_validate_json(path.read_bytes()).entries
    except OSError as error:
        raise DataError(f"{path}: expected what arrived at the aggregator ({error.strerror})") from None
    except ValidationError:
        return read_evidence(path).arrivals
