"""`lpsfed catalogue`: the list of items that the clients of a federation share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shared.words import count_noun
from simulation.cli.options import AsJson, print_json
from simulation.reports.terminal import OUT


def catalogue(
    sources: Annotated[list[Path], typer.Argument(help="shards, and lists of ids, one a line")],
    out: Annotated[list[Path], typer.Option(help="the list of all their items; repeatable")],
    size_file: Annotated[Path | None, typer.Option(help="its length, for the aggregator")] = None,
    as_json: AsJson = False,
) -> None:
    """Merge lists of items into the one that all clients share, for a common basis or an algorithm that shares items.

    Whoever merges sees which items each source has. Silos that do not want that take a list that is public anyway, such
    as all numbers of their trade (GTIN, ISBN, IMDb), which must hold every item of each shard. All clients know the
    list; the aggregator needs its length alone.
    """
    from shared.files import replace_file
    from simulation.partitioning.catalogue import merge_items, save_catalogue

    items = merge_items(sources)
    digests = {save_catalogue(items, path) for path in out}
    if size_file is not None:
        replace_file(size_file, f"{len(items)}\n".encode())
    if as_json:
        return print_json({"items": len(items), "sha256": digests.pop(), "files": [str(path) for path in out]})
    for path in out:
        OUT.print(f"{path}: {count_noun(len(items), 'item')}, sha256 {next(iter(digests))}", soft_wrap=True)
