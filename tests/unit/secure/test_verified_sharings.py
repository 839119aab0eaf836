"""Whoever deals shares that restore nothing, or something else, is refused or named before anything is masked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shared.errors import ProtocolError
from shared.method.parameters import Parameters
from shared.protocol.secure import client, proofs, server, shamir
from shared.protocol.secure.group import ORDER, encode_scalar
from shared.protocol.secure.state import SharePair
from shared.protocol.secure.verification import verify_message

ALL = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus")
HONEST = tuple(name for name in ALL if name != "bob")


@pytest.fixture
def made(rehearsal: type, contents: Callable[..., dict[str, Parameters]]) -> Any:
    """Seven clients, threshold five; bob deals as a test says."""
    return rehearsal(contents(7)).until_keys(ALL)


def add_one(text: str) -> str:
    return encode_scalar((int(text, 16) + 1) % ORDER)


def deal_wrongly_to(made: Any, monkeypatch: pytest.MonkeyPatch, holder: str) -> Any:
    """What bob sends where one holder's shares lie beside his polynomials, and he commits to them as they are."""
    commit, split = proofs.commit_share, client.split_secrets

    def commit_wrongly(context: Any, dealer: str, to: str, kind: Any, share: int, blind: int) -> str:
        return commit(context, dealer, to, kind, (share + 1) % ORDER if to == holder else share, blind)

    def split_wrongly(*given: Any) -> Any:
        found = split(*given)
        pair = found.pieces[holder].pair
        wrong = SharePair(key=add_one(pair.key), seed=add_one(pair.seed))
        return found._replace(pieces={**found.pieces, holder: found.pieces[holder]._replace(pair=wrong)})

    with monkeypatch.context() as patch:
        patch.setattr(proofs, "commit_share", commit_wrongly)
        patch.setattr(client, "split_secrets", split_wrongly)
        return made.share("bob")


def test_a_holder_names_the_dealer_of_a_share_beside_the_polynomial(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The aggregator cannot see it: the responses are of one polynomial, and the commitment is to that share."""
    made.send_shares(HONEST)
    made.sharing["bob"] = deal_wrongly_to(made, monkeypatch, "ada")
    made.tell(made.sharing["bob"].message)
    made.close()
    made.send_checks(HONEST)
    assert made.round.expelled == {"bob"} and set(made.round.checks["ada"].complaints) == {"bob"}
    assert not any(check.complaints for name, check in made.round.checks.items() if name != "ada")


def test_an_accomplice_of_the_dealer_cannot_answer_with_that_share(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cyd holds her tongue: her share would restore another secret of bob, and the round would end without a name."""
    made.send_shares(HONEST)
    made.sharing["bob"] = deal_wrongly_to(made, monkeypatch, "cyd")
    made.tell(made.sharing["bob"].message)
    made.close()
    honest = proofs.open_share

    def open_anything(context: Any, dealer: str, holder: str, key: bytes, given: Any) -> SharePair:
        with monkeypatch.context() as patch:
            patch.setattr(proofs, "require_committed", lambda *_: None)
            return honest(context, dealer, holder, key, given)

    with monkeypatch.context() as patch:
        patch.setattr(proofs, "open_share", open_anything)
        made.send_checks(["cyd"])
    made.send_checks(["ada", "bob", "dan", "eve", "fay", "gus"])
    made.close()
    made.send_masked(ALL)
    made.close()
    made.send_consents(ALL)
    made.close()
    with pytest.raises(ProtocolError, match="the share that 'bob' has committed to"):
        made.send_answers(["cyd"])
    made.send_answers([name for name in HONEST if name != "cyd"])
    assert made.mean().arrays["pooling.w"].shape


@pytest.mark.parametrize("kind", ["mask", "seed"])
def test_shares_of_another_secret_than_the_published_one_are_refused(made: Any, kind: str) -> None:
    """In all else they are in order: nobody but the aggregator could notice before they are needed."""
    begun = made.begun["bob"]
    secrets = begun.secrets.model_copy(update={kind: add_one(getattr(begun.secrets, kind))})
    made.begun["bob"] = begun.model_copy(update={"secrets": secrets})
    with pytest.raises(ProtocolError, match="commitments to shares of one secret, the published one"):
        verify_message(made.round, made.share("bob").message)


def test_shares_of_which_more_than_the_threshold_would_be_needed_are_refused(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = shamir.split_secret
    with monkeypatch.context() as patch:
        patch.setattr(shamir, "split_secret", lambda secret, count, threshold: split(secret, count, threshold + 1))
        sent = made.share("bob").message
    with pytest.raises(ProtocolError, match="any 5 of which restore it"):
        verify_message(made.round, sent)


def test_responses_to_a_challenge_of_the_dealer_s_own_choice_are_refused(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one that he knows beforehand he could commit to anything that it makes look like one polynomial."""
    with monkeypatch.context() as patch:
        patch.setattr(proofs, "challenge_sharing", lambda *_: 7)
        sent = made.share("bob").message
    with pytest.raises(ProtocolError, match="their own challenge"):
        verify_message(made.round, sent)


def test_the_challenge_follows_from_all_that_is_committed_to(made: Any) -> None:
    context = server.make_roster(made.round).context
    heads, pairs = ["0a" * 32, "0b" * 32], [("01" * 32, "02" * 32), ("03" * 32, "04" * 32)]
    other = "05" * 32
    cases: list[tuple[str, list[str], list[tuple[str, str]]]] = [
        ("bob", heads, pairs),
        ("ada", heads, pairs),
        ("bob", [other, heads[1]], pairs),
        ("bob", [heads[0], other], pairs),
        *(("bob", heads, [*pairs[:one], (other, pairs[one][1]), *pairs[one + 1 :]]) for one in range(2)),
        *(("bob", heads, [*pairs[:one], (pairs[one][0], other), *pairs[one + 1 :]]) for one in range(2)),
    ]
    assert len({proofs.challenge_sharing(context, *case) for case in cases}) == len(cases)


def test_the_same_secret_is_blinded_anew_in_each_sharing(made: Any) -> None:
    """Two responses to two challenges with one blinding polynomial would tell every share."""
    first, again = made.share("bob").message, made.share("bob").message
    assert first.challenge != again.challenge
    for kind in ("key", "seed"):
        assert getattr(first, f"{kind}_proof").head != getattr(again, f"{kind}_proof").head
        given = [getattr(one.committed_to(name), f"{kind}_response") for one in (first, again) for name in ALL]
        assert len(set(given)) == 2 * len(ALL)
