"""A silo that is handed another list of items must not lie bare in a sum of the common basis.

Who: whoever merges the lists, such as the operator. Lists of one length were summed place by place. A list whose items
of the others have other ids in it puts all that the victim's users have into rows that nobody else fills: the sum over
four silos had the victim's matrix in it, to the digit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from client_service.settings import ClientSettings
from client_service.sums.statistics import catalogue_matrix
from client_service.tasks.items import load_listed_shard
from shared.method.settings import BasisSettings
from simulation.experiments.experiment import Experiment
from simulation.experiments.in_process import open_federation
from tests.service.attacks.test_difference_of_two_sums import VICTIM, Described
from tests.support.misled import ending_of, start
from tests.support.neighbours import BOTH_GRAPHS

pytestmark = pytest.mark.anyio
URL = "http://127.0.0.1"


def all_items(one: Experiment) -> list[str]:
    assert one.catalogue is not None
    return one.catalogue.read_text().splitlines()


@dataclass(frozen=True)
class TwoLists(Experiment):
    """Of one length: the victim's items come last in its own list, and first in that of all others."""

    def make_client_settings(self, shard: Path, **address: Any) -> ClientSettings:
        settings, items = super().make_client_settings(shard, **address), all_items(self)
        none = [f"zz-{number:03d}" if shard.name != VICTIM else f"aa-{number:03d}" for number in range(len(items))]
        listed = self.folder / f"{shard.name}.txt"
        listed.write_text("".join(f"{item}\n" for item in [*items, *none]))
        return settings.model_copy(update={"catalogue": listed})


@pytest.fixture
def handed_out(secure_run: Described) -> Experiment:
    one = secure_run(4)
    made = TwoLists(**{each.name: getattr(one, each.name) for each in fields(one)})
    made = replace(made, method=one.method.model_copy(update={"basis": BasisSettings(kind="exact")}))
    made.__dict__["agreed_method"] = made.method.model_copy(update={"catalogue": 2 * len(all_items(made))})
    return made


def test_such_lists_would_part_the_victims_items_from_all_others(handed_out: Experiment) -> None:
    clients = [handed_out.make_client_settings(shard, aggregator_url=URL) for shard in handed_out.shards]
    size = handed_out.agreed_method.catalogue
    rows = {one.name: {*catalogue_matrix(load_listed_shard(one), size).indices.tolist()} for one in clients}
    others = set[int]().union(*(found for name, found in rows.items() if name != VICTIM))
    assert rows[VICTIM] and not rows[VICTIM] & others


@BOTH_GRAPHS
async def test_silos_with_different_lists_of_one_length_are_not_summed(handed_out: Experiment) -> None:
    async with open_federation(handed_out) as federation:
        assert (await start(federation, handed_out, part="basis")).status_code == 201
        reason = (await ending_of(federation, "run-1"))["reason"]
    assert reason is not None and "or features and classes of nodes (catalogue), got 2 different ones" in reason
    assert reason.endswith(f"client-1, client-2, client-3; {VICTIM}")
