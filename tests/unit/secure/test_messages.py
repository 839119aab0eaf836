"""Messages are small, closed and of one round."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from shared.errors import ProtocolError
from shared.method.declaration import Declaration
from shared.protocol.secure import messages
from shared.protocol.secure.group import ORDER
from shared.protocol.secure.messages import (
    CommittedShares,
    CommonTerms,
    Complaint,
    Consent,
    Consents,
    DeliveredShare,
    Delivery,
    ExpulsionEvidence,
    MaskedHeader,
    PublicKeys,
    Roster,
    RoundTerms,
    Scalar,
    SealedShare,
    SealedShares,
    ShareCheck,
    Sharers,
    SharingProof,
    UnmaskAnswer,
    UnmaskRequest,
    hidden_scalars,
    least_threshold,
    visible_scalars,
)

ROUND: dict[str, Any] = {"run": "run-1", "round": 3}
HEX, SCALAR, SEALED, SIGNATURE = "ab" * 32, "0b" * 32, "ab" * 92, "ab" * 64
DECLARATION = Declaration(strategy="lpsfed", tensors=(), scalars=("margin", "rho"))
COMMON = CommonTerms(aggregator=HEX, start=HEX, method=HEX, seed=0, rounds=5, anchor=HEX)
TERMS = RoundTerms(**ROUND, threshold=3, declaration=DECLARATION, common=COMMON)
PROOF = {"challenge": SCALAR, "response": SCALAR}
POINTS = {"identity": HEX, "deal": HEX, "possession": PROOF, "cipher": HEX, "mask": HEX, "commitment": HEX}


def keys_of(name: str, **changed: Any) -> PublicKeys:
    return PublicKeys(**{**ROUND, "client": name, **POINTS, "common": COMMON, **changed})


@pytest.mark.parametrize(("clients", "least"), [(3, 3), (4, 3), (5, 4), (6, 5), (7, 5), (9, 7), (1024, 683)])
def test_the_least_threshold_is_three_and_more_than_two_thirds(clients: int, least: int) -> None:
    assert least_threshold(clients) == least


def test_two_lists_with_enough_signatures_have_an_honest_signer_in_common() -> None:
    """However a third of the clients lie, together with the aggregator: an honest one signs one list a round."""
    for clients in range(3, 1025):
        liars, needed = (clients - 1) // 3, least_threshold(clients)
        assert 2 * needed - clients > liars or needed == clients


COMMITTED = CommittedShares(key_commitment=HEX, seed_commitment=HEX, key_response=SCALAR, seed_response=SCALAR)
SHARE = SealedShare(**COMMITTED.model_dump(), sealed=SEALED)
DELIVERED = DeliveredShare(**SHARE.model_dump(), challenge=SCALAR, path=HEX * 2, signature=SIGNATURE)
PROVEN = SharingProof(head=HEX, response=SCALAR)
SHARES = SealedShares(
    **ROUND,
    client="ada",
    transcript=HEX,
    shares={"bob": SHARE},
    own=COMMITTED,
    challenge=SCALAR,
    key_proof=PROVEN,
    seed_proof=PROVEN,
    signature=SIGNATURE,
)
COMPLAINT = Complaint(point=HEX, challenge=SCALAR, response=SCALAR)
EVIDENCE = ExpulsionEvidence(dealer="ada", holder="bob", share=DELIVERED, complaint=COMPLAINT)
EXAMPLES = (
    COMMON,
    TERMS,
    keys_of("ada"),
    Roster(terms=TERMS, members=(keys_of("ada"), keys_of("bob"))),
    SHARES,
    Delivery(**ROUND, shares={"bob": DELIVERED}),
    ShareCheck(**ROUND, client="bob", transcript=HEX, complaints={"ada": COMPLAINT}),
    Sharers(**ROUND, sharers=("bob", "cyd"), evidence=(EVIDENCE,)),
    MaskedHeader(**ROUND, client="ada", digest=HEX, scalars={"rho": 0.5}),
    UnmaskRequest(**ROUND, survivors=("ada",), dropped=("bob",)),
    Consent(**ROUND, client="ada", transcript=HEX, survivors=("ada",), dropped=("bob",), signature=SIGNATURE),
    Consents(**ROUND, signatures={"ada": SIGNATURE}),
    UnmaskAnswer(**ROUND, client="ada", seeds={"ada": SCALAR}, keys={"bob": SCALAR}),
)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_a_message_survives_json_and_takes_no_further_field(message: Any) -> None:
    assert type(message).model_validate_json(message.model_dump_json()) == message
    with pytest.raises(ValidationError, match="extra_forbidden"):
        type(message).model_validate({**message.model_dump(), "more": 1})
    with pytest.raises(ValidationError, match="frozen"):
        setattr(message, next(iter(type(message).model_fields)), "run-2")


REFUSED: tuple[tuple[type, dict[str, Any]], ...] = (
    (PublicKeys, {"cipher": "AB" * 32}),
    (PublicKeys, {"mask": "ab" * 31}),
    (PublicKeys, {"commitment": "ab" * 33}),
    (PublicKeys, {"client": "../ada"}),
    (PublicKeys, {"version": 3}),
    (PublicKeys, {"round": 0}),
    (PublicKeys, {"signature": "ab" * 63}),
    (SealedShares, {"shares": {"bob": {**SHARE.model_dump(), "sealed": "ab" * 91}}}),
    (SealedShares, {"shares": {f"c{n}": SHARE for n in range(1025)}}),
    (SealedShares, {"shares": {}}),
    (Delivery, {"shares": {"bob": {**DELIVERED.model_dump(), "path": HEX * 11}}}),
    (Delivery, {"shares": {"bob": {**DELIVERED.model_dump(), "path": HEX[1:]}}}),
    (SealedShares, {"own": {**COMMITTED.model_dump(), "seed_commitment": "ab" * 31}}),
    (SealedShares, {"seed_proof": {"head": HEX, "response": f"{ORDER:064x}"}}),
    (ShareCheck, {"complaints": {"ada": {**COMPLAINT.model_dump(), "challenge": f"{ORDER:064x}"}}}),
    (Sharers, {"evidence": (EVIDENCE,) * 1025}),
    (MaskedHeader, {"scalars": {"rho": float("nan")}}),
    (MaskedHeader, {"scalars": {f"s{n}": 0.0 for n in range(21)}}),
    (UnmaskRequest, {"survivors": ("bob", "ada")}),
    (UnmaskRequest, {"survivors": ("ada", "ada")}),
    (UnmaskRequest, {"survivors": tuple(f"c{n:04d}" for n in range(1025))}),
    (Consents, {"signatures": {f"c{n}": SIGNATURE for n in range(1025)}}),
    (UnmaskAnswer, {"seeds": {"ada": f"{ORDER:064x}"}}),
    (RoundTerms, {"threshold": 2}),
    (RoundTerms, {"threshold": 1025}),
    (Roster, {"members": (keys_of("bob"), keys_of("ada"))}),
    (Roster, {"members": (keys_of("ada"), keys_of("ada"))}),
    (Roster, {"members": (keys_of("ada", round=4),)}),
)


@pytest.mark.parametrize(("kind", "changed"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_malformed_or_too_large_is_refused(kind: type, changed: dict[str, Any]) -> None:
    good = next(message for message in EXAMPLES if type(message) is kind)
    with pytest.raises(ValidationError):
        kind.model_validate({**good.model_dump(), **changed})  # type: ignore[attr-defined]


def test_the_largest_scalar_is_one() -> None:
    assert TypeAdapter(Scalar).validate_python(f"{ORDER - 1:064x}")


def test_a_message_of_another_round_or_run_is_refused() -> None:
    for other in (keys_of("ada", round=4), keys_of("ada", run="run-2")):
        with pytest.raises(ProtocolError, match=r"expected round 3 of run-1, got round"):
            messages.require_round(TERMS, other)
    messages.require_round(TERMS, keys_of("ada"))


def test_of_the_declared_scalars_all_but_rho_are_hidden() -> None:
    assert (hidden_scalars(DECLARATION), visible_scalars(DECLARATION)) == (("margin",), {"rho"})
    without = DECLARATION.model_copy(update={"scalars": ()})
    assert (hidden_scalars(without), visible_scalars(without)) == ((), frozenset())


def test_the_transcript_changes_with_every_key_with_the_terms_and_with_what_anybody_was_told() -> None:
    one = Roster(terms=TERMS, members=(keys_of("ada"), keys_of("bob")))
    otherwise = COMMON.model_copy(update={"method": "cd" * 32})
    others = (
        Roster(terms=TERMS, members=(keys_of("ada"), keys_of("bob", mask="cd" * 32))),
        Roster(terms=TERMS, members=(keys_of("ada"), keys_of("bob", common=otherwise))),
        Roster(terms=TERMS, members=(keys_of("ada"), keys_of("bob", identity="cd" * 32))),
        Roster(terms=TERMS, members=(keys_of("ada"),)),
        Roster(terms=TERMS.model_copy(update={"threshold": 4}), members=one.members),
        Roster(terms=TERMS.model_copy(update={"common": otherwise}), members=one.members),
    )
    assert len({roster.context.transcript for roster in (one, *others)}) == 7
    assert one.context == one.model_copy().context
