"""The page's forms start and cancel a run; no other site can make a browser send one that counts."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from aggregator_service.pages.forms import LONGEST_FORM, fill_start_form, form_guard, read_start
from aggregator_service.settings import aggregator_settings
from shared.method.settings import BasisSettings, MethodSettings
from shared.protocol.schemas import RunHistoryOut, RunIn
from tests.support.small import SMALL, TOKEN

if TYPE_CHECKING:
    from conftest import Federation, Running

METHOD = SMALL.model_copy(update={"margin_strength": 1.0})

pytestmark = pytest.mark.anyio
OPERATOR = ("operator", TOKEN)
RUN = {"clients": "2", "rounds": "3", "quorum": "", "deadline_seconds": "600", "seed": "7"}


async def guard(federation: Federation) -> str:
    """The word that the page's forms carry."""
    text = (await federation.http.get("/", auth=OPERATOR)).text
    [found] = set(re.findall(r'name="guard" value="([0-9a-f]{64})"', text))
    return str(found)


async def post(federation: Federation, path: str, fields: dict[str, str], **others: Any) -> httpx.Response:
    return await federation.http.post(path, data=fields, **({"auth": OPERATOR} | others))


def field_of(page: httpx.Response, name: str) -> str:
    """What the start form's field of that name holds."""
    [tag, rest] = re.findall(rf'<(?:input|textarea|select) id="start-{name}"([^>]*)>(.*)', page.text, re.S)[0]
    if (value := re.search(r' value="([^"]*)"', tag)) is not None:
        return html.unescape(value[1])
    if "</option>" in rest.partition("</select>")[0]:
        return re.findall(r'<option value="([^"]*)" selected>', rest)[0]
    return html.unescape(rest.partition("</textarea>")[0])


def shown(answer: httpx.Response) -> str:
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.text)))


async def phases(federation: Federation) -> dict[str, str]:
    runs = (await federation.operate("GET", "/v1/runs")).json()
    return {one["run"]: one["phase"] for one in runs}


async def test_a_run_is_started_by_the_form_with_the_federation_s_own_method(running: Running) -> None:
    async with running() as federation:
        await federation.joined("north", "south")
        answer = await post(federation, "/start", RUN | {"guard": await guard(federation)})
        assert (answer.status_code, answer.headers["location"]) == (303, "./")
        request = (await federation.history())["request"]
        assert (request["rounds"], request["clients"], request["quorum"], request["seed"]) == (3, 2, None, 7)
        assert request["method"] == federation.settings.method.model_dump(mode="json")


async def test_a_run_is_cancelled_by_the_form_and_the_next_one_begins_as_the_last(running: Running) -> None:
    async with running() as federation:
        await federation.begun("north", "south", rounds=9, method={"local_epochs": 3})
        page = await federation.http.get("/", auth=OPERATOR)
        assert 'action="cancel"' in page.text and 'action="start"' not in page.text
        word = await guard(federation)
        answer = await post(federation, "/cancel", {"run": "run-1", "guard": word})
        assert (answer.status_code, answer.headers["location"]) == (303, "./?run=run-1")
        history = await federation.history()
        assert (history["phase"], history["reason"]) == ("cancelled", "the operator has cancelled it")
        page = await federation.http.get("/", auth=OPERATOR)
        assert 'name="rounds" type="number" inputmode="decimal" value="9"' in page.text and "cancelled" in page.text
        settings = field_of(page, "settings")
        assert settings == "local_epochs=3"
        answer = await post(federation, "/start", RUN | {"guard": word, "settings": settings})
        assert answer.status_code == 303
        begun = (await federation.operate("GET", "/v1/runs/run-2")).json()
        assert begun["request"]["method"]["local_epochs"] == 3


async def test_without_the_page_s_own_word_nothing_is_done(running: Running) -> None:
    async with running() as federation:
        await federation.opened()
        word = await guard(federation)
        for fields in ({}, {"guard": ""}, {"guard": "0" * 64}, {"guard": form_guard("another token")}):
            answer = await post(federation, "/cancel", {"run": "run-1"} | fields)
            assert answer.status_code == 403 and "load the page again" in shown(answer)
        for site in ("cross-site", "same-site", "none"):
            headers = {"Sec-Fetch-Site": site}
            answer = await post(federation, "/cancel", {"run": "run-1", "guard": word}, headers=headers)
            assert answer.status_code == 403 and "another site" in shown(answer)
        assert await phases(federation) == {"run-1": "open"}
        headers = {"Sec-Fetch-Site": "same-origin"}
        assert (await post(federation, "/cancel", {"run": "run-1", "guard": word}, headers=headers)).status_code == 303


async def test_nobody_but_the_operator_gets_as_far_as_the_word(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        fields = {"run": "run-1", "guard": await guard(federation)}
        for auth in (None, ("operator", "wrong"), ("north", TOKEN)):
            answer = await post(federation, "/cancel", fields, auth=auth)
            assert answer.status_code == 401 and "north" not in answer.text
            assert answer.headers["www-authenticate"] == 'Basic realm="LPSFed aggregator"'
        assert (await post(federation, "/cancel", fields, auth=north.auth)).status_code in (401, 403, 415)
        assert await phases(federation) == {"run-1": "open"}


async def test_the_password_still_opens_no_call_of_the_api(running: Running) -> None:
    async with running() as federation:
        await federation.opened()
        assert (await federation.http.delete("/v1/runs/run-1", auth=OPERATOR)).status_code == 401
        assert await phases(federation) == {"run-1": "open"}


@pytest.mark.parametrize(
    ("wrong", "status", "said"),
    [
        ({"rounds": "0"}, 422, "rounds: expected a number of 1 or more, got 0"),
        ({"rounds": "many<b>"}, 422, "rounds: expected a whole number, got text of 7 characters"),
        ({"quorum": "3"}, 422, "quorum: expected at most clients = 2, got 3"),
        ({"deadline_seconds": "0.5"}, 422, "deadline_seconds"),
        ({"method": "{}"}, 422, "expected the fields clients, rounds, quorum"),
        ({"settings": "local_epochs"}, 422, "settings: expected key=value on each line, got 'local_epochs'"),
        ({"settings": "local_epochs=0"}, 422, "settings: local_epochs: expected a number of 1 or more, got 0"),
        ({"settings": "nonsense=1"}, 422, "settings: nonsense: expected the name of a setting, got an unknown one"),
        ({"settings": "width=5"}, 422, "method (width): tensors: expected"),
        ({"settings": "a=1\na=2"}, 422, "settings: expected each setting once, got 'a' twice"),
        ({"part": "basis"}, 422, "basis_kind: expected off, because this federation declares no common basis"),
        ({"part": "elsewhere"}, 422, "part: expected training, as this federation declares, got elsewhere"),
        ({"basis_kind": "exact"}, 422, "basis_kind: expected off, because this federation declares no common basis"),
    ],
)
async def test_a_form_that_cannot_be_carried_out_comes_back_with_the_reason_and_what_was_typed(
    running: Running, wrong: dict[str, str], status: int, said: str
) -> None:
    async with running() as federation:
        await federation.joined("north", "south")
        answer = await post(federation, "/start", RUN | wrong | {"guard": await guard(federation)})
        assert answer.status_code == status and said in shown(answer) and "<b>" not in answer.text
        assert 'name="seed" type="number" inputmode="decimal" value="7"' in answer.text
        assert answer.headers["content-security-policy"] and answer.headers["cache-control"] == "no-store"
        assert await phases(federation) == {}


@pytest.mark.parametrize(
    ("wrong", "field", "said"),
    [
        ({"rounds": "0"}, "rounds", "expected a number of 1 or more, got 0"),
        ({"quorum": "3"}, "quorum", "expected at most clients = 2, got 3"),
        ({"settings": "width=5"}, "settings", "method (width): tensors: expected"),
        ({"settings": "batch_size=0\nlocal_epochs=0"}, "settings", "local_epochs: expected a number of"),
    ],
)
async def test_an_error_stands_at_its_field(running: Running, wrong: dict[str, str], field: str, said: str) -> None:
    async with running() as federation:
        await federation.joined("north", "south")
        answer = await post(federation, "/start", RUN | wrong | {"guard": await guard(federation)})
    marked = r'id="start-([a-z_]+)"[^>]* aria-invalid="true" aria-describedby="error-([a-z_]+)"'
    assert re.findall(marked, answer.text) == [(field, field)]
    [error] = re.findall(rf'<span class="error" id="error-{field}">([^<]+)</span>', answer.text)
    assert html.unescape(error).startswith(said)
    for name, value in wrong.items():
        assert field_of(answer, name) == value


async def test_settings_of_the_method_are_those_of_the_form_above_the_federation_s_own(running: Running) -> None:
    async with running() as federation:
        await federation.joined("north", "south")
        typed = "local_epochs = 4\r\n\r\nanchor.every_round=true\r\n--set margin_strength=0.2\r\n"
        answer = await post(federation, "/start", RUN | {"guard": await guard(federation), "settings": typed})
        assert answer.status_code == 303, shown(answer)
        own = federation.settings.method
        anchor = own.anchor.model_copy(update={"every_round": True})
        expected = own.model_copy(update={"local_epochs": 4, "anchor": anchor, "margin_strength": 0.2})
        assert (await federation.history())["request"]["method"] == expected.model_dump(mode="json")
        await post(federation, "/cancel", {"run": "run-1", "guard": await guard(federation)})
        page = await federation.http.get("/", auth=OPERATOR)
        lines = ["local_epochs=4", "margin_strength=0.2", "anchor.every_round=true"]
        assert field_of(page, "settings").splitlines() == lines


def with_basis(**basis: Any) -> dict[str, Any]:
    return {"method": METHOD.model_copy(update={"catalogue": 12, "basis": BasisSettings(**basis)}), "secure": False}


async def test_a_basis_run_is_started_by_the_form_and_then_a_training_run_with_it(running: Running) -> None:
    basis = {"basis_kind": "iterated", "basis_rank": "5", "basis_rounds": "4"}
    async with running(**with_basis(kind="iterated", rank=5, rounds=3)) as federation:
        await federation.joined("north", "south")
        word = await guard(federation)
        page = await federation.http.get("/", auth=OPERATOR)
        assert field_of(page, "basis_kind") == "iterated" and 'placeholder="3"' in page.text
        assert field_of(page, "part") == "basis"  # what a federation of sums begins with
        refused = await post(federation, "/start", RUN | basis | {"guard": word})
        assert refused.status_code == 422 and "expected a finished basis run" in shown(refused)
        assert 'id="error-basis_kind"' in refused.text and field_of(refused, "basis_rounds") == "4"
        started = await post(federation, "/start", RUN | basis | {"guard": word, "part": "basis"})
        assert started.status_code == 303, shown(started)
        request = (await federation.history())["request"]
        assert (request["part"], request["rounds"]) == ("basis", 4)
        assert (request["method"]["basis"]["kind"], request["method"]["basis"]["rounds"]) == ("iterated", 4)
        assert request["method"]["catalogue"] == 12
        await post(federation, "/cancel", {"run": "run-1", "guard": word})
        page = await federation.http.get("/", auth=OPERATOR)
        assert (field_of(page, "basis_kind"), field_of(page, "basis_rounds")) == ("iterated", "4")
        assert field_of(page, "part") == "training"


@pytest.mark.parametrize(
    ("asked", "field", "said"),
    [
        ({"basis_kind": "iterated"}, "basis_kind", "expected off or exact, as this federation has declared"),
        ({"basis_kind": "exact", "basis_rank": "5"}, "basis_rank", "expected only with an iterated basis"),
        ({"basis_kind": "off", "basis_rounds": "5"}, "basis_rounds", "expected only with an iterated basis"),
        ({"part": "basis"}, "basis_kind", "expected exact for a basis run, got off"),
    ],
)
async def test_another_basis_than_is_declared_is_refused_at_its_field(
    running: Running, asked: dict[str, str], field: str, said: str
) -> None:
    async with running(**with_basis(kind="exact")) as federation:
        await federation.joined("north", "south")
        answer = await post(federation, "/start", RUN | asked | {"guard": await guard(federation)})
        assert answer.status_code == 422
        errors = dict(re.findall(r'<span class="error" id="error-([a-z_]+)">([^<]+)</span>', answer.text))
        assert set(errors) == {field} and said in html.unescape(errors[field])


async def test_a_federation_without_a_basis_has_no_field_for_one(running: Running) -> None:
    async with running() as federation:
        page = await federation.http.get("/", auth=OPERATOR)
        assert "start-basis_kind" not in page.text and "start-part" not in page.text


async def test_a_second_run_and_one_that_has_ended_are_refused_in_words(running: Running) -> None:
    async with running() as federation:
        await federation.opened()
        word = await guard(federation)
        answer = await post(federation, "/start", RUN | {"guard": word})
        assert answer.status_code == 409 and "expected no active run, run-1 is open" in shown(answer)
        answer = await post(federation, "/cancel", {"run": "run-9", "guard": word})
        assert answer.status_code == 404
        answer = await post(federation, "/cancel", {"run": "../etc", "guard": word})
        assert answer.status_code == 422 and "etc" not in answer.text


async def test_what_is_no_form_is_not_read(running: Running) -> None:
    async with running() as federation:
        word = await guard(federation)
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        for body, headers, status in (
            (b"{}", {"Content-Type": "application/json"}, 415),
            (b"guard", kind, 422),
            (f"guard={word}&guard={word}".encode(), kind, 422),
            (b"\xff=1", kind, 422),
            (b"a=1&" * 20 + b"a=1", kind, 422),
            (b"a=" + b"x" * LONGEST_FORM, kind, 413),
        ):
            answer = await federation.http.post("/start", content=body, headers=headers, auth=OPERATOR)
            assert answer.status_code == status, body


def test_over_a_list_that_the_silos_sum_the_form_offers_one_basis_and_leaves_its_kind_open(tmp_path: Path) -> None:
    chosen = aggregator_settings(state_directory=tmp_path, operator_token=TOKEN, share="both")
    first = fill_start_form([], 3, chosen.method)
    assert [part for part, _ in first.parts] == ["items", "content", "basis", "training"]
    assert first.values["part"] == "items" and first.kinds == ()
    listed = read_start({"clients": "3", "part": "items"}, [], chosen.method)
    assert listed.part == "items" and listed.method.basis.kind == "items"
    for part in ("basis", "training"):
        asked = read_start({"clients": "3", "part": part, "settings": "local_epochs=2"}, [], chosen.method)
        assert asked.part == part and asked.method.local_epochs == 2
        assert "basis" not in asked.method.model_fields_set  # the aggregator takes what the list chooses
    made = read_start({"clients": "3", "part": "basis", "settings": "basis.kind=exact"}, [], chosen.method)
    assert made.method.basis.kind == "exact"
    exact = MethodSettings(basis=chosen.method.sums["basis_exact"])
    history = RunHistoryOut(
        run="run-2",
        phase="finished",
        request=RunIn(clients=3, part="basis_exact", method=exact),
        started_at="2026-01-01T00:00:00+00:00",
    )
    assert fill_start_form([history], 3, chosen.method).values["part"] == "training"
