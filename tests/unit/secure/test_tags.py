"""Tags between two members save signatures, and decide nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shared.errors import PrivacyError, ProtocolError
from shared.protocol.secure import client, graph, server
from shared.protocol.secure.group import multiply_base
from shared.protocol.secure.tags import PairKeys, _secret_scalar
from shared.protocol.secure.verification import verify_message
from shared.protocol.signing.keys import new_key, raw_hex
from tests.support.rehearsal import Rehearsal, many_contents, terms_for

COUNT = 64


def begin(*, tags: bool = True) -> Rehearsal:
    contents = many_contents(COUNT)
    terms = terms_for(contents["silo-000"], COUNT, graph=graph.announce_bounds(COUNT))
    return Rehearsal(contents, terms=terms, tags=tags)


# --- keys of pairs


def test_the_scalar_of_an_identity_is_that_of_its_public_key() -> None:
    """RFC 8032, 7.1, test 1, and a new key."""
    for key in (new_key(), new_key()):
        assert multiply_base(_secret_scalar(key)).hex() == raw_hex(key.public_key())


def test_a_tag_is_its_sender_s_for_one_receiver_and_one_content() -> None:
    ada, bob, cyd = new_key(), new_key(), new_key()
    names = [raw_hex(key.public_key()) for key in (ada, bob, cyd)]
    tag = PairKeys(ada).make_tag(names[1], b"a roster")
    assert PairKeys(bob).is_tag_of(names[0], b"a roster", tag)
    assert not PairKeys(bob).is_tag_of(names[0], b"a rosteR", tag)
    assert not PairKeys(bob).is_tag_of(names[2], b"a roster", tag)  # cyd's
    assert not PairKeys(cyd).is_tag_of(names[0], b"a roster", tag)  # for cyd
    assert not PairKeys(ada).is_tag_of(names[1], b"a roster", tag)  # sent back to where it came from
    assert not PairKeys(bob).is_tag_of(names[0], b"a roster", None)


def test_an_identity_that_is_no_point_of_the_group_has_no_tags() -> None:
    pairs = PairKeys(new_key())
    for identity in ("00" * 32, "01" + "00" * 31, "ff" * 32):
        assert pairs.make_tag(identity, b"") is None
        assert not pairs.is_tag_of(identity, b"", "00" * 16)


# --- rounds


@pytest.fixture(scope="module")
def played() -> Rehearsal:
    made = begin()
    names = tuple(made.contents)
    made.until_masked(names)
    made.send_consents(names[:62])  # two drop out once their vectors are in the sum
    made.close()
    return made


def count_signatures(patch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    for name in ("require_signature", "require_peers"):
        before = getattr(client, name)

        def counting(*given: Any, name: str = name, before: Any = before) -> None:
            seen.append(name)
            before(*given)

        patch.setattr(client, name, counting)
    return seen


def answer(made: Rehearsal, name: str, **changed: Any) -> Any:
    told = server.make_consents(made.round, name).model_copy(update=changed)
    return client.answer_unmask_request(made.ready[name], told, made.pairs[name])


def test_with_tags_nobody_verifies_a_consent_but_of_those_who_have_gone(
    played: Rehearsal, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = count_signatures(monkeypatch)
    answer(played, "silo-000")
    held = {"silo-062", "silo-063"} & set(played.ready["silo-000"].shares)
    assert seen == ["require_peers"] * len(held)


@pytest.mark.parametrize("lie", ["none", "another's", "of an earlier round"])
def test_false_tags_of_consents_cost_signatures_and_change_nothing(
    played: Rehearsal, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    """By an aggregator, or by silos that lie about their tags: it cannot be told who, and need not be."""
    true = server.make_consents(played.round, "silo-000").tags
    names = sorted(true)
    mixed = {name: true[names[number - 1]] for number, name in enumerate(names)}
    old = {name: made_earlier(played, name) for name in names}
    told: Mapping[str, str] = {"none": {}, "another's": mixed, "of an earlier round": old}[lie]
    expected = answer(played, "silo-000")
    seen = count_signatures(monkeypatch)
    assert answer(played, "silo-000", tags=told) == expected
    assert seen.count("require_signature") >= played.round.terms.threshold


def made_earlier(made: Rehearsal, name: str) -> str:
    """A genuine tag of the same lists, in the round before."""
    roster, consent = server.make_roster(made.round), made.round.consents[name]
    earlier = roster.model_copy(update={"terms": roster.terms.model_copy(update={"round": 2})})
    tags = client._make_tags(earlier, name, ["silo-000"], "lists", made.pairs[name], client._lists_digest(consent))
    return tags["silo-000"]


def test_tags_for_which_nobody_has_signed_are_no_consents(played: Rehearsal) -> None:
    true = server.make_consents(played.round, "silo-000")
    few = dict(list(true.signatures.items())[:40])
    with pytest.raises(PrivacyError, match="at least 43 survivors to have signed"):
        answer(played, "silo-000", signatures=few)
    with pytest.raises(PrivacyError, match="it has seen other lists, or none"):
        answer(played, "silo-000", tags={}, signatures={**true.signatures, "silo-001": true.signatures["silo-002"]})


def test_who_sent_a_vector_and_no_consent_needs_its_signature_under_the_sharers(played: Rehearsal) -> None:
    name = next(one for one in sorted(played.round.consents) if "silo-063" in played.ready[one].shares)
    true = server.make_consents(played.round, name)
    assert set(true.peers) <= {"silo-062", "silo-063"} and answer(played, name).seeds["silo-063"]
    with pytest.raises(PrivacyError, match="it has masked with others, or with nobody"):
        answer(played, name, peers={})


def test_a_tag_for_lists_that_another_was_shown_does_not_count(played: Rehearsal) -> None:
    """An aggregator that splits views: half is asked about other survivors, and its consents shown to the rest."""
    names = tuple(played.contents)
    other = server.UnmaskRequest(run="run-1", round=3, survivors=names[1:], dropped=names[:1])
    split = {
        name: client.sign_consent(
            played.ready[name].model_copy(update={"consent": None}), other, played.identities[name], played.pairs[name]
        )[1]
        for name in names[20:]
    }
    true = server.make_consents(played.round, "silo-001")
    tags = {**true.tags, **{name: one.tags["silo-001"] for name, one in split.items()}}
    signatures = {**true.signatures, **{name: one.signature for name, one in split.items()}}
    with pytest.raises(PrivacyError, match="it has seen other lists, or none"):
        answer(played, "silo-001", tags=tags, signatures=signatures)


def test_rosters_shown_apart_are_noticed_before_anything_is_masked() -> None:
    """Each half sees false keys of a silo of the other one, which neither of the two has drawn."""
    made = begin()
    names = tuple(made.contents)
    made.until_keys(names)
    true = server.make_roster(made.round)
    stranger = made.begin("silo-063").message  # its own later keys: well signed, and in no roster that it has seen
    told = true.model_copy(update={"members": (*true.members[:-1], stranger)})
    one = next(
        name
        for name in names
        if "silo-063"
        not in graph.find_holders(
            told, name, graph.derive_draw(int(made.begun[name].secrets.deal, 16), told.terms, name)
        )
    )
    made.sharing[one] = made.share(one, told)
    assert made.sharing[one].message.transcript != true.context.transcript
    with pytest.raises(ProtocolError, match=r"about this round's roster|neighbours that|sealed shares for"):
        verify_message(made.round, made.sharing[one].message)


@pytest.mark.parametrize("phase", ["checks", "consents"])
def test_tags_for_strangers_are_refused_by_the_aggregator(phase: str) -> None:
    """They could carry anything to somebody who is not of the round."""
    made = begin()
    names = tuple(made.contents)
    if phase == "checks":
        made.until_shares(names)
        message: Any = made.check("silo-000").message
    else:
        made.until_masked(names)
        request = server.make_unmask_request(made.round)
        message = client.sign_consent(
            made.ready["silo-000"], request, made.identities["silo-000"], made.pairs["silo-000"]
        )[1]
    assert set(message.tags) == set(names) - {"silo-000"}
    with pytest.raises(ProtocolError, match="tags for members of the round alone"):
        verify_message(made.round, message.model_copy(update={"tags": {"mallory": "00" * 16}}))


def test_a_round_of_silos_without_tags_ends_alike() -> None:
    made, bare = begin(), begin(tags=False)
    for one in (made, bare):
        one.play(after_checks=("silo-005",), after_masked=("silo-006",))
    assert not any(check.tags for check in bare.round.checks.values())
    assert made.mean().scalars == bare.mean().scalars


def test_on_the_full_graph_no_message_has_tags() -> None:
    contents = many_contents(5)
    made = Rehearsal(contents, terms=terms_for(contents["silo-000"], 5))
    made.play()
    said = [*made.round.checks.values(), *made.round.consents.values(), server.make_consents(made.round, "silo-000")]
    assert not [one for one in said if "tags" in one.model_dump_json()]


def test_what_tags_are_of_names_purpose_roster_and_content() -> None:
    contents = many_contents(3)
    made = [Rehearsal(contents, terms=terms_for(contents["silo-000"], 3)).until_keys(tuple(contents)) for _ in range(2)]
    rosters = [server.make_roster(one.round) for one in made]
    found = {
        client._tagged_digest(roster, purpose, content)
        for roster in rosters
        for purpose in ("roster", "lists")
        for content in (b"", b"other lists")
    }
    assert len(found) == 8
