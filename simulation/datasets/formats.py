"""Registry of file formats of interactions: one reader and one line here for each format.

A reader turns a path into a `Table`: columns under the names in `simulation.datasets.columns.COLUMNS`, and the line of
each row. Checks, times, splits and clean-ups are the same for all formats, so a reader has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simulation.datasets.columns import FileOptions
from simulation.datasets.lightgcn import read_lightgcn
from simulation.datasets.parquet import read_parquet
from simulation.datasets.separated import (
    read_csv,
    read_json_lines,
    read_movie_titles,
    read_ratings,
    read_recbole,
    read_u_item,
)
from simulation.datasets.tables import Table

Reader = Callable[[Path, FileOptions], Table]


@dataclass(frozen=True)
class Format:
    """File format of interactions.

    label: as errors list the format. stems: names without extension that mark a folder's file of interactions, `*` for
    any. titles: names of files beside it that may hold titles, with `{stem}` for the file's own name. numbered_titles:
    names of title files whose ids are numbered in `item_map.txt`.
    """

    label: str
    read: Reader
    stems: tuple[str, ...] = ("ratings", "interactions")
    titles: tuple[str, ...] = ("items.csv", "items.tsv", "items.jsonl", "items.ndjson", "items.parquet", "movies.csv")
    numbered_titles: tuple[str, ...] = ()


FORMATS = {  # by extension
    # Ids of LightGCN text are renumbered: MovieLens' own movies.dat beside it needs a file that tells the numbers.
    "txt": Format("LightGCN .txt", read_lightgcn, stems=(), numbered_titles=("movies.dat", "u.item")),
    "dat": Format("MovieLens .dat", read_ratings, stems=("ratings",), titles=("movies.dat",)),
    "data": Format("MovieLens u.data", read_ratings, stems=("u",), titles=("u.item",)),
    "inter": Format("RecBole .inter", read_recbole, stems=("*",), titles=("{stem}.item",)),
    "csv": Format(".csv", read_csv),
    "tsv": Format(".tsv", read_csv),
    "jsonl": Format(".jsonl", read_json_lines),
    "ndjson": Format(".ndjson", read_json_lines),
    "parquet": Format(".parquet", read_parquet),
}
TITLES: dict[str, Reader] = {  # by name, then by extension
    "u.item": read_u_item,
    "dat": read_movie_titles,
    "item": read_recbole,
    "csv": read_csv,
    "tsv": read_csv,
    "jsonl": read_json_lines,
    "ndjson": read_json_lines,
    "parquet": read_parquet,
}
READ = f"{', '.join(format_.label for format_ in FORMATS.values())}, each plain or .gz"
