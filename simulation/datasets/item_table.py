"""Reader of item files: comparable ids, titles, years and GTINs."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from client_service.data.id_columns import read_id_list
from shared.errors import DataError
from simulation.datasets.columns import COLUMNS, FileOptions
from simulation.datasets.content import format_extension
from simulation.datasets.formats import TITLES

ITEM_COLUMNS = {
    "item": (*COLUMNS["item"], "id", "sku", "article", "asin", "product", "product_id", "productid"),
    "title": COLUMNS["title"],
    "year": ("year", "release_year", "publication_year", "jahr", "erscheinungsjahr", "年份"),
    "gtin": ("gtin", "ean", "isbn", "upc", "gtin13", "gtin14", "ean13", "isbn13", "isbn10", "barcode"),
}
EARLIEST, LATEST = 1000, 2199  # years that are years


@dataclass(frozen=True)
class ItemFileOptions(FileOptions):
    """Options of an item file, which has other fields than one of interactions."""

    def names(self, role: str) -> tuple[str, ...]:
        """Returns the names of a field's column, in lower case."""
        if role in self.columns or role not in ITEM_COLUMNS:
            return super().names(role)
        return ITEM_COLUMNS[role]

    def is_id(self, name: str) -> bool:
        """Tells whether a column is read as text, as ids are.

        GTINs and years are too: a leading zero counts.
        """
        return any(name in self.names(role) for role in ("item", "year", "gtin"))


def read_item_table(path: Path, file_options: FileOptions) -> pl.DataFrame:
    """Reads items (item, title, year, gtin) from a file, each item once.

    null where a value is missing; a list of ids gives the ids alone. Raises DataError for a file without items.
    """
    given = ItemFileOptions(file_options.columns, file_options.delimiter)
    read = TITLES.get(path.name.removesuffix(".gz")) or TITLES.get(format_extension(path))
    if read is None:  # a list, one id a line
        return complete_items(pl.DataFrame({"item": read_id_list(path, "item")}))
    table = read(path, given)
    found = {name: column for name in ITEM_COLUMNS if (column := table.find_column(name)) is not None}
    if "item" not in found:
        names = " or ".join(given.names("item"))
        raise DataError(f"{path}: expected a column {names}, got none; --columns item=NAME names another")
    return complete_items(pl.DataFrame({**found, "item": table.read_ids("item")}))


def complete_items(items: pl.DataFrame) -> pl.DataFrame:
    """Keeps each item once, with every column.

    A year in brackets at the end of a title becomes the item's year.
    """
    lacking = [pl.lit(None, dtype=pl.String).alias(name) for name in ITEM_COLUMNS if name not in items.columns]
    whole = items.with_columns(lacking).select(*(pl.col(name).cast(pl.String) for name in ITEM_COLUMNS))
    whole = whole.unique("item", keep="first", maintain_order=True)
    year = pl.col("year").str.extract(r"^\s*(\d{4})").cast(pl.Int32, strict=False)
    titled = pl.col("title").str.extract(BRACKETED_YEAR).cast(pl.Int32, strict=False)
    known = pl.coalesce(year, titled)
    return whole.with_columns(
        gtin=pl.col("gtin").str.strip_chars().replace("", None),
        title=pl.col("title").str.replace(BRACKETED_YEAR, "").str.strip_chars().replace("", None),
        year=pl.when(known.is_between(EARLIEST, LATEST)).then(known),
    )


BRACKETED_YEAR = r"\s*[(\[（]\s*(\d{4})\s*[)\]）]\s*$"
ARTICLE_WORDS = "the a an der die das den dem ein eine le la les l un une el los las il lo gli i"
ARTICLES = frozenset(ARTICLE_WORDS.split())
TRAILING = re.compile(rf"^(?P<rest>.*\S)\s*,\s*(?P<article>{'|'.join(sorted(ARTICLES))})['’]?$", re.IGNORECASE)
EDITIONS = (
    "director s cut|directors cut|special edition|limited edition|collector s edition|collectors edition"
    "|deluxe edition|anniversary edition|extended edition|extended version|remastered|unrated|uncut|widescreen|blu ray"
    "|bluray|dvd|4k|uhd|vhs|cd|vinyl|hardcover|paperback|softcover|mass market|kindle|ebook|e book|audiobook|edition"
    "|taschenbuch|gebundene ausgabe|gebunden|sonderausgabe|jubilaeumsausgabe|neuausgabe|neuauflage|auflage|ausgabe"
    "|hoerbuch|originalfassung|version|精装版|平装版|精装|平装|典藏版|修订版|珍藏版|豪华版|导演剪辑版"
)
EDITION_WORDS = re.compile(rf"(?<!\w)(?:{EDITIONS})(?!\w)|精装版|平装版|典藏版|修订版|珍藏版|豪华版|导演剪辑版")
UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l"})
ROMAN_NUMERALS = "i ii iii iv v vi vii viii ix x xi xii xiii xiv xv xvi xvii xviii xix xx"
COUNTED = (
    "one two three four five six seven eight nine ten",
    "eins zwei drei vier fuenf sechs sieben acht neun zehn",
    "first second third fourth fifth sixth seventh eighth ninth tenth",
    "erster zweiter dritter vierter fuenfter sechster siebter achter neunter zehnter",
)
NUMBERS: Mapping[str, str] = {
    word: str(place) for words in map(str.split, (ROMAN_NUMERALS, *COUNTED)) for place, word in enumerate(words, 1)
}
CHINESE = {word: str(place) for place, word in enumerate("一二三四五六七八九十", 1)}
COUNTED_CHINESE = re.compile(r"第?([一二三四五六七八九十]|\d+)(?=[部集季卷册篇])|第([一二三四五六七八九十]|\d+)")
ORDINAL = re.compile(r"^(\d+)(?:st|nd|rd|th)$")
WIDE = re.compile(r"[぀-ヿ㐀-䶿一-鿿가-힯]+")


def spell_title(title: str) -> tuple[str, ...]:
    """Normalises the words of a title.

    Without case, accents, punctuation, an article at either end and words of editions; Roman and written numbers become
    digits. Chinese, Japanese and Korean is cut into pairs of characters; an emoji is a word.
    """
    text = unicodedata.normalize("NFKC", title).strip()
    if (turned := TRAILING.match(text)) is not None:
        text = f"{turned['article']} {turned['rest']}"
    text = _strip_accents(unicodedata.normalize("NFC", text.casefold()).translate(UMLAUTS))
    text = COUNTED_CHINESE.sub(lambda found: f" {CHINESE.get(found[1] or found[2], found[1] or found[2])} ", text)
    text = "".join(one if unicodedata.category(one)[0] in "LNM" or _is_sign(one) else " " for one in text)
    text = "".join(f" {one} " if _is_sign(one) else one for one in text)
    whole = " ".join(text.split())
    plain = " ".join(EDITION_WORDS.sub(" ", whole).split()) or whole
    words = [token for word in plain.split() for token in _cut_word(word)]
    if len(words) > 1 and words[0] in ARTICLES:
        words = words[1:]
    return tuple(NUMBERS.get(word, ORDINAL.sub(r"\1", word)) for word in words)


def _strip_accents(text: str) -> str:
    """Removes accents of letters; marks of other scripts, which distinguish words, stay."""
    found = []
    for one in text:
        parts = unicodedata.normalize("NFD", one)
        found.append(parts[0] if len(parts) > 1 and parts[0].isascii() else one)
    return "".join(found)


def _is_sign(one: str) -> bool:
    return unicodedata.category(one) in ("So", "Sk") and not one.isascii()


def _cut_word(word: str) -> list[str]:
    found, begin = [], 0
    for wide in WIDE.finditer(word):
        found += [word[begin : wide.start()]] if word[begin : wide.start()] else []
        run, begin = wide[0], wide.end()
        found += [run[place : place + 2] for place in range(len(run) - 1)] or [run]
    return found + ([word[begin:]] if word[begin:] else [])


def spell_id(text: str) -> tuple[str, str]:
    """Splits an id into letters and a number, which shops write differently.

    Returns the letters before a number, and the number without zeros before it; else the whole id, and "". Both without
    case and separators.
    """
    plain = re.sub(r"[\s_./:#]+", "-", unicodedata.normalize("NFKC", text).casefold().strip())
    if (numbered := re.fullmatch(r"([a-z]*)-*0*([1-9]\d*)", plain)) is not None:
        return numbered[1], numbered[2]
    return plain.replace("-", ""), ""


def spell_gtin(text: str) -> str | None:
    """Converts a GTIN or ISBN to 14 digits.

    GTIN-8, 12 (UPC), 13 (EAN, ISBN) and 14, or an ISBN of ten digits. None for a number of another length, or with a
    wrong check digit.
    """
    plain = re.sub(r"[\s\-_.]+", "", unicodedata.normalize("NFKC", text)).upper()
    plain = re.sub(r"^(?:ISBN(?:1[03])?|EAN|GTIN|UPC):?", "", plain)
    if re.fullmatch(r"\d{9}[\dX]", plain):
        digits = [10 if one == "X" else int(one) for one in plain]
        if sum(digit * weight for digit, weight in zip(digits, range(10, 0, -1), strict=True)) % 11:
            return None
        plain = f"978{plain[:9]}"
        plain += str(_check_digit(plain))
    if not re.fullmatch(r"\d{8}|\d{12,14}", plain) or not plain.strip("0"):
        return None
    return plain.zfill(14) if _check_digit(plain[:-1]) == int(plain[-1]) else None


def _check_digit(digits: str) -> int:
    """Computes the check digit of a GTIN.

    From the right the weights are 3, 1, 3, ...
    """
    total = sum(int(one) * (3 if place % 2 == 0 else 1) for place, one in enumerate(reversed(digits)))
    return -total % 10
