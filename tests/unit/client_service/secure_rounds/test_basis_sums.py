"""In which sums of the common basis a silo helps, by its own memory and by what the others have signed of their data.

What a silo adds follows from its data alone: four less three is the fourth one's matrix, to the digit.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from client_service.boundary.ledger import Ledger
from client_service.secure_rounds.round_memory import NAME, RoundMemory
from shared.errors import PrivacyError
from shared.method.declaration import Declaration
from shared.method.settings import method_settings
from shared.protocol.secure import client
from shared.protocol.secure.messages import CommonTerms, Roster, RoundTerms
from shared.protocol.signing.keys import new_key
from shared.strategies.sum_strategy import sum_strategy

NAMES = ("ada", "bob", "cyd", "dan", "eve", "fay", "gus")
KEYS = {name: new_key() for name in NAMES}
MEMBERS = {name: key.public_key() for name, key in KEYS.items()}
EXACT = {"basis.kind": "exact", "catalogue": 6}
ITERATED = {"basis.kind": "iterated", "basis.rank": 2, "catalogue": 6}


def declared(**settings: object) -> Declaration:
    method = method_settings(**settings)  # type: ignore[arg-type]
    return sum_strategy(method).declaration(method).model_copy(update={"secure": True})


def stamp(data: str) -> str:
    return f"{ord(data):064x}"


def signed(run: str, data: Mapping[str, str], settings: Mapping[str, object] = EXACT) -> Roster:
    """The roster of a run's first round, as these silos have signed it. Every exact run begins at the same zeros."""
    start = f"{len(str(settings)):064x}"
    told = {"aggregator": "0a" * 32, "start": start, "method": "0b" * 32, "seed": 0, "rounds": 1, "anchor": "0c" * 32}
    place = {"run": run, "round": 1, "threshold": 3}
    terms = RoundTerms(**place, declaration=declared(**settings), common=CommonTerms(**told))  # type: ignore[arg-type]
    begun = (client.begin_secure_round(terms, name, KEYS[name], stamp=stamp(own)) for name, own in sorted(data.items()))
    return Roster(terms=terms, members=tuple(one.message for one in begun))


def signed_as(run: str, stamps: Mapping[str, str], settings: Mapping[str, object] = EXACT) -> Roster:
    """The same with stamps as they are."""
    shown = signed(run, dict.fromkeys(stamps, "x"), settings)
    begun = (
        client.begin_secure_round(shown.terms, name, KEYS[name], stamp=own) for name, own in sorted(stamps.items())
    )
    return shown.model_copy(update={"members": tuple(one.message for one in begun)})


def take_part(folder: Path, shown: Roster, least: int = 3, survivors: tuple[str, ...] | None = None) -> None:
    """A silo, started anew, that is shown the roster and asked to help with the sum, and does."""
    memory = RoundMemory(Ledger(folder / NAME))
    memory.require_renewable(shown, shown.names, least)
    memory.require_safe_sum(shown, survivors or shown.names, (), least)
    memory.remember_sum(shown, survivors or shown.names, ())


FOUR = dict.fromkeys(("ada", "bob", "cyd", "dan"), "x")


@pytest.mark.parametrize(
    ("now", "settings", "told"),
    [
        (dict.fromkeys(("ada", "bob", "cyd"), "x"), EXACT, "dan"),  # four, then three of them
        (FOUR | {"cyd": "y"}, EXACT, "cyd"),  # the same four, and one shard has changed
        (dict.fromkeys(("ada", "bob", "cyd"), "x"), ITERATED, "dan"),  # of another kind, over the same data
        (dict.fromkeys(("ada", "bob", "cyd"), "x"), EXACT | {"catalogue": 7}, "dan"),  # of a longer catalogue
        (FOUR | {"eve": "x", "fay": "x"}, EXACT, "eve, fay"),  # two new ones
    ],
)
def test_a_sum_that_would_tell_of_few_silos_is_refused_before_anything_is_shared(
    tmp_path: Path, now: dict[str, str], settings: dict[str, object], told: str
) -> None:
    take_part(tmp_path, signed("run-1", FOUR))
    memory, shown = RoundMemory(Ledger(tmp_path / NAME)), signed("run-2", now, settings)
    with pytest.raises(PrivacyError, match=f"or 3 silos or more together.*would tell of {told} alone"):
        memory.require_renewable(shown, shown.names, 3)


@pytest.mark.parametrize(
    "now",
    [
        FOUR,
        FOUR | dict.fromkeys(("eve", "fay", "gus"), "x"),
        {"dan": "x", **dict.fromkeys(("eve", "fay", "gus"), "x")},
        FOUR | dict.fromkeys(("ada", "bob", "cyd"), "y"),
    ],
)
def test_the_same_sum_again_and_three_silos_together_pass(tmp_path: Path, now: dict[str, str]) -> None:
    take_part(tmp_path, signed("run-1", FOUR))
    take_part(tmp_path, signed("run-2", now, ITERATED))


def test_who_drops_out_between_its_keys_and_its_vector_changes_the_sum(tmp_path: Path) -> None:
    take_part(tmp_path, signed("run-1", FOUR))
    with pytest.raises(PrivacyError, match="would tell of dan alone"):
        take_part(tmp_path, signed("run-2", FOUR), survivors=("ada", "bob", "cyd"))


def test_a_silo_that_demands_more_than_its_run_refuses_for_itself(tmp_path: Path) -> None:
    take_part(tmp_path, signed("run-1", FOUR))
    more = signed("run-2", FOUR | dict.fromkeys(("eve", "fay", "gus"), "x"))
    with pytest.raises(PrivacyError, match="4 silos or more together"):
        take_part(tmp_path, more, least=4)
    with pytest.raises(PrivacyError, match="5 silos or more in a sum"):
        take_part(tmp_path, signed("run-3", FOUR), least=5)


def test_of_a_silo_with_an_older_memory_the_others_remember(tmp_path: Path) -> None:
    """A restored copy forgets a sum. Its owner would go on; each other member of that sum refuses."""
    ada, bob = tmp_path / "ada", tmp_path / "bob"
    for folder in (ada, bob):
        folder.mkdir()
        take_part(folder, signed("run-1", FOUR))
    shutil.copy(ada / NAME, tmp_path / "older")
    grown = FOUR | dict.fromkeys(("eve", "fay", "gus"), "x")
    for folder in (ada, bob):
        take_part(folder, signed("run-2", grown))
    shutil.copy(tmp_path / "older", ada / NAME)
    shrunk = signed("run-3", {name: own for name, own in grown.items() if name != "dan"})
    with pytest.raises(PrivacyError, match="would tell of dan alone"):
        take_part(bob, shrunk)
    with pytest.raises(PrivacyError, match="dan"):  # of run-1 even the older copy knows: dan has gone, three have come
        take_part(ada, signed("run-4", dict.fromkeys(("ada", "bob", "cyd"), "x")))


@pytest.mark.parametrize("hidden", [None, stamp("x")])
def test_an_aggregator_that_changes_or_hides_what_a_silo_says_of_its_data_gets_nothing(hidden: str | None) -> None:
    changed = signed("run-2", FOUR | {"dan": "y"})
    said = tuple(one.model_copy(update={"stamp": hidden}) if one.client == "dan" else one for one in changed.members)
    shown = Roster(terms=changed.terms, members=said)
    state = client.begin_secure_round(changed.terms, "ada", KEYS["ada"], stamp=stamp("x"))
    own = tuple(state.message if one.client == "ada" else one for one in shown.members)
    with pytest.raises(PrivacyError, match="dan"):
        client.share_secrets(state, Roster(terms=shown.terms, members=own), MEMBERS, KEYS["ada"])


@pytest.mark.parametrize("theirs", ["0e" * 32, None], ids=["another", "none"])
def test_nothing_is_shared_with_a_silo_that_counts_over_another_list_of_items(theirs: str | None) -> None:
    own, terms = "0d" * 32, signed("run-1", FOUR).terms
    listed = FOUR | {"ada": own, "bob": own, "cyd": own, "dan": theirs}
    begun = {
        name: client.begin_secure_round(terms, name, KEYS[name], stamp=stamp("x"), catalogue=one)
        for name, one in listed.items()
    }
    shown = Roster(terms=terms, members=tuple(one.message for one in begun.values()))
    with pytest.raises(PrivacyError, match=r"the same list of items.*ada, bob, cyd; dan"):
        client.share_secrets(begun["ada"], shown, MEMBERS, KEYS["ada"])


def test_a_silo_that_says_nothing_of_its_data_is_in_no_sum(tmp_path: Path) -> None:
    shown = signed("run-1", FOUR)
    silent = tuple(one.model_copy(update={"stamp": None}) for one in shown.members)
    with pytest.raises(PrivacyError, match="none of ada, bob, cyd, dan"):
        take_part(tmp_path, Roster(terms=shown.terms, members=silent))


def split_stamp(training: str, held_out: str) -> str:
    """As `Masking.stamp` makes it: 32 digits for the training data, 32 for all of them."""
    return f"{ord(training):032x}{ord(held_out):032x}"


@pytest.mark.parametrize("now", ["e", "f"])
def test_silos_whose_training_data_are_as_they_were_do_not_cover_one_that_leaves(tmp_path: Path, now: str) -> None:
    """Sums count training data or all data. Whoever changes in one alone is no cover in the other."""
    memory = RoundMemory(Ledger(tmp_path / NAME))
    first = signed_as("run-1", dict.fromkeys(FOUR, split_stamp("t", "e")))
    memory.require_renewable(first, first.names, 3)
    memory.remember_sum(first, first.names, ())
    second = signed_as("run-2", dict.fromkeys(("ada", "bob", "cyd"), split_stamp("t", now)), ITERATED)
    with pytest.raises(PrivacyError, match="would tell of dan alone"):
        memory.require_renewable(second, second.names, 3)


def test_a_list_of_common_items_changes_with_the_data_of_three_silos_alone(tmp_path: Path) -> None:
    """An aggregator that says another list over the same data would read who has which items together."""
    lists = {name: f"{place:064x}" for place, name in enumerate(("one", "other"))}
    memory = RoundMemory(Ledger(tmp_path / NAME))
    first = signed("run-1", FOUR, ITERATED)
    memory.require_safe_sum(first, first.names, (), 3, lists["one"])
    memory.remember_sum(first, first.names, (), lists["one"])
    kept = RoundMemory(Ledger(tmp_path / NAME))  # started anew
    again = signed("run-2", FOUR)
    kept.require_renewable(again, again.names, 3, lists["one"])
    with pytest.raises(PrivacyError, match=r"until 3 silos or more have come, gone or changed their data, got others"):
        kept.require_renewable(again, again.names, 3, lists["other"])
    grown = signed("run-3", FOUR | dict.fromkeys(("eve", "fay", "gus"), "x"))
    kept.require_renewable(grown, grown.names, 3, lists["other"])


BORDERS = {"basis.kind": "node_borders", "nodes.features": 3}


def test_no_member_of_the_first_round_is_missing_in_a_later_one(tmp_path: Path) -> None:
    """Rows of border sums are hidden by the part of the node's own silo: without it they would lie bare.

    Three that leave together tell nothing of one silo in sums of another kind, which may go on without them.
    """
    silos = dict.fromkeys(NAMES, "x")
    for settings in (BORDERS, ITERATED):
        folder = tmp_path / str(settings["basis.kind"])
        folder.mkdir()
        first = signed("run-1", silos, settings)
        take_part(folder, first)
        later = first.model_copy(update={"terms": first.terms.model_copy(update={"round": 2})})
        if settings is ITERATED:
            take_part(folder, later, survivors=NAMES[:4])
            continue
        with pytest.raises(PrivacyError, match=r"^expected the 7 members of the first sum of run-1 in each .* got 4"):
            take_part(folder, later, survivors=NAMES[:4])
        take_part(folder, later)
