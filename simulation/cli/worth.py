"""`lpsfed worth`: before a silo joins, what more users would bring it, from its own data alone."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from client_service.shard import read_shard
from client_service.worth.estimate import DRAWS, estimate_worth
from client_service.worth.trials import trainings
from shared.method.settings import method_settings
from simulation.cli.options import AsJson, print_json
from simulation.console import OUT, count_bar
from simulation.tables import forecast_table


def worth(
    shard: Annotated[Path, typer.Argument(help="the silo's shard: a folder with interactions.parquet")],
    draws: Annotated[int, typer.Option(min=2, max=32, help="how often the users are cut anew")] = DRAWS,
    as_json: AsJson = False,
) -> None:
    """Forecast what a federation would bring this silo: its own users, cut into small silos that join each other.

    Nothing is sent and nothing is written. Validation items alone are read, no test items. The forecast holds for silos
    that sell the same items to users of the same kind; the interval is where the gain lies in nine cases of ten.
    """
    found = read_shard(shard)
    total = draws * trainings(len(found.user_ids))
    with count_bar("trainings", total, shown=not as_json) as observe:
        estimate = estimate_worth(found, method_settings().cutoff, draws, observe)
    if as_json:
        return print_json(asdict(estimate) | {"sentences": estimate.sentences})
    if estimate.measured:
        OUT.print(forecast_table(estimate))
    for sentence in estimate.sentences:
        OUT.print(f"- {sentence}", soft_wrap=True)
