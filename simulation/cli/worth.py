"""`lpsfed worth`: forecast of the gain by joining, or the last run's result."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import SettingsError
from simulation.cli import options
from simulation.cli.options import AsJson, print_json, print_notes
from simulation.progress import step
from simulation.reports.terminal import OUT, count_bar

if TYPE_CHECKING:
    from client_service.data.interactions import Shard
    from simulation.datasets.columns import FileOptions
    from simulation.datasets.ratings import LeastRating


def worth(
    shard: Annotated[
        Path | None, typer.Argument(help="The silo's shard, or a file of interactions, for a forecast")
    ] = None,
    silo: Annotated[Path | None, typer.Option(help="The silo's settings, after a run: show its result")] = None,
    draws: Annotated[
        int, typer.Option(min=2, max=32, help="Number of random divisions of the users")
    ] = options.DEFAULT_DRAWS,
    min_rating: options.MinRating = None,
    rating_kind: options.RatingKindChoice = None,
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    ca: options.Authority = None,
    as_json: AsJson = False,
) -> None:
    """Forecasts this silo's gain by joining, or shows the last run's result.

    The forecast cuts the silo's users into small silos that join each other; with --silo it shows the last run's
    result on the users' test items. Nothing is sent or written, and the forecast reads validation items, no test
    items. It holds for silos that sell the same items to similar users; the interval covers the gain in nine cases of
    ten.
    """
    if (shard is None) == (silo is None):
        raise SettingsError("SHARD: expected a shard before joining, or --silo after a run, got neither or both")
    if silo is not None:
        return _print_worth(silo, ca, as_json=as_json)
    assert shard is not None
    from client_service.joining_value.forecast import estimate_joining_value
    from client_service.joining_value.trials import count_trainings
    from shared.method.settings import method_settings
    from simulation.reports.tables import forecast_table

    least = options.choose_min_rating(min_rating, rating_kind, "usual")
    file_options = options.parse_file_options(columns, delimiter)
    found = _read_file_as_silo(shard, least, file_options, as_json=as_json) if shard.is_file() else _read_silo(shard)
    total = draws * count_trainings(len(found.user_ids))
    with count_bar("trainings", total, shown=not as_json) as observe:
        estimate = estimate_joining_value(found, method_settings().cutoff, draws, observe)
    if as_json:
        return print_json(asdict(estimate) | {"sentences": estimate.sentences})
    if estimate.measured:
        OUT.print(forecast_table(estimate))
    for sentence in estimate.sentences:
        OUT.print(f"- {sentence}", soft_wrap=True)


def _print_worth(silo: Path, ca: Path | None, *, as_json: bool) -> None:
    from simulation.operating.silo_worth import fetch_worth, read_access

    found = fetch_worth(read_access(silo), ca)
    if as_json:
        return print_json(found.to_json())
    OUT.print(found.line, soft_wrap=True)


@step("reading the shard")
def _read_silo(folder: Path) -> Shard:
    from client_service.data.interaction_files import load_shard

    return load_shard(folder)


def _read_file_as_silo(path: Path, least: LeastRating, file_options: FileOptions, *, as_json: bool) -> Shard:
    """Reads all interactions of a file as one silo's shard, in memory."""
    from simulation.datasets.load import load_dataset
    from simulation.partitioning.partition import build_part, partition_dataset

    dataset = load_dataset(path, 0, least, file_options=file_options)
    if not as_json:
        print_notes(dataset.notes)
    whole = partition_dataset(dataset, clients=1, method="users", seed=0)
    return build_part(dataset, whole.parts[0], dataset.name, dataset.notes)
