"""Bad input is refused with the file, the line and what was expected, and never with an id or a stack trace."""

from __future__ import annotations

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.errors import DataError
from simulation.datasets.load import load_dataset

if TYPE_CHECKING:
    from conftest import Write


def refused(path: Path, *words: str) -> str:
    """The message with which `path` is refused: it has all the words."""
    with pytest.raises(DataError) as raised:
        load_dataset(path, seed=0)
    message = str(raised.value)
    assert [word for word in words if word not in message] == [], message
    return message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("0 1\n1 -2\n", ("line 2", "negative id")),
        ("0 1\n1 2.5\n", ("line 2", "'.'")),
        ("0 1\n\n2 1\n", ("line 2", "empty line")),
        ("\n0 1\n", ("line 1", "empty line")),
        ("0 1\n1 2\n0 3\n", ("line 3", "a second line of the same user")),
        ("0 1\n1\t2\n", ("line 2", "'\\t'")),
        ("0 1\r1 2\r\n", ("line 1", "'\\r'")),
        (b"0 1\n1 2\n2 \xff\n", ("line 3", "byte 0xff")),
        ("", ("line 1", "an empty file")),
        (" \n \n", ("line 1", "an empty file")),
    ],
)
def test_bad_lightgcn_text_is_refused_with_its_line(write: Write, content: str | bytes, words: tuple[str, ...]) -> None:
    refused(write("all.txt", content) / "all.txt", "all.txt", *words)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ratings.dat", "1::2::3::4\n1::2::3\n", ("line 2", "expected 4 fields, got 3")),
        ("ratings.dat", "1::2::3::4\n::2::3::4\n", ("line 2", "a value in the field 'user'")),
        ("ratings.dat", "1::2::3::4\n\n1::3::3::4\n", ("line 2", "expected 4 fields, got 1")),
        ("ratings.dat", "1 2 3 4\n", ("line 1", "separated by")),
        ("u.data", b"1\t2\t3\t4\n1\t\xe9\t3\t4\n", ("line 2", "UTF-8", "0xe9")),
        ("shop.inter", "user_id:token\titem_id:token\n1\t2\n1\t\n", ("line 3", "a value in the field 'item'")),
        ("shop.inter", "user_id:token\tsession:token\n1\t2\n", ("line 1", "a column item or item_id")),
        ("ratings.csv", "user,item\n1,2\n1,2,3\n", ("line 3", "expected 2 fields, got 3")),
        ("ratings.csv", "user,item\n1,2\n  ,3\n", ("line 3", "field 'user'")),
        ("ratings.csv", 'user,item\n1,"2\n2"\n1,2,3\n', ("line 4", "expected 2 fields, got 3")),
        ("ratings.csv", 'user,item\n1,2\n1,"2\n', ("line 3", "quote")),
        ("ratings.csv", "user,item\n", ("line 2", "expected data after the header")),
        ("ratings.csv", "1,2\n1,3\n", ("line 1", "a column user or user_id", "the first line must name the columns")),
        (
            "ratings.csv",
            "who,item,rating\n1,2,3\n",
            ("line 1", "a column user or user_id", "got the columns item, rating"),
        ),
        ("ratings.csv", "", ("line 1", "an empty file")),
        (
            "interactions.csv",
            "user,item,split\n1,2,train\n1,3,dev\n",
            ("line 3", "train, valid, test or met", "got 'dev'"),
        ),
        ("interactions.parquet", "user,item\n1,2\n", ("expected a Parquet file",)),
        (
            "ratings.csv",
            "user,item,time\n1,2,\n1,3,soon\n",
            ("line 3", "since 1970, or ISO 8601", "'time'", "got 'soon'"),
        ),
        (
            "ratings.csv",
            "user,item,time\n1,2,1433221332117\n1,3,1433221332\n",
            ("line 2", "expected seconds or finer since 1970", "got '1433221332117'"),
        ),
        ("ratings.csv", "user,item\n1,2\nNaN,3\n", ("line 3", "in the field 'user' an id, got NaN")),
        ("ratings.csv", "user,item\n1,2\n1,nan\n", ("line 3", "in the field 'item' an id, got NaN")),
        ("ratings.csv", "user,item\n1,2\n1,a\x00b\n", ("line 3", "without control characters")),
        ("ratings.csv", f"user,item\n1,{'i' * 513}\n", ("line 2", "at most 512 characters")),
        ("ratings.csv", "user,item,rating\n1,2,good\n", ("line 2", "a number in the field 'rating', got 'good'")),
    ],
)
def test_bad_tables_are_refused_with_their_line(
    write: Write, name: str, content: str | bytes, words: tuple[str, ...]
) -> None:
    folder = write(name, content)
    refused(folder, name, *words)
    refused(folder / name, name, *words)


def test_a_bad_line_of_a_file_of_titles_is_refused_too(write: Write) -> None:
    write("ratings.dat", "7::10::5::1\n")
    refused(write("movies.dat", "10::A::x\n11::B\n"), "movies.dat", "line 2", "expected 3 fields, got 2")


def test_bad_parquet_is_refused_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "interactions.parquet"
    pl.DataFrame({"user": ["a", None], "item": ["x", "y"]}).write_parquet(path)
    refused(tmp_path, "interactions.parquet", "line 2", "field 'user'")
    pl.DataFrame({"user": [[1]], "item": ["x"]}).write_parquet(path)
    refused(tmp_path, "column 'user'", "List")
    pl.DataFrame({"user": [2.0**60], "item": ["x"]}).write_parquet(path)
    refused(tmp_path, "column 'user'", "holds no exact ids")
    pl.DataFrame({"user": ["a"], "thing": ["x"]}).write_parquet(path)
    refused(tmp_path, "a column item or item_id")
    pl.DataFrame(schema={"user": pl.String, "item": pl.String}).write_parquet(path)
    refused(tmp_path, "without rows")


PACKED = gzip.compress(b"user,item\n1,2\n", mtime=0)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("ratings.csv.gz", b"user,item\n1,2\n", "expected a gzip file, got another format: take .gz out of its name"),
        ("ratings.csv", PACKED, "expected a plain file, got a gzip file: add .gz to its name"),
        ("ratings.csv.gz", PACKED[:-6], "expected a whole gzip file, got one that is damaged or not complete"),
        ("ratings.csv.gz", PACKED[:12] + b"\xff" + PACKED[13:], "expected a whole gzip file"),
    ],
    ids=["plain", "packed", "cut", "damaged"],
)
def test_a_file_that_is_not_packed_as_its_name_says_is_refused(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    refused(tmp_path / name, name, words)


def test_messages_do_not_quote_ids(write: Write) -> None:
    for content in ("user,item\nsecret,\n", "user,item\nsecret,hidden,3\n", "secret,hidden\n1,2\n"):
        message = refused(write("ratings.csv", content))
        assert "secret" not in message and "hidden" not in message


def test_a_small_file_that_unpacks_to_more_than_the_memory_holds_is_refused_before_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.memory.usable_memory", lambda: 8_000_000)
    packed = tmp_path / "ratings.csv.gz"
    packed.write_bytes(gzip.compress(b"user,item\n" + b"u1,i1\n" * 200_000))
    refused(packed, "at most 1,000,000 bytes when unpacked", "divide the file")
    table = tmp_path / "ratings.parquet"
    pl.select(user=pl.repeat("u1", 100_000), item=pl.repeat("i1", 100_000)).write_parquet(table)
    assert table.stat().st_size < 10_000
    refused(table, "at most 125,000 cells", "got 200,000", "divide the file")


def test_broken_gzip_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(b"user,item\n1,2\n" * 50)
    for content in (whole[:-12], b"user,item\n1,2\n", whole[:20] + b"\xff" * 20 + whole[40:]):
        (tmp_path / "ratings.csv.gz").write_bytes(content)
        refused(tmp_path, "ratings.csv.gz", "gzip")


def test_a_missing_path_and_an_unknown_format_are_refused(write: Write, tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere", "got nothing there")
    folder = write("data.xlsx", "1 2")
    refused(folder / "data.xlsx", "LightGCN .txt", ".parquet", "'xlsx'")
    refused(folder, "LightGCN .txt", "no such file")


def test_a_folder_with_several_data_sets_is_refused(write: Write) -> None:
    write("ratings.csv", "user,item\n1,2\n")
    refused(write("ratings.dat", "1::2::3::4\n"), "got 2", "ratings.csv", "ratings.dat")


def test_a_split_twice_or_incomplete_is_refused(write: Write, tmp_path: Path) -> None:
    refused(write("test.txt", "0 1\n"), "expected training data, got only test")
    (tmp_path / "test.txt").unlink()
    write("train.txt", "0 1\n")
    refused(write("valid.txt", "0 2\n"), "expected test data")
    refused(write("train.txt.gz", "0 1\n"), "one train file", "train.txt and train.txt.gz")


def test_two_files_of_titles_are_refused(write: Write) -> None:
    write("ratings.csv", "user,item\n1,2\n")
    write("items.csv", "item,title\n2,Two\n")
    refused(write("movies.csv", "item,title\n2,Two\n"), "one file of titles", "items.csv, movies.csv")


def test_nothing_left_to_train_on_is_refused(write: Write, tmp_path: Path) -> None:
    write("train.txt", "0\n1\n")
    refused(write("test.txt", "0 1\n"), str(tmp_path), "at least one training interaction")


@given(
    st.sampled_from(["all.txt", "ratings.dat", "u.data", "ratings.csv", "shop.inter"]),
    st.lists(
        st.sampled_from([b"user,item\n", b"user\titem\n", b"1", b" ", b",", b"::", b"\t", b"\n", b"\r", b'"', b"\xe9"])
    ),
)
@settings(max_examples=300, deadline=None)
def test_no_content_raises_anything_but_a_data_error(name: str, pieces: list[bytes]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(b"".join(pieces))
        try:
            assert not load_dataset(path, seed=0).events.is_empty()
        except DataError as error:
            assert name in str(error)
