"""Nobody on the path plays the aggregator.

Who: whoever can answer in the aggregator's place, by name, by route or by a stolen certificate. Before, a client that
asked by plain http, or whose TLS was ended by somebody else, believed any answer.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from shared.errors import SettingsError
from shared.protocol.signing.keys import PrivateKey, new_key
from shared.protocol.signing.responses import sign_answer
from tests.support.misled import Misled, make_liar, members_of, settings_of
from tests.support.questions import read, wait_until

if TYPE_CHECKING:
    from conftest import Opened, Silos

    from tests.support.misled import Mislead

pytestmark = pytest.mark.anyio
UNBELIEVED = "expected an answer signed by the aggregator"


class Impostor(httpx.AsyncBaseTransport):
    """Answers as the aggregator would, changes what it likes, and signs with what it has. `key`: None: not at all."""

    def __init__(self, honest: httpx.AsyncBaseTransport, key: PrivateKey | None, *, changes: bool) -> None:
        self._honest, self._key, self._changes = honest, key, changes
        self.earlier: httpx.Response | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._honest.handle_async_request(request)
        content = await answer.aread()
        headers = dict(answer.headers)
        if self._changes:
            content = content.replace(b'"rounds":1', b'"rounds":9')
        if self._key is None and not self._changes:
            headers = {name: value for name, value in headers.items() if "signature" not in name}
        if self._key is not None:
            sha256 = hashlib.sha256(content).digest()
            headers |= sign_answer(answer.status_code, sha256, request.headers["signature"], self._key, created=1)
        return httpx.Response(answer.status_code, headers=headers, stream=httpx.ByteStream(content))


class Repeater(httpx.AsyncBaseTransport):
    """Answers every call with the true answer to the first of its kind."""

    def __init__(self, honest: httpx.AsyncBaseTransport, kept: dict[str, httpx.Response]) -> None:
        self._honest, self._kept = honest, kept

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._honest.handle_async_request(request)
        content = await answer.aread()
        first = self._kept.setdefault(
            request.url.path, httpx.Response(answer.status_code, headers=answer.headers, content=content)
        )
        return httpx.Response(first.status_code, headers=first.headers, stream=httpx.ByteStream(first.content))


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("how", ["unsigned", "changed", "another key", "an earlier answer"])
async def test_an_answer_that_the_pinned_key_has_not_given_to_this_request_is_not_believed(
    silos: Silos, opened: Opened, tmp_path: Path, how: str, secure: bool
) -> None:
    shards = silos(3)
    liar = make_liar([shard.name for shard in shards], secure=secure)
    honest = liar.transport("client-1")
    ways: dict[str, httpx.AsyncBaseTransport] = {
        "unsigned": Impostor(honest, None, changes=False),
        "changed": Impostor(honest, None, changes=True),
        "another key": Impostor(honest, new_key(), changes=True),
        "an earlier answer": Repeater(honest, {}),
    }
    members = members_of(liar, shards, tmp_path)
    async with opened(settings_of(liar, shards[0], tmp_path, members=members), ways[how]) as http:
        await Misled(liar, {"client-1": http}).require_refused(UNBELIEVED, "expected an answer with the headers")
        rounds = (await read(http, "status"))["rounds"]
        assert rounds == (1 if how == "an earlier answer" else 0)  # nothing else was believed


async def test_a_key_is_trusted_on_first_use_only_where_the_silo_says_so_and_then_for_good(mislead: Mislead) -> None:
    changed = {"members": None, "trust_on_first_use": True}
    async with mislead(1, client=changed) as clients:

        async def joined() -> bool:
            return bool((await read(clients.clients["client-1"], "status")).get("run"))

        await wait_until(joined)
    async with mislead(1, client=changed) as clients:  # whose aggregator has another key
        await clients.require_refused(UNBELIEVED)


def test_a_secure_client_does_not_start_without_knowing_its_peers_or_by_plain_http(
    silos: Silos, tmp_path: Path
) -> None:
    shards, liar = silos(1), make_liar(["client-1"])
    members = members_of(liar, shards, tmp_path)
    for changed, words in (
        ({"members": None}, "members: expected a file of members"),
        ({"trust_on_first_use": True}, "expected either it or members, got both"),
        ({"aggregator_url": "http://aggregator.example.org"}, "expected one that begins with https:"),
    ):
        with pytest.raises(SettingsError, match=words):
            settings_of(liar, shards[0], tmp_path, **({"members": members} | changed))
    far = "https://aggregator.example.org"
    assert settings_of(liar, shards[0], tmp_path, members=members, aggregator_url=far).secure
