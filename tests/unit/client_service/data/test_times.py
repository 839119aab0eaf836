"""Times in every form that is read, and what is no time."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from typing import Any

import polars as pl
import pytest

from client_service.data.shard_head import FIRST, LAST
from client_service.data.times import parse_times

NOON = 1_426_334_400  # 2015-03-14T12:00:00Z


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1426334400", NOON),
        (" 1426334400.9 ", NOON),
        ("-1", -1),
        ("2015-03-14T12:00:00Z", NOON),
        ("2015-03-14 12:00:00", NOON),
        ("2015-03-14T12:00", NOON),
        ("2015-03-14t13:00:00.75+01:00", NOON),
        ("2015-03-14T06:30:00,5-0530", NOON),
        ("2015-03-14T14+02", None),
        ("2015-03-14T14:00+02", NOON),
        ("2015-03-14", NOON - 12 * 3600),
        ("2015-02-30", None),
        ("14.03.2015", None),
        ("1426334400999", NOON),  # milliseconds
        ("4102444800001", None),  # of 2100, and no second
        ("nan", None),
        ("inf", None),
        ("soon", None),
    ],
)
def test_text_is_a_number_of_seconds_or_iso_8601(text: str, seconds: int | None) -> None:
    times, wrong = parse_times(pl.Series([text, "", None]))
    assert (times.to_list(), wrong.to_list()) == ([seconds, None, None], [seconds is None, False, False])


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (NOON, NOON),
        (NOON + 0.5, NOON),
        (FIRST, FIRST),
        (LAST, LAST),
        (LAST + 1, None),
        (float("nan"), None),
        (date(2015, 3, 14), NOON - 12 * 3600),
        (datetime(2015, 3, 14, 12), NOON),
        (datetime(2015, 3, 14, 14, tzinfo=timezone(timedelta(hours=2))), NOON),
        (timedelta(seconds=5), None),
        (True, None),
    ],
)
def test_columns_of_numbers_and_dates(value: Any, seconds: int | None) -> None:
    times, wrong = parse_times(pl.Series([value, None]))
    assert (times.to_list(), wrong.to_list()) == ([seconds, None], [seconds is None, False])


def test_a_column_without_values_has_no_times() -> None:
    times, wrong = parse_times(pl.Series([None, None]))
    assert times.null_count() == 2 and not wrong.any()
