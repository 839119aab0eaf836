"""Writes lists of recommendations to a file, with a row per item of a list."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import polars as pl

from lpsfed import Recommendations
from lpsfed.calls import split_chunks
from shared.errors import SettingsError

ROWS: Final = {
    "user": pl.String,
    "rank": pl.Int32,
    "item": pl.String,
    "score": pl.Float64,
    "title": pl.String,
    "fallback": pl.String,
    "model": pl.String,
}
FORMULA = r"^[=+\-@\t\r\n＝＋－＠]"  # so begins a cell that a spreadsheet computes, or may
PLAIN_ID = r"^[+\-@][\w.\-]*$"  # a number or a handle, which computes nothing
LISTS_PER_PART = 5000  # in memory at a time
SINKS: Final[dict[str, Callable[[pl.LazyFrame, Path], Any]]] = {
    ".parquet": pl.LazyFrame.sink_parquet,
    ".csv": lambda lists, path: quote_formulas(lists).sink_csv(path),
    ".ndjson": pl.LazyFrame.sink_ndjson,
}


def require_format(path: Path) -> Path:
    """Checks the ending and the folder of an output file, and returns its path.

    Raises SettingsError for an unsupported ending, or a missing folder.
    """
    if path.suffix not in SINKS:
        raise SettingsError(f"--out: expected a file that ends in {', '.join(SINKS)}, got {path.name}")
    if not path.parent.is_dir():
        raise SettingsError(f"--out: expected a file in a folder that is there, got {path}")
    return path


def quote_formulas(lists: pl.LazyFrame) -> pl.LazyFrame:
    """Escapes cells that a spreadsheet would compute: an apostrophe stands before them.

    Titles that begin as a formula are escaped, and ids too, unless they are a number or a handle: one that computes
    nothing means the same in every format.
    """
    begins = {name: pl.col(name).str.contains(FORMULA) for name in ("user", "item", "title")}
    begins |= {name: begins[name] & ~pl.col(name).str.contains(PLAIN_ID) for name in ("user", "item")}
    return lists.with_columns(
        pl.when(found).then(pl.lit("'") + pl.col(name)).otherwise(pl.col(name)).alias(name)
        for name, found in begins.items()
    )


def save_lists(lists: Iterable[Recommendations], path: Path) -> int:
    """Writes the lists, all or none, and returns their number.

    Memory holds only a part of them.
    """
    require_format(path)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as place:
        parts = [_write_part(part, Path(place, f"{n}.parquet")) for n, part in enumerate(_split_lists(lists))]
        whole = Path(place, f"whole{path.suffix}")
        read = partial(pl.scan_parquet, [file for file, _ in parts]) if parts else pl.LazyFrame(schema=ROWS).lazy
        SINKS[path.suffix](read(), whole)
        os.replace(whole, path)
    return sum(count for _, count in parts)


def _split_lists(lists: Iterable[Recommendations]) -> Iterable[Sequence[Recommendations]]:
    return split_chunks(lists, LISTS_PER_PART)


def _write_part(lists: Sequence[Recommendations], file: Path) -> tuple[Path, int]:
    rows = [
        (one.user, rank, item.item, item.score, item.title, one.fallback, one.model)
        for one in lists
        for rank, item in enumerate(one.items, start=1)
    ]
    pl.DataFrame(rows, schema=ROWS, orient="row").write_parquet(file)
    return file, len(lists)
