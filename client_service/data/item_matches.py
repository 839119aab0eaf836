"""Signs and reads a silo's matches of its own items to the federation's.

That is a file of two columns. Its first line has the sha256 of the rest, so that a change by hand is noticed. It never
leaves the silo.
"""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from client_service.data.files import read_lines
from client_service.data.id_columns import normalise_ids
from shared.errors import DataError
from shared.files import replace_file

NAME = "matches.csv"  # in a silo's folder
SIGNATURE = "# signed matches of items, sha256 "
NO_MATCH = ""  # federation's name of an own item that has no match


def sign_matches(matches: Mapping[str, str], path: Path) -> str:
    """Writes the signed file of matches, and returns the sha256 in it.

    matches: own id -> the federation's, NO_MATCH for an item without one. Raises DataError if two own items have
    the same match.
    """
    table = _require_unique_matches(pl.DataFrame({"own": list(matches), "shared": list(matches.values())}), path)
    rows = io.StringIO()
    csv.writer(rows, lineterminator="\n").writerows([table.columns, *table.sort("own").iter_rows()])
    digest = hashlib.sha256(rows.getvalue().encode()).hexdigest()
    replace_file(path, f"{SIGNATURE}{digest}\n{rows.getvalue()}".encode())
    return digest


def is_signed(path: Path) -> bool:
    """Tells whether a file has signed matches."""
    return next(iter(read_lines(path)), "").startswith(SIGNATURE)


def read_matches(path: Path) -> dict[str, str]:
    """Reads the federation's id of each own id.

    Raises DataError for an unsigned file, and for one that was changed since.
    """
    first, *rest = read_lines(path) or [""]
    again = "correct the file, then sign it with `lpsfed catalogue sign`"
    if not first.startswith(SIGNATURE):
        raise DataError(f"{path}: expected signed matches of items, got another file; {again}")
    content = "".join(f"{line}\n" for line in rest)
    if hashlib.sha256(content.encode()).hexdigest() != first.removeprefix(SIGNATURE).strip():
        raise DataError(f"{path}: expected the matches that were signed, got changed ones; {again}")
    header, *rows = csv.reader(io.StringIO(content))
    if header != ["own", "shared"] or any(len(row) != 2 for row in rows):
        raise DataError(f"{path}: expected the columns own and shared, got others; {again}")
    return dict(rows)


def name_items(ids: Sequence[str], matches: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the federation's name of each own item, or NO_MATCH, (N,).

    NO_MATCH: it is none of the federation's items, or the silo has given its id to another own item. An item without a
    match keeps its id.
    """
    own = pl.Series("own", ids, dtype=pl.String)
    table = pl.DataFrame(list(matches.items()), schema={"own": pl.String, "shared": pl.String}, orient="row")
    table = table.with_columns(own=normalise_ids(table["own"]))
    found = pl.DataFrame({"own": normalise_ids(own), "as_is": own})
    found = found.join(table, on="own", how="left", maintain_order="left")
    given = pl.col("own").is_in(table["shared"].implode())
    named = found.select(
        pl.when(pl.col("shared").is_not_null()).then("shared").when(given).then(pl.lit(NO_MATCH)).otherwise("as_is")
    )
    return tuple(named.to_series())


def _require_unique_matches(table: pl.DataFrame, path: Path) -> pl.DataFrame:
    spelled = table.with_columns(own=normalise_ids(table["own"]), shared=normalise_ids(table["shared"]))
    if (twice := int(spelled["own"].is_duplicated().sum())) or (spelled["own"] == "").any():
        raise DataError(f"{path}: expected each own item once, got {twice or 'one without an id'}")
    taken = spelled.filter(pl.col("shared") != NO_MATCH)
    if several := int(taken["shared"].is_duplicated().sum()):
        words = f"expected each item of the federation for one own item alone, {several} own items share theirs"
        raise DataError(f"{path}: {words}: take one of each, and say no to the others")
    return spelled
