"""Which own items are which of a list: what is the same in other words is found, what only looks the same is not."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from client_service.data.item_matches import NO_MATCH
from shared.errors import DataError
from simulation.cli.catalogue import app
from simulation.datasets.columns import DEFAULT_OPTIONS, FileOptions
from simulation.datasets.item_table import complete_items, read_item_table, spell_gtin, spell_id, spell_title
from simulation.partitioning.item_matches import make_keys, propose_matches, read_proposals, write_proposals


def items(*rows: tuple[str | int | None, ...]) -> pl.DataFrame:
    names = ("item", "title", "year", "gtin")
    padded = [tuple(None if one is None else str(one) for one in (*row, None, None, None)[:4]) for row in rows]
    return complete_items(pl.DataFrame(padded, schema=dict.fromkeys(names, pl.String), orient="row"))


def taken(proposals: pl.DataFrame) -> dict[str, str]:
    return dict(proposals.filter(pl.col("take")).select("own", "shared").iter_rows())


@pytest.mark.parametrize(
    "same",
    [
        ("The Postman", "Postman, The", "THE POSTMAN", "Postman [DVD]", "the postman (Director's Cut)"),
        ("Die Käserei", "Kaeserei, Die", "DIE KA\u0308SEREI", "Käserei (Taschenbuch)"),
        ("Amélie", "Amelie", "AME\u0301LIE"),
        ("Godfather: Part II, The", "The Godfather Part 2", "The Godfather - Part Two"),
        ("哈利波特 第二部", "哈利波特第2部", "哈利波特第二部 (精装版)", "《哈利波特》第二部"),
        ("🔥 Hits", "🔥Hits", "🔥 HITS!"),
        ("L'Avventura", "Avventura, L'", "avventura"),
        ("Ｆｕｌｌ　Ｗｉｄｔｈ", "Full Width"),
    ],
)
def test_titles_that_are_written_differently_are_one(same: tuple[str, ...]) -> None:
    assert len({spell_title(one) for one in same}) == 1, {one: spell_title(one) for one in same}


def test_titles_that_only_look_alike_are_several() -> None:
    apart = (
        "Rocky", "Rocky II", "Rocky III", "Biology, 2nd edition", "Biology, 3rd edition", "🔥 Hits", "🌊 Hits",
        "哈利波特 第一部", "哈利波特 第二部", "上海", "海上", "Käse", "Kasse",
    )  # fmt: skip
    assert not [pair for pair in combinations(apart, 2) if spell_title(pair[0]) == spell_title(pair[1])]


@pytest.mark.parametrize(
    ("text", "one"),
    [
        ("4006381333931", "04006381333931"),
        ("0 36000 29145 2", "00036000291452"),
        ("96385074", "00000096385074"),
        ("0-306-40615-2", "09780306406157"),
        ("ISBN 978-0-306-40615-7", "09780306406157"),
        ("080442957X", "09780804429573"),
        ("14006381333938", "14006381333938"),
    ],
)
def test_numbers_of_the_trade_have_one_form(text: str, one: str) -> None:
    assert spell_gtin(text) == one


@pytest.mark.parametrize("text", ["4006381333932", "0-306-40615-3", "123", "00000000", "4006381333931x", ""])
def test_a_number_with_a_wrong_check_digit_is_none(text: str) -> None:
    assert spell_gtin(text) is None


def test_ids_without_case_separators_and_zeros() -> None:
    assert spell_id("ART-00017") == spell_id("art 17") == spell_id("Ａrt_017") == ("art", "17")
    assert spell_id("0017") == spell_id("17") == ("", "17")
    assert spell_id("own-1-123") == ("own1123", "") != spell_id("1123")


def test_each_kind_of_evidence_finds_its_item() -> None:
    own = items(
        ("5", "Heat", 1995),
        ("s1", "Anything", None, "0-306-40615-2"),
        ("s2", "POSTMAN, THE", 1997),
        ("s3", "Casablanca Nights"),
        ("ab-007", None),
        ("s4", "Bram Stoker's Dracula", 1992),
    )
    listed = items(
        ("5", "Heat", 1995),
        ("n1", "Anything else", None, "9780306406157"),
        ("n2", "The Postman", 1997),
        ("n3", "Casablanca nights", 1960),
        ("AB7", None),
        ("n4", "Dracula (Bram Stoker's Dracula)", 1992),
        ("n5", "Another film", 1992),
    )
    found = propose_matches(own, listed)
    assert taken(found) == {"5": "5", "s1": "n1", "s2": "n2", "s3": "n3", "ab-007": "AB7", "s4": "n4"}
    by = dict(found.select("own", "by").iter_rows())
    assert [by[one] for one in ("5", "s1", "s2", "s3", "ab-007", "s4")] == [
        "id", "number", "title and year", "title", "spelling of the id", "similar title",
    ]  # fmt: skip


def test_near_twins_are_not_merged() -> None:
    """ "Part II" is never the first part, a remake not the film, and the same id with another title is asked about."""
    own = items(
        ("a", "Rocky II", 1979), ("b", "Emma", 1972), ("9", "Solaris", 1972), ("c", "The Return of Jafar II", 1990)
    )
    listed = items(
        ("n1", "Rocky", 1976), ("n2", "Emma", 1996), ("9", "Jaws", 1975), ("n3", "The Return of Jafar", 1990)
    )
    found = propose_matches(own, listed)
    assert taken(found) == {}
    assert found.filter(pl.col("own") == "9")["note"].item() == "titles differ"


def test_what_may_be_a_yearbook_or_a_recording_is_asked() -> None:
    own = items(("a", "Guide to the good restaurants", 2019), ("b", "Blue Album (Live)", 2001))
    listed = items(("n1", "Guide to the good restaurants", 2020), ("n2", "Blue Album", 2001))
    found = propose_matches(own, listed)
    assert taken(found) == {} and dict(found.select("own", "shared").iter_rows()) == {"a": "n1", "b": "n2"}


def test_what_several_fit_is_proposed_and_not_taken() -> None:
    twins = items(("n1", "Chasing Amy", 1997), ("n2", "Chasing Amy", 1997))
    assert taken(propose_matches(items(("x", "Chasing Amy", 1997)), twins)) == {}
    doubled = propose_matches(
        items(("x", "Heat Wave", 1995), ("y", "Heat wave!", 1995)), items(("n", "Heat Wave", 1995))
    )
    assert taken(doubled) == {} and set(doubled["note"]) == {"several fit"}


def test_a_silo_cannot_gather_the_items_of_a_list() -> None:
    """A silo that writes one title on all its items, or words of many, gets none of them for more than one."""
    listed = items(*((f"n{place}", f"Famous film number {place}", 1990) for place in range(20)))
    same = propose_matches(items(*((f"x{place}", "Famous film number 3", 1990) for place in range(5))), listed)
    assert taken(same) == {}
    words = " ".join(f"Famous film number {place}" for place in range(20))
    every = propose_matches(items(("all", words, 1990), ("x", "famous Film Number 4", 1990)), listed)
    assert taken(every) == {"x": "n4"}
    assert every.filter(pl.col("take"))["shared"].is_unique().all()


def test_thousands_of_one_title_take_no_memory_and_are_not_merged() -> None:
    """10,000 items are called "unknown" on each side: their pairs would be more than any machine holds."""
    count = 10_000
    own, listed = (
        complete_items(
            pl.DataFrame({"item": [f"{side}{place}z" for place in range(count)], "title": ["Unknown!"] * count})
        )
        for side in ("a", "b")
    )
    again = pl.concat([own, items(("x", "Heat Wave", 1995))])
    assert taken(propose_matches(again, pl.concat([listed, items(("n", "Heat wave", 1995))]))) == {"x": "n"}


def test_an_item_that_was_matched_is_given_to_nobody_else() -> None:
    own = items(("17", "Heat", 1995), ("x-17", None), ("017", None))
    found = propose_matches(own, items(("17", "Heat", 1995), ("18", "Jaws", 1975)))
    assert taken(found) == {"17": "17"}


def test_where_nobody_has_a_list_silos_give_an_item_one_name() -> None:
    first = items(
        ("a1", "Postman, The", 1997), ("a2", "X", None, "4006381333931"), ("A-03", None), ("a4", "Emma", 1996)
    )
    second = items(
        ("99", "THE POSTMAN", 1997), ("98", "Y", 2001, "04006381333931"), ("a 3", None), ("a5", "Emma", 1972)
    )
    one, two = (set(make_keys(side)["shared"]) for side in (first, second))
    assert one & two == {"title:postman|1997", "gtin:04006381333931", "id:a3"}
    twins = make_keys(items(("x", "Emma", 1996), ("y", "emma", 1996)))
    assert set(twins["shared"]) == {"id:x", "id:y"} and set(twins["by"]) == {"id"}


def test_proposals_are_edited_as_a_file(tmp_path: Path) -> None:
    own = items(("a", "Heat Wave", 1995), ("9", "Solaris", 1972), ("b", "Emma, the film"))
    found = propose_matches(own, items(("n", "Heat wave", 1995), ("9", "Jaws", 1975), ("m", "Emma the film", 1996)))
    path = tmp_path / "matches.csv"
    write_proposals(found, path)
    assert path.stat().st_mode & 0o077 == 0
    assert read_proposals(path) == {"a": "n", "b": "m", "9": NO_MATCH}
    path.write_text(path.read_text().replace("yes", "YES", 1).replace(",no,", ",maybe,"))
    with pytest.raises(DataError, match="yes or no in the column take, got something else in 1 line, first in line 4"):
        read_proposals(path)


def test_a_table_is_read_by_the_names_of_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("sku;bezeichnung;jahr;barcode\n007;Käse (1999);;04006381333931\n008;;2001;\n")
    found = read_item_table(path, FileOptions({"item": "sku", "title": "bezeichnung"}))
    assert found.rows() == [("007", "Käse", 1999, "04006381333931"), ("008", None, 2001, None)]
    parquet = tmp_path / "own.parquet"
    pl.DataFrame({"id": [1, 2], "title": ["Heat", None], "year": [1995, None]}).write_parquet(parquet)
    assert read_item_table(parquet, DEFAULT_OPTIONS).rows() == [("1", "Heat", 1995, None), ("2", None, None, None)]
    (tmp_path / "list.txt").write_text("a\nb\n")
    assert read_item_table(tmp_path / "list.txt", DEFAULT_OPTIONS)["item"].to_list() == ["a", "b"]
    (tmp_path / "none.csv").write_text("colour,weight\nred,1\n")
    with pytest.raises(DataError, match="expected a column"):
        read_item_table(tmp_path / "none.csv", DEFAULT_OPTIONS)


def test_titles_are_shown_as_they_are(tmp_path: Path) -> None:
    for name, first in (("own", "a"), ("list", "n")):
        (tmp_path / f"{name}.csv").write_text(f"item,title,year\n{first},Heat [red] \x1b]Wave,1995\n")
    done = CliRunner().invoke(app, ["match", str(tmp_path / "own.csv"), str(tmp_path / "list.csv")])
    assert done.exit_code == 0, done.output
    assert "[red]" in done.output and "\\[" not in done.output and "\x1b]" not in done.output
