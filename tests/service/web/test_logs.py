"""What a process writes is JSON, line by line, and holds no words that data could be in."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from typing import Any

import pytest

from shared.errors import DataError
from shared.web.logs import LineFormatter, describe_errors, make_logger

PACKAGE = "a_service"
CANARY = "item-0815"


def written(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(LineFormatter(PACKAGE).format(record))
    return found


def record(name: str, message: object, *args: object, failed: bool = False) -> logging.LogRecord:
    info = sys.exc_info() if failed else None
    return logging.getLogger(name).makeRecord(name, logging.ERROR, "file.py", 1, message, args, info)


def test_a_library_s_line_has_its_own_words_and_nothing_that_it_fills_in() -> None:
    line = written(record("some.library", "cannot find %s", CANARY))
    assert (line["event"], line["logger"], line["level"]) == ("cannot find %s", "some.library", "error")
    assert line["timestamp"].endswith("Z")


def test_a_library_s_failure_is_told_by_its_kind_and_place() -> None:
    try:
        try:
            raise ValueError(CANARY)
        except ValueError as error:
            raise DataError("items.parquet, line 3: expected text") from error
    except DataError:
        line = written(record("uvicorn.error", "Exception in ASGI application\n", failed=True))
    kinds = [one for one in line["exception"] if not one.startswith("  ")]
    assert kinds == ["DataError: items.parquet, line 3: expected text", "ValueError"]
    assert sum("in test_a_library_s_failure_is_told_by_its_kind_and_place" in one for one in line["exception"]) == 2
    assert CANARY not in json.dumps(line)


def test_errors_that_lead_to_each_other_end() -> None:
    first, second = ValueError(CANARY), KeyError(CANARY)
    first.__cause__, second.__cause__ = second, first
    assert describe_errors(first) == ["ValueError", "KeyError"]
    assert describe_errors(None) == []


def test_a_warning_of_python_is_a_line_too(caplog: pytest.LogCaptureFixture) -> None:
    logging.captureWarnings(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(True)
            warnings.warn(f"strange: {CANARY}", stacklevel=1)
    finally:
        logging.captureWarnings(False)
    (one,) = [found for found in caplog.records if found.name == "py.warnings"]
    line = written(one)
    assert line["event"].endswith(": UserWarning") and "test_logs.py:" in line["event"]


def test_the_service_s_own_line_stays_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", PACKAGE)
    make_logger(PACKAGE).info("joined", clients=3)
    (one,) = caplog.records
    assert written(one) == json.loads(one.getMessage()) and written(one)["clients"] == 3
