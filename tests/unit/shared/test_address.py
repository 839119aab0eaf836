"""An address that nobody can be called by is told at once, and not by what fails on it later."""

from __future__ import annotations

import pytest

from shared.errors import SettingsError
from shared.web.address import require_port, require_url


@pytest.mark.parametrize("url", ["http://host", "https://host:1", "http://127.0.0.1:65535", "http://[::1]:8800"])
def test_an_address_is_taken_as_it_is(url: str) -> None:
    assert require_url(url) == url


@pytest.mark.parametrize(
    "url", ["host:80", "ftp://host", "http://", "http://host:x", "http://host:0", "http://host:65536", "http://host:-1"]
)
def test_another_is_refused_with_what_was_expected_and_what_came(url: str) -> None:
    with pytest.raises(SettingsError) as raised:
        require_url(url)
    assert str(raised.value) == f"expected http://HOST:PORT with a port of 1..65535, or https://, got {url!r}"


def test_a_port_is_one_that_can_be_listened_on() -> None:
    assert (require_port("--port", 1), require_port("--port", 65535)) == (1, 65535)
    for port in (0, -1, 65536, 70_000):
        with pytest.raises(SettingsError, match=rf"--port: expected 1\.\.65535, got {port}"):
            require_port("--port", port)
