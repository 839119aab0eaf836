"""The length of the common list of items, as the operator's file and a silo's own list say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator_service.settings import aggregator_settings
from shared.errors import SettingsError
from shared.method.settings import method_settings, read_catalogue_size


def told(path: Path | None, **settings: int) -> int:
    return read_catalogue_size(method_settings(**settings), path, int, "size: expected a number").catalogue


def test_the_file_says_the_size_where_the_settings_do_not(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.size"
    path.write_text("800\n")
    assert (told(path), told(path, catalogue=7), told(None)) == (800, 7, 0)


@pytest.mark.parametrize(
    ("content", "came"),
    [
        (b"many", "'many'"),
        (b"", "''"),
        (b"0", "got 0"),
        (b"-3", "got -3"),
        (b"99999999999", "got 9999"),
        (b"\xff", "can't"),
    ],
)
def test_a_file_without_a_size_is_refused_at_the_start(tmp_path: Path, content: bytes, came: str) -> None:
    path = tmp_path / "catalogue.size"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match="catalogue_size_file: expected a file with a number") as raised:
        aggregator_settings(state_directory=tmp_path, operator_token="t" * 32, catalogue_size_file=path)
    assert came in str(raised.value)
