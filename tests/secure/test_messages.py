"""Messages are small, closed and of one round."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from shared.errors import ProtocolError
from shared.schemas import Declaration
from shared.secure import messages
from shared.secure.messages import (
    Delivery,
    MaskedHeader,
    PublicKeys,
    Roster,
    SealedShares,
    Share,
    Terms,
    UnmaskAnswer,
    UnmaskRequest,
    least_threshold,
)
from shared.secure.shamir import PRIME

ROUND: dict[str, Any] = {"run": "run-1", "round": 3}
HEX = "ab" * 32
DECLARATION = Declaration(strategy="lpsfed", tensors=(), scalars=("margin", "rho"))
TERMS = Terms(**ROUND, threshold=3, declaration=DECLARATION, hidden=("margin",))


def keys_of(name: str, **changed: Any) -> PublicKeys:
    return PublicKeys(**{**ROUND, "client": name, "cipher": HEX, "mask": HEX, "commitment": HEX, **changed})


@pytest.mark.parametrize(("clients", "least"), [(3, 3), (4, 3), (5, 4), (6, 5), (7, 5), (9, 7), (1024, 683)])
def test_the_least_threshold_is_three_and_more_than_two_thirds(clients: int, least: int) -> None:
    assert least_threshold(clients) == least


def uncovers(clients: int, threshold: int) -> bool:
    """Can an aggregator that tells each honest client another list of survivors collect all that one is hidden by?

    Each gives shares of at most clients - threshold mask keys. Needed are `threshold` shares of the mask key of each of
    the at least threshold - 1 others that the victim has masks with, or else both of the victim's own secrets.
    """
    given = clients * (clients - threshold)
    return given >= threshold * (threshold - 1) or 2 * threshold <= clients


def test_with_the_least_threshold_lying_about_survivors_uncovers_nobody() -> None:
    assert not any(uncovers(clients, least_threshold(clients)) for clients in range(3, 1025))
    assert uncovers(5, 3) and uncovers(6, 4)


EXAMPLES = (
    TERMS,
    keys_of("ada"),
    Roster(terms=TERMS, members=(keys_of("ada"), keys_of("bob"))),
    SealedShares(**ROUND, client="ada", sealed={"bob": "ab" * 94}),
    Delivery(**ROUND, sharers=("ada", "bob"), sealed={"bob": "ab" * 94}),
    MaskedHeader(**ROUND, client="ada", digest=HEX, scalars={"rho": 0.5}),
    UnmaskRequest(**ROUND, survivors=("ada",), dropped=("bob",)),
    UnmaskAnswer(**ROUND, client="ada", seeds={"ada": "00" * 33}, keys={"bob": "00" * 33}),
)


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda m: type(m).__name__)
def test_a_message_survives_json_and_takes_no_further_field(message: Any) -> None:
    assert type(message).model_validate_json(message.model_dump_json()) == message
    with pytest.raises(ValidationError, match="extra_forbidden"):
        type(message).model_validate({**message.model_dump(), "more": 1})
    with pytest.raises(ValidationError, match="frozen"):
        message.run = "run-2"


REFUSED: tuple[tuple[type, dict[str, Any]], ...] = (
    (PublicKeys, {"cipher": "AB" * 32}),
    (PublicKeys, {"mask": "ab" * 31}),
    (PublicKeys, {"commitment": "ab" * 33}),
    (PublicKeys, {"client": "../ada"}),
    (PublicKeys, {"version": 2}),
    (PublicKeys, {"round": 0}),
    (SealedShares, {"sealed": {"bob": "ab" * 93}}),
    (SealedShares, {"sealed": {f"c{n}": "ab" * 94 for n in range(1025)}}),
    (MaskedHeader, {"scalars": {"rho": float("nan")}}),
    (MaskedHeader, {"scalars": {f"s{n}": 0.0 for n in range(21)}}),
    (UnmaskRequest, {"survivors": ("bob", "ada")}),
    (UnmaskRequest, {"survivors": ("ada", "ada")}),
    (UnmaskRequest, {"survivors": tuple(f"c{n:04d}" for n in range(1025))}),
    (UnmaskAnswer, {"seeds": {"ada": f"{PRIME:066x}"}}),
    (Terms, {"threshold": 2}),
    (Terms, {"threshold": 1025}),
    (Terms, {"hidden": ("beta",)}),
    (Terms, {"hidden": ("rho", "margin")}),
    (Roster, {"members": (keys_of("bob"), keys_of("ada"))}),
    (Roster, {"members": (keys_of("ada"), keys_of("ada"))}),
    (Roster, {"members": (keys_of("ada", round=4),)}),
)


@pytest.mark.parametrize(("kind", "changed"), REFUSED, ids=lambda value: getattr(value, "__name__", ""))
def test_what_is_malformed_or_too_large_is_refused(kind: type, changed: dict[str, Any]) -> None:
    good = next(message for message in EXAMPLES if type(message) is kind)
    with pytest.raises(ValidationError):
        kind.model_validate({**good.model_dump(), **changed})  # type: ignore[attr-defined]


def test_the_largest_element_of_the_field_is_a_share() -> None:
    assert TypeAdapter(Share).validate_python(f"{PRIME - 1:066x}")


def test_a_message_of_another_round_or_run_is_refused() -> None:
    for other in (keys_of("ada", round=4), keys_of("ada", run="run-2")):
        with pytest.raises(ProtocolError, match=r"expected round 3 of run-1, got round"):
            messages.require_round(TERMS, other)
    messages.require_round(TERMS, keys_of("ada"))


def test_scalars_that_are_not_hidden_are_visible() -> None:
    assert TERMS.visible == {"rho"}


def test_the_transcript_changes_with_every_key_and_with_the_terms() -> None:
    one = Roster(terms=TERMS, members=(keys_of("ada"), keys_of("bob")))
    others = (
        Roster(terms=TERMS, members=(keys_of("ada"), keys_of("bob", mask="cd" * 32))),
        Roster(terms=TERMS, members=(keys_of("ada"),)),
        Roster(terms=TERMS.model_copy(update={"threshold": 4}), members=one.members),
    )
    assert len({roster.context.transcript for roster in (one, *others)}) == 4
    assert one.context == one.model_copy().context
