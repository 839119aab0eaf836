"""A page elsewhere that points its own name at a silo learns nothing; the silo's reference loads nothing from there."""

from __future__ import annotations

import pytest

from client_service.settings import ClientSettings, client_settings
from shared.errors import SettingsError
from tests.support.given import Opened

PATHS = ("/", "/docs", "/openapi.json", "/v1/ledger", "/health/live", "/health/ready", "/metrics", "/nowhere")
NEEDED = {"name": "east", "shard": "/shard", "state_directory": "/state"}


@pytest.mark.anyio
async def test_every_path_is_held_to_the_expected_hosts(settings: ClientSettings, opened: Opened) -> None:
    async with opened(settings.model_copy(update={"allowed_hosts": ("silo.example.org",)})) as http:
        for path in PATHS:
            refused = await http.get(path, headers={"Host": "evil.example"})
            assert (refused.status_code, refused.json()["code"]) == (421, "host") and "evil" not in refused.text
            for host in ("silo", "127.0.0.1:8801", "10.0.0.7", "silo.example.org"):
                answer = await http.get(path, headers={"Host": host})
                assert answer.status_code == (404 if path == "/nowhere" else 200)
        text = (await http.get("/metrics")).text
    assert f'method="any",route="(unmatched)",status="421"}} {len(PATHS)}.0' in text


def test_allowed_hosts_come_from_the_environment_as_names_without_a_port(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_settings(**NEEDED).allowed_hosts == ()
    monkeypatch.setenv("LPSFED_CLIENT_ALLOWED_HOSTS", '["silo.example.org", "other.example.org"]')
    assert client_settings(**NEEDED).allowed_hosts == ("silo.example.org", "other.example.org")


@pytest.mark.parametrize("host", ["silo.example.org:8801", "https://silo.example.org", "*", "*.example.org", ""])
def test_an_allowed_host_that_could_never_match_is_refused(host: str) -> None:
    with pytest.raises(SettingsError, match=r"allowed_hosts\.0"):
        client_settings(**NEEDED, allowed_hosts=(host,))
