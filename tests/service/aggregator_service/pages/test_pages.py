"""The operator's page over HTTP, in every state that a federation can be in; nobody else sees it."""

from __future__ import annotations

import html
import json
import logging
import re
from typing import TYPE_CHECKING

import pytest

from aggregator_service.pages.client_grid import ClientActivity, RunSnapshot
from aggregator_service.pages.curves import SHOWN_LINES, constant_scalars, run_charts
from aggregator_service.pages.overview import NAMED, build_overview, join_names
from aggregator_service.pages.rows import (
    SHOWN,
    SHOWN_CLIENTS,
    SHOWN_ROUNDS,
    arrivals_window,
    client_rows,
    describe_purpose,
    round_rows,
)
from shared.protocol.schemas import ParticipantOut, Phase, RoundOut, RunHistoryOut, RunIn
from tests.support.small import TOKEN

if TYPE_CHECKING:
    from conftest import FakeClient, Federation, Running, Until

SCALARS = {"rho": 0.1, "margin": 0.2}


async def page(federation: Federation, path: str = "/") -> str:
    answer = await federation.http.get(path, auth=("operator", TOKEN))
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html"), answer.text
    return answer.text


def plain(page: str) -> str:
    """The page's words without its tags, in single spaces."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


async def sends(clients: list[FakeClient], number: int) -> None:
    for client in clients:
        assert (await client.put(number, client.update(1.0, **SCALARS))).status_code == 201
    for client in clients:
        assert (await client.personalised(number)).status_code == 200


@pytest.mark.anyio
async def test_a_browser_is_asked_who_is_there_and_nobody_but_the_operator_sees_a_name(running: Running) -> None:
    async with running() as federation:
        [client] = await federation.joined("north")
        for auth in (None, client.auth, ("operator", "wrong")):
            answer = await federation.http.get("/", auth=auth)
            assert answer.status_code == 401 and "north" not in answer.text
            assert answer.headers["www-authenticate"] == 'Basic realm="LPSFed aggregator"'
        assert "north has joined." in plain(await page(federation))
        assert (await federation.operate("GET", "/")).status_code == 200  # by the bearer's token as well
        assert (await federation.http.get("/static/page.css")).status_code == 200
        assert (await federation.http.get("/openapi.json")).json()["paths"].keys().isdisjoint({"/", "/static/{name}"})


@pytest.mark.anyio
async def test_before_any_run_the_page_says_who_is_there_and_how_to_start(running: Running) -> None:
    async with running() as federation:
        text = plain(await page(federation))
        assert "No client has joined A client joins by itself" in text and "No run has been started." in text
        assert "No round has opened." in text and "No entry yet." in text
        assert 'curl -X POST http://aggregator/v1/runs -H "Authorization: Bearer $(cat operator.token)"' in text
        await federation.joined("east", "north", "south")
        text = plain(await page(federation))
        assert "No run yet east, north, south have joined." in text and '{"clients": 3, "rounds": 10}' in text
        assert "An update may hold 8 tensors of" in text and "pooling.hidden.weight float32 tensor 4 × 8 128" in text
        assert "3 entries, newest first" in text


@pytest.mark.anyio
async def test_while_a_run_waits_the_page_counts_who_has_joined(running: Running) -> None:
    async with running() as federation:
        await federation.joined("north")
        await federation.start_run(rounds=2, clients=3)
        text = plain(await page(federation))
        assert re.search(r"Waiting for clients 1 of 3 clients have joined; run-1 fails at 2\d{3}-", text)
        assert "fewer than three clients" in text and "curl" not in text


@pytest.mark.anyio
async def test_while_a_round_is_open_the_page_names_who_is_missing_and_until_when(running: Running) -> None:
    async with running() as federation:
        east, north, south = await federation.joined("east", "north", "south")
        await federation.start_run(rounds=3, clients=3)
        body = north.update(1.0, **SCALARS)
        receipt = (await north.put(1, body)).json()
        shown = await page(federation)
        text = plain(shown)
        assert re.search(r"Round open run-1, round 1 of 3; waiting for east, south, until 2\d{3}-\d\d-\d\d \d\d:", text)
        assert "Updates 1 of 3" in text and "Not yet received 2 east, south" in text
        assert f'title="{receipt["digest"]}">{receipt["digest"][:12]}<' in shown
        assert "east waiting" in text and "north received" in text and "east missing" not in text and "0.1000" in text
        await sends([east, south], 1)
        text = plain(await page(federation))
        assert "run-1, round 2 of 3; waiting for east, north, south" in text and "with all clients" in text


@pytest.mark.anyio
async def test_after_a_run_its_rounds_are_there_and_an_earlier_run_can_be_chosen(
    running: Running, until: Until
) -> None:
    async with running() as federation:
        clients = await federation.joined("east", "north", "south")
        await federation.start_run(rounds=2, clients=3)
        for number in (1, 2):
            await sends(clients, number)
        shown = await page(federation)
        text = plain(shown)
        assert "Finished run-1 is over after 2 rounds." in text and "6 updates in run-1" in text
        assert shown.count("data-chart=") == 2 and "rhobar by client" not in text and 'id="run-1-round-1"' in shown
        assert "the same in every round Client rho rhobar east 0.1000" in text
        await federation.start_run(rounds=1, clients=3)
        federation.clock.pass_the_deadline()

        async def failed_by_itself() -> bool:
            return "Failed run-2" in plain(await page(federation))

        await until(failed_by_itself)
        failed = await page(federation)
        assert "Failed run-2: round 1: 0 of 3 updates at the deadline" in plain(failed)
        assert 'href="./?run=run-2" aria-current="true"' in failed
        first = await page(federation, "/?run=run-1&before=4")
        assert "Finished run-1 is over" in plain(first) and 'href="./?run=run-1" aria-current="true"' in first
        assert 'data-address="./?run=run-1&amp;before=4"' in first
        assert first.count("<code>join</code>") == 3 and "Newer entries" in first and "Older entries" not in first


@pytest.mark.anyio
async def test_what_was_refused_is_marked_with_its_reason(running: Running) -> None:
    async with running() as federation:
        north, _ = await federation.opened()
        assert (await north.put(1, b"no update")).status_code == 422
        shown = await page(federation)
        assert "3 entries" in shown and shown.count(">refused: protocol<") == 1 and shown.count(">accepted<") == 2


@pytest.mark.anyio
@pytest.mark.parametrize("strategy", ["fedavg", "local"])
async def test_a_strategy_without_rho_has_no_curves_of_it(running: Running, strategy: str) -> None:
    async with running(strategy=strategy) as federation:
        [north] = await federation.joined("north")
        await federation.start_run(rounds=1, clients=1)
        await north.put(1, north.update(1.0))
        text = plain(await page(federation))
    assert "Updates by round" in text and "rhobar by client" not in text and f"strategy {strategy}" in text


@pytest.mark.anyio
async def test_a_page_is_not_sent_again_while_nothing_changes_and_bad_questions_are_problems(running: Running) -> None:
    async with running() as federation:
        auth = ("operator", TOKEN)
        await federation.opened()
        first = await federation.http.get("/", auth=auth)
        again = await federation.http.get("/", auth=auth, headers={"If-None-Match": first.headers["etag"]})
        assert again.status_code == 304
        for query, status in (("run=run-9", 404), ("run=canary", 422), ("before=0", 422), ("before=canary", 422)):
            answer = await federation.http.get(f"/?{query}", auth=auth)
            assert (answer.status_code, "canary" in answer.text) == (status, False)
        assert (await federation.http.get("/?before=1", auth=auth)).status_code == 200


@pytest.mark.anyio
async def test_the_log_knows_the_route_and_not_the_token(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with running() as federation:
            await page(federation, "/?before=77777")
    lines = [json.loads(one.getMessage()) for one in caplog.records if one.name == "aggregator_service"]
    [asked] = [line for line in lines if line.get("event") == "request"]
    assert (asked["route"], asked["status"]) == ("/", 200)
    assert TOKEN not in caplog.text and "77777" not in json.dumps(lines)


def history(count: int, members: int = 3, phase: Phase = "finished") -> RunHistoryOut:
    """A run of so many aggregated rounds in each of which everybody took part; a round lasts five seconds."""
    parts = tuple(
        ParticipantOut(client=f"client-{number:04d}", received=True, size=10, digest="ab" * 32, rho=0.5, rhobar=1.0)
        for number in range(members)
    )
    all_rounds = tuple(
        RoundOut(
            number=number,
            phase="aggregated",
            opened_at="2026-01-02T03:04:05+00:00",
            closed_at="2026-01-02T03:04:10+00:00",
            participants=parts,
        )
        for number in range(1, count + 1)
    )
    request = RunIn(rounds=count, clients=members)
    return RunHistoryOut(
        run="run-1", phase=phase, request=request, started_at="2026-01-02T03:04:05+00:00", rounds=all_rounds
    )


def drifting(run: RunHistoryOut) -> RunHistoryOut:
    """The same, but for a rho that changes from round to round."""
    rounds = []
    for one in run.rounds:
        parts = (part.model_copy(update={"scalars": {"rho": one.number / 100}}) for part in one.participants)
        rounds.append(one.model_copy(update={"participants": tuple(parts)}))
    return run.model_copy(update={"rounds": tuple(rounds)})


def test_what_does_not_change_is_a_row_of_a_table_and_not_a_line() -> None:
    run = history(3)
    assert [chart.key for chart in run_charts(run)] == ["updates", "time"]
    assert [(row.client, row.rho, row.rhobar) for row in constant_scalars(run)] == [
        (f"client-{number:04d}", 0.5, 1.0) for number in range(3)
    ]
    assert [chart.key for chart in run_charts(drifting(run))] == ["rho", "updates", "time"]
    assert {(row.rho, row.rhobar) for row in constant_scalars(drifting(run))} == {(None, 1.0)}


def test_a_large_federation_fits_on_the_page() -> None:
    run = history(50, members=300)
    shown = round_rows(RunSnapshot(run, ClientActivity(0.0)))
    assert [one.number for one in shown] == list(range(50, 50 - SHOWN_ROUNDS, -1))
    assert {(len(one.participants), one.more) for one in shown} == {(SHOWN_CLIENTS, 300 - SHOWN_CLIENTS)}
    assert len(client_rows(run)) == SHOWN_CLIENTS
    rho, came, time = run_charts(drifting(run))
    assert len(rho.lines) == SHOWN_LINES and "of 300 clients" in rho.description
    assert {value for _, value in time.lines[0].points} == {5.0}
    assert came.lines[0].points == came.lines[1].points and came.lines[0].points[-1] == (50, 300.0)


def test_who_did_not_send_is_counted_and_a_round_without_them_says_so() -> None:
    run = history(1)
    east, *others = run.rounds[0].participants
    gone = east.model_copy(update={"received": False, "size": 0, "digest": None, "rho": None, "rhobar": None})
    part = run.rounds[0].model_copy(update={"participants": (gone, *others), "missing": (gone.client,)})
    run = run.model_copy(update={"rounds": (part,)})
    [shown] = round_rows(RunSnapshot(run, ClientActivity(0.0)))
    assert (shown.state.kind, shown.state.sentence, shown.received) == ("warn", "without client-0000", "2 of 3 updates")
    assert [(one.updates, one.missed, one.bytes) for one in client_rows(run)] == [(0, 1, 0), (1, 0, 10), (1, 0, 10)]
    assert client_rows(run)[0].last is None


def test_the_head_sums_up_the_run() -> None:
    found = build_overview(history(4), ("a", "b", "c"), url="http://here/")
    facts = {fact.label: fact.value.replace("\N{NO-BREAK SPACE}", " ") for fact in found.facts}
    assert facts == {
        "Updates": "3 of 3",
        "Missing": "0",
        "Received": "120 B",
        "Round time": "5.00 s",
        "Clients": "3",
    }
    assert (found.done, found.rounds, found.warnings) == (4, 4, ())
    assert build_overview(history(4), ("a",), url="http://here/").warnings


def test_the_head_says_what_to_do_next() -> None:
    def advice(run: RunHistoryOut | None) -> str:
        return build_overview(run, ("a", "b", "c"), url="http://here/").advice

    assert "start a run" in advice(None) and "remove the cause" in advice(history(1, phase="failed"))
    assert advice(history(1, phase="open")).startswith("Nothing to do")
    assert "its page shows what joining brought" in advice(history(1))
    run = history(1)
    summed = run.model_copy(update={"request": run.request.model_copy(update={"part": "items"})})
    assert "start the run that the form below proposes" in advice(summed)
    assert (describe_purpose(run), describe_purpose(summed)) == ("training", "common items")
    assert describe_purpose(run.model_copy(update={"request": run.request.model_copy(update={"basis": "run-1"})})) == (
        "training with the basis of run-1"
    )


def test_a_sentence_holds_only_so_many_names() -> None:
    assert join_names(()) == "none" and join_names(("a", "b")) == "a, b"
    many = [f"c{number}" for number in range(NAMED + 3)]
    assert join_names(many) == ", ".join(many[:NAMED]) + " and 3 more"


@pytest.mark.parametrize(
    ("total", "before", "expected"),
    [(0, None, (0, 1)), (5, None, (0, 5)), (100, None, (100 - SHOWN, SHOWN)), (100, 11, (0, 10)), (100, 1, (0, 1))],
)
def test_the_record_is_paged_from_the_newest(total: int, before: int | None, expected: tuple[int, int]) -> None:
    assert arrivals_window(total, before) == expected
