"""What a sum of transitions tells of single visits, and what a silo that lies reads in it all the same.

Who: a silo in the sum. With basis.least_pairs = 1 it takes its own part off the sum, and has what single visits of the
others have clicked after what: all of it. With 3 it reads none of the rare pairs, until it lies: it adds the threshold
to each of its own counts, and takes it off again. Masked counts cannot be looked at, so this stands, and is said.
"""

from __future__ import annotations

import numpy as np
import pytest

from client_service.sums.transitions import count_transitions, warn_of_rare_visits
from shared.method.settings import MethodSettings, method_settings
from shared.sums.transitions import COUNTS, UNIT, hide_rare_transitions
from simulation.sessions.cut import CUTS, divide_sessions
from simulation.sessions.generator import generate_sessions

ITEMS = 60


def settings(least: int) -> MethodSettings:
    return method_settings(catalogue=ITEMS, **{"basis.kind": "transitions", "basis.least_pairs": least})


def read_others(lifted: int, least: int) -> tuple[np.ndarray, np.ndarray]:
    """What the first silo reads of the others, and what is true."""
    sessions = generate_sessions(3, sessions=150, items=ITEMS)
    shards = divide_sessions(sessions, CUTS["random"](sessions, 4, 0))
    own, *others = (count_transitions(one, settings(least))[COUNTS] for one in shards)
    added = own + np.uint32(lifted)
    handed = hide_rare_transitions(settings(least), {COUNTS: np.sum([added, *others], axis=0, dtype=np.uint32)})[COUNTS]
    return np.where(handed > 0, handed - added, 0), np.sum(others, axis=0)


def test_without_a_threshold_a_silo_reads_every_transition_of_the_others() -> None:
    read, true = read_others(lifted=0, least=1)
    np.testing.assert_array_equal(read, true)


def test_a_threshold_hides_what_one_visit_did_and_a_silo_that_lies_lifts_it() -> None:
    read, true = read_others(lifted=0, least=3)
    single = (true > 0) & (true <= UNIT)  # of one visit alone
    honest = single & (read > 0)
    assert single.sum() > 50 and honest.sum() < single.sum() / 4  # those that its own visits have twice themselves
    read, true = read_others(lifted=2 * UNIT + 1, least=3)
    np.testing.assert_array_equal(read, true)


@pytest.mark.parametrize(("least", "words"), [(1, "single visits"), (3, "a silo that lies")])
def test_a_silo_is_warned_of_it(least: int, words: str) -> None:
    assert any(words in one for one in warn_of_rare_visits(settings(least)))
