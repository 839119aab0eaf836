"""In a basis run all silos multiply with the same directions, whatever the aggregator says of earlier rounds.

The directions follow from the sums of the rounds before. With other sums a silo's part would be a product with other
directions, and the difference to a sum that is known already would be that silo's alone.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from client_service.boundary.ledger import Ledger
from client_service.federation.run_setup import RunOpener
from client_service.runtime.interruption import Interrupt, RoundDeadline
from client_service.secure_rounds.exchange import SecureExchange
from client_service.secure_rounds.round_memory import NAME, RoundMemory
from shared.errors import PrivacyError
from shared.method.parameters import Parameters
from shared.method.settings import method_settings
from shared.protocol.secure.common import digest_start
from shared.protocol.secure.messages import CommonTerms, RoundTerms
from shared.strategies.sum_strategy import sum_strategy
from shared.sums.item_basis import DEGREES, PACKED, PRODUCTS

pytestmark = pytest.mark.anyio
OWN = "0a" * 32


def terms(number: int, **settings: object) -> RoundTerms:
    """Of a round of a run whose members may change."""
    method = method_settings(**{"basis.kind": "iterated", "basis.rank": 2, "catalogue": 6, **settings})
    declaration = sum_strategy(method).declaration(method).model_copy(update={"secure": True})
    told = {"aggregator": OWN, "start": "0d" * 32, "method": "0b" * 32, "seed": 0, "rounds": 2, "anchor": "0c" * 32}
    common = CommonTerms.model_validate(told | {"changing_members": True})
    return RoundTerms(run="run-1", round=number, threshold=3, declaration=declaration, common=common)


@pytest.mark.parametrize("settings", [{}, {"basis.words": 2, "basis.rounds": 2}], ids=[PRODUCTS, PACKED])
async def test_who_has_missed_a_sum_of_a_basis_run_helps_with_no_further_one(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    """In training runs a silo may bear members that change (policy.changing_members)."""
    round_secrets = SimpleNamespace(load=lambda *_: None)
    masking = SimpleNamespace(
        round_secrets=round_secrets, memory=RoundMemory(Ledger(tmp_path / NAME)), noised=False, changing_members=True
    )
    exchange = SecureExchange(cast(Any, masking), cast(Any, None), wait=1.0, worker=cast(Any, None))
    with pytest.raises(PrivacyError, match="helped with the sum of each earlier round of run-1, not with round 1"):
        await exchange.send(terms(2, **settings), Parameters({}))


class Part:
    """A basis run that has lost the sums of its first rounds."""

    place = SimpleNamespace(run="run-1")

    def __init__(self) -> None:
        self.found: dict[int, Parameters] = {}

    def missing_round(self, number: int) -> int | None:
        return next((before for before in range(1, number) if before not in self.found), None)

    def store_received(self, received: Parameters, number: int) -> None:
        self.found[number] = received


def sums(number: int) -> Parameters:
    return Parameters({DEGREES: np.full(6, number, np.uint32)})


async def fetch(folder: Path, told: dict[int, Parameters]) -> Part:
    """All sums before the fourth round's, from an aggregator that says these."""
    memory, part = RoundMemory(Ledger(folder / NAME)), Part()

    def remember_start(run: str, number: int, given: Parameters) -> None:
        memory.remember_start(OWN, run, number, digest_start(given))

    silo = SimpleNamespace(masking=SimpleNamespace(remember_start=remember_start), interrupt=Interrupt())
    opening = RunOpener(cast(Any, silo), cast(Any, None), cast(Any, call), RoundDeadline())

    async def personalised(_: object, number: int) -> Parameters:
        return told[number]

    opening.wait_for_personalised = personalised  # type: ignore[assignment,method-assign]
    await opening.fetch_missing(cast(Any, part), 4)
    return part


async def call(function: Any, *args: object) -> Any:
    return function(*args)


async def test_sums_that_are_fetched_again_are_those_of_the_first_time(tmp_path: Path) -> None:
    honest = {number: sums(number) for number in (1, 2, 3)}
    assert (await fetch(tmp_path, honest)).found == honest
    assert (await fetch(tmp_path, honest)).found == honest
    with pytest.raises(PrivacyError, match="expected the start of round 3 of run-1 as it was received first"):
        await fetch(tmp_path, honest | {2: sums(9)})
