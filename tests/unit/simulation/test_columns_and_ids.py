"""Columns by other names, delimiters, events and quantities are read by a rule; an id is one id in each format."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from client_service.data.events import SPLIT_TYPE
from client_service.data.id_columns import find_unusable_ids, normalise_ids, read_id_list
from client_service.data.ids import normalise_id
from client_service.data.interaction_files import load_shard, save_shard
from client_service.data.interactions import build_shard
from client_service.event_log.messages import InteractionIn
from client_service.event_log.shard_update import append_events, erase_users
from client_service.event_log.store import EventStore
from client_service.serving.messages import RecommendationsIn
from lpsfed import Recommendations
from shared.errors import DataError, SettingsError
from shared.protocol.item_list import read_item_list
from simulation.cli import app
from simulation.cli.options import parse_file_options
from simulation.cli.recommending import UNKNOWN, _report_unknown
from simulation.datasets.columns import FileOptions
from simulation.datasets.load import load_dataset, read_events
from simulation.partitioning.catalogue import DataReading, merge_items

PAIRS = {("7", "10"), ("7", "11"), ("8", "10")}
ROWS = [("7", "10", "4,5"), ("7", "11", "5"), ("8", "10", "4")]


def pairs(path: Path, columns: str | None = None, delimiter: str | None = None) -> set[tuple[str, str]]:
    events = load_dataset(path, 0, "usual", file_options=parse_file_options(columns, delimiter)).events
    return set(events.select("user", "item").rows())


def written(path: Path, text: str | bytes) -> Path:
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def lines(header: str, mark: str, end: str = "\n") -> str:
    quoted = [[f'"{field}"' if mark in field else field for field in row] for row in ROWS]
    return end.join([header, *(mark.join(row) for row in quoted)]) + end


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("comma.csv", lines("user,item,rating", ",")),
        ("semicolon.csv", lines("user;item;rating", ";")),
        ("tab.csv", lines("user\titem\trating", "\t")),
        ("tab.tsv.gz", lines("user\titem\trating", "\t")),
        ("mac.csv", lines("user,item,rating", ",", "\r")),
        ("windows.csv", lines("user;item;rating", ";", "\r\n")),
        ("utf16.csv", lines("user;item;rating", ";").encode("utf-16")),
        ("utf16le.csv", lines("user;item;rating", ";").encode("utf-16-le")),
        ("bom.csv", b"\xef\xbb\xbf" + lines("user,item,rating", ",").encode()),
        ("lines.jsonl", '{"user":7,"item":10,"rating":4.5}\n{"user":7,"item":11,"rating":5}\n{"item":"10","user":8}\n'),
        ("lines.ndjson.gz", '{"User":"7","Item":10}\n\n{"User":7,"Item":"11"}\n{"User":8.0,"Item":10,"x":[1]}\n'),
    ],
)
def test_delimiters_line_ends_and_encodings_are_found(tmp_path: Path, name: str, text: str | bytes) -> None:
    assert pairs(written(tmp_path / name, text)) == PAIRS


def test_columns_and_a_delimiter_can_be_named(tmp_path: Path) -> None:
    path = written(tmp_path / "sales.csv", "Customer_ID|product_id|stars|at\n7|10|5|100\n7|11|1|200\n8|10|4|300\n")
    named = "user=customer_id,item=product_id,rating=stars,time=at"
    dataset = load_dataset(path, 0, "usual", file_options=parse_file_options(named, "|"))
    assert set(dataset.events.select("user", "item", "time").rows()) == {("7", "10", 100), ("8", "10", 300)}
    assert dataset.met is not None and dataset.met["item"].to_list() == ["11"]
    with pytest.raises(
        DataError, match=r"expected a column user or user_id or userid, got the columns item, customer_id"
    ):
        load_dataset(written(tmp_path / "other.csv", "customer_id,item,at\n7,10,1\n"), 0)
    with pytest.raises(DataError, match=r"--columns user=NAME names another"):
        load_dataset(tmp_path / "other.csv", 0)
    with pytest.raises(
        DataError, match=r"expected a column 'kunde' \(--columns\), got the columns item, customer_id, at"
    ):
        load_dataset(tmp_path / "other.csv", 0, file_options=parse_file_options("user=kunde", None))
    written(tmp_path / "kunden.csv", "kunde;artikel;sterne\na;b;4,5\na;c;5\nd;b;4\n")
    with pytest.raises(DataError, match=r"got the columns kunde, artikel, sterne; --columns user=NAME"):
        load_dataset(tmp_path / "kunden.csv", 0)
    assert pairs(tmp_path / "kunden.csv", "user=Kunde,item=artikel,rating=sterne") == {
        ("a", "b"),
        ("a", "c"),
        ("d", "b"),
    }
    with pytest.raises(SettingsError, match="--columns: expected fields of session, user"):
        parse_file_options("buyer=x", None)
    with pytest.raises(SettingsError, match="--delimiter: expected one character"):
        parse_file_options(None, "--")
    pl.DataFrame({"customer_id": [7, 8], "product_id": [10, 10]}).write_parquet(tmp_path / "sales.parquet")
    assert pairs(tmp_path / "sales.parquet", "user=customer_id,item=product_id") == {("7", "10"), ("8", "10")}
    with pytest.raises(DataError, match="expected no --delimiter for this format"):
        pairs(tmp_path / "sales.parquet", "user=customer_id,item=product_id", ";")


EVENTS = (
    "user,item,event_type,time\n7,10,view,1\n7,11,Add to cart,1\n7,12,purchase,1\n7,12,return,9\n8,10,return,1\n"
    "8,11,purchase,5\n8,13,,1\n"
)


def test_kinds_of_events_say_what_is_positive_and_the_later_one_counts(tmp_path: Path) -> None:
    dataset = load_dataset(written(tmp_path / "events.csv", EVENTS), 0)
    liked = set(dataset.events.select("user", "item").rows())
    assert liked == {("7", "10"), ("7", "11"), ("8", "11"), ("8", "13")}
    assert dataset.met is not None and set(dataset.met.select("user", "item").rows()) == {("7", "12"), ("8", "10")}
    assert dataset.notes[0] == "events by event_type: 2 purchase, 1 view, 1 add_to_cart count as positive" or (
        "2 purchase" in dataset.notes[0] and "count as positive" in dataset.notes[0]
    )
    assert dataset.notes[1] == "events by event_type: 2 return do not count as positive"
    unknown = written(tmp_path / "unknown.csv", "user,item,event\n7,10,kauf\n7,11,kauf\n")
    with pytest.raises(DataError, match="such as view, cart, purchase or return, got kauf; --columns event= ignores"):
        load_dataset(unknown, 0)
    passed = load_dataset(unknown, 0, file_options=parse_file_options("event=", None))
    assert len(passed.events) == 2 and "column event is not read (see --columns)" in passed.notes


def test_quantities_and_labels_say_what_is_positive(tmp_path: Path) -> None:
    sold = load_dataset(written(tmp_path / "q.csv", "user,item,quantity\n7,10,3\n7,11,-1\n8,10,1\n8,12,0\n"), 0)
    assert set(sold.events.select("user", "item").rows()) == {("7", "10"), ("8", "10")}
    assert "2 of 4 rows with a quantity of 0 or less do not count as positive" in sold.notes
    text = "user_id:token\titem_id:token\tlabel:float\n7\t10\t1\n7\t11\t0\n8\t10\t1\n"
    clicked = load_dataset(written(tmp_path / "ctr.inter", text), 0)
    assert set(clicked.events.select("user", "item").rows()) == {("7", "10"), ("8", "10")}
    returned = load_dataset(written(tmp_path / "r.csv", "user,item,qty\n7,10,3\n7,11,1\n7,10,-3\n8,11,2\n"), 0)
    assert set(returned.events.select("user", "item").rows()) == {("7", "11"), ("8", "11")}  # by the order of rows


def test_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    path = written(tmp_path / "sales.csv", "user,item,price,shop\n7,10,1,a\n7,11,2,b\n8,10,3,c\n")
    assert "columns price, shop are not read (see --columns)" in load_dataset(path, 0).notes


@pytest.mark.parametrize(
    ("came", "spelled"),
    [
        ("1.0", "1"),
        ("-3.0", "-3"),
        ("-0.0", "0"),
        ("1.5", "1.5"),
        ("2.0.1", "2.0.1"),
        ("v1.0", "v1.0"),
        ("1.00", "1.00"),
        ("007", "007"),
        ("007.0", "007"),
        (" u1 \t", "u1"),
        ("\ufeffu1\u00a0", "u1"),
        ("Cafe\u0301", "Caf\u00e9"),
        ("9007199254740993.0", "9007199254740993"),
        ("\u3000", ""),
    ],
)
def test_an_id_has_one_spelling_alone_and_in_a_column(came: str, spelled: str) -> None:
    assert normalise_id(came) == spelled
    assert normalise_ids(pl.Series([came, "other"])).to_list() == [spelled, "other"]
    assert normalise_id(spelled) == spelled and find_unusable_ids(pl.Series([spelled])) is None


BIG = 18_446_744_073_709_551_000  # beyond int64 and far beyond 2^53


def test_the_same_ids_come_from_each_format_with_their_titles(tmp_path: Path) -> None:
    rows = [(9_007_199_254_740_993 + user, BIG + item) for user in range(3) for item in range(4)]
    expected = {(str(user), str(item)) for user, item in rows}
    text = "".join(f"{user},{item}\n" for user, item in rows)
    whole: dict[str, str] = {}
    for user, item in rows:
        whole[str(user)] = f"{whole.get(str(user), user)} {item}"
    written(tmp_path / "a.csv", "user,item\n" + text)
    written(tmp_path / "b.jsonl", "".join(json.dumps({"user": user, "item": item}) + "\n" for user, item in rows))
    written(tmp_path / "c.txt", "\n".join(whole.values()) + "\n")
    written(tmp_path / "d.inter", "user_id:token\titem_id:token\n" + text.replace(",", "\t"))
    columns = {"user": [user for user, _ in rows], "item": pl.Series([item for _, item in rows], dtype=pl.UInt64)}
    pl.DataFrame(columns).write_parquet(tmp_path / "e.parquet")
    for name in ("a.csv", "b.jsonl", "c.txt", "d.inter", "e.parquet"):
        assert pairs(tmp_path / name) == expected, name


@pytest.mark.parametrize("dtype", [pl.Float64, pl.Float32, pl.Int8, pl.Categorical, pl.String])
def test_float_ids_have_titles_and_blanks_make_no_other_user(tmp_path: Path, dtype: Any) -> None:
    items = pl.Series("item", [10.0, 11.0, 10.0])
    of_type = items.cast(dtype) if dtype in (pl.Float64, pl.Float32, pl.Int8) else items.cast(pl.String).cast(dtype)
    table = pl.DataFrame({"user": ["7", "7 ", "8"], "item": of_type})
    table.write_parquet(tmp_path / "interactions.parquet")
    written(tmp_path / "items.csv", "item,title\n10,Ten\n11.0,Eleven\n")
    dataset = load_dataset(tmp_path / "interactions.parquet", 0)
    assert set(dataset.events.select("user", "item").rows()) == PAIRS
    assert dataset.titles is not None and dict(dataset.titles.iter_rows()) == {"10": "Ten", "11": "Eleven"}


def test_rows_without_an_id_are_left_out_up_to_a_limit(tmp_path: Path) -> None:
    users: list[str | None] = [f"u{row % 4}" for row in range(20)]
    users[6] = None
    items = [f"i{row % 5}" for row in range(20)]
    pl.DataFrame({"user": users, "item": items}).write_parquet(tmp_path / "holes.parquet")
    note = "1 row without a user or an item left out, the first in line 7"
    dataset = load_dataset(tmp_path / "holes.parquet", 0)
    assert note in dataset.notes and len(dataset.events) == 19
    text = "user,item\n" + "".join(f"{user or 'NaN'},{item}\n" for user, item in zip(users, items, strict=True))
    assert note.replace("7", "8") in load_dataset(written(tmp_path / "holes.csv", text), 0).notes
    many = [None if row % 4 == 0 else user for row, user in enumerate(users)]
    pl.DataFrame({"user": many, "item": items}).write_parquet(tmp_path / "many.parquet")
    with pytest.raises(DataError, match=r"line 1: .* 'user', got none; 6 of 20 rows have none, and at most one in ten"):
        load_dataset(tmp_path / "many.parquet", 0)


def test_a_gzip_file_inside_another_is_said(tmp_path: Path) -> None:
    written(tmp_path / "twice.csv.gz", gzip.compress(b"user,item\n1,2\n"))
    with pytest.raises(DataError, match="a gzip file inside a gzip file: unpack it once"):
        load_dataset(tmp_path / "twice.csv.gz", 0)


LISTS = {
    "plain": b"102\n105\n",
    "bom": b"\xef\xbb\xbf102\n105\n",
    "crlf": b"102\r\n105\r\n",
    "mac": b"102\r105\r",
    "utf16": "102\n105\n".encode("utf-16"),
    "utf16be": "102\r\n105\r\n".encode("utf-16-be"),
    "blanks": b"102 \n\n 105\t\n",
    "quoted": b'"102"\n"105"\n',
    "header": b"user\n102\n105\n",
    "floats": b"User_ID\n102.0\n105.0\n",
    "columns": b'name,user\n"Doe, J",102\nx,105\n',
    "spreadsheet": b"102;\n105;\n",
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_ids_is_read_however_it_was_saved(tmp_path: Path, name: str) -> None:
    assert read_id_list(written(tmp_path / "users.txt", LISTS[name]), "user").to_list() == ["102", "105"]
    assert read_id_list(written(tmp_path / "users.txt.gz", LISTS[name]), "user").to_list() == ["102", "105"]


def test_lists_of_ids_in_parquet_and_what_is_none(tmp_path: Path) -> None:
    pl.DataFrame({"user": [102.0, None, 105.0]}).write_parquet(tmp_path / "users.parquet")
    assert read_id_list(tmp_path / "users.parquet", "user").to_list() == ["102", "105"]
    assert read_id_list(written(tmp_path / "comma.txt", '"Doe, J"\n"Roe, R"\n'), "user").to_list() == [
        "Doe, J",
        "Roe, R",
    ]
    with pytest.raises(DataError, match="one a line, got lines of several columns"):
        read_id_list(written(tmp_path / "several.txt", "102,a\n105,b\n"), "user")
    with pytest.raises(DataError, match="expected ids of users, one a line, got none"):
        read_id_list(written(tmp_path / "empty.txt", "\n \n"), "user")


def shard_of(tmp_path: Path) -> Path:
    rows = "".join(f"{user},i{(user + item) % 9}\n" for user in range(100, 110) for item in range(6))
    path = written(tmp_path / "sales.csv", "user,item\n" + rows)
    assert run("partition", path, "--clients", "1", "--out", tmp_path / "shards").exit_code == 0
    return tmp_path / "shards/client-1"


def run(*words: str | Path) -> Any:
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.mark.parametrize("name", ["bom", "utf16", "blanks", "quoted", "crlf", "floats"])
def test_an_erasure_misses_nobody_however_the_list_was_saved(tmp_path: Path, name: str) -> None:
    folder = shard_of(tmp_path)
    done = run("shard", "erase", folder, "--users", written(tmp_path / "users.txt", LISTS[name]))
    assert done.exit_code == 0 and "not in the shard" not in done.stderr
    assert not {"102", "105"} & set(load_shard(folder).user_ids) and len(load_shard(folder).user_ids) == 8


def test_an_id_that_is_not_there_is_counted_or_refused(tmp_path: Path) -> None:
    folder, users = shard_of(tmp_path), written(tmp_path / "users.txt", "102\nnobody\n105\n")
    before = load_shard(folder).digest
    refused = run("shard", "erase", folder, "--users", users, "--strict")
    assert isinstance(refused.exception, DataError) and "1 of 3 users are not in the shard" in str(refused.exception)
    assert load_shard(folder).digest == before
    done = run("shard", "erase", folder, "--users", users)
    assert done.exit_code == 0 and "1 of 3 users are not in the shard" in done.stderr
    said = json.loads(run("shard", "erase", folder, "--user", "102", "--json").stdout)
    assert said["not_in_shard"] == 1
    events = written(tmp_path / "events.csv", "user,item\n103,i4\n103,nothing\n")
    assert "1 of 2 interactions are not in the shard" in run("shard", "erase", folder, "--events", events).stderr


def test_shards_of_earlier_versions_keep_their_ids_and_lose_them_by_either_spelling(tmp_path: Path) -> None:
    rows = [("u1 ", "1.0"), ("u1", "2.0"), ("u2", "1.0")]
    events = pl.DataFrame(rows, schema=["user", "item"], orient="row").with_columns(split=pl.lit("train", SPLIT_TYPE))
    save_shard(tmp_path / "old", build_shard("old", events, None))
    old = load_shard(tmp_path / "old")
    assert old.user_ids == ("u1", "u1 ", "u2") and old.item_row("1") == old.item_row("1.0") == 0
    assert erase_users(old, ["u1"]).user_ids == ("u2",)
    later = pl.DataFrame({"user": ["u2", "u3"], "item": ["2", "1.0"]})
    after = append_events(old, later, Path("later.csv"))
    assert after.item_ids == ("1.0", "2.0") and after.train.nnz == 5


def test_requests_and_the_log_take_ids_in_their_one_spelling(tmp_path: Path) -> None:
    told = InteractionIn(event="1", user=" u1\ufeff", item="1.0", rating=5)
    assert (told.user, told.item) == ("u1", "1")
    asked = RecommendationsIn(users=("u1 ", "7.0", "Cafe\u0301"))
    assert asked.users == ("u1", "7", "Caf\u00e9")
    with pytest.raises(ValidationError, match="expected an id, got blanks alone"):
        InteractionIn(event="1", user=" ", item="1")
    store = EventStore(tmp_path)
    store.append([told])
    with store._database.transaction() as rows:  # as an earlier version has written it
        rows.execute("UPDATE interactions SET user = 'u1 ', item = '1.0'")
    store.close()
    again = EventStore(tmp_path)
    assert [(one.user, one.item) for one in again.interactions()] == [("u1", "1")]
    assert again.erasures.erase_user("u1", known=False)[0] == 1
    again.close()


def test_users_whom_a_silo_does_not_know_are_counted_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    lists = [
        Recommendations(items=(), user=user, fallback=fallback) for user, fallback in (("a", None), ("b", UNKNOWN))
    ]
    assert len(list(_report_unknown(lists, strict=False))) == 2
    assert "1 of 2 users are not in the shard" in capsys.readouterr().err
    with pytest.raises(DataError, match="expected users whom the silo knows, 1 of 2 users are not in the shard"):
        list(_report_unknown(lists, strict=True))


def test_a_catalogue_is_merged_from_lists_however_they_were_saved(tmp_path: Path) -> None:
    one = written(tmp_path / "one.txt", "item\r\n10.0\r\n 11\r\n".encode("utf-16"))
    assert merge_items([one, written(tmp_path / "two.txt", '"12"\n11\n')]).to_list() == ["10", "11", "12"]


def test_a_catalogue_takes_of_data_files_what_a_silo_of_them_would_have(tmp_path: Path) -> None:
    """Positives alone; a list with names of columns, or of the same extension, stays a list."""
    rows = "".join(
        f"u{user},{'good' if rated > 3 else 'bad'}{user % 3},{rated}\n" for user in range(9) for rated in (2, 5)
    )
    data = written(tmp_path / "shop.csv", f"user,item,rating\n{rows}")
    listed = written(tmp_path / "list.csv", "item,title\nx,one\ny,two\n")
    plain = written(tmp_path / "plain.csv", "7\n8\n")
    liked = ["good0", "good1", "good2"]
    assert merge_items([data]).to_list() == liked
    assert merge_items([data, listed, plain]).to_list() == ["7", "8", *liked, "x", "y"]
    assert merge_items([data], DataReading(0.0)).to_list() == ["bad0", "bad1", "bad2", *liked]
    other = written(tmp_path / "other.csv", "buyer,sku\n" + "".join(f"b{n},s{n % 2}\n" for n in range(8)))
    with pytest.raises(DataError, match="expected a column user"):
        merge_items([other])
    named = DataReading(file_options=FileOptions({"user": "buyer", "item": "sku"}))
    assert merge_items([other], named).to_list() == ["s0", "s1"]
    done = run("catalogue", data, "--out", tmp_path / "items.txt", "--json")
    assert done.exit_code == 0 and read_item_list(tmp_path / "items.txt") == tuple(liked)


def test_clicks_and_interactions_take_the_same_options(tmp_path: Path) -> None:
    path = written(tmp_path / "clicks.csv", "visit;page;at\n" + "".join(f"v{n // 3};p{n % 3};{n}\n" for n in range(60)))
    words = ("--columns", "session=visit,item=page,time=at", "--task", "sessions", "--clients", "1")
    assert run("partition", path, *words, "--out", tmp_path / "out").exit_code == 0
    assert read_events(path, FileOptions({"user": "visit", "item": "page"})).table.height == 60
