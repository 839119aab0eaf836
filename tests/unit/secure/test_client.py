"""A client refuses every step that would uncover it or another client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shared.errors import ConflictError, PrivacyError, ProtocolError, RoundClosedError
from shared.method.parameters import Parameters
from shared.protocol.secure import client, group, server, shamir
from shared.protocol.secure.messages import Consents, DeliveredShare, Delivery, Roster, UnmaskRequest
from shared.protocol.secure.proofs import sign_message
from shared.protocol.secure.state import ReadyState, read_state, write_state
from shared.protocol.secure.verification import verify_message
from shared.protocol.signing.keys import new_key
from tests.support.rehearsal import roster_of
from tests.support.signing import sign_alone

ALL = ("ada", "bob", "cyd", "dan", "eve")
ROUND: dict[str, Any] = {"run": "run-1", "round": 3}


@pytest.fixture
def made(rehearsal: type, contents: Callable[..., dict[str, Parameters]]) -> Any:
    """Five clients, threshold four; nobody has begun."""
    return rehearsal(contents(5))


@pytest.fixture
def listed(made: Any) -> Any:
    """Everybody's keys are in."""
    return made.until_keys(ALL)


@pytest.fixture
def shared(made: Any) -> Any:
    return made.until_shares(ALL)


@pytest.fixture
def checked(made: Any) -> Any:
    return made.until_checks(ALL)


def with_keys_of(roster: Roster, name: str, **changed: Any) -> Roster:
    members = tuple(m.model_copy(update=changed) if m.client == name else m for m in roster.members)
    return roster_of(roster.terms, members)


def without(roster: Roster, *names: str) -> Roster:
    return roster_of(roster.terms, (m for m in roster.members if m.client not in names))


def any_point() -> str:
    return group.multiply_base(group.draw_scalar()).hex()


# --- the roster


@pytest.mark.parametrize("kind", ["deal", "cipher", "mask", "commitment"])
def test_a_roster_with_another_key_under_one_s_own_name_is_refused(listed: Any, kind: str) -> None:
    forged = with_keys_of(server.make_roster(listed.round), "ada", **{kind: any_point()})
    with pytest.raises(PrivacyError, match="own public keys"):
        listed.share("ada", forged)


def test_a_roster_without_oneself_is_refused(listed: Any) -> None:
    with pytest.raises(PrivacyError, match="own public keys"):
        listed.share("ada", without(server.make_roster(listed.round), "ada"))


def test_a_roster_of_fewer_than_the_threshold_is_refused(listed: Any) -> None:
    with pytest.raises(PrivacyError, match="at least 4 clients in the roster, got 2"):
        listed.share("ada", without(server.make_roster(listed.round), "cyd", "dan", "eve"))


def test_a_threshold_of_two_thirds_or_less_is_refused(rehearsal: type, contents: Callable[..., Any]) -> None:
    made = rehearsal(contents(6), threshold=4)
    made.begun = {name: made.begin(name) for name in made.contents}
    roster = roster_of(made.round.terms, (state.message for state in made.begun.values()))
    with pytest.raises(PrivacyError, match="threshold of at least 5 of 6, got 4"):
        made.share("ada", roster)


def test_a_roster_with_other_terms_than_the_round_began_with_is_refused(listed: Any) -> None:
    roster = server.make_roster(listed.round)
    lower = roster.model_copy(update={"terms": roster.terms.model_copy(update={"threshold": 3})})
    with pytest.raises(PrivacyError, match=r"terms that round 3 of run-1 began with, got another threshold$"):
        listed.share("ada", lower)


@pytest.mark.parametrize("kind", ["deal", "cipher", "mask", "commitment", "common"])
def test_keys_of_a_peer_that_the_peer_has_not_signed_are_refused(listed: Any, kind: str) -> None:
    """The aggregator puts a key of its own in place of bob's."""
    common = listed.round.terms.common.model_copy(update={"seed": 8})
    forged = with_keys_of(
        server.make_roster(listed.round), "bob", **{kind: common if kind == "common" else any_point()}
    )
    words = "'bob' to have the same terms" if kind == "common" else "'bob' has signed"
    with pytest.raises(PrivacyError, match=words):
        listed.share("ada", forged)


def test_a_peer_by_another_identity_than_the_silo_knows_is_refused(listed: Any) -> None:
    """The aggregator plays bob: keys of its own, well signed by an identity of its own."""
    impostor = client.begin_secure_round(listed.round.terms, "bob", new_key()).message
    forged = with_keys_of(server.make_roster(listed.round), "bob", **impostor.model_dump(exclude={"common"}))
    with pytest.raises(PrivacyError, match="the key that this silo knows of 'bob'"):
        listed.share("ada", forged)


def test_a_client_that_nobody_knows_is_refused(listed: Any) -> None:
    """The aggregator invents clients until one is alone among inventions."""
    stranger = client.begin_secure_round(listed.round.terms, "eva", new_key()).message
    roster = without(server.make_roster(listed.round), "eve")
    with pytest.raises(PrivacyError, match="this silo knows as members, got 'eva'"):
        listed.share("ada", roster_of(roster.terms, (*roster.members, stranger)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("aggregator", "ff" * 32),
        ("start", "ff" * 32),
        ("method", "ff" * 32),
        ("seed", 8),
        ("rounds", 6),
        ("anchor", "ff" * 32),
        ("changing_members", True),
    ],
)
def test_a_peer_that_was_told_something_else_is_named_with_what_differs(made: Any, field: str, value: Any) -> None:
    """The aggregator tells three of four clients settings under which they do not learn."""
    made.send_keys(ALL)
    other = made.round.terms.common.model_copy(update={field: value})
    terms = made.round.terms.model_copy(update={"common": other})
    misled = client.begin_secure_round(terms, "bob", made.identities["bob"]).message
    roster = with_keys_of(server.make_roster(server.close_phase(made.round)), "bob", **dict(misled))
    with pytest.raises(
        PrivacyError, match=rf"expected 'bob' to have the same terms as this client, got another {field}$"
    ):
        made.share("ada", roster)


def test_a_roster_that_tells_something_else_is_refused_with_what_differs(listed: Any) -> None:
    roster = server.make_roster(listed.round)
    common = roster.terms.common.model_copy(update={"method": "ff" * 32, "seed": 8})
    with pytest.raises(PrivacyError, match="got another method, seed"):
        listed.share("ada", roster.model_copy(update={"terms": roster.terms.model_copy(update={"common": common})}))


@pytest.mark.parametrize("part", ["challenge", "response"])
def test_a_key_whose_secret_its_sender_does_not_know_is_refused(listed: Any, part: str) -> None:
    """A dealer whose key was made from another's could have that one's shares opened by a complaint about itself."""
    bob = listed.begun["bob"].message
    proof = bob.possession.model_copy(update={part: "0b" * 32})
    forged = sign_message(bob.model_copy(update={"possession": proof}), listed.identities["bob"])
    told = with_keys_of(server.make_roster(listed.round), "bob", **dict(forged))
    if told.graph is None:
        with pytest.raises(PrivacyError, match="knows the secret of its key"):
            listed.share("ada", told)
        return
    listed.sharing["ada"] = listed.share("ada", told)  # on a graph it is looked at before a complaint
    rubbish = listed.sharing["ada"].message.deliver("bob")
    signed = sign_alone(told.context, "bob", "ada", rubbish, listed.identities["bob"])
    with pytest.raises(PrivacyError, match="knows the secret of its key"):
        listed.check("ada", Delivery(run="run-1", round=3, shares={"bob": signed}))


# --- the shares


def delivered(made: Any, **changed: Any) -> Delivery:
    """What ada gets, with changes of what one dealer has sealed for her."""
    true = server.make_delivery(made.round, "ada")
    return true.model_copy(update={"shares": {**true.shares, **changed}})


def signed_anew(made: Any, dealer: str, share: DeliveredShare) -> DeliveredShare:
    """As the dealer itself would send it."""
    return sign_alone(server.make_roster(made.round).context, dealer, "ada", share, made.identities[dealer])


def complained_of(made: Any, delivery: Delivery) -> set[str]:
    return set(made.check("ada", delivery).message.complaints)


def test_shares_go_sealed_to_everybody_else_and_differ(listed: Any) -> None:
    message = listed.share("ada").message
    assert set(message.shares) == set(ALL) - {"ada"}
    assert len({share.sealed for share in message.shares.values()}) == 4


@pytest.mark.parametrize("kind", ["seed", "key"])
def test_as_many_shares_as_the_threshold_restore_a_secret_and_one_fewer_do_not(checked: Any, kind: str) -> None:
    points, held = server.make_roster(checked.round).points, {name: checked.checked[name].shares["ada"] for name in ALL}
    secrets = checked.begun["ada"].secrets
    secret = int(secrets.seed if kind == "seed" else secrets.mask, 16)
    for count, enough in ((4, True), (3, False)):
        chosen = ALL[-count:]
        shares = {points[name]: int(getattr(held[name], kind), 16) for name in chosen}
        restored = shamir.restore_secret(shares, shamir.lagrange_weights([points[name] for name in chosen]))
        assert (restored == secret) is enough


@pytest.mark.parametrize("place", [0, 24, 100, 183])
def test_a_share_that_its_dealer_has_signed_and_that_does_not_open_is_complained_of(shared: Any, place: int) -> None:
    true = server.make_delivery(shared.round, "ada").shares["bob"]
    other = "0" if true.sealed[place] != "0" else "1"
    sealed = true.sealed[:place] + other + true.sealed[place + 1 :]
    spoilt = signed_anew(shared, "bob", true.model_copy(update={"sealed": sealed}))
    assert complained_of(shared, delivered(shared, bob=spoilt)) == {"bob"}


@pytest.mark.parametrize("kind", ["key_commitment", "seed_commitment"])
def test_a_share_that_is_not_the_committed_one_is_complained_of(shared: Any, kind: str) -> None:
    true = server.make_delivery(shared.round, "ada").shares["bob"]
    spoilt = signed_anew(shared, "bob", true.model_copy(update={kind: any_point()}))
    assert complained_of(shared, delivered(shared, bob=spoilt)) == {"bob"}


def changed_on_the_way(made: Any) -> dict[str, dict[str, DeliveredShare]]:
    """What an aggregator could pass on in place of bob's share for ada."""
    true = server.make_delivery(made.round, "ada").shares
    for_cyd = made.round.shares["bob"].deliver("cyd")
    spoilt = true["bob"].model_copy(update={"sealed": "00" * 92})
    return {
        "another sealed, another path": {"bob": spoilt.model_copy(update={"path": for_cyd.path})},
        "another sealed, no path": {"bob": spoilt.model_copy(update={"path": ""})},
        "another's": {"bob": true["cyd"]},
        "for another": {"bob": for_cyd},
        "another sealed": {"bob": spoilt},
        "another commitment": {"bob": true["bob"].model_copy(update={"seed_commitment": any_point()})},
    }


@pytest.mark.parametrize(
    "how",
    [
        "another's",
        "for another",
        "another sealed",
        "another commitment",
        "another sealed, another path",
        "another sealed, no path",
    ],
)
def test_a_share_that_was_changed_on_the_way_is_refused_and_not_complained_of(shared: Any, how: str) -> None:
    """A complaint tells how to open what bob has sealed. The aggregator has the true shares: with complaints of all
    about bob it would have every share of both his secrets."""
    with pytest.raises(PrivacyError, match="a share that 'bob' has signed for 'ada'"):
        shared.check("ada", delivered(shared, **changed_on_the_way(shared)[how]))


def test_clients_who_were_shown_different_rosters_refuse_each_other_s_shares(made: Any) -> None:
    """The aggregator shows bob a roster without eve: his transcript is another one, and so all that he signs."""
    made.until_keys(ALL)
    true = server.make_roster(made.round)
    for name in ALL:
        made.sharing[name] = made.share(name, without(true, "eve") if name == "bob" else true)
    misled = made.sharing["bob"].message
    with pytest.raises(ProtocolError, match=r"sealed shares for 4 clients|draw of neighbours"):
        verify_message(made.round, misled)
    for name in (*ALL[:1], *ALL[2:]):
        made.tell(made.sharing[name].message)
    made.close()
    others = server.make_delivery(made.round, "ada").shares
    delivery = Delivery(**ROUND, shares={**others, "bob": misled.deliver("ada")})
    with pytest.raises(PrivacyError, match="a share that 'bob' has signed for 'ada'"):
        made.check("ada", delivery)


def test_too_few_sharers_and_strangers_are_refused(shared: Any) -> None:
    true = server.make_delivery(shared.round, "ada").shares
    few = Delivery(**ROUND, shares={"bob": true["bob"]})
    if server.make_roster(shared.round).graph is None:  # on a graph a client may get any number
        with pytest.raises(PrivacyError, match="at least 4 sharers, got 2"):
            shared.check("ada", few)
    with pytest.raises(PrivacyError, match="of the roster"):
        shared.check("ada", delivered(shared, zoe=true["bob"]))


def test_a_delivery_of_another_round_is_refused(shared: Any) -> None:
    other = server.make_delivery(shared.round, "ada").model_copy(update={"round": 4})
    with pytest.raises(ProtocolError, match="got round 4"):
        shared.check("ada", other)


# --- the masked vector


def test_the_same_update_is_masked_to_the_same_vector_again(checked: Any) -> None:
    first, again = checked.mask("ada"), checked.mask("ada")
    assert first.header == again.header
    np.testing.assert_array_equal(first.vector["pooling.w"], again.vector["pooling.w"])


def test_another_update_or_other_sharers_under_the_same_masks_are_refused(checked: Any) -> None:
    """The difference of the two vectors would be the difference of the two updates, or one mask."""
    checked.mask("ada")
    everybody = server.make_sharers(checked.round)
    with pytest.raises(ConflictError, match="masked before"):
        client.mask_update(checked.ready["ada"], everybody, checked.contents["bob"], checked.identities["ada"])
    fewer = everybody.model_copy(update={"sharers": ALL[:4]})
    with pytest.raises(ConflictError, match="masked before"):
        client.mask_update(checked.ready["ada"], fewer, checked.contents["ada"], checked.identities["ada"])


@pytest.mark.parametrize(
    ("names", "words"),
    [(ALL[:3], "at least 4 sharers, got 3"), (ALL[1:], "this client among them"), ((*ALL, "zoe"), "of the roster")],
)
def test_sharers_that_would_not_hide_this_client_are_refused(checked: Any, names: tuple[str, ...], words: str) -> None:
    with pytest.raises(PrivacyError, match=words):
        client.mask_update(
            checked.checked["ada"], checked.sharers(names), checked.contents["ada"], checked.identities["ada"]
        )


def test_nobody_masks_with_a_client_whose_shares_could_not_be_opened(shared: Any) -> None:
    """Nobody could take that mask away again, whatever the aggregator says."""
    true = server.make_delivery(shared.round, "ada").shares["bob"]
    spoilt = signed_anew(shared, "bob", true.model_copy(update={"seed_commitment": any_point()}))
    state = shared.check("ada", delivered(shared, bob=spoilt))
    with pytest.raises(PrivacyError, match="whose shares this client holds, got 1 others"):
        client.mask_update(state, shared.sharers(ALL), shared.contents["ada"], shared.identities["ada"])


def test_a_client_without_rho_takes_part(checked: Any) -> None:
    content = Parameters(checked.contents["ada"].arrays, {"margin": 0.5})
    everybody, key = server.make_sharers(checked.round), checked.identities["ada"]
    update = client.mask_update(checked.checked["ada"], everybody, content, key)[1]
    assert dict(update.header.scalars) == {}


def test_a_tensor_in_another_order_of_memory_is_masked_too(checked: Any) -> None:
    content, everybody = checked.contents["ada"], server.make_sharers(checked.round)
    turned = {name: np.asarray(value, order="F") for name, value in content.arrays.items()}
    key, content = checked.identities["ada"], Parameters(turned, content.scalars)
    masked = client.mask_update(checked.checked["ada"], everybody, content, key)[1]
    np.testing.assert_array_equal(masked.vector["predictive.w"], checked.mask("ada").vector["predictive.w"])


# --- the consent and the unmasking


def asked(survivors: tuple[str, ...], dropped: tuple[str, ...] = (), **changed: Any) -> UnmaskRequest:
    return UnmaskRequest(**{**ROUND, "survivors": survivors, "dropped": dropped, **changed})


@pytest.fixture
def masked(checked: Any) -> Any:
    for name in ALL:
        checked.mask(name)
    return checked


def refused(made: Any, request: UnmaskRequest, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        client.sign_consent(made.ready["ada"], request, made.identities["ada"])


def agree(made: Any, request: UnmaskRequest, *names: str) -> Consents:
    """These clients sign; the signatures as the aggregator passes them on."""
    signatures = {}
    for name in names:
        made.ready[name], message = client.sign_consent(made.ready[name], request, made.identities[name])
        signatures[name] = message.signature
    return Consents(**ROUND, signatures=signatures)


def test_each_client_s_share_is_given_of_one_kind(masked: Any) -> None:
    consents = agree(masked, asked(ALL[:4], ("eve",)), *ALL[:4])
    answer = client.answer_unmask_request(masked.ready["ada"], consents)
    shares = masked.ready["ada"].shares
    assert set(answer.seeds) == set(ALL[:4]) and set(answer.keys) == {"eve"}
    assert answer.seeds["bob"] == shares["bob"].seed and answer.keys["eve"] == shares["eve"].key


def test_a_request_for_both_kinds_of_shares_of_one_client_is_refused(masked: Any) -> None:
    refused(masked, asked(ALL, ("eve",)), PrivacyError, "both kinds of 1")


def test_a_second_pair_of_lists_is_refused_after_a_restart_too_and_the_same_one_signed_again(masked: Any) -> None:
    """Else the aggregator would have both kinds of eve's shares by asking twice."""
    first = asked(ALL[:4], ("eve",))
    agree(masked, first, "ada")
    refused(masked, asked(ALL), PrivacyError, "lists that this client has signed")
    before, restarted = masked.ready["ada"], read_state(write_state(masked.ready["ada"]))
    assert isinstance(restarted, ReadyState)
    masked.ready["ada"] = restarted
    refused(masked, asked(ALL), PrivacyError, "lists that this client has signed")
    agree(masked, first, "ada")
    assert masked.ready["ada"] == before


@pytest.mark.parametrize(
    ("survivors", "dropped", "words"),
    [
        (("ada", "bob", "cyd"), ("dan", "eve"), "at least 4 survivors, got 3"),
        ((*ALL, "zoe"), (), "all 5 sharers and no other client"),
        (ALL[:4], (), "all 5 sharers and no other client"),
        (ALL[:4], ("zoe",), "all 5 sharers and no other client"),
    ],
)
def test_too_few_survivors_or_other_names_than_the_sharers_are_refused(
    masked: Any, survivors: tuple[str, ...], dropped: tuple[str, ...], words: str
) -> None:
    refused(masked, asked(survivors, dropped), PrivacyError, words)


def test_nothing_is_signed_for_a_sum_that_one_s_own_vector_is_not_in(masked: Any) -> None:
    refused(masked, asked(ALL[1:], ("ada",)), RoundClosedError, "masked vector to be in the sum")


def test_a_request_about_another_round_is_refused(masked: Any) -> None:
    refused(masked, asked(ALL, round=4), ProtocolError, "got round 4")


def test_nothing_is_given_before_one_s_own_consent(masked: Any) -> None:
    consents = agree(masked, asked(ALL), *ALL[1:])
    with pytest.raises(PrivacyError, match="after this client's consent"):
        client.answer_unmask_request(masked.ready["ada"], consents)


def test_nothing_is_given_with_fewer_signatures_than_the_threshold(masked: Any) -> None:
    consents = agree(masked, asked(ALL), *ALL[:3])
    with pytest.raises(PrivacyError, match="at least 4 survivors to have signed the same lists, got 3"):
        client.answer_unmask_request(masked.ready["ada"], consents)


def test_a_signature_under_other_lists_is_not_taken(masked: Any) -> None:
    """The aggregator tells ada, bob and cyd of one list, dan and eve of another, and hopes for shares of both kinds."""
    agree(masked, asked(ALL[:4], ("eve",)), "ada", "bob", "cyd", "dan")
    others = agree(masked, asked(ALL), "eve")
    lists = {name: masked.ready[name].consent.signature for name in ("ada", "bob", "cyd")}
    with pytest.raises(PrivacyError, match="survivors alone"):
        client.answer_unmask_request(masked.ready["ada"], Consents(**ROUND, signatures={**lists, **others.signatures}))
    forged = {**lists, "dan": masked.ready["bob"].consent.signature}
    with pytest.raises(PrivacyError, match="'dan' has signed, got another signature: it has seen other lists"):
        client.answer_unmask_request(masked.ready["ada"], Consents(**ROUND, signatures=forged))


def test_a_consent_of_another_round_s_roster_is_not_taken(masked: Any) -> None:
    consents = agree(masked, asked(ALL), *ALL)
    old = masked.ready["dan"].consent.model_copy(update={"transcript": "ff" * 32})
    signature = sign_message(old, masked.identities["dan"]).signature
    with pytest.raises(PrivacyError, match="'dan' has signed"):
        client.answer_unmask_request(
            masked.ready["ada"], Consents(**ROUND, signatures={**consents.signatures, "dan": signature})
        )
