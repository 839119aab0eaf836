"""`lpsfed catalogue`: the list of shared items, and matches of own items to it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from shared.errors import SettingsError
from shared.words import count_noun
from simulation.cli import options
from simulation.cli.options import AsJson, print_json
from simulation.datasets.columns import FileOptions
from simulation.reports.terminal import OUT

if TYPE_CHECKING:
    import polars as pl


class KeyName(StrEnum):
    """Names of an item in all silos, as in simulation.partitioning.item_matches.KEYS."""

    gtin = "gtin"
    title_and_year = "title"
    id = "id"


SHOWN = 20  # proposals that are printed; the file has all


class CatalogueCommands(TyperGroup):
    """Group of commands in which `lpsfed catalogue SOURCE ...` means merge."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Returns the arguments after the command's name, with `merge` where it is left out."""
        known = (*self.commands, "--help")
        return super().parse_args(ctx, args if args and args[0] in known else ["merge", *args])


app = typer.Typer(
    cls=CatalogueCommands,
    add_completion=False,
    help="Makes the list of items that all silos share, or matches a silo's items to it. Without a subcommand it "
    "merges: lpsfed catalogue SOURCE ... --out LIST.",
)


@app.command("merge")
def catalogue(
    sources: Annotated[list[Path], typer.Argument(help="Data files, shards, and lists of ids, one per line")],
    out: Annotated[list[Path], typer.Option(help="File for the list of all their items; repeatable")],
    size_file: Annotated[Path | None, typer.Option(help="File for the length of the list, for the aggregator")] = None,
    min_rating: options.MinRating = None,
    rating_kind: options.RatingKindChoice = None,
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    as_json: AsJson = False,
) -> None:
    """Makes the list of items that all silos share, from data files, shards or lists.

    From a data file it takes the items that `lpsfed join` would take. Who runs it on data files sees the data, and on
    lists sees which items each silo has. So each silo runs it on its own data, and one party merges the lists. A
    public list, such as all numbers of the trade (GTIN, ISBN, IMDb), avoids both. All silos know the list, and that
    some silo has each item. The aggregator knows it with --catalogue, else only its length.
    """
    from shared.files import replace_file
    from simulation.partitioning.catalogue import DataReading, merge_items, save_catalogue

    least = options.choose_min_rating(min_rating, rating_kind, "usual")
    items = merge_items(sources, DataReading(least, options.parse_file_options(columns, delimiter)))
    digests = {save_catalogue(items, path) for path in out}
    if size_file is not None:
        replace_file(size_file, f"{len(items)}\n".encode())
    if as_json:
        return print_json({"items": len(items), "sha256": digests.pop(), "files": [str(path) for path in out]})
    for path in out:
        OUT.print(f"{path}: {count_noun(len(items), 'item')}, sha256 {next(iter(digests))}", soft_wrap=True)


@app.command("match")
def match(
    own: Annotated[
        Path, typer.Argument(help="The silo's items: a table of id, title, year and trade number, or a list")
    ],
    listed: Annotated[
        Path | None, typer.Argument(show_default=False, help="The shared items: such a table, or the list of ids alone")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the proposals, to be edited: take is yes or no")] = None,
    keys: Annotated[
        bool, typer.Option("--keys", help="Make shared ids from the items alone, if there is no list")
    ] = False,
    by: Annotated[
        list[KeyName] | None, typer.Option(help="Source of the ids that --keys makes, in this order; repeatable")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(help="Names of columns in the silo's file, as item=sku,gtin=ean. Fields: item, title, year, gtin"),
    ] = None,
    list_columns: Annotated[str | None, typer.Option(help="Names of columns in the file of shared items")] = None,
    delimiter: options.Delimiter = None,
    as_json: AsJson = False,
) -> None:
    """Proposes matches of a silo's items with the shared list. Nothing is sent.

    It matches by id, trade number (GTIN, EAN, UPC, ISBN), title and year, title, spelling of the id, and similar
    title. Uncertain or ambiguous matches have take = no. Edit the file; `lpsfed join --matches FILE` signs it.
    """
    from simulation.datasets.item_table import read_item_table
    from simulation.partitioning.item_matches import KEYS, make_keys, propose_matches, write_proposals

    if keys == (listed is not None):
        words = "expected either the federation's list of items or --keys, if it has none"
        given = "both" if keys else "neither"
        raise SettingsError(f"{words}, got {given}: lpsfed catalogue match own.csv list.csv, or own.csv --keys")
    if by and not keys:
        raise SettingsError("--by: expected it with --keys alone, got it with a list")
    items = read_item_table(own, parse_item_columns(columns, delimiter))
    if listed is None:
        found = make_keys(items, [one.value for one in by or []] or KEYS)
    else:
        found = propose_matches(items, read_item_table(listed, parse_item_columns(list_columns, None)))
    if out is not None:
        write_proposals(found, out)
    if as_json:
        counts = {"items": len(items), "taken": int(found["take"].sum()), "open": int((~found["take"]).sum())}
        return print_json({**counts, "matches": found.to_dicts()})
    _print_proposals(items, found, out)


def _print_proposals(items: pl.DataFrame, found: pl.DataFrame, out: Path | None) -> None:
    """Prints open proposals first, and the number of each kind."""
    from simulation.reports.terminal import word_table

    table = word_table("own id", "proposed id", "by", "sure", "take", "title", "note")
    shown = found.sort("take", "sure", descending=[False, True], maintain_order=True).head(SHOWN)
    for row in shown.iter_rows(named=True):
        take, title = "yes" if row["take"] else "no", " / ".join(filter(None, (row["title"], row["shared_title"])))
        table.add_row(row["own"], row["shared"], row["by"], f"{row['sure']:.2f}", take, title, row["note"])
    taken = found.filter(found["take"])["by"].value_counts(sort=True)
    kinds = ", ".join(f"{count} by {kind}" for kind, count in taken.iter_rows())
    OUT.print(table)
    left = len(items) - len(found)
    OUT.print(f"{count_noun(len(items), 'item')}: {kinds or 'none taken'}; {left} without a proposal", soft_wrap=True)
    written = f"{out}: edit take, then lpsfed join --matches {out}"
    OUT.print("no file was written: --out FILE" if out is None else written, soft_wrap=True)


@app.command("sign")
def sign(
    proposals: Annotated[Path, typer.Argument(help="File of `lpsfed catalogue match`, edited")],
    out: Annotated[Path, typer.Option(help="File for the client's setting MATCHES")],
    as_json: AsJson = False,
) -> None:
    """Signs edited matches for a silo that does not join by `lpsfed join`."""
    from client_service.data.item_matches import sign_matches
    from simulation.partitioning.item_matches import read_proposals

    matches = read_proposals(proposals)
    digest = sign_matches(matches, out)
    if as_json:
        return print_json({"items": len(matches), "sha256": digest, "file": str(out)})
    OUT.print(f"{out}: {count_noun(len(matches), 'item')}, sha256 {digest}", soft_wrap=True)


def parse_item_columns(columns: str | None, delimiter: str | None) -> FileOptions:
    """Parses --columns and --delimiter of a file of items.

    Raises SettingsError for a field that such a file does not have.
    """
    from simulation.datasets.item_table import ITEM_COLUMNS

    pairs = options.parse_pairs(columns.split(","), "--columns") if columns else {}
    if unknown := [name for name in pairs if name not in ITEM_COLUMNS]:
        raise SettingsError(f"--columns: expected fields of {', '.join(ITEM_COLUMNS)}, got {unknown[0]!r}")
    return FileOptions(pairs, options.parse_file_options(None, delimiter).delimiter)
