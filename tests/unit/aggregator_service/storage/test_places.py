"""Where rows and bodies may lie: what is no such place is refused at the start, and nothing of it is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import SettingsError
from tests.support.small import small_aggregator

PLAIN = "postgresql+psycopg://lpsfed:s3cret@db/lpsfed"


@pytest.mark.parametrize("given", [PLAIN, PLAIN.replace("+psycopg", ""), PLAIN + "?sslmode=verify-full"])
def test_a_url_of_postgresql_is_taken(tmp_path: Path, given: str) -> None:
    url = small_aggregator(tmp_path, database=given).database_url()
    assert url is not None
    assert (url.drivername, url.password, url.host, url.database) == ("postgresql+psycopg", "s3cret", "db", "lpsfed")


def test_it_may_lie_in_a_file_as_other_secrets_do(tmp_path: Path) -> None:
    (tmp_path / "url").write_text(f"{PLAIN}\n")
    url = small_aggregator(tmp_path, database_file=tmp_path / "url").database_url()
    assert url is not None and url.host == "db"


@pytest.mark.parametrize(
    "given",
    [
        "s3cret",
        "mysql://lpsfed:s3cret@db/lpsfed",
        "sqlite:///s3cret",
        "postgresql://lpsfed:s3cret@db",
        "postgresql://lpsfed:part@s3cret@db/lpsfed",
        "postgresql://lpsfed:part/of:s3cret/name",
        "postgresql://lpsfed@db/lpsfed?password=s3cret",
        "postgresql://lpsfed:s3cret@db/lpsfed?options=-csynchronous_commit%3Doff",
        "postgresql://lpsfed:s3cret@db:s3cret/lpsfed",
    ],
)
def test_no_other_is_and_the_password_is_not_repeated(tmp_path: Path, given: str) -> None:
    with pytest.raises(SettingsError, match=r"^database: expected ") as told:
        small_aggregator(tmp_path, database=given)
    assert "s3cret" not in str(told.value) and told.value.__cause__ is None


def test_settings_that_are_shown_hold_no_password(tmp_path: Path) -> None:
    settings = small_aggregator(tmp_path, database=PLAIN)
    assert "s3cret" not in f"{settings!r} {settings.model_dump_json()} {settings.database_url()!r}"


@pytest.mark.parametrize("given", ["s3://bucket", "s3://a-bucket.of.ours/some/prefix_1/"])
def test_a_bucket_is_taken(tmp_path: Path, given: str) -> None:
    assert small_aggregator(tmp_path, blobs=given).blobs == given


@pytest.mark.parametrize("given", ["bucket", "gs://bucket", "s3://", "s3://key:s3cret@bucket", "s3://bucket/../other"])
def test_no_other_place_of_bodies_is(tmp_path: Path, given: str) -> None:
    with pytest.raises(SettingsError, match="blobs: expected a URL such as s3://bucket/prefix") as told:
        small_aggregator(tmp_path, blobs=given)
    assert "s3cret" not in str(told.value)
