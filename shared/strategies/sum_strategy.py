"""Strategy of a run that sums statistics: it sends no model and no scalar.

It has no name by which to choose it.
"""

from __future__ import annotations

from dataclasses import replace

from shared.method.declaration import Declaration, Part
from shared.method.parameters import Parameters, State
from shared.method.settings import MethodSettings
from shared.method.tensors import EXCHANGES
from shared.strategies.local_client import LocalClient
from shared.strategies.strategy import Strategy
from shared.sums import find_sum, list_sums, method_of_part
from shared.sums.sum import Sum


def send_statistics(client: LocalClient, received: Parameters) -> Parameters:
    """Loads the sum of the round before, and sends the silo's part of the next."""
    client.load(received)
    return Parameters(client.arrays())


def strategy_of_sum(chosen: Sum, method: MethodSettings) -> Strategy:
    """Builds the strategy of a run of this sum."""

    def hand_out(before: State, centre: State) -> State:
        del before
        return replace(centre, arrays=chosen.hand_out(method, centre.arrays))

    return Strategy(
        chosen.word,
        shared=lambda name: not any(name in exchange.names for exchange in EXCHANGES.values()),
        own_tensors=chosen.list_tensors,
        fit=send_statistics,
        step=hand_out,
    )


def sum_strategy(method: MethodSettings) -> Strategy:
    """Builds the strategy of the settings' sum; raises SettingsError for none."""
    return strategy_of_sum(find_sum(method), method)


def declare_sums(method: MethodSettings) -> dict[Part, Declaration]:
    """Declares, by part, what runs of sums may send."""
    chosen = {part: method_of_part(method, part) for part in list_sums(method)}
    return {part: sum_strategy(one).declaration(one) for part, one in chosen.items()}
