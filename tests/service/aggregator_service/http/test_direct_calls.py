"""A call that is answered without the framework's reading of arguments has the framework's answer, byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi import APIRouter, Body, Query

from aggregator_service.http import routes
from aggregator_service.http.authentication import SignedRoute
from aggregator_service.http.direct_calls import DirectCall
from shared.protocol.wire import MEDIA_TYPE

if TYPE_CHECKING:
    from conftest import Federation, Running

pytestmark = pytest.mark.anyio
CURRENT, OWN = "/v1/runs/current", "/v1/runs/run-1/rounds/1/clients/north"
PLAIN = [
    CURRENT,
    f"{CURRENT}?",
    f"{CURRENT}?wait=0",
    f"{CURRENT}?wait=0&after=0",
    f"{CURRENT}?after=0",
    f"{CURRENT}?after=999999999999&wait=0.5",
    "/v1/runs/run-1/model",
    "/v1/runs/run-1/rounds/1/anchor",
    f"{OWN}/personalized?wait=0",
    f"{OWN}/personalized",
    "/v1/runs/run-9/model",
    "/v1/runs/run-1/rounds/99999/anchor",
    "/v1/runs/run-1/rounds/2/anchor",
    "/v1/runs/run-1/rounds/1/clients/south/personalized",
    "/v1/runs/run-7/rounds/1/clients/north/personalized",
]
OTHERS = [
    f"{CURRENT}?wait=-1",
    f"{CURRENT}?wait=nan",
    f"{CURRENT}?wait=1e400",
    f"{CURRENT}?wait=",
    f"{CURRENT}?wait{CURRENT}?wait=0&wait=0",
    f"{CURRENT}?wait=0&",
    f"{CURRENT}?&wait=0",
    f"{CURRENT}?who=7",
    f"{CURRENT}?=7",
    f"{CURRENT}?Wait=0",
    f"{CURRENT}?after=1.0&wait=0",
    f"{CURRENT}?after=-0",
    f"{CURRENT}?after=9007199254740992",
    f"{CURRENT}?w%61it=0",
    f"{CURRENT}?wait=%30",
    f"{CURRENT}?wait=+1",
    f"{CURRENT}?wait=1_0",
    f"{CURRENT}?wait=00",
    f"{CURRENT}?after=x",
    "/v1/runs/run-/model",
    "/v1/runs/run-1234567890/model",
    "/v1/runs/run-1/rounds/0/anchor",
    "/v1/runs/run-1/rounds/01/anchor",
    "/v1/runs/run-1/rounds/100000/anchor",
    "/v1/runs/run-1/rounds/100001/anchor",
    "/v1/runs/run-1/rounds/-1/anchor",
    "/v1/runs/run-1/rounds/1.0/anchor",
    "/v1/runs/run-1/model?wait=0",
    "/v1/runs/run-1%0A/model",
    "/v1/runs/run%2D1/model",
    "/v1/runs/run-1/rounds/1/clients/NORTH/personalized",
    "/v1/runs/run-1/rounds/x/clients/south/personalized",
    f"{OWN}/personalized?wait=0&after=0",
    f"{OWN}/personalized?wait=inf",
    "/v1/runs/run-1/rounds/%31/anchor",
]
OF_ITS_OWN = ("signature", "signature-input", "x-request-id")


async def ask(federation: Federation, path: str, method: str = "GET", **options: Any) -> httpx.Response:
    return await federation.http.request(method, path, auth=federation.client("north").auth, **options)


def comparable(answer: httpx.Response) -> tuple[Any, ...]:
    headers = [(name, value) for name, value in answer.headers.multi_items() if name not in OF_ITS_OWN]
    if answer.is_success:
        return answer.status_code, headers, answer.content
    kept = [one for one in headers if one[0] not in ("content-digest", "content-length")]
    return answer.status_code, kept, answer.json() | {"request_id": None}


class Counted:
    """Counts the calls that are answered directly, or prevents them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.direct, self._patch, self._read = 0, patch, DirectCall.read_values
        self.count()

    def count(self) -> None:
        def read(call: DirectCall, scope: Any) -> Any:
            values = self._read(call, scope)
            self.direct += values is not None
            return values

        self._patch.setattr(DirectCall, "read_values", read)

    def prevent(self) -> None:
        self._patch.setattr(DirectCall, "read_values", lambda *_: None)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def stop_clock(federation: Federation, patch: pytest.MonkeyPatch) -> None:
    """The seconds that are left would differ between two answers."""
    now = federation.clock()
    patch.setattr(federation.app.state.coordinator, "_clock", lambda: now)


@pytest.mark.parametrize("path", [*PLAIN, *OTHERS])
async def test_the_answer_is_the_framework_s(
    shared_federation: Federation, counted: Counted, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    stop_clock(shared_federation, monkeypatch)
    found = await ask(shared_federation, path)
    assert counted.direct == (path in PLAIN), "only what is spelled as the gate spells it"
    counted.prevent()
    assert comparable(found) == comparable(await ask(shared_federation, path))


@pytest.mark.parametrize("method", ["HEAD", "GET"])
async def test_a_body_beside_a_poll_and_a_question_by_head_are_answered_as_before(
    shared_federation: Federation, counted: Counted, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    stop_clock(shared_federation, monkeypatch)
    options: dict[str, Any] = (
        {} if method == "HEAD" else {"content": b"user-07", "headers": {"Content-Type": MEDIA_TYPE}}
    )
    found = await ask(shared_federation, CURRENT, method, **options)
    assert counted.direct == (method == "HEAD")
    counted.prevent()
    again = await ask(shared_federation, CURRENT, method, **options)
    assert found.status_code == again.status_code == (200 if method == "HEAD" else 422)
    assert found.headers["content-length"] == again.headers["content-length"] or method == "GET"


async def test_an_upload_is_received_repeated_and_refused_as_by_the_framework(
    running: Running, counted: Counted
) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        counted.direct = 0  # without the joins
        body, told = north.update(1.0, rho=0.1, margin=0.2), {}
        for number in (1, 2):
            for what, path, content, kind in (
                ("new", f"{OWN}/update", body, MEDIA_TYPE),
                ("media", f"{OWN}/update", body, "application/json"),
                ("other", f"{OWN}/update", north.update(2.0, rho=0.1, margin=0.2), MEDIA_TYPE),
                ("query", f"{OWN}/update?wait=1", body, MEDIA_TYPE),
                ("another's", OWN.replace("north", "south") + "/update", body, MEDIA_TYPE),
                ("none", f"{OWN}/update", b"", MEDIA_TYPE),
            ):
                answer = await ask(federation, path, "PUT", content=content, headers={"Content-Type": kind})
                told[what, number] = comparable(answer)
            assert counted.direct == 5, "all but the one with a query, and the second time none"
            counted.prevent()
    assert told["new", 1][0] == 201 and told["new", 2][0] == 200 and told["new", 1][2] == told["new", 2][2]
    assert [told[what, 1] == told[what, 2] for what in ("media", "other", "query", "another's", "none")] == [True] * 5


async def test_a_stranger_and_a_client_that_has_not_joined_are_refused_in_the_same_words(
    shared_federation: Federation, counted: Counted
) -> None:
    told = []
    for _ in range(2):
        unsigned = await shared_federation.http.get(CURRENT)
        east = shared_federation.client("east")
        told.append(
            [comparable(unsigned), comparable(await east.get(CURRENT)), comparable(await east.get(f"{OWN}/roster"))]
        )
        counted.prevent()
    assert told[0] == told[1] and [one[0] for one in told[0]] == [401, 401, 404]


def test_every_call_is_direct_and_none_with_what_is_not_known() -> None:
    for router in (routes.client_routes, routes.secure_routes):
        for route in router.routes:
            assert isinstance(route, SignedRoute) and (call := DirectCall.of(route)) is not None, route
            assert (call.message is None) == (route.body_field is None), route.path
    strange = APIRouter(route_class=SignedRoute)

    @strange.get("/a")
    async def read(k: int = Query(3)) -> None:
        del k

    @strange.put("/b")
    async def put(message: str = Body()) -> None:
        del message

    @strange.get("/c")
    async def read_list() -> list[str]:
        return []

    assert [DirectCall.of(route) for route in strange.routes] == [None] * 3  # type: ignore[arg-type]
