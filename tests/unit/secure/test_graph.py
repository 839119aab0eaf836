"""On a graph of 64 silos a round tells its sum alone, whatever the aggregator says to whom."""

from __future__ import annotations

import random
from fractions import Fraction
from math import comb, log2
from typing import Any

import numpy as np
import pytest

from shared.errors import PrivacyError, ProtocolError, UnavailableError
from shared.protocol.schemas import GraphBounds
from shared.protocol.secure import client, graph, server
from shared.protocol.secure.messages import Consents, Delivery, GraphPlan, Roster
from shared.protocol.secure.proofs import make_complaint, sign_message, sign_peers
from shared.protocol.secure.tags import PairKeys
from shared.protocol.secure.verification import verify_message
from tests.support.rehearsal import Rehearsal, many_contents, terms_for

COUNT = 64


def begin(count: int = COUNT) -> Rehearsal:
    contents = many_contents(count)
    return Rehearsal(contents, terms=terms_for(contents["silo-000"], count, graph=graph.announce_bounds(count)))


def bounds_of(colluders: int, dropouts: int) -> GraphBounds:
    return GraphBounds(colluders=colluders / COUNT, dropouts=dropouts / COUNT)


@pytest.fixture(scope="module")
def shared() -> Rehearsal:
    made = begin()
    return made.until_shares(tuple(made.contents))


# --- the bound


@pytest.mark.parametrize(
    ("members", "degree", "threshold", "masks"),
    [(64, 23, 21, 20), (128, 36, 31, 27), (256, 52, 42, 37), (512, 65, 51, 55), (1024, 75, 58, 86)],
)
def test_the_sizes_follow_from_the_bounds(members: int, degree: int, threshold: int, masks: int) -> None:
    """A third of the members collude, and a twentieth drops out, as the aggregator likes."""
    bounds = graph.announce_bounds(members)
    assert bounds is not None
    assert (bounds.count_colluders(members), bounds.count_dropouts(members)) == (members // 3, members // 20)
    plan = graph.plan_graph(members, bounds)
    assert plan == GraphPlan(degree=degree, threshold=threshold, masks=masks)
    assert graph.exposure_bits(members, bounds, plan) <= -40
    assert graph.failure_bits(members, members // 20, degree, threshold) <= -20
    assert graph.failure_bits(members, members // 20, degree, threshold + 1) > -20
    sparser = graph._largest_threshold(members, members // 20, degree - 1)
    assert graph._held_bits(members, bounds, degree - 1, sparser) > -40
    fewer = GraphPlan(degree=degree, threshold=threshold, masks=masks - 1)
    assert graph.exposure_bits(members, bounds, fewer) > -40


def test_fewer_than_64_have_no_graph_and_no_new_field_in_any_message() -> None:
    assert graph.announce_bounds(63) is None
    made = Rehearsal(many_contents(5), terms=terms_for(many_contents(1)["silo-000"], 5))
    made.play()
    said = [made.round.terms, *made.round.keys.values(), *made.round.shares.values(), *made.round.masked.values()]
    said += [server.make_roster(made.round), server.make_sharers(made.round)]
    said += [server.make_unmask_request(made.round), *made.ready.values()]
    words = ('"graph"', '"draw"', '"draws"', '"peers"', '"listed"', '"masks_with"')
    assert not [word for word in words for one in said if word in one.model_dump_json()]


def test_the_bound_on_colluding_neighbours_is_the_exact_tail() -> None:
    members, colluders, degree, threshold = 64, 21, 25, 22
    ways = sum(comb(colluders, n) * comb(63 - colluders, degree - n) for n in range(threshold, degree + 1))
    exact = log2((members - colluders) * ways / comb(63, degree)) if ways else -np.inf
    plan = GraphPlan(degree=degree, threshold=12, masks=degree)
    ways = sum(comb(colluders, n) * comb(63 - colluders, degree - n) for n in range(12, degree + 1))
    expected = log2((members - colluders) * ways / comb(63, degree))
    assert exact < -40 < expected
    assert graph.exposure_bits(members, bounds_of(21, 3), plan) == pytest.approx(expected)


@pytest.mark.parametrize(("masks", "dropouts"), [(2, 0), (2, 1), (3, 1)])
def test_graphs_drawn_at_random_are_cut_no_more_often_than_the_bound_says(masks: int, dropouts: int) -> None:
    """With so few neighbours that it happens: in 20 clients, one or none of whom the aggregator drops as it likes."""
    members, honest, tries, rng = 20, 14, 1500, random.Random(0)
    cut = sum(can_be_cut(draw_graph(rng, members, honest, masks), honest, dropouts) for _ in range(tries))
    bound = 2 ** graph._log2_sum(graph._split_bits(members, honest, dropouts, masks))
    assert 0 < cut / tries <= bound


@pytest.mark.parametrize(("masks", "dropouts"), [(1, 0), (2, 1), (4, 3), (6, 5), (19, 5), (19, 13)])
def test_a_client_is_as_often_left_alone_as_the_formula_says(masks: int, dropouts: int) -> None:
    members, honest, tries, rng = 20, 14, 4000, random.Random(2)
    alone = sum(len(draw_graph(rng, members, honest, masks)[0]) <= dropouts for _ in range(tries))
    exact = 2 ** graph._lone_bits(members, honest, dropouts, masks)
    assert exact == {(19, 5): 0.0, (19, 13): 1.0}.get((masks, dropouts), exact)
    assert alone / tries == pytest.approx(exact, abs=4 * (exact / tries) ** 0.5)


def test_a_client_alone_is_counted_exactly_by_hand() -> None:
    """Of 4 members the third and fourth collude or not, each draws one: the first is alone if neither edge is drawn."""
    assert 2 ** graph._lone_bits(4, 2, 0, 1) == pytest.approx((2 / 3) ** 2)
    assert 2 ** graph._lone_bits(4, 3, 0, 1) == pytest.approx((1 / 3) * (2 / 3) ** 2)
    assert graph._lone_bits(64, 43, 3, 20) == pytest.approx(log2(exact_lone(64, 43, 3, 20)))


def exact_lone(members: int, honest: int, dropouts: int, masks: int) -> Fraction:
    """The same sum in fractions."""
    others, chance = honest - 1, Fraction(masks, members - 1)
    found = Fraction(0)
    for own in range(min(dropouts, masks) + 1):
        ways = comb(others, own) * comb(members - 1 - others, masks - own)
        for drawers in range(dropouts - own + 1):
            left = others - own
            some = comb(left, drawers) * chance**drawers * (1 - chance) ** (left - drawers)
            found += Fraction(ways, comb(members - 1, masks)) * some
    return found


@pytest.mark.parametrize(
    ("members", "dropouts", "degree", "threshold"),
    [(20, 4, 8, 7), (20, 4, 8, 8), (20, 6, 9, 7), (12, 2, 5, 6), (12, 1, 4, 5), (12, 1, 4, 4)],
)
def test_a_round_lacks_shares_no_more_often_than_the_formula_says(
    members: int, dropouts: int, degree: int, threshold: int
) -> None:
    """A dealer that stays has its own share of its seed; one that does not is a drop-out itself."""
    tries, rng, failed = 4000, random.Random(3), 0
    for _ in range(tries):
        gone = set(rng.sample(range(members), dropouts))
        drawn = (rng.sample([n for n in range(members) if n != one], degree) for one in range(members))
        left = [len(set(held) - gone) + (one not in gone) for one, held in enumerate(drawn)]
        failed += min(left) < threshold
    bound = 2 ** graph.failure_bits(members, dropouts, degree, threshold)
    assert failed / tries <= bound + 4 * (bound / tries) ** 0.5
    assert (failed == 0) == (bound == 0)


def draw_graph(rng: random.Random, members: int, honest: int, degree: int) -> list[set[int]]:
    """The honest ones are the first; an edge is one that either end has drawn."""
    found: list[set[int]] = [set() for _ in range(honest)]
    for one in range(honest):
        for other in rng.sample([n for n in range(members) if n != one], degree):
            if other < honest:
                found[one].add(other)
                found[other].add(one)
    return found


def can_be_cut(edges: list[set[int]], honest: int, dropouts: int) -> bool:
    everybody = set(range(honest))
    return any(is_cut(edges, everybody - {gone}) for gone in (everybody if dropouts else {-1}))


def is_cut(edges: list[set[int]], left: set[int]) -> bool:
    seen: set[int] = set()
    waiting = [min(left)]
    while waiting:
        one = waiting.pop()
        if one not in seen:
            seen.add(one)
            waiting += edges[one] & left
    return seen != left


def test_the_share_of_neighbours_that_collude_is_as_often_too_large_as_the_tail_says() -> None:
    rng, tries, colluders, degree, least = random.Random(1), 20_000, 21, 25, 12
    hits = sum(sum(one < colluders for one in rng.sample(range(63), degree)) >= least for _ in range(tries))
    expected = 2 ** graph._tail_bits(63, colluders, degree, least)
    assert hits / tries == pytest.approx(expected, abs=4 * (expected / tries) ** 0.5)


# --- the draw


def test_a_draw_names_as_many_neighbours_as_the_degree_and_both_ways_of_asking_agree(shared: Rehearsal) -> None:
    roster = server.make_roster(shared.round)
    for name in roster.names[:8]:
        draw = shared.round.shares[name].draw
        assert draw is not None
        holders = graph.find_holders(roster, name, draw)
        assert len(set(holders)) == 23 and name not in holders and set(shared.round.shares[name].shares) == set(holders)
        places = {one: graph._find_places(roster, {name: draw}, one)[name] for one in roster.names if one != name}
        assert {one for one, place in places.items() if place < 23} == set(holders)
        assert sorted(places.values()) == list(range(63))


def test_both_ends_of_a_mask_know_of_it_and_nobody_else(shared: Rehearsal) -> None:
    roster = server.make_roster(shared.round)
    draws = {name: sent.draw for name, sent in shared.round.shares.items() if sent.draw is not None}
    found = {name: graph.find_neighbours(roster, name, roster.names, draws) for name in roster.names}
    for name, (dealers, peers) in found.items():
        assert name not in peers and all(name in found[other].peers for other in peers)
        assert dealers == {one for one in roster.names if shared.round.shares[one].reaches(name)}
        assert len(peers) >= 20
    mean = sum(len(peers) for _, peers in found.values()) / 64
    assert mean == pytest.approx(40 - 400 / 63, abs=1.5)
    few = roster.names[:50]
    less = graph.find_neighbours(roster, few[0], few, draws)
    assert less.peers == found[few[0]].peers & set(few) and less.dealers == found[few[0]].dealers & set(few)


def test_neighbours_follow_from_everybody_s_keys_and_one_s_own_number(shared: Rehearsal) -> None:
    roster, names = server.make_roster(shared.round), tuple(shared.contents)
    first = graph.find_holders(roster, names[0], "00" * 32)
    assert first == graph.find_holders(roster, names[0], "00" * 32)
    another = begin().begin(names[-1]).message
    other = Roster(terms=roster.terms, members=(*roster.members[:-1], another), graph=roster.graph)
    assert graph.find_holders(roster, names[0], "01" * 32) != first != graph.find_holders(other, names[0], "00" * 32)


def test_all_members_are_drawn_alike_often(shared: Rehearsal) -> None:
    roster = server.make_roster(shared.round)
    counts = dict.fromkeys(roster.names, 0)
    for number in range(400):
        for one in graph.find_holders(roster, "silo-000", f"{number:064x}"):
            counts[one] += 1
    assert counts.pop("silo-000") == 0
    assert all(abs(count - 400 * 23 / 63) < 5 * (400 * 23 / 63 * 40 / 63) ** 0.5 for count in counts.values())


def test_holders_of_a_cheat_s_own_choice_are_refused() -> None:
    """They could be friends who never answer: then nobody could restore its secrets."""
    made = begin()
    made.until_keys(tuple(made.contents))
    sent = made.share("silo-000").message
    with pytest.raises(ProtocolError, match="'silo-000' has committed to"):
        verify_message(made.round, sent.model_copy(update={"draw": "00" * 32}))
    spare = next(name for name in made.contents if name not in sent.holders)
    first = next(iter(sent.shares))
    moved = {spare: sent.shares[first], **{name: one for name, one in sent.shares.items() if name != first}}
    with pytest.raises(ProtocolError, match="sealed shares for 23 clients"):
        verify_message(made.round, sent.model_copy(update={"shares": moved}))


# --- a round


def test_the_mean_is_the_survivors_whoever_drops_out_when() -> None:
    made = begin()
    names = tuple(made.contents)
    got = made.play(after_keys=names[:1], after_checks=names[1:2], after_masked=names[2:3])
    left = [made.contents[name].arrays["pooling.w"].astype(np.float64) for name in names[2:]]
    np.testing.assert_allclose(got.arrays["pooling.w"], np.mean(left, axis=0), atol=1e-6)


def test_more_drop_outs_than_the_bound_bears_end_the_round() -> None:
    made = begin()
    with pytest.raises(UnavailableError, match="expected at least 61 clients, got 60"):
        made.play(after_keys=tuple(made.contents)[:4])


def test_a_sum_waits_until_the_neighbours_of_each_have_answered() -> None:
    """As many answers as the threshold of the round can be too few for one client's secret."""
    made = begin()
    names = tuple(made.contents)
    made.until_masked(names)
    made.send_consents(names)
    made.close()
    without = [name for name in names if name not in made.round.shares["silo-000"].holders]
    last = [name for name in names if name not in without]
    made.send_answers([*without, *last[:8]])
    assert not server.can_restore(made.round)
    with pytest.raises(UnavailableError):
        made.mean()
    made.send_answers(last[8:])
    assert server.can_restore(made.round) and set(made.mean().arrays) == {"pooling.w"}


# --- what a client refuses


def shown(made: Rehearsal, **changed: Any) -> Roster:
    return server.make_roster(made.round).model_copy(update=changed)


@pytest.mark.parametrize(
    "plan",
    [
        GraphPlan(degree=10, threshold=8, masks=20),
        GraphPlan(degree=22, threshold=21, masks=20),
        GraphPlan(degree=23, threshold=20, masks=20),
        GraphPlan(degree=24, threshold=21, masks=20),
        GraphPlan(degree=23, threshold=21, masks=19),
        GraphPlan(degree=23, threshold=21, masks=1),
        None,
    ],
)
def test_another_graph_than_follows_from_the_bounds_is_refused(plan: GraphPlan | None) -> None:
    """Sparser ones tell parts; others are refused with them, because an honest aggregator computes the same."""
    made = begin()
    made.until_keys(tuple(made.contents))
    came = "everybody" if plan is None else f"a graph of degree {plan.degree}, threshold {plan.threshold} and "
    with pytest.raises(PrivacyError, match=f"of degree 23, threshold 21 and 20 masks, as follows from .* got {came}"):
        made.share("silo-000", shown(made, graph=plan))


@pytest.mark.parametrize("dropouts", [42, 43, 64])
def test_bounds_under_which_nobody_would_be_left_to_hide_among_are_refused(dropouts: int) -> None:
    """The bound was a sum over no parts: two neighbours were enough, whom the aggregator drops to read the third."""
    contents = many_contents(COUNT)
    bounds = bounds_of(21, dropouts)
    made = Rehearsal(contents, terms=terms_for(contents["silo-000"], COUNT, graph=bounds))
    made.until_keys(tuple(contents))
    with pytest.raises(
        PrivacyError, match=r"hold shares of everybody, as follows .* got a graph of degree 2, threshold 3 and 2 masks"
    ):
        made.share("silo-000", shown(made, graph=GraphPlan(degree=2, threshold=3, masks=2)))


@pytest.mark.parametrize(
    ("bounds", "degree"),
    [((64, 3), 25), ((21, 3), 64), ((21, 3), 1024), ((62, 1), 25)],
)
def test_bounds_and_degrees_beyond_the_members_protect_nobody(bounds: tuple[int, int], degree: int) -> None:
    told = bounds_of(*bounds)
    assert graph.exposure_bits(COUNT, told, GraphPlan(degree=degree, threshold=22, masks=20)) == 0
    assert graph.exposure_bits(COUNT, told, GraphPlan(degree=25, threshold=22, masks=max(degree, 25))) == 0
    if degree == 25:
        assert graph.plan_graph(COUNT, told) is None  # as of a run that fewer clients begin than were awaited


def test_a_complaint_about_a_dealer_that_has_not_shared_with_its_sender_is_refused(shared: Rehearsal) -> None:
    """The aggregator looked for a share that there is not."""
    state = shared.check("silo-000")
    dealer = next(name for name in shared.contents if name not in {*state.shares, "silo-000"})
    roster = server.make_roster(shared.round)
    cipher = int(state.secrets.cipher, 16)
    complaint = make_complaint(roster.context, roster.keys[dealer], "silo-000", cipher)
    accused = state.message.model_copy(update={"complaints": {dealer: complaint}})
    with pytest.raises(ProtocolError, match="that have shared with the sender"):
        verify_message(shared.round, sign_message(accused, shared.identities["silo-000"]))


def test_a_silo_s_policy_refuses_a_graph_that_bears_fewer_colluders() -> None:
    made = begin()
    made.until_keys(tuple(made.contents))
    roster = server.make_roster(made.round)
    for insisted in (0.34, 0.5, 1.0):
        with pytest.raises(
            PrivacyError, match=r"policy\.colluders\), got a run that announces 0\.3333: ask the operator"
        ):
            client.share_secrets(
                made.begun["silo-000"], roster, made.members, made.identities["silo-000"], colluders=insisted
            )


@pytest.mark.parametrize("replayed", ["nothing", "tags of its true keys", "tags of another"])
def test_a_member_whose_keys_the_aggregator_made_is_refused_by_those_who_have_not_drawn_it_too(
    replayed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member without edges could be left out of a sum that names it: the next sum would tell its update."""
    made = begin()
    made.until_keys(tuple(made.contents))
    true = server.make_roster(made.round)
    forged = sign_message(true.members[-1].model_copy(update={"draw": "00" * 32}), made.identities["silo-000"])
    told = shown(made, members=(*true.members[:-1], forged))
    drawn = {name: graph.find_holders(told, name, told_draw(made, name, told)) for name in true.names[:-1]}
    near = next(name for name, holders in drawn.items() if "silo-063" in holders)
    with pytest.raises(PrivacyError, match="'silo-063' has signed"):
        made.share(near, told)
    far = next(name for name, holders in drawn.items() if "silo-063" not in holders)
    made.sharing[far] = made.share(far, told)  # nothing in it is sealed for the false keys
    assert "silo-063" not in made.sharing[far].message.shares
    state = made.check(far, Delivery(run="run-1", round=3, shares={}))
    sender = {"nothing": None, "tags of its true keys": "silo-063", "tags of another": near}[replayed]
    said = true if sender == "silo-063" else told
    tags = {} if sender is None else {"silo-063": false_tag(made, sender, far, said)}
    sharers = made.sharers(true.names).model_copy(update={"tags": tags})
    monkeypatch.setattr(graph, "find_neighbours", lambda *_: graph.Neighbours(set(), set()))
    with pytest.raises(PrivacyError, match="'silo-063' has signed"):
        client.mask_update(state, sharers, made.contents[far], made.identities[far], made.pairs[far])


def told_draw(made: Rehearsal, name: str, roster: Roster) -> str:
    return graph.derive_draw(int(made.begun[name].secrets.deal, 16), roster.terms, name)


def false_tag(made: Rehearsal, sender: str, receiver: str, roster: Roster) -> str:
    """What a client says of a roster, as its own or in another's name."""
    pairs = PairKeys(made.identities[sender])
    tag = pairs.make_tag(made.round.keys[receiver].identity, client._tagged_digest(roster, "roster", b""))
    assert tag is not None
    return tag


@pytest.fixture(scope="module")
def checked() -> Rehearsal:
    made = begin()
    return made.until_checks(tuple(made.contents))


def masks(made: Rehearsal, name: str, sharers: Any) -> Any:
    return client.mask_update(made.checked[name], sharers, made.contents[name], made.identities[name])


def test_a_share_that_the_aggregator_has_kept_back_is_noticed(shared: Rehearsal) -> None:
    """Its dealer could be named as a member of a sum in which no mask tells that its vector is missing."""
    true = server.make_delivery(shared.round, "silo-000")
    dealer = next(iter(true.shares))
    fewer = true.model_copy(update={"shares": {name: one for name, one in true.shares.items() if name != dealer}})
    state = shared.check("silo-000", fewer)
    with pytest.raises(PrivacyError, match="whose shares this client holds, got 1 others"):
        client.mask_update(
            state, shared.sharers(shared.contents), shared.contents["silo-000"], shared.identities["silo-000"]
        )


@pytest.mark.parametrize("how", ["without", "another"])
def test_a_draw_other_than_the_committed_one_is_refused(checked: Rehearsal, how: str) -> None:
    true = server.make_sharers(checked.round)
    draws = {**true.draws, "silo-005": "00" * 32} if how == "another" else dict(list(true.draws.items())[1:])
    with pytest.raises(PrivacyError, match="has committed to"):
        masks(checked, "silo-000", true.model_copy(update={"draws": draws}))


def test_fewer_sharers_than_the_bound_bears_are_refused(checked: Rehearsal) -> None:
    with pytest.raises(PrivacyError, match="at least 61 sharers, got 60"):
        masks(checked, "silo-000", checked.sharers(tuple(checked.contents)[:60]))


def test_who_was_told_of_other_sharers_gets_no_help_from_its_neighbours(checked: Rehearsal) -> None:
    """The aggregator tells one client of fewer sharers: its vector has fewer masks, and its seed would uncover more."""
    names = tuple(checked.contents)
    for name in names:
        told = checked.sharers(names[:61]) if name == "silo-000" else server.make_sharers(checked.round)
        checked.ready[name], update = masks(checked, name, told)
        checked.peers[name] = update.header.peers
        if name == "silo-000":
            with pytest.raises(ProtocolError, match="'silo-000' to have signed the list of sharers"):
                server.accept_header(checked.round, update.header)
    for name in names:
        assert checked.ready[name].sharers == (names[:61] if name == "silo-000" else names)
    request = server.UnmaskRequest(run="run-1", round=3, survivors=names, dropped=())
    holder = checked.round.shares["silo-000"].holders[1]
    spare = next(name for name in names[1:] if name not in checked.round.shares["silo-000"].holders)
    states, consents = {}, {}
    for name in names[1:]:
        states[name], consents[name] = client.sign_consent(
            checked.ready[name], request, checked.identities[name], checked.pairs[name]
        )
    with pytest.raises(PrivacyError, match="about all 61 sharers"):  # so no consent of its own can stand for it
        client.sign_consent(checked.ready["silo-000"], request, checked.identities["silo-000"])
    context, said = server.make_roster(checked.round).context, checked.peers["silo-000"]
    stolen = sign_peers(context, "silo-000", names, checked.identities[holder])  # of another's hand
    for name in (holder, spare):
        tags = {one: consents[one].tags[name] for one in names[1:] if one != name}
        signatures = {one: consents[one].signature for one in names[1:]}
        told = Consents(run="run-1", round=3, signatures=signatures, tags=tags, peers={"silo-000": said})
        if name == spare:
            assert "silo-000" not in client.answer_unmask_request(states[name], told, checked.pairs[name]).seeds
            continue
        for peers in ({"silo-000": said}, {"silo-000": stolen}, {}):
            with pytest.raises(PrivacyError, match="it has masked with others"):
                client.answer_unmask_request(
                    states[name], told.model_copy(update={"peers": peers}), checked.pairs[name]
                )
        others = {**signatures, "silo-000": signatures["silo-001"]}
        with pytest.raises(PrivacyError, match="it has masked with others"):
            client.answer_unmask_request(
                states[name], told.model_copy(update={"signatures": others}), checked.pairs[name]
            )


def test_fewer_survivors_than_the_bound_bears_are_refused(checked: Rehearsal) -> None:
    names = tuple(checked.contents)
    ready = masks(checked, "silo-001", server.make_sharers(checked.round))[0]
    request = server.UnmaskRequest(run="run-1", round=3, survivors=names[:60], dropped=names[60:])
    with pytest.raises(PrivacyError, match="at least 61 survivors, got 60"):
        client.sign_consent(ready, request, checked.identities["silo-001"])
