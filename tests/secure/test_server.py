"""The aggregator takes each phase's messages once, goes on with those who came, and loses nothing by a refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shared.errors import ConflictError, NotFoundError, ProtocolError, RoundClosedError, UnavailableError
from shared.secure import client, recovery, server
from shared.secure.server import SecureRound
from shared.secure.shamir import PRIME
from shared.strategy import Parameters

ALL = ("ada", "bob", "cyd", "dan", "eve")


@pytest.fixture
def made(rehearsal: type, contents: Callable[..., dict[str, Parameters]]) -> Any:
    """Five clients, threshold four."""
    return rehearsal(contents(5))


@pytest.fixture
def asked(made: Any) -> Any:
    """Ada to dan have sent their vectors, eve has not; nobody has answered yet."""
    made.until_shares(ALL)
    made.send_masked(ALL[:4])
    made.close()
    return made


def test_each_phase_goes_on_with_those_who_took_part_in_the_one_before(made: Any) -> None:
    made.until_keys(ALL)
    assert server.roster(made.round).names == ALL and made.round.missing == ALL
    made.send_shares(("ada", "cyd", "dan", "eve"))
    assert made.round.missing == ("bob",)
    made.close()
    assert server.delivery(made.round, "ada").sharers == ("ada", "cyd", "dan", "eve")
    made.take(made.sharing)
    made.send_masked(made.ready)
    made.close()
    request = server.request(made.round)
    assert (request.survivors, request.dropped) == (("ada", "cyd", "dan", "eve"), ())


def test_who_shared_and_sent_no_vector_has_dropped_out(asked: Any) -> None:
    assert asked.round.survivors == ALL[:4] and asked.round.dropped == ("eve",)
    assert server.request(asked.round).dropped == ("eve",)


def test_rho_of_each_survivor_lies_open_and_the_margin_does_not(asked: Any) -> None:
    expected = {name: {"rho": asked.contents[name].scalars["rho"]} for name in ALL[:4]}
    assert asked.round.open_scalars == expected


def test_the_same_message_again_changes_nothing_even_in_a_later_phase(made: Any) -> None:
    state, message = client.begin(made.round.terms, "ada")
    once = server.accept(made.round, message)
    assert server.accept(once, message) is once
    made.begun["ada"], made.round = state, once
    made.send_keys(ALL[1:])
    made.close()
    assert server.accept(made.round, message) is made.round


def test_another_message_in_the_same_place_is_a_conflict(made: Any) -> None:
    made.send_keys(ALL)
    with pytest.raises(ConflictError, match="'ada'"):
        server.accept(made.round, client.begin(made.round.terms, "ada")[1])


def test_a_message_of_another_phase_is_refused(made: Any) -> None:
    made.until_keys(ALL[:4])
    with pytest.raises(RoundClosedError, match="expected a message of phase shares, got one of keys"):
        server.accept(made.round, client.begin(made.round.terms, "eve")[1])


def test_a_message_of_somebody_who_was_not_in_the_phase_before_is_refused(made: Any) -> None:
    made.until_shares(ALL)
    update = made.mask("eve")
    stranger = update._replace(header=update.header.model_copy(update={"client": "zoe"}))
    with pytest.raises(NotFoundError, match="'zoe'"):
        server.accept_masked(made.round, stranger)


def test_a_message_of_another_round_is_refused(made: Any) -> None:
    message = client.begin(made.round.terms, "ada")[1].model_copy(update={"round": 4})
    with pytest.raises(ProtocolError, match="got round 4"):
        server.accept(made.round, message)


@pytest.mark.parametrize("kind", ["cipher", "mask"])
def test_a_public_key_with_which_nobody_can_agree_is_refused(made: Any, kind: str) -> None:
    message = client.begin(made.round.terms, "ada")[1].model_copy(update={kind: "00" * 32})
    with pytest.raises(ProtocolError, match="nobody can agree"):
        server.accept(made.round, message)


def test_more_clients_than_the_threshold_protects_are_refused(made: Any) -> None:
    made.send_keys(ALL)
    with pytest.raises(RoundClosedError, match="at most 5 clients with a threshold of 4"):
        server.accept(made.round, client.begin(made.round.terms, "fay")[1])


def test_shares_for_others_than_the_roster_are_refused(made: Any) -> None:
    made.until_keys(ALL)
    message = client.share(made.begun["ada"], server.roster(made.round))[1]
    fewer = message.model_copy(update={"sealed": {"bob": message.sealed["bob"]}})
    with pytest.raises(ProtocolError, match="sealed shares for 4 clients"):
        server.accept(made.round, fewer)


def test_a_vector_that_is_not_what_its_header_says_is_refused(made: Any) -> None:
    made.until_shares(ALL)
    update = made.mask("ada")
    tampered = {**update.vector, "pooling.w": update.vector["pooling.w"] + np.uint64(1)}
    with pytest.raises(ProtocolError, match="digest"):
        server.accept_masked(made.round, update._replace(vector=tampered))
    assert server.accept_masked(made.round, update).survivors == ("ada",)


def test_a_hidden_scalar_in_the_open_is_refused(made: Any) -> None:
    made.until_shares(ALL)
    update = made.mask("ada")
    telling = update.header.model_copy(update={"scalars": {"margin": 0.5}})
    with pytest.raises(ProtocolError, match="open scalars"):
        server.accept_masked(made.round, update._replace(header=telling))


def test_an_answer_about_others_than_were_asked_for_is_refused(asked: Any) -> None:
    answer = asked.answer("ada")
    for changed in ({"keys": {}}, {"seeds": {**answer.seeds, "eve": answer.keys["eve"]}}):
        with pytest.raises(ProtocolError, match=r"for [14] clients of the round"):
            server.accept(asked.round, answer.model_copy(update=changed))


def test_a_phase_with_too_few_cannot_close_and_goes_on_collecting(made: Any) -> None:
    made.send_keys(ALL[:2])
    with pytest.raises(UnavailableError, match=r"round 3, phase keys: expected at least 4 clients, got 2$"):
        server.close(made.round)
    made.send_keys(ALL[2:])
    made.close()
    made.send_shares(("ada", "bob"))
    with pytest.raises(UnavailableError, match=r"phase shares: .* got 2, missing cyd, dan, eve$"):
        server.close(made.round)
    made.send_shares(("cyd", "dan", "eve"))
    made.close()
    made.take(ALL)
    made.send_masked(("ada", "eve"))
    with pytest.raises(UnavailableError, match=r"phase masked: .* got 2, missing bob, cyd, dan$"):
        server.close(made.round)
    made.send_masked(("bob", "cyd"))
    made.close()
    made.send_answers(("ada", "bob"))
    with pytest.raises(UnavailableError, match=r"phase answers: .* got 2, missing cyd, eve$"):
        made.mean()
    made.send_answers(("cyd", "eve"))
    assert set(made.mean().arrays) == {"pooling.w", "predictive.w"}


def test_the_last_phase_cannot_close(asked: Any) -> None:
    asked.send_answers(ALL[:4])
    with pytest.raises(RoundClosedError, match="the last"):
        server.close(asked.round)


def test_nothing_is_told_of_a_phase_that_is_still_open(made: Any) -> None:
    with pytest.raises(RoundClosedError, match="phase keys is not closed"):
        server.roster(made.round)
    made.until_keys(ALL)
    with pytest.raises(RoundClosedError, match="phase shares is not closed"):
        server.delivery(made.round, "ada")
    made.send_shares(ALL)
    made.close()
    with pytest.raises(RoundClosedError, match="phase masked is not closed"):
        server.request(made.round)
    with pytest.raises(RoundClosedError, match="phase masked is not closed"):
        recovery.mean(made.round, {})


def test_who_has_not_shared_gets_no_shares(made: Any) -> None:
    made.until_keys(ALL)
    made.send_shares(ALL[:4])
    made.close()
    with pytest.raises(NotFoundError, match="'eve'"):
        server.delivery(made.round, "eve")


def test_a_round_survives_a_restart_in_any_phase(asked: Any) -> None:
    asked.send_answers(ALL[:4])
    restarted = SecureRound.model_validate_json(asked.round.model_dump_json())
    assert restarted == asked.round
    expected, got = asked.mean(), recovery.mean(restarted, asked.vectors)
    np.testing.assert_array_equal(got.arrays["pooling.w"], expected.arrays["pooling.w"])


def test_the_stored_messages_taken_in_again_give_the_same_round(asked: Any) -> None:
    asked.send_answers(ALL[:4])
    again = SecureRound(terms=asked.round.terms)
    for name in reversed(ALL):
        again = server.accept(again, asked.round.keys[name])
    again = server.close(again)
    for name in reversed(ALL):
        again = server.accept(again, asked.round.shares[name])
    assert server.close(again) == asked.round.model_copy(update={"phase": "masked", "masked": {}, "answers": {}})


@pytest.mark.parametrize(("kind", "of", "words"), [("seeds", "bob", "committed to"), ("keys", "eve", "published")])
def test_shares_that_restore_something_else_are_refused(asked: Any, kind: str, of: str, words: str) -> None:
    asked.send_answers(("bob", "cyd", "dan"))
    answer = asked.answer("ada")
    held = getattr(answer, kind)
    wrong = {**held, of: f"{(int(held[of], 16) + 1) % PRIME:066x}"}
    lying = server.accept(asked.round, answer.model_copy(update={kind: wrong}))
    with pytest.raises(ProtocolError, match=rf"{words}|fit none"):
        recovery.mean(lying, asked.vectors)
    asked.round = server.accept(asked.round, answer)
    assert asked.mean().scalars


def test_vectors_of_others_than_the_survivors_are_refused(asked: Any) -> None:
    asked.send_answers(ALL[:4])
    with pytest.raises(ProtocolError, match="of 4 survivors, got 3"):
        recovery.mean(asked.round, {name: asked.vectors[name] for name in ALL[:3]})
