"""A dealer that seals something else than its shares is named and put out, and nobody who did not is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shared.errors import PrivacyError, ProtocolError, UnavailableError
from shared.method.parameters import Parameters
from shared.protocol.secure import client, group, proofs, server
from shared.protocol.secure.messages import SealedShares
from shared.protocol.secure.proofs import sign_message, sign_shares
from shared.protocol.secure.verification import verify_message

ALL = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus")
HONEST = tuple(name for name in ALL if name != "bob")


def seal_rubbish(made: Any, dealer: str, *holders: str) -> SealedShares:
    """What it sends where it wants to put these holders out of the round: bytes that nobody can open."""
    made.sharing[dealer] = made.share(dealer)
    true = made.sharing[dealer].message
    rubbish = {name: true.shares[name].model_copy(update={"sealed": "00" * 92}) for name in holders}
    return sign_shares(true.model_copy(update={"shares": {**true.shares, **rubbish}}), made.identities[dealer])


@pytest.fixture
def spoilt(rehearsal: type, contents: Callable[..., dict[str, Parameters]]) -> Any:
    """Seven clients, threshold five. Bob has sealed rubbish for everybody; all have shared."""
    made = rehearsal(contents(7)).until_keys(ALL)
    for name in HONEST:
        made.send_shares([name])
    made.tell(seal_rubbish(made, "bob", *HONEST))
    made.close()
    return made


def test_a_round_goes_on_without_a_dealer_of_rubbish_and_says_who_it_was(spoilt: Any) -> None:
    """Before, whoever could not open what bob had sealed left the round in silence, and all of them did."""
    spoilt.send_checks(HONEST)
    assert spoilt.round.expelled == {"bob"} and spoilt.round.missing == ()
    spoilt.close()
    assert server.make_sharers(spoilt.round).sharers == HONEST
    spoilt.send_masked(HONEST)
    spoilt.close()
    spoilt.send_consents(HONEST)
    spoilt.close()
    spoilt.send_answers(HONEST)
    expected = np.mean([spoilt.contents[name].arrays["pooling.w"].astype(np.float64) for name in HONEST], axis=0)
    np.testing.assert_allclose(spoilt.mean().arrays["pooling.w"], expected, atol=1e-6)
    assert spoilt.ready["ada"].proven == ("bob",)


def test_one_holder_s_complaint_is_enough(rehearsal: type, contents: Callable[..., Any]) -> None:
    made = rehearsal(contents(7)).until_keys(ALL)
    made.send_shares(HONEST)
    made.tell(seal_rubbish(made, "bob", "cyd"))
    made.close()
    made.send_checks(ALL)
    made.close()
    assert server.make_sharers(made.round).sharers == HONEST


def test_shares_that_open_but_are_not_the_committed_ones_are_proven_too(
    rehearsal: type, contents: Callable[..., Any]
) -> None:
    """Bob seals a well-formed pair of shares of something else."""
    made = rehearsal(contents(7)).until_keys(ALL)
    made.send_shares(HONEST)
    first, made.sharing["bob"] = made.share("bob").message, made.share("bob")
    other = made.sharing["bob"].message.shares["ada"].sealed  # of another splitting
    mixed = first.shares["ada"].model_copy(update={"sealed": other})
    changed = first.model_copy(update={"shares": {**first.shares, "ada": mixed}})
    made.tell(sign_shares(changed, made.identities["bob"]))
    made.close()
    made.send_checks(("ada",))
    assert made.round.expelled == {"bob"}


def test_a_complaint_about_shares_that_are_in_order_is_refused(spoilt: Any) -> None:
    """A liar cannot put cyd out: what she has sealed for it opens, whoever opens it."""
    true = spoilt.check("ada").message
    roster, cipher = server.make_roster(spoilt.round), int(spoilt.sharing["ada"].secrets.cipher, 16)
    lie = proofs.make_complaint(roster.context, roster.keys["cyd"], "ada", cipher)
    forged = true.model_copy(update={"complaints": {**true.complaints, "cyd": lie}})
    with pytest.raises(ProtocolError, match="'cyd' has not committed to, they are in order"):
        verify_message(spoilt.round, sign_message(forged, spoilt.identities["ada"]))
    spoilt.tell(true)
    assert spoilt.round.expelled == {"bob"}


@pytest.mark.parametrize("part", ["point", "challenge", "response"])
def test_a_complaint_with_another_point_or_proof_is_refused(spoilt: Any, part: str) -> None:
    """With a point of its own choice a liar would open anything to rubbish."""
    true = spoilt.check("ada").message
    other = group.multiply_base(7).hex() if part == "point" else f"{7:064x}"
    lie = true.complaints["bob"].model_copy(update={part: other})
    forged = true.model_copy(update={"complaints": {"cyd": lie}})
    with pytest.raises(ProtocolError, match="proof does not hold"):
        verify_message(spoilt.round, sign_message(forged, spoilt.identities["ada"]))


def test_a_complaint_is_of_one_holder_about_one_dealer(spoilt: Any) -> None:
    """Ada's complaint about bob is no complaint of cyd's, nor one about dan."""
    true = spoilt.check("ada").message
    as_cyd = sign_message(true.model_copy(update={"client": "cyd"}), spoilt.identities["cyd"])
    about_dan = sign_message(
        true.model_copy(update={"complaints": {"dan": true.complaints["bob"]}}), spoilt.identities["ada"]
    )
    for forged in (as_cyd, about_dan):
        with pytest.raises(ProtocolError, match="proof does not hold"):
            verify_message(spoilt.round, forged)


def test_nobody_complains_of_itself_or_of_a_stranger(spoilt: Any) -> None:
    complaint = spoilt.check("ada").message.complaints["bob"]
    for name in ("ada", "zoe"):
        message = spoilt.check("ada").message.model_copy(update={"complaints": {name: complaint}})
        with pytest.raises(ProtocolError, match="about other sharers"):
            server.accept_message(spoilt.round, message)


def test_with_too_many_put_out_the_round_cannot_close(rehearsal: type, contents: Callable[..., Any]) -> None:
    made = rehearsal(contents(7)).until_keys(ALL)
    made.send_shares(ALL[3:])
    for dealer in ALL[:3]:
        made.tell(seal_rubbish(made, dealer, "gus"))
    made.close()
    made.send_checks(("gus", *ALL[3:6]))
    with pytest.raises(UnavailableError, match="expected at least 5 clients, got 4"):
        server.close_phase(made.round)


# --- what the others are shown of it


@pytest.fixture
def settled(spoilt: Any) -> Any:
    spoilt.send_checks(HONEST)
    spoilt.close()
    return spoilt


def test_a_client_checks_the_evidence_by_itself(settled: Any) -> None:
    """Under a pretext the aggregator cannot put one out: the difference from an earlier sum would be its update."""
    true = server.make_sharers(settled.round)
    evidence = true.evidence[0]
    cyd = settled.round.shares["cyd"].deliver(evidence.holder)
    pretext = evidence.model_copy(update={"dealer": "cyd", "share": cyd})
    unsigned = evidence.model_copy(update={"share": evidence.share.model_copy(update={"signature": "00" * 64})})
    stranger = evidence.model_copy(update={"dealer": "zoe"})
    for lie in (pretext, unsigned, stranger):
        with pytest.raises(ProtocolError):
            shown = true.model_copy(update={"evidence": (lie,)})
            client.mask_update(settled.checked["ada"], shown, settled.contents["ada"], settled.identities["ada"])
    state, _ = client.mask_update(settled.checked["ada"], true, settled.contents["ada"], settled.identities["ada"])
    assert state.proven == ("bob",)


def test_one_that_is_left_out_without_evidence_is_not_proven_to_cheat(settled: Any) -> None:
    silent = settled.sharers(HONEST)
    content, key = settled.contents["ada"], settled.identities["ada"]
    assert client.mask_update(settled.checked["ada"], silent, content, key)[0].proven == ()


def test_who_is_put_out_cannot_be_among_the_sharers(settled: Any) -> None:
    both = settled.sharers(ALL)
    with pytest.raises(PrivacyError, match="whose shares this client holds"):
        client.mask_update(settled.checked["ada"], both, settled.contents["ada"], settled.identities["ada"])
