"""The aggregator takes each phase's messages once, goes on with those who came, and loses nothing by a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shared.errors import ConflictError, NotFoundError, ProtocolError, RoundClosedError, UnavailableError
from shared.method.parameters import Parameters
from shared.protocol.masked_wire import decode_masked, encode_masked
from shared.protocol.secure import client, group, server
from shared.protocol.secure.group import ORDER, encode_scalar
from shared.protocol.secure.proofs import sign_message, sign_shares
from shared.protocol.secure.server import SecureRound
from shared.protocol.secure.verification import verify_message
from shared.protocol.signing.keys import new_key

ALL = ("ada", "bob", "cyd", "dan", "eve")


@pytest.fixture
def made(rehearsal: type, contents: Callable[..., dict[str, Parameters]]) -> Any:
    """Five clients, threshold four."""
    return rehearsal(contents(5))


@pytest.fixture
def asked(made: Any) -> Any:
    """Ada to dan have sent their vectors and consented, eve has dropped out; nobody has answered yet."""
    made.until_checks(ALL)
    made.send_masked(ALL[:4])
    made.close()
    made.send_consents(ALL[:4])
    made.close()
    return made


def test_each_phase_goes_on_with_those_who_took_part_in_the_one_before(made: Any) -> None:
    made.until_keys(ALL)
    assert server.make_roster(made.round).names == ALL and made.round.missing == ALL
    made.send_shares(("ada", "cyd", "dan", "eve"))
    assert made.round.missing == ("bob",)
    made.close()
    assert set(server.make_delivery(made.round, "ada").shares) == {"cyd", "dan", "eve"}
    made.send_checks(made.sharing)
    made.close()
    assert server.make_sharers(made.round).sharers == ("ada", "cyd", "dan", "eve")
    made.send_masked(made.checked)
    made.close()
    request = server.make_unmask_request(made.round)
    assert (request.survivors, request.dropped) == (("ada", "cyd", "dan", "eve"), ())
    made.send_consents(made.ready)
    made.close()
    assert set(server.make_consents(made.round).signatures) == {"ada", "cyd", "dan", "eve"}


def test_who_has_not_checked_its_shares_masks_with_nobody(made: Any) -> None:
    made.until_shares(ALL)
    made.send_checks(ALL[:4])
    made.close()
    assert server.make_sharers(made.round).sharers == ALL[:4]
    made.send_masked(ALL[:4])
    made.close()
    assert made.round.dropped == ()


def test_who_checked_and_sent_no_vector_has_dropped_out(asked: Any) -> None:
    assert asked.round.survivors == ALL[:4] and asked.round.dropped == ("eve",)
    assert server.make_unmask_request(asked.round).dropped == ("eve",)


def test_rho_of_each_survivor_lies_open_and_the_margin_does_not(asked: Any) -> None:
    expected = {name: {"rho": asked.contents[name].scalars["rho"]} for name in ALL[:4]}
    assert asked.round.open_scalars == expected


def test_the_same_message_again_changes_nothing_even_in_a_later_phase(made: Any) -> None:
    made.send_keys(ALL)
    message = made.begun["ada"].message
    assert server.accept_message(made.round, message) is made.round
    made.close()
    assert server.accept_message(made.round, message) is made.round


def test_another_message_in_the_same_place_is_a_conflict(made: Any) -> None:
    made.send_keys(ALL)
    with pytest.raises(ConflictError, match="'ada'"):
        server.accept_message(made.round, made.begin("ada").message)


def test_a_message_of_another_phase_is_refused(made: Any) -> None:
    made.until_keys(ALL[:4])
    with pytest.raises(RoundClosedError, match="expected a message of phase shares, got one of keys"):
        server.accept_message(made.round, made.begin("eve").message)


def test_a_message_of_somebody_who_was_not_in_the_phase_before_is_refused(made: Any) -> None:
    made.until_checks(ALL)
    update = made.mask("eve")
    stranger = update.header.model_copy(update={"client": "zoe"})
    with pytest.raises(NotFoundError, match="'zoe'"):
        server.accept_header(made.round, stranger)


def test_a_message_of_another_round_is_refused(made: Any) -> None:
    message = made.begin("ada").message.model_copy(update={"round": 4})
    with pytest.raises(ProtocolError, match="got round 4"):
        server.accept_message(made.round, message)


def test_more_clients_than_the_threshold_protects_are_refused(made: Any) -> None:
    made.send_keys(ALL)
    fay = client.begin_secure_round(made.round.terms, "fay", new_key()).message
    with pytest.raises(RoundClosedError, match="at most 5 clients with a threshold of 4"):
        server.accept_message(made.round, fay)


def test_shares_for_others_than_the_roster_are_refused(made: Any) -> None:
    made.until_keys(ALL)
    message = made.share("ada").message
    fewer = message.model_copy(update={"shares": {"bob": message.shares["bob"]}})
    with pytest.raises(ProtocolError, match="sealed shares for 4 clients"):
        server.accept_message(made.round, fewer)


def test_a_vector_that_is_not_what_its_header_says_is_refused(made: Any) -> None:
    made.until_checks(ALL)
    update = made.mask("ada")
    tampered = {**update.vector, "pooling.w": update.vector["pooling.w"] + np.uint64(1)}
    came = encode_masked(update._replace(vector=tampered))
    with pytest.raises(ProtocolError, match="digest"):
        decode_masked(made.round.terms.declaration, came)
    assert server.accept_header(made.round, update.header).survivors == ("ada",)


def test_a_hidden_scalar_in_the_open_is_refused(made: Any) -> None:
    made.until_checks(ALL)
    update = made.mask("ada")
    telling = update.header.model_copy(update={"scalars": {"margin": 0.5}})
    with pytest.raises(ProtocolError, match="open scalars"):
        server.accept_header(made.round, telling)


def test_consent_to_other_lists_than_were_asked_for_is_refused(made: Any) -> None:
    made.until_masked(ALL)
    request = server.make_unmask_request(made.round).model_copy(update={"survivors": ALL[:4], "dropped": ("eve",)})
    message = client.sign_consent(made.ready["ada"], request, made.identities["ada"])[1]
    with pytest.raises(ProtocolError, match="consent to the lists that were asked for"):
        made.tell(message)


def test_an_answer_about_others_than_were_asked_for_is_refused(asked: Any) -> None:
    answer = asked.answer("ada")
    for changed in ({"keys": {}}, {"seeds": {**answer.seeds, "eve": answer.keys["eve"]}}):
        with pytest.raises(ProtocolError, match=r"for [14] clients of the round"):
            server.accept_message(asked.round, answer.model_copy(update=changed))


def test_a_phase_with_too_few_cannot_close_and_goes_on_collecting(made: Any) -> None:
    sends = (made.send_keys, made.send_shares, made.send_checks, made.send_masked, made.send_consents)
    for phase, send in zip(server.PHASES, sends, strict=False):
        send(ALL[:2])
        with pytest.raises(UnavailableError, match=rf"round 3, phase {phase}: expected at least 4 clients, got 2"):
            server.close_phase(made.round)
        send(ALL[2:])
        made.close()
    made.send_answers(("ada", "bob"))
    with pytest.raises(UnavailableError, match=r"phase answers: .* got 2, missing cyd, dan, eve$"):
        made.mean()
    made.send_answers(("cyd", "eve"))
    assert set(made.mean().arrays) == {"pooling.w", "predictive.w"}


def test_the_last_phase_cannot_close(asked: Any) -> None:
    asked.send_answers(ALL[:4])
    with pytest.raises(RoundClosedError, match="the last"):
        server.close_phase(asked.round)


def test_nothing_is_told_of_a_phase_that_is_still_open(made: Any) -> None:
    tellings = {
        "keys": server.make_roster,
        "shares": lambda state: server.make_delivery(state, "ada"),
        "checks": server.make_sharers,
        "masked": lambda state: server.make_unmask_request(state),
        "consents": server.make_consents,
    }
    made.send_keys(ALL)
    for phase, tell in tellings.items():
        with pytest.raises(RoundClosedError, match=f"phase {phase} is not closed"):
            tell(made.round)
    with pytest.raises(RoundClosedError, match="phase consents is not closed"):
        server.unmask_mean(made.round, {})


def test_who_has_not_shared_gets_no_shares(made: Any) -> None:
    made.until_keys(ALL)
    made.send_shares(ALL[:4])
    made.close()
    with pytest.raises(NotFoundError, match="'eve'"):
        server.make_delivery(made.round, "eve")


def test_a_round_survives_a_restart_in_any_phase(asked: Any) -> None:
    asked.send_answers(ALL[:4])
    restarted = SecureRound.model_validate_json(asked.round.model_dump_json())
    assert restarted == asked.round
    expected, got = asked.mean(), server.unmask_mean(restarted, asked.vectors)
    np.testing.assert_array_equal(got.arrays["pooling.w"], expected.arrays["pooling.w"])


def test_the_stored_messages_taken_in_again_give_the_same_round(asked: Any) -> None:
    asked.send_answers(ALL[:4])
    again = SecureRound(terms=asked.round.terms)
    for phase in ("keys", "shares", "checks"):
        for name in reversed(ALL):
            again = server.accept_message(again, asked.round.collected(phase)[name])
        again = server.close_phase(again)
    later = {"phase": "masked", "masked": {}, "consents": {}, "answers": {}}
    assert again == asked.round.model_copy(update=later)


def test_vectors_of_others_than_the_survivors_are_refused(asked: Any) -> None:
    asked.send_answers(ALL[:4])
    with pytest.raises(ProtocolError, match="of 4 survivors, got 3"):
        server.unmask_mean(asked.round, {name: asked.vectors[name] for name in ALL[:3]})


# --- what is verified


def refused(made: Any, message: Any, words: str, error: type[Exception] = ProtocolError) -> None:
    with pytest.raises(error, match=words):
        verify_message(made.round, message)


@pytest.mark.parametrize("kind", ["deal", "cipher", "mask", "commitment"])
def test_a_public_key_with_which_nobody_can_agree_is_refused(made: Any, kind: str) -> None:
    refused(made, made.begin("ada").message.model_copy(update={kind: "00" * 32}), "point of the group")


def test_keys_that_their_sender_has_not_signed_are_refused(made: Any) -> None:
    message = made.begin("ada").message
    refused(made, message.model_copy(update={"noised": True}), "'ada' has signed")


def test_keys_of_a_client_that_was_told_something_else_are_a_conflict_that_says_what(made: Any) -> None:
    """One that is behind, or was misled, must not make all others refuse the roster."""
    common = made.round.terms.common.model_copy(update={"start": "ff" * 32, "rounds": 9})
    terms = made.round.terms.model_copy(update={"common": common})
    message = client.begin_secure_round(terms, "ada", made.identities["ada"]).message
    refused(made, message, "got another start, rounds", ConflictError)


def test_shares_about_another_roster_are_refused(made: Any) -> None:
    made.until_keys(ALL)
    message = made.share("ada").message.model_copy(update={"transcript": "ff" * 32})
    refused(made, message, "about this round's roster")


@pytest.mark.parametrize("whose", ["ada", "dan"])
@pytest.mark.parametrize("kind", ["key_commitment", "seed_commitment", "key_response", "seed_response"])
def test_commitments_to_shares_that_restore_nothing_are_refused(made: Any, kind: str, whose: str) -> None:
    """A dealer whose shares are not of one polynomial could end the round when its secret is needed."""
    made.until_keys(ALL)
    message, changed = made.share("ada").message, {kind: encode_scalar(group.draw_scalar())}
    if whose == "ada":  # her own share, which she keeps
        forged = message.model_copy(update={"own": message.own.model_copy(update=changed)})
    else:
        share = message.shares[whose].model_copy(update=changed)
        forged = message.model_copy(update={"shares": {**message.shares, whose: share}})
    refused(made, sign_shares(forged, made.identities["ada"]), "commitments to shares of one secret")


def test_shares_that_their_dealer_has_not_signed_are_refused(made: Any) -> None:
    """Or its holder would say that the aggregator has changed them."""
    made.until_keys(ALL)
    message = made.share("ada").message
    refused(made, message.model_copy(update={"signature": "00" * 64}), "shares that 'ada' has signed")
    for holder in ("bob", "dan"):
        other = message.shares[holder].model_copy(update={"sealed": "00" * 92})
        changed = message.model_copy(update={"shares": {**message.shares, holder: other}})
        refused(made, changed, "shares that 'ada' has signed")
    swapped = {**message.shares, "bob": message.shares["dan"], "dan": message.shares["bob"]}
    refused(made, message.model_copy(update={"shares": swapped}), "shares that 'ada' has signed")


def test_a_key_whose_secret_its_sender_does_not_know_is_refused(made: Any) -> None:
    """Ada's own key plus the base point: whoever opened what is sealed with one could open the other."""
    made.send_keys(["bob"])
    related = group.add(bytes.fromhex(made.begun["bob"].message.deal), group.multiply_base(1)).hex()
    forged = sign_message(made.begin("ada").message.model_copy(update={"deal": related}), made.identities["ada"])
    refused(made, forged, "knows the secret of its key")


@pytest.mark.parametrize(("kind", "of"), [("seeds", "bob"), ("keys", "eve")])
def test_a_wrong_share_is_refused_with_its_dealer_s_name_and_the_others_are_enough(
    rehearsal: type, contents: Callable[..., dict[str, Parameters]], kind: str, of: str
) -> None:
    """Seven clients, of whom eve drops out; ada lies about one share and is told so; the round ends without her."""
    made = rehearsal(contents(7))
    names = tuple(made.contents)
    made.until_checks(names)
    survivors = tuple(name for name in names if name != "eve")
    made.send_masked(survivors)
    made.close()
    made.send_consents(survivors)
    made.close()
    answer = made.answer("ada")
    held = getattr(answer, kind)
    wrong = {**held, of: f"{(int(held[of], 16) + 1) % ORDER:064x}"}
    refused(made, answer.model_copy(update={kind: wrong}), f"the share that '{of}' has committed to")
    made.send_answers(survivors[1:])
    expected = np.mean([made.contents[name].arrays["pooling.w"].astype(np.float64) for name in survivors], axis=0)
    np.testing.assert_allclose(made.mean().arrays["pooling.w"], expected, atol=1e-6)


def test_a_consent_that_its_sender_has_not_signed_is_refused(made: Any) -> None:
    made.until_masked(ALL)
    message = client.sign_consent(made.ready["ada"], server.make_unmask_request(made.round), made.identities["bob"])[1]
    refused(made, message, "'ada' has signed")


def test_what_would_not_be_accepted_is_not_verified(made: Any) -> None:
    """A repetition, or a message of another phase, costs nothing but its refusal."""
    made.send_keys(ALL)
    verify_message(made.round, made.begun["ada"].message.model_copy(update={"signature": "00" * 64}))
    made.close()
    verify_message(made.round, made.begun["ada"].message.model_copy(update={"deal": "00" * 32}))
