"""A client refuses every step that would uncover it or another client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shared.errors import ConflictError, PrivacyError, ProtocolError, RoundClosedError
from shared.secure import client, keys, server, shamir
from shared.secure.messages import Delivery, Roster, UnmaskRequest
from shared.secure.state import Ready, read, written
from shared.strategy import Parameters

ALL = ("ada", "bob", "cyd", "dan", "eve")
ROUND: dict[str, Any] = {"run": "run-1", "round": 3}


@pytest.fixture
def made(rehearsal: type, contents: Callable[..., dict[str, Parameters]]) -> Any:
    """Five clients, threshold four; nobody has begun."""
    return rehearsal(contents(5))


def with_keys_of(roster: Roster, name: str, **changed: str) -> Roster:
    members = tuple(m.model_copy(update=changed) if m.client == name else m for m in roster.members)
    return Roster(terms=roster.terms, members=members)


def without(roster: Roster, *names: str) -> Roster:
    return Roster(terms=roster.terms, members=tuple(m for m in roster.members if m.client not in names))


# --- the roster


@pytest.mark.parametrize("kind", ["cipher", "mask", "commitment"])
def test_a_roster_with_another_key_under_one_s_own_name_is_refused(made: Any, kind: str) -> None:
    made.until_keys(ALL)
    forged = with_keys_of(server.roster(made.round), "ada", **{kind: keys.public(keys.new_private()).hex()})
    with pytest.raises(PrivacyError, match="own public keys"):
        client.share(made.begun["ada"], forged)


def test_a_roster_without_oneself_is_refused(made: Any) -> None:
    made.until_keys(ALL)
    with pytest.raises(PrivacyError, match="own public keys"):
        client.share(made.begun["ada"], without(server.roster(made.round), "ada"))


def test_a_roster_of_fewer_than_the_threshold_is_refused(made: Any) -> None:
    made.until_keys(ALL)
    with pytest.raises(PrivacyError, match="at least 4 clients in the roster, got 2"):
        client.share(made.begun["ada"], without(server.roster(made.round), "cyd", "dan", "eve"))


def test_a_threshold_of_two_thirds_or_less_is_refused(rehearsal: type, contents: Callable[..., Any]) -> None:
    made = rehearsal(contents(6), threshold=4)
    begun = {name: client.begin(made.round.terms, name) for name in made.contents}
    roster = Roster(terms=made.round.terms, members=tuple(message for _, message in begun.values()))
    with pytest.raises(PrivacyError, match="threshold of at least 5 of 6, got 4"):
        client.share(begun["ada"][0], roster)


def test_a_roster_with_other_terms_than_the_round_began_with_is_refused(made: Any) -> None:
    made.until_keys(ALL)
    roster = server.roster(made.round)
    laxer = roster.model_copy(update={"terms": roster.terms.model_copy(update={"hidden": ()})})
    with pytest.raises(ProtocolError, match="terms"):
        client.share(made.begun["ada"], laxer)


# --- the shares


def delivered(made: Any, **changed: Any) -> Delivery:
    return server.delivery(made.round, "ada").model_copy(update=changed)


@pytest.fixture
def shared(made: Any) -> Any:
    return made.until_shares(ALL)


def test_shares_go_sealed_to_everybody_else_and_differ(made: Any) -> None:
    made.until_keys(ALL)
    state, message = client.share(made.begun["ada"], server.roster(made.round))
    assert set(message.sealed) == set(ALL) - {"ada"} and len(set(message.sealed.values())) == 4
    assert state.message == message


@pytest.mark.parametrize("kind", ["seed", "key"])
def test_as_many_shares_as_the_threshold_restore_a_secret_and_one_fewer_do_not(shared: Any, kind: str) -> None:
    points, held = server.roster(shared.round).points, {name: shared.ready[name].shares["ada"] for name in ALL}
    secrets = shared.begun["ada"].secrets
    secret = int(secrets.seed if kind == "seed" else secrets.mask, 16)
    for count, enough in ((4, True), (3, False)):
        weights = shamir.weights([points[name] for name in ALL[-count:]])
        shares = {points[name]: int(getattr(held[name], kind), 16) for name in ALL[-count:]}
        value = sum(shares[x] * weight for x, weight in weights.items()) % shamir.PRIME
        assert (value == secret) is enough


@pytest.mark.parametrize("place", [0, 24, 100, 187])
def test_a_share_that_was_tampered_with_is_refused(shared: Any, place: int) -> None:
    sealed = dict(server.delivery(shared.round, "ada").sealed)
    other = "0" if sealed["bob"][place] != "0" else "1"
    sealed["bob"] = sealed["bob"][:place] + other + sealed["bob"][place + 1 :]
    with pytest.raises(ProtocolError, match="as its sender made it"):
        client.take(shared.sharing["ada"], delivered(shared, sealed=sealed))


def test_a_share_under_another_sender_s_name_is_refused(shared: Any) -> None:
    sealed = dict(server.delivery(shared.round, "ada").sealed)
    sealed["bob"], sealed["cyd"] = sealed["cyd"], sealed["bob"]
    with pytest.raises(ProtocolError, match="as its sender made it"):
        client.take(shared.sharing["ada"], delivered(shared, sealed=sealed))


def test_a_share_for_another_recipient_is_refused(shared: Any) -> None:
    sealed = {**server.delivery(shared.round, "ada").sealed, "bob": shared.round.shares["bob"].sealed["cyd"]}
    with pytest.raises(ProtocolError, match="as its sender made it"):
        client.take(shared.sharing["ada"], delivered(shared, sealed=sealed))


def test_what_was_sealed_but_is_no_pair_of_shares_is_refused(shared: Any) -> None:
    context, label = shared.sharing["bob"].roster.context, ("bob", "ada")
    peer = bytes.fromhex(shared.round.keys["ada"].cipher)
    key = keys.agree(bytes.fromhex(shared.begun["bob"].secrets.cipher), peer, context.label("seal", *label))
    junk = keys.seal(key, b"\xff" * 66, context.label("shares", *label)).hex()
    sealed = {**server.delivery(shared.round, "ada").sealed, "bob": junk}
    with pytest.raises(ProtocolError, match="two shares"):
        client.take(shared.sharing["ada"], delivered(shared, sealed=sealed))


def test_clients_who_were_shown_different_rosters_notice(made: Any) -> None:
    """The aggregator gives bob another mask key of cyd than it gives the others."""
    made.until_keys(ALL)
    true = server.roster(made.round)
    forged = with_keys_of(true, "cyd", mask=keys.public(keys.new_private()).hex())
    for name in ALL:
        state, message = client.share(made.begun[name], forged if name == "bob" else true)
        made.sharing[name], made.round = state, server.accept(made.round, message)
    made.close()
    with pytest.raises(ProtocolError, match="as its sender made it"):
        client.take(made.sharing["ada"], server.delivery(made.round, "ada"))


def test_too_few_sharers_strangers_and_a_list_without_oneself_are_refused(shared: Any) -> None:
    for sharers, words in (
        (("ada", "bob"), "at least 4 sharers, got 2"),
        (("ada", "bob", "cyd", "zoe"), "of the roster"),
        (("bob", "cyd", "dan"), "this client among them"),
    ):
        with pytest.raises(PrivacyError, match=words):
            client.take(shared.sharing["ada"], delivered(shared, sharers=sharers))


def test_sharers_and_sealed_shares_must_be_of_the_same_clients(shared: Any) -> None:
    sealed = dict(server.delivery(shared.round, "ada").sealed)
    del sealed["eve"]
    with pytest.raises(ProtocolError, match="shares of 4 others, got 3"):
        client.take(shared.sharing["ada"], delivered(shared, sealed=sealed))


def test_a_delivery_of_another_round_is_refused(shared: Any) -> None:
    with pytest.raises(ProtocolError, match="got round 4"):
        client.take(shared.sharing["ada"], delivered(shared, round=4))


# --- the masked vector


def test_the_same_update_is_masked_to_the_same_vector_again(shared: Any) -> None:
    first, again = shared.mask("ada"), shared.mask("ada")
    assert first.header == again.header
    np.testing.assert_array_equal(first.vector["pooling.w"], again.vector["pooling.w"])


def test_another_update_under_the_same_masks_is_refused(shared: Any) -> None:
    """The difference of the two vectors would be the difference of the two updates."""
    shared.mask("ada")
    with pytest.raises(ConflictError, match="masked before"):
        client.mask(shared.ready["ada"], shared.contents["bob"])


def test_only_open_scalars_lie_open(shared: Any) -> None:
    update = shared.mask("ada")
    assert dict(update.header.scalars) == {"rho": shared.contents["ada"].scalars["rho"]}


def test_a_client_without_rho_takes_part(shared: Any) -> None:
    content = Parameters(shared.contents["ada"].arrays, {"margin": 0.5})
    assert dict(client.mask(shared.ready["ada"], content)[1].header.scalars) == {}


def test_a_tensor_in_another_order_of_memory_is_masked_too(shared: Any) -> None:
    content = shared.contents["ada"]
    turned = {name: np.asarray(value, order="F") for name, value in content.arrays.items()}
    masked = client.mask(shared.ready["ada"], Parameters(turned, content.scalars))[1]
    np.testing.assert_array_equal(masked.vector["predictive.w"], shared.mask("ada").vector["predictive.w"])


# --- the unmasking


def asked(survivors: tuple[str, ...], dropped: tuple[str, ...] = (), **changed: Any) -> UnmaskRequest:
    return UnmaskRequest(**{**ROUND, "survivors": survivors, "dropped": dropped, **changed})


def refused(state: Ready, request: UnmaskRequest, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        client.unmask(state, request)


@pytest.fixture
def masked(shared: Any) -> Any:
    for name in ALL:
        shared.mask(name)
    return shared


def test_each_client_s_share_is_given_of_one_kind(masked: Any) -> None:
    state, answer = client.unmask(masked.ready["ada"], asked(ALL[:4], ("eve",)))
    assert set(answer.seeds) == set(ALL[:4]) and set(answer.keys) == {"eve"}
    assert answer.seeds["bob"] == state.shares["bob"].seed and answer.keys["eve"] == state.shares["eve"].key


def test_a_request_for_both_kinds_of_shares_of_one_client_is_refused(masked: Any) -> None:
    refused(masked.ready["ada"], asked(ALL, ("eve",)), PrivacyError, "both kinds of 1")


def test_a_second_request_with_another_list_is_refused_and_the_same_one_answered_again(masked: Any) -> None:
    """Else the aggregator would have both kinds of eve's shares by asking twice."""
    first = asked(ALL[:4], ("eve",))
    state, answer = client.unmask(masked.ready["ada"], first)
    refused(state, asked(ALL), PrivacyError, "answered before")
    restarted = read(written(state))
    assert isinstance(restarted, Ready)
    refused(restarted, asked(ALL), PrivacyError, "answered before")
    assert client.unmask(restarted, first) == (state, answer)


@pytest.mark.parametrize(
    ("survivors", "dropped", "words"),
    [
        (("ada", "bob", "cyd"), ("dan", "eve"), "at least 4 survivors, got 3"),
        ((*ALL, "zoe"), (), "all 5 sharers and nobody else"),
        (ALL[:4], (), "all 5 sharers and nobody else"),
        (ALL[:4], ("zoe",), "all 5 sharers and nobody else"),
    ],
)
def test_too_few_survivors_or_other_names_than_the_sharers_are_refused(
    masked: Any, survivors: tuple[str, ...], dropped: tuple[str, ...], words: str
) -> None:
    refused(masked.ready["ada"], asked(survivors, dropped), PrivacyError, words)


def test_nothing_is_given_before_one_s_own_vector_is_made_or_if_it_is_not_in_the_sum(shared: Any) -> None:
    refused(shared.ready["ada"], asked(ALL), RoundClosedError, "once this client's masked vector is in")
    shared.mask("ada")
    refused(shared.ready["ada"], asked(ALL[1:], ("ada",)), RoundClosedError, "once this client's masked vector is in")


def test_a_request_about_another_round_is_refused(masked: Any) -> None:
    refused(masked.ready["ada"], asked(ALL, round=4), ProtocolError, "got round 4")


def test_one_half_asked_for_one_kind_and_the_other_for_the_other_is_not_enough_for_either(masked: Any) -> None:
    """A lying aggregator wants both secrets of eve: each honest client gives it only one, and neither reaches four."""
    lists = {name: asked(ALL) if name in ("ada", "bob") else asked(ALL[:4], ("eve",)) for name in ALL[:4]}
    answers = [client.unmask(masked.ready[name], lists[name])[1] for name in ALL[:4]]
    threshold = masked.round.terms.threshold
    assert sum("eve" in answer.seeds for answer in answers) < threshold
    assert sum("eve" in answer.keys for answer in answers) < threshold
