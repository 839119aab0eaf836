"""Each format is read from a tiny file, splits are kept or drawn, and each clean-up is counted."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest

from client_service.data.events import SPLIT_TYPE
from shared.errors import DataError
from simulation.datasets.dataset import Dataset
from simulation.datasets.load import load_dataset

if TYPE_CHECKING:
    from conftest import Write


DATA = Path(os.environ.get("LPSFED_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))

PAIRS = [("7", "10"), ("7", "11"), ("8", "10")]
MANY = [(user, str(item)) for user in ("1", "2") for item in range(10)]


def pairs(dataset: Dataset, split: str | None = None) -> list[tuple[str, str]]:
    table = dataset.events if split is None else dataset.events.filter(pl.col("split") == split)
    return sorted(table.select("user", "item").rows())


def titles(dataset: Dataset) -> dict[str, str | None]:
    assert dataset.titles is not None
    return dict(dataset.titles.select("item", "title").iter_rows())


@pytest.mark.parametrize("end", ["", ".gz"])
def test_lightgcn_text_with_its_three_splits_is_kept_as_it_is(write: Write, end: str) -> None:
    write(f"train.txt{end}", "0 4 5 6\n1 4\n")
    write(f"valid.txt{end}", "0 7\n1\n")
    folder = write(f"test.txt{end}", "0 8\r\n1 5 \r\n")
    dataset = load_dataset(folder, seed=0)
    assert dataset.name == folder.name
    assert pairs(dataset, "train") == [("0", "4"), ("0", "5"), ("0", "6"), ("1", "4")]
    assert pairs(dataset, "valid") == [("0", "7")]
    assert pairs(dataset, "test") == [("0", "8"), ("1", "5")]
    assert (dataset.titles, dataset.notes) == (None, ())
    assert dataset.events.schema == pl.Schema({"user": pl.String, "item": pl.String, "split": SPLIT_TYPE})


def test_a_lightgcn_file_alone_is_split(write: Write) -> None:
    path = write("all.txt", "".join(f"{user} {' '.join(map(str, range(10)))}\n" for user in range(3))) / "all.txt"
    dataset = load_dataset(path, seed=0)
    assert (dataset.name, len(pairs(dataset, "train")), len(pairs(dataset, "test"))) == ("all", 24, 3)
    assert dataset.notes == ("interactions of each user are split 8:1:1 at random (seed 0)",)


@pytest.mark.parametrize("separator", ["::", ",", "\t"])
def test_rating_files_between_colons_commas_or_tabs(write: Write, separator: str) -> None:
    lines = [separator.join((user, item, "5", "978300760")) for user, item in PAIRS]
    assert pairs(load_dataset(write("ratings.dat", "\n".join(lines)), seed=0)) == PAIRS


def test_movielens_titles_are_latin_1_or_utf_8(write: Write) -> None:
    write("ratings.dat", "7::10::5::1\n7::11::5::1\n8::10::3::1\n")
    folder = write("movies.dat", "10::Les Misérables (1995)::Drama\n12::Heat::Action\n".encode("latin-1"))
    assert titles(load_dataset(folder, seed=0)) == {"10": "Les Misérables (1995)", "12": "Heat"}
    write("movies.dat", "10::Les Misérables (1995)::Drama\n")
    assert titles(load_dataset(folder / "ratings.dat", seed=0)) == {"10": "Les Misérables (1995)"}


def test_u_data_and_u_item(write: Write) -> None:
    write("u.data", "7\t10\t3\t1\n7\t11\t3\t1\n8\t10\t3\t1\n")
    folder = write("u.item", ("10|Café|" + "|" * 21 + "\n").encode("latin-1"))
    dataset = load_dataset(folder, seed=0)
    assert pairs(dataset) == PAIRS and titles(dataset) == {"10": "Café"}


def test_recbole_files_with_typed_headers(write: Write) -> None:
    write("shop.inter.gz", "user_id:token\titem_id:token\trating:float\n7\t10\t1\n7\t11\t1\n8\t10\t1\n")
    folder = write("shop.item", "item_id:token\tmovie_title:token_seq\n10\tToy Story\n11\t\n")
    dataset = load_dataset(folder, seed=0)
    assert pairs(dataset) == PAIRS and titles(dataset) == {"10": "Toy Story", "11": None}


def test_recbole_files_by_split(write: Write) -> None:
    header = "user_id:token\titem_id:token\n"
    for split, item in (("train", 10), ("valid", 11), ("test", 12)):
        folder = write(f"shop.{split}.inter", f"{header}7\t{item}\n")
    write("shop.item", "item_id:token\tclass:token\n10\tbook\n")
    dataset = load_dataset(folder, seed=0)
    assert [pairs(dataset, split) for split in ("train", "valid", "test")] == [
        [("7", str(item))] for item in (10, 11, 12)
    ]
    assert dataset.titles is not None and dataset.titles.rows() == [("10", None, "book")]
    assert dataset.notes == ("1 item in the file of titles without a title",)
    write("shop.item", "item_id:token\tapp_name:token_seq\n10\tA Book\n10\tAgain\n")
    named = load_dataset(folder, seed=0)
    assert titles(named) == {"10": "A Book"}
    assert named.notes == ("1 repeated item in the file of titles dropped",)


@pytest.mark.parametrize("header", ["user,item", "user_id,item_id", "userId,movieId", "\ufeffUser,Item"])
def test_csv_under_its_usual_names(write: Write, header: str) -> None:
    content = f"{header},timestamp\n" + "".join(f"{user},{item},5\n" for user, item in PAIRS)
    assert pairs(load_dataset(write("ratings.csv", content), seed=0)) == PAIRS


def test_csv_titles_may_hold_quotes_commas_and_line_ends(write: Write) -> None:
    write("ratings.csv", "userId,movieId\n" + "".join(f"{user},{item}\n" for user, item in PAIRS))
    folder = write("movies.csv", 'movieId,title,genres\n10,"Good, the ""Bad""\nand",x\n11,Heat,y\n')
    assert titles(load_dataset(folder, seed=0)) == {"10": 'Good, the "Bad"\nand', "11": "Heat"}


def test_csv_and_parquet_by_split_with_a_file_of_items(write: Write, tmp_path: Path) -> None:
    write("train.csv", "user,item\na,x\na,y\n")
    write("test.csv", "user,item\na,z\n")
    pl.DataFrame({"item": ["x"], "title": ["X"]}).write_parquet(tmp_path / "items.parquet")
    dataset = load_dataset(tmp_path, seed=0)
    assert pairs(dataset, "test") == [("a", "z")] and titles(dataset) == {"x": "X"}


def test_parquet_with_integer_ids(tmp_path: Path) -> None:
    pl.DataFrame({"user_id": [7, 7, 8], "item_id": [10, 11, 10]}).write_parquet(tmp_path / "interactions.parquet")
    assert pairs(load_dataset(tmp_path, seed=0)) == PAIRS


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ratings.dat", "7::10::5::60\n7::11::::\n8::10::3::120\n"),
        ("u.data", "7\t10\t5\t60\n7\t11\t\t\n8\t10\t3\t120\n"),
        (
            "shop.inter",
            "user_id:token\titem_id:token\trating:float\ttimestamp:float\n7\t10\t5\t60.0\n7\t11\t\t\n8\t10\t3\t120.9\n",
        ),
        (
            "ratings.csv",
            "userId,movieId,rating,time\n7,10,5,1970-01-01T00:01:00Z\n7,11,,\n8,10,3.0,1970-01-01 01:02:00+01\n",
        ),
    ],
)
def test_times_and_ratings_are_read_where_they_are_known(write: Write, name: str, content: str) -> None:
    events = load_dataset(write(name, content), seed=0).events
    assert events.select("time", "rating").rows() == [(60, 5.0), (None, None), (120, 3.0)]


def test_times_and_ratings_of_parquet(tmp_path: Path) -> None:
    moments = [datetime(1970, 1, 1, 0, 1), None, datetime(1970, 1, 1, 0, 2)]
    table = pl.DataFrame({"user": [7, 7, 8], "item": [10, 11, 10], "Timestamp": moments, "rating": [5, None, 3]})
    table.write_parquet(tmp_path / "interactions.parquet")
    assert load_dataset(tmp_path, seed=0).events.select("time", "rating").rows() == [
        (60, 5.0),
        (None, None),
        (120, 3.0),
    ]


def test_times_survive_the_split_and_none_is_made_up(write: Write) -> None:
    rows = "".join(f"{user},{item},{int(user) * 100 + int(item)}\n" for user, item in MANY)
    events = load_dataset(write("ratings.csv", f"user,item,time\n{rows}"), seed=0).events
    assert events["split"].value_counts(sort=True)["count"].to_list() == [16, 2, 2]
    assert (events["time"] == events["user"].cast(int) * 100 + events["item"].cast(int)).all()
    assert "rating" not in events.columns


def test_a_column_of_splits_is_kept(write: Write) -> None:
    dataset = load_dataset(write("interactions.csv", "user,item,split\na,x,train\na,y,valid\na,z,test\n"), seed=0)
    assert [pairs(dataset, split) for split in ("train", "valid", "test")] == [[("a", item)] for item in "xyz"]


def test_movielens_ids_beside_renumbered_lightgcn_text_are_not_used_for_titles(write: Write) -> None:
    write("train.txt", "0 1 2\n")
    write("test.txt", "0 3\n")
    assert load_dataset(write("movies.dat", "1::Wrong::x\n"), seed=0).titles is None


def test_titles_of_renumbered_lightgcn_text_follow_the_file_of_numbers(write: Write) -> None:
    write("train.txt", "0 0 1 2\n1 1 2\n")
    write("test.txt", "0 3\n")
    write("item_map.txt", "30 2\n10 0\n20 1\n")
    folder = write("movies.dat", "10::Ten (1990)::War|Drama\n30::Thirty (1993)::Comedy\n40::No (1994)::Comedy\n")
    found = load_dataset(folder, seed=0).titles
    assert found is not None
    assert found.rows() == [("0", "Ten (1990)", "War|Drama"), ("2", "Thirty (1993)", "Comedy")]
    with pytest.raises(DataError, match=r"item_map\.txt: expected each id and each number once"):
        load_dataset(write("item_map.txt", "30 2\n10 2\n"), seed=0)


def test_attributes_of_items_are_read_and_tags_of_users_are_not(write: Write) -> None:
    write("ratings.csv", "userId,movieId,rating,timestamp\n1,10,5,9\n2,10,4,9\n2,11,4,9\n")
    write("tags.csv", "userId,movieId,tag,timestamp\n1,10,funny,9\n")
    rows = "10,Ten (1990),War|Drama,funny,4.5\n11,Eleven (1991),(no genres listed),,4.1\n"
    folder = write("movies.csv", f"movieId,title,genres,tags,rating_count\n{rows}")
    found = load_dataset(folder, seed=0).titles
    assert found is not None and found.columns == ["item", "title", "genres"]
    assert found["genres"].to_list() == ["War|Drama", None]


def test_genres_of_u_item_and_of_recbole_are_categories(write: Write) -> None:
    write("u.data", "7\t10\t5\t9\n7\t11\t4\t9\n8\t10\t4\t9\n")
    flags = ["0"] * 19
    flags[1] = flags[8] = "1"
    folder = write("u.item", "|".join(("10", "Ten (1990)", "", "", "", *flags)) + "\n")
    found = load_dataset(folder, seed=0).titles
    assert found is not None and found["genres"].to_list() == ["Action|Drama"]


def test_lists_of_recbole_s_items_are_categories(write: Write) -> None:
    items = "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n10\tTen Two\t1990\tWar Drama\n"
    write("own.inter", "user_id:token\titem_id:token\n7\t10\n8\t10\n")
    found = load_dataset(write("own.item", items), seed=0).titles
    assert found is not None and found.drop("item").rows() == [("Ten Two", 1990.0, "War|Drama")]


def test_without_validation_a_tenth_of_each_users_training_items_becomes_it(write: Write) -> None:
    write("train.txt", "0 " + " ".join(map(str, range(20))) + "\n1 1 2 3\n2 1\n3 1 2 3 4 5\n")
    dataset = load_dataset(write("test.txt", "0 30\n"), seed=0)
    assert {user: len([1 for u, _ in pairs(dataset, "valid") if u == user]) for user in "0123"} == {
        "0": 2, "1": 0, "2": 0, "3": 1,
    }  # fmt: skip
    assert dataset.notes == ("3 training pairs drawn for validation with seed 0",)


def test_one_file_is_split_by_user_and_small_users_train_only(write: Write) -> None:
    rows = [*MANY, ("3", "1"), ("3", "2"), ("4", "1"), ("4", "2"), ("4", "3")]
    folder = write("ratings.csv", "user,item\n" + "".join(f"{user},{item}\n" for user, item in rows))
    dataset = load_dataset(folder, seed=0)
    counts = {
        user: tuple(sum(u == user for u, _ in pairs(dataset, split)) for split in ("train", "valid", "test"))
        for user in "1234"
    }
    assert counts == {"1": (8, 1, 1), "2": (8, 1, 1), "3": (2, 0, 0), "4": (1, 1, 1)}


def test_the_split_depends_on_the_seed_and_not_on_the_order_of_lines(write: Write) -> None:
    lines = [f"{user},{item}\n" for user, item in MANY]
    folder = write("ratings.csv", "user,item\n" + "".join(lines))
    first, other = load_dataset(folder, seed=0), load_dataset(folder, seed=1)
    write("ratings.csv", "user,item\n" + "".join(reversed(lines)))
    assert load_dataset(folder, seed=0).events.equals(first.events)
    assert not other.events.equals(first.events)


def test_every_clean_up_is_counted(write: Write) -> None:
    write("train.csv", "user,item\na,x\na,x\na,y\n")
    write("valid.csv", "user,item\na,x\na,z\n")
    dataset = load_dataset(write("test.csv", "user,item\na,z\na,w\nb,x\nb,y\nc,x\n"), seed=0)
    assert pairs(dataset, "train") == [("a", "x"), ("a", "y")]
    assert pairs(dataset, "valid") == [("a", "z")] and pairs(dataset, "test") == [("a", "w")]
    assert dataset.notes == (
        "1 duplicate pair dropped",
        "2 pairs in more than one split kept in the first only",
        "2 users without a training item dropped, with 3 pairs kept as met",
    )


@pytest.mark.data
@pytest.mark.skipif(not DATA.is_dir(), reason="real data not at hand")
@pytest.mark.parametrize(
    ("name", "users", "items", "interactions", "with_titles"),
    [
        ("ml-1m", 6_022, 3_043, 995_154, False),
        ("gowalla", 29_858, 40_981, 1_027_370, False),
        ("ml-100k", 943, 1_682, 100_000, True),
        ("ml-latest-small", 610, 9_724, 100_836, True),
        ("amazon-video", 8_072, 11_830, 63_836, False),
    ],
)
def test_real_data_sets_have_their_known_sizes(
    name: str, users: int, items: int, interactions: int, with_titles: bool
) -> None:
    dataset = load_dataset(DATA / name, seed=0)
    table = dataset.events
    assert (table["user"].n_unique(), table["item"].n_unique(), len(table)) == (users, items, interactions)
    assert (dataset.titles is not None) == with_titles
