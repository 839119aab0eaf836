"""Matches of a silo's items with the common list, by title, GTIN and id.

The silo signs some of the proposals. Nothing leaves it. Two own items never become one item of the list, nor one two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.interaction_files import load_shard
from client_service.data.item_matches import NO_MATCH, sign_matches
from shared.errors import DataError
from shared.files import PRIVATE, replace_file
from shared.words import count_noun
from simulation.datasets.item_table import complete_items, spell_gtin, spell_id, spell_title

Float64 = NDArray[np.float64]
Key = Literal["gtin", "title", "id"]
KEYS: tuple[Key, ...] = ("gtin", "title", "id")
COLUMNS = ("own", "title", "shared", "shared_title", "by", "sure", "take", "note")
TAKEN = 0.9  # least certainty of a proposal that is taken by default
SURE = {
    "id": 1.0,
    "number": 0.99,
    "title and year": 0.97,
    "main title and year": 0.85,
    "title": 0.92,
    "spelling of the id": 0.95,
}
PREFIXED, CONTRADICTED, AMBIGUOUS = 0.7, 0.3, 0.5
BRACKETED = r"[(\[（【][^)\]）】]*[)\]）】]"  # another name, or another language's
UNLIKE = 0.2  # share of words in common below which two titles are of different items
SIMILAR, MARGIN = 0.75, 0.15  # share of weighted words in common, and how much less the next best may have
SHORTEST = 6  # least letters of a title that matches without its year
MOST_ALIKE = 3  # items of one side that are looked at where all have one title
ROWS = 1024  # own items that are compared with the list at a time


def propose_matches(own: pl.DataFrame, listed: pl.DataFrame) -> pl.DataFrame:
    """Proposes at most one item of the list for each own item, the surest first.

    See COLUMNS. own, listed: as `read_item_table` gives them. take: is it sure enough to be taken? These come first. By
    id, GTIN, title and year, title, spelling of the id, and similar title. An item that a surer kind has matched is not
    compared again. An item with several matches is proposed, and not taken.
    """
    left, right = _spell(own), _spell(listed)
    found: list[pl.DataFrame] = []
    steps = (
        ("id", ["item"], None),
        ("number", ["number"], None),
        ("title and year", ["words", "year"], None),
        ("title", ["words"], pl.col("year").is_null() | pl.col("year_listed").is_null()),
        ("spelling of the id", ["prefix", "digits"], None),
        ("spelling of the id", ["digits"], (pl.col("prefix") == "") | (pl.col("prefix_listed") == "")),
    )
    for by, keys, condition in steps:
        pairs = _join(left, right, keys, condition)
        if not pairs.is_empty():
            rows = _judge(pairs, by, prefixed="prefix" not in keys)
            found.append(rows)
            left = left.filter(~pl.col("item").is_in(rows["own"].implode()))
            right = right.filter(~pl.col("item").is_in(rows.filter(pl.col("take"))["shared"].implode()))
    found.append(similar := _propose_similar(left, right))
    left = left.filter(~pl.col("item").is_in(similar["own"].implode()))
    found.append(_judge(_join(left, right, ["main", "year"], None), "main title and year", prefixed=False))
    return _resolve_conflicts(pl.concat([one for one in found if not one.is_empty()] or [_no_rows()]))


def make_keys(own: pl.DataFrame, kinds: Sequence[Key] = KEYS) -> pl.DataFrame:
    """Gives each own item a name that every silo would give it, without a list.

    The name is of the first of these kinds that distinguishes it from every other own item; none where no kind does.
    gtin: the GTIN; title: with the year; id: normalised.
    """
    spelled = _spell(own)
    year = pl.col("year").cast(pl.String).fill_null("")
    made = {
        "gtin": pl.format("gtin:{}", "number"),
        "title": pl.when(pl.col("year").is_not_null()).then(pl.format("title:{}|{}", "words", year)),
        "id": pl.format("id:{}{}", "prefix", "digits"),
    }
    kept = spelled.with_columns(shared=pl.lit(None, dtype=pl.String), by=pl.lit(None, dtype=pl.String))
    for kind in kinds:
        key = made[kind]
        alone = key.is_not_null() & (pl.len().over(key.fill_null("")) == 1)
        fits = pl.col("shared").is_null() & alone
        kept = kept.with_columns(
            by=pl.when(fits).then(pl.lit(kind)).otherwise("by"), shared=pl.when(fits).then(key).otherwise("shared")
        )
    return kept.filter(pl.col("shared").is_not_null()).select(
        own="item",
        title="title",
        shared="shared",
        shared_title=pl.lit(None, dtype=pl.String),
        by="by",
        sure=pl.lit(1.0),
        take=pl.lit(True),
        note=pl.lit(""),
    )


def write_proposals(proposals: pl.DataFrame, path: Path) -> None:
    """Writes a table of proposals that the silo edits.

    `take` says yes or no, and `shared` may be another item of the list.
    """
    words = pl.when("take").then(pl.lit("yes")).otherwise(pl.lit("no"))
    try:
        replace_file(path, proposals.with_columns(take=words).write_csv().encode(), PRIVATE)
    except OSError as error:
        raise DataError(f"{path}: expected a writable path, got none ({error.strerror})") from None


def read_proposals(path: Path) -> dict[str, str]:
    """Reads the accepted proposals: common id by own id.

    An own id that is on the list, and whose proposal the silo rejects, is not a common item. Raises DataError for a
    table without the columns, or with another word than yes or no.
    """
    try:
        table = pl.read_csv(path, infer_schema=False)
    except OSError as error:
        raise DataError(
            f"{path}: expected proposals of `lpsfed catalogue match`, got none ({error.strerror})"
        ) from None
    except pl.exceptions.PolarsError:
        raise DataError(f"{path}: expected a table as `lpsfed catalogue match` writes it, got another file") from None
    if missing := [name for name in ("own", "shared", "take") if name not in table.columns]:
        words = "expected the columns own, shared and take, as `lpsfed catalogue match` writes them"
        raise DataError(f"{path}: {words}, {missing[0]} is missing")
    said = table["take"].str.strip_chars().str.to_lowercase()
    wrong = (~said.is_in(("yes", "no"))).fill_null(True).arg_true()
    if len(wrong):
        line = wrong[0] + 2  # behind the head
        raise DataError(
            f"{path}: expected yes or no in the column take, got something else in {count_noun(len(wrong), 'line')},"
            f" first in line {line}"
        )
    table = table.with_columns(said=said, shared=pl.col("shared").fill_null(NO_MATCH))
    taken = table.filter(pl.col("said") == "yes")
    if twice := int(taken["own"].is_duplicated().sum()):
        words = f"expected yes once for each own item, got {twice} lines that say it of an own item again"
        raise DataError(f"{path}: {words}: leave one of each")
    refused = table.filter((pl.col("said") == "no") & (pl.col("own") == pl.col("shared")))
    return dict(taken.select("own", "shared").iter_rows()) | dict.fromkeys(refused["own"], NO_MATCH)


@dataclass(frozen=True)
class MatchedShards:
    """Matches of all silos of an experiment, with a count of correct ones.

    files: what each silo has signed, by its name. taken: own items that were matched; right: those of them that are the
    same item; known: own items that have one.
    """

    files: Mapping[str, Path]
    taken: int
    right: int
    known: int

    def to_json(self) -> dict[str, float]:
        """Returns counts, precision and recall."""
        precision, recall = self.right / max(1, self.taken), self.right / max(1, self.known)
        return {"taken": self.taken, "known": self.known, "precision": precision, "recall": recall}


def match_shards(shards: Sequence[Path], folder: Path, own_ids: str) -> MatchedShards:
    """Matches each silo's items with the other silos' items by title.

    own_ids: a pattern of such ids, whose first group is the id that is the same in all silos. Each silo accepts the
    proposed matches. DataError for shards without titles.
    """
    tables = {path.name: _titled_items(path) for path in shards}
    renamed = pl.col("item").str.contains(own_ids)
    listed = complete_items(pl.concat([table.filter(~renamed) for table in tables.values()]))
    files, counts = {}, np.zeros(3, np.int64)
    for name, table in tables.items():
        own = complete_items(table)
        found = propose_matches(own, listed).filter(pl.col("take") & (pl.col("by") != "id"))
        known = own.filter(renamed).select(own="item", shared=pl.col("item").str.extract(own_ids))
        known = known.join(listed, left_on="shared", right_on="item", how="semi")
        counts += (len(found), len(found.join(known, on=["own", "shared"], how="semi")), len(known))
        files[name] = folder / f"{name}.csv"
        folder.mkdir(parents=True, exist_ok=True)
        sign_matches(dict(found.select("own", "shared").iter_rows()), files[name])
    taken, right, known_items = (int(count) for count in counts)
    return MatchedShards(files, taken, right, known_items)


def _titled_items(shard: Path) -> pl.DataFrame:
    found = load_shard(shard)
    if found.titles is None:
        raise DataError(f"{shard}: expected items with titles, by which they are matched, got none")
    return pl.DataFrame({"item": found.item_ids, "title": found.titles}, schema={"item": pl.String, "title": pl.String})


def _spell(items: pl.DataFrame) -> pl.DataFrame:
    """Adds normalised titles, numbers and ids; null for missing ones."""
    titles = [None if title is None else spell_title(title) for title in items["title"]]
    mains = items["title"].str.replace_all(BRACKETED, " ").str.strip_chars()
    main = [" ".join(spell_title(title)) or None if title else None for title in mains]
    ids = [spell_id(item) for item in items["item"]]
    return items.with_columns(
        words=pl.Series([" ".join(words) or None if words else None for words in titles], dtype=pl.String),
        main=pl.Series(main, dtype=pl.String),
        counted=pl.Series([_numbers_of(words) for words in titles], dtype=pl.String),
        number=pl.Series(
            [
                spell_gtin(gtin) if gtin is not None else spell_gtin(item)
                for gtin, item in items.select("gtin", "item").iter_rows()
            ],
            dtype=pl.String,
        ),
        prefix=pl.Series([one if two else "" for one, two in ids], dtype=pl.String),
        digits=pl.Series([two or one for one, two in ids], dtype=pl.String),
    )


def _numbers_of(words: Sequence[str] | None) -> str:
    """Returns the numbers in a title, which distinguish "Part II" from the first part."""
    return " ".join(sorted(word for word in words or () if word.isdigit()))


def _join(left: pl.DataFrame, right: pl.DataFrame, keys: list[str], condition: pl.Expr | None) -> pl.DataFrame:
    """Returns pairs that agree in the keys.

    Of many items with one key, such as "unknown", a few alone are kept: none of them is taken.
    """
    known = pl.all_horizontal(pl.col(key).is_not_null() for key in keys)
    few = known & (pl.int_range(pl.len()).over(keys) < MOST_ALIKE)
    renamed = right.filter(few).rename({name: f"{name}_listed" for name in right.columns})
    pairs = left.filter(few).join(
        renamed, left_on=keys, right_on=[f"{key}_listed" for key in keys], how="inner", coalesce=False
    )
    return pairs if condition is None else pairs.filter(condition)


def _judge(pairs: pl.DataFrame, by: str, *, prefixed: bool) -> pl.DataFrame:
    """Adds how sure each pair is.

    Titles that contradict an id, and several matches of an item, are left to the silo.
    """
    first, second = pl.col("words").str.split(" "), pl.col("words_listed").str.split(" ")
    common = first.list.set_intersection(second).list.len() / first.list.set_union(second).list.len()
    unlike = ((common < UNLIKE) | (pl.col("counted") != pl.col("counted_listed"))).fill_null(False)
    far = ((pl.col("year") - pl.col("year_listed")).abs() > 1).fill_null(False) if "year" not in by else False
    several = (pl.len().over("item") > 1) | (pl.len().over("item_listed") > 1)
    sure = pl.lit(SURE[by])
    if by == "spelling of the id" and prefixed:
        sure = pl.when(common >= 1.0 - UNLIKE).then(SURE["title"]).otherwise(PREFIXED)
    if by == "title":
        sure = pl.when(pl.col("words").str.len_chars() >= SHORTEST).then(sure).otherwise(PREFIXED)
    rated = pairs.with_columns(
        note=pl.when(several)
        .then(pl.lit("several fit"))
        .when(unlike)
        .then(pl.lit("titles differ"))
        .when(far)
        .then(pl.lit("years differ"))
        .otherwise(pl.lit("")),
        sure=pl.when(several).then(AMBIGUOUS).when(unlike | far).then(CONTRADICTED).otherwise(sure),
        by=pl.lit(by),
    )
    return _to_rows(rated).unique("own", keep="first", maintain_order=True)


def _to_rows(pairs: pl.DataFrame) -> pl.DataFrame:
    return pairs.select(
        own="item",
        title="title",
        shared="item_listed",
        shared_title="title_listed",
        by="by",
        sure=pl.col("sure").cast(pl.Float64).round(3),
        take=pl.col("sure") >= TAKEN,
        note="note",
    )


def _no_rows() -> pl.DataFrame:
    kinds = {"sure": pl.Float64, "take": pl.Boolean}
    return pl.DataFrame(schema={name: kinds.get(name, pl.String) for name in COLUMNS})


def _propose_similar(left: pl.DataFrame, right: pl.DataFrame) -> pl.DataFrame:
    """Proposes the most similar title of the list for each own item.

    Numbers must be the same, and years nearly. It is taken where each is the other's best by a margin, and of one year.
    """
    titled = pl.col("words").is_not_null() & (pl.len().over("words") <= MOST_ALIKE)
    left, right = (side.filter(titled) for side in (left, right))
    if left.is_empty() or right.is_empty():
        return _no_rows()
    ours, theirs = _count_words(left["words"], right["words"])
    alike = _compare(ours, theirs, left, right)
    if not alike.nnz:
        return _no_rows()
    best, second = _two_best(alike)
    best_listed, second_listed = _two_best(sparse.csr_array(alike.T))
    rows = np.flatnonzero(best[1] >= SIMILAR)
    places, sure = best[0][rows], best[1][rows]
    mutual = best_listed[0][places] == rows
    clear = np.minimum(sure - second[rows], sure - second_listed[places]) >= MARGIN
    pairs = pl.concat(
        [left[rows], right[places].rename({name: f"{name}_listed" for name in right.columns})], how="horizontal"
    )
    same_year = (pl.col("year") == pl.col("year_listed")).fill_null(False)
    trusted = pl.Series(mutual & clear)
    rated = pairs.with_columns(
        by=pl.lit("similar title"),
        sure=pl.when(trusted & same_year).then(np.minimum(0.95, TAKEN + (sure - SIMILAR) / 5)).otherwise(sure * 0.8),
        note=pl.when(~trusted).then(pl.lit("others fit nearly as well")).otherwise(pl.lit("")),
    )
    return _to_rows(rated)


def _count_words(ours: pl.Series, theirs: pl.Series) -> tuple[sparse.csr_array, sparse.csr_array]:
    """Returns the weighted words of each title, (O, W) and (L, W).

    Entries are 0/1 times the square root of a word's inverse frequency weight.
    """
    words = pl.concat([ours, theirs]).str.split(" ")
    table = pl.DataFrame({"row": np.arange(len(words)), "word": words}).explode("word").unique(maintain_order=True)
    column = table["word"].rank("dense").to_numpy() - 1
    count = int(column.max()) + 1
    telling = np.log1p(len(words) / np.bincount(column, minlength=count))
    values = np.sqrt(telling)[column]
    whole = sparse.csr_array((values, (table["row"].to_numpy(), column)), shape=(len(words), count))
    return sparse.csr_array(whole[: len(ours)]), sparse.csr_array(whole[len(ours) :])


def _compare(
    ours: sparse.csr_array, theirs: sparse.csr_array, left: pl.DataFrame, right: pl.DataFrame
) -> sparse.csr_array:
    """Computes the weighted share of common words of two titles, (O, L).

    0 for other numbers or years.
    """
    sizes = [np.asarray(one.multiply(one).sum(axis=1)).ravel() for one in (ours, theirs)]
    codes = pl.concat([left["counted"], right["counted"]]).rank("dense").to_numpy()
    numbers = codes[: len(left)], codes[len(left) :]
    years = [side["year"].cast(pl.Float64).fill_null(np.nan).to_numpy() for side in (left, right)]
    turned, parts = sparse.csr_array(theirs.T), []
    for begin in range(0, ours.shape[0], ROWS):
        block = sparse.coo_array(ours[begin : begin + ROWS] @ turned)
        rows, columns = block.coords[0] + begin, block.coords[1]
        share = block.data / (sizes[0][rows] + sizes[1][columns] - block.data)
        apart = np.abs(years[0][rows] - years[1][columns])
        kept = (numbers[0][rows] == numbers[1][columns]) & ~(apart > 1) & (share > SIMILAR - MARGIN)
        shape = (min(ROWS, ours.shape[0] - begin), theirs.shape[0])
        parts.append(sparse.csr_array((share[kept], (rows[kept] - begin, columns[kept])), shape=shape))
    return sparse.csr_array(sparse.vstack(parts))


def _two_best(alike: sparse.csr_array) -> tuple[tuple[NDArray[np.int64], Float64], Float64]:
    """Returns each row's best column and its value, and the second best value.

    0: there is none.
    """
    rows, columns = alike.nonzero()
    values = np.asarray(alike[rows, columns]).ravel()
    order = np.lexsort((columns, -values, rows))
    rows, columns, values = rows[order], columns[order], values[order]
    first = np.flatnonzero(np.diff(rows, prepend=-1))
    place, best, second = np.zeros(alike.shape[0], np.int64), np.zeros(alike.shape[0]), np.zeros(alike.shape[0])
    place[rows[first]], best[rows[first]] = columns[first], values[first]
    following = first + 1
    inside = following < len(rows)
    inside[inside] = rows[following[inside]] == rows[first[inside]]
    second[rows[first[inside]]] = values[following[inside]]
    return (place, best), second


def _resolve_conflicts(rows: pl.DataFrame) -> pl.DataFrame:
    """Keeps the surest of several own items that match one listed item.

    Of equally sure ones none is kept.
    """
    taken = pl.col("take")
    most = pl.col("sure").filter(taken).max().over("shared")
    ties = (taken & (pl.col("sure") == most)).sum().over("shared")
    wins = taken & (pl.col("sure") == most) & (ties == 1)
    lost = taken & ~wins
    return rows.with_columns(
        take=wins, note=pl.when(lost).then(pl.lit("another own item fits it")).otherwise("note")
    ).sort("take", "sure", "own", descending=[True, True, False])
