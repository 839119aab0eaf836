"""`lpsfed catalogue`: the list of items that the clients of a federation share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shared.words import count_noun
from simulation.cli import options
from simulation.cli.options import AsJson, print_json
from simulation.reports.terminal import OUT


def catalogue(
    sources: Annotated[list[Path], typer.Argument(help="data files, shards, and lists of ids, one a line")],
    out: Annotated[list[Path], typer.Option(help="the list of all their items; repeatable")],
    size_file: Annotated[Path | None, typer.Option(help="its length, for the aggregator")] = None,
    min_rating: options.MinRating = None,
    rating_kind: options.KindOfRating = None,
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    as_json: AsJson = False,
) -> None:
    """Make the list of items that all silos share, of data files, shards or lists: for sums, or where items are shared.

    Of data files it takes the items that `lpsfed join` would take. Whoever runs it on data files sees the data; on
    lists, which items each silo has. So each silo runs it on its own data, and whoever merges on the lists; or all take
    a list that is public anyway, such as all numbers of their trade (GTIN, ISBN, IMDb). All silos know the list, and
    that somebody has each of its items; an aggregator with --catalogue knows it too, else its length alone.
    """
    from shared.files import replace_file
    from simulation.partitioning.catalogue import DataReading, merge_items, save_catalogue

    least = options.least_rating(min_rating, rating_kind, "usual")
    items = merge_items(sources, DataReading(least, options.parse_file_options(columns, delimiter)))
    digests = {save_catalogue(items, path) for path in out}
    if size_file is not None:
        replace_file(size_file, f"{len(items)}\n".encode())
    if as_json:
        return print_json({"items": len(items), "sha256": digests.pop(), "files": [str(path) for path in out]})
    for path in out:
        OUT.print(f"{path}: {count_noun(len(items), 'item')}, sha256 {next(iter(digests))}", soft_wrap=True)
