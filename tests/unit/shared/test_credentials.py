"""Secrets that anybody could know are refused, wherever in this repository they stand."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import get_args

import pytest
from pydantic import SecretStr

from aggregator_service.settings import AggregatorSettings
from client_service.settings import ClientSettings
from shared.web.credentials import is_same_secret, read_secret_setting, require_strong_secret

ROOT = Path(__file__).parents[3]
SHOWN = [ROOT / "docker-compose.yml", ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "k8s").rglob("*.*")]
# `database` holds a password of the server's, which is the server's to judge.
SECRETS = "|".join(
    name
    for settings in (AggregatorSettings, ClientSettings)
    for name, field in settings.model_fields.items()
    if SecretStr in get_args(field.annotation) and name != "database"
)
SETTING = re.compile(rf"""(?:{SECRETS})["']?\s*[:=]\s*["']?([^\s"'`]+)""", re.IGNORECASE)


@pytest.mark.parametrize(
    "secret",
    [
        "change-me",
        "changeme" * 4,
        "please-CHANGE-ME-please-change-me-0123456789",
        "example-application-key-0123456789abcdef",
        "default-operator-key-0123456789abcdef",
        "password-0123456789abcdef0123456789",
        "your-key-here-0123456789abcdef012345",
        "0" * 64,
        "abcab" * 10,
    ],
)
def test_what_reads_like_an_example_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ValueError, match=r"some_key: expected (your own|a random) secret") as raised:
        require_strong_secret("some_key", secret)
    assert secret not in str(raised.value)


def test_what_is_made_at_random_is_not() -> None:
    for _ in range(500):
        require_strong_secret("some_key", secrets.token_hex(32))
        require_strong_secret("some_key", secrets.token_urlsafe(32))
        require_strong_secret("some_key", secrets.token_hex(16))


def test_no_secret_stands_in_a_file_that_people_copy() -> None:
    """Where one is shown, it must be one that a service refuses."""
    for text in (text for path in SHOWN if path.is_file() for text in SETTING.findall(path.read_text("utf-8"))):
        with pytest.raises(ValueError, match="expected"):
            require_strong_secret("shown", text)


def test_the_search_for_secrets_finds_one() -> None:
    assert SECRETS == "operator_token|application_key|operator_key|outbound_proxy"
    for line in (
        'LPSFED_CLIENT_OPERATOR_KEY: "abcdefgh01"',
        "OPERATOR_TOKEN=abcdefgh01",
        "application_key = 'abcdefgh01'",
    ):
        assert SETTING.findall(line) == ["abcdefgh01"]


def test_a_secret_comes_from_the_setting_or_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("  of the file 0123456789 \n")
    assert read_secret_setting("key", SecretStr("of the setting"), None, 8) == "of the setting"
    assert read_secret_setting("key", None, file, 8) == "of the file 0123456789"
    assert read_secret_setting("key", None, None, 8) is None
    for value, path, words in (
        (SecretStr("a" * 9), file, "key: expected either it or key_file, got both"),
        (SecretStr("short"), None, "key: expected at least 8 characters, got 5"),
        (None, tmp_path / "none", r"key_file: expected a readable text file \(.*No such"),
        (None, tmp_path, r"key_file: expected a readable text file"),
    ):
        with pytest.raises(ValueError, match=words):
            read_secret_setting("key", value, path, 8)


def test_equality_takes_any_text() -> None:
    assert is_same_secret("ä€", "ä€") and not is_same_secret("a", "b") and not is_same_secret("\udcff", "ÿ")
