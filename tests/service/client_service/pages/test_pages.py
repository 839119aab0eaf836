"""The silo's page over HTTP, in every state that it can be in."""

from __future__ import annotations

import html
import json
import logging
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import polars as pl
import pytest

from client_service.boundary.call_attempts import Attempt
from client_service.data.interaction_files import write_shard
from client_service.evaluation.metrics import LABELS
from client_service.federation.messages import BasisOut, QualityOut, RoundQuality, SpectrumOut, StatusOut
from client_service.federation.run_records import UNJUDGED, quality_warnings
from client_service.joining_value.messages import ComparisonOut, FigureOut, GroupOut
from client_service.pages.charts import draw_measures, draw_spectrum
from client_service.pages.ledger_view import CallTally, Summary
from client_service.pages.overview import build_overview, describe_sizes
from client_service.pages.privacy_report import EARLIER, SHOWN, build_report
from client_service.settings import ClientSettings
from client_service.tasks.items import ITEMS
from shared.method.declaration import Declaration, TensorSpec
from shared.method.settings import MethodSettings
from shared.words import format_number
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Progress, execute_run
from simulation.experiments.in_process import open_federation
from tests.support.federation import bearer
from tests.support.given import Opened, Silos, Until

DECLARATION = Declaration(strategy="lpsfed", tensors=(TensorSpec(name="w", shape=(2, 3)),), scalars=("rho",))
EVIL = "<script>alert('x')</script>"
USER = 'u"><b>&one'


def plain(page: str) -> str:
    """The page's words without its tags, in single spaces."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", page)))


async def page(http: httpx.AsyncClient, **query: str | int) -> str:
    answer = await http.get("/", params=query)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html"), answer.text
    return answer.text


async def joining(http: httpx.AsyncClient) -> bool:
    return "Problem:" in await page(http)


@pytest.mark.anyio
async def test_a_silo_that_cannot_reach_its_aggregator_says_so_and_shows_what_it_tried(
    silo: httpx.AsyncClient, until: Until
) -> None:
    await until(lambda: joining(silo))
    text = plain(await page(silo))
    assert "client-1" in text and "Joining" in text and "the aggregator cannot be reached: ConnectError" in text
    assert "No update has left this silo." in text and "Nothing has been received." in text
    assert "8 tensors of" in text and "Numbers of users, items and interactions are never sent." in text
    assert text.count("No figures yet.") == 5 and "Figures appear with the first run." in text
    assert re.search(r"join register name and declaration \d+ 0 \d+", text)
    assert "the hash chain shows that none was changed" in text and "ConnectError" in text


class Completed(NamedTuple):
    """A client after a run that the tests of this file share; its page shows the same whatever they do to items."""

    http: httpx.AsyncClient
    quality: QualityOut
    application_key: str


@pytest.fixture(scope="module")
async def completed(shared_silos: Silos, small: MethodSettings) -> AsyncIterator[Completed]:
    shards = shared_silos(2)
    run = Experiment(shards, shards[0].parents[1] / "run", small, rounds=2, device="cpu")
    async with open_federation(run) as federation:
        outcome = await execute_run(federation, run.run_request(), ignore)
        yield Completed(federation.clients["client-1"], outcome.qualities["client-1"], run.application_key)


@pytest.mark.anyio
async def test_after_a_run_the_page_tells_of_every_update_field_by_field(completed: Completed) -> None:
    http, quality = completed.http, completed.quality
    shown = await page(http)
    ledger = (await http.get("/v1/ledger")).json()["entries"]
    wanted = await page(http, user="user-01", k=3)
    text = plain(shown)
    updates = [entry for entry in ledger if entry.get("call") == "update"]
    assert len(updates) == 2 and quality.test is not None
    for update in updates:
        assert f"Fields of the update of run-1, round {update['round']}" in text
        for digest in [update["sha256"], *(tensor["sha256"] for tensor in update["tensors"])]:
            assert f'title="{digest}">{digest[:12]}<' in shown
        assert all(str(value) in text for value in update["scalars"].values())
        parts = sum(tensor["bytes"] for tensor in update["tensors"])
        assert f"header names and scalars JSON {update['bytes'] - parts:,}" in text
    assert text.count("as declared") == 2 and text.count("receipt agrees") == 2
    assert "Finished run-1 ended after 2 rounds." in text and "2 updates sent" in text
    assert "Warning: with fewer than three clients" in text and "Next: read the warnings below." in text
    best = f"round {quality.best_round}" if quality.best_round else "the start, before training"
    assert f"{quality.test['recall@20']:.4f}" in text and f"best: {best}" in html.unescape(shown)
    assert shown.count("data-chart=") == 4 and "of run-1: the divergence of these two curves" in text
    assert "The shard has 16 users, 12 items, 64 training interactions." in text
    assert "For user-01" in plain(wanted) and wanted.count(">similar items</a>") == 3
    assert "Title of item-" in wanted


def ignore(progress: Progress) -> None:
    del progress


@pytest.fixture
def evil(settings: ClientSettings, tmp_path: Path) -> ClientSettings:
    """A shard whose ids and titles try to be markup."""
    items = [f"item&{number}?<i>" for number in range(6)]
    rows = [(f"{USER}{row}", items[(row + step) % 6], "train") for row in range(6) for step in range(3)]
    titles = pl.DataFrame({"item": items, "title": [EVIL] * 6})
    write_shard(
        tmp_path / "evil", "client-1", pl.DataFrame(rows, schema=["user", "item", "split"], orient="row"), titles
    )
    return settings.model_copy(update={"shard": tmp_path / "evil"})


@pytest.mark.anyio
async def test_ids_and_titles_that_try_to_be_markup_are_text(evil: ClientSettings, opened: Opened) -> None:
    async with opened(evil) as http:
        for query in ({"user": f"{USER}1"}, {"user": EVIL}, {"item": EVIL}, {"item": "item&1?<i>"}):
            shown = await page(http, **query)
            assert "<script>alert" not in shown and "<b>" not in shown and "<i>" not in shown
        shown = await page(http, user=f"{USER}1", k=2)
        assert shown.count(html.escape(EVIL).replace("&#x27;", "&#39;")) >= 2
        [first, *_] = re.findall(r'href="(\./\?item=[^"]*)#recommendations"', shown)
        similar = await http.get(html.unescape(first))
        assert similar.status_code == 200 and "Like item&" in plain(similar.text)


@pytest.mark.anyio
async def test_an_unknown_user_an_unknown_item_and_a_silo_without_a_model_are_flagged(
    shared_silo: httpx.AsyncClient,
) -> None:
    text = plain(await page(shared_silo, user="nobody", k=3))
    assert "Not personal, but the most popular items: no model yet." in text and "For nobody" in text
    assert "This silo’s catalogue has no such item." in plain(await page(shared_silo, item="nothing"))
    assert "There is no model yet." in plain(await page(shared_silo, item="item-00"))
    assert 'id="answer"' not in await page(shared_silo, user="")


@pytest.mark.anyio
async def test_a_bad_question_is_a_problem_that_repeats_a_count_and_no_text(shared_silo: httpx.AsyncClient) -> None:
    for query in ("k=0", "k=101", "k=many", "before=0", "before=soon", f"user={'x' * 513}"):
        answer = await shared_silo.get(f"/?{query}")
        assert (answer.status_code, answer.json()["code"]) == (422, "protocol"), query
        came = query.partition("=")[2]
        assert (f"got {came}" if came.isdigit() else "got text of") in answer.json()["detail"]
        assert came.isdigit() or came not in answer.json()["detail"]


@pytest.mark.anyio
async def test_who_is_typed_into_the_box_is_in_no_log_line_no_metric_and_no_address_that_is_polled(
    settings: ClientSettings, opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        async with opened(settings) as http:
            shown = await page(http, user="user-canary", k=4)
            metrics = (await http.get("/metrics")).text
    lines = [json.loads(one.getMessage()) for one in caplog.records if one.name == "client_service"]
    asked = [line for line in lines if line.get("event") == "request"]
    assert [line["route"] for line in asked] == ["/", "/metrics"]
    assert "user-canary" not in json.dumps(lines) and "user-canary" not in metrics and 'route="/"' in metrics
    assert 'data-address="./"' in shown and "user-canary" in shown


@pytest.mark.anyio
async def test_the_page_is_not_sent_again_while_nothing_changes_and_is_no_part_of_the_api(
    silo: httpx.AsyncClient, settings: ClientSettings, until: Until
) -> None:
    await until(lambda: joining(silo))
    assert {"/", "/static/{name}"} & set((await silo.get("/openapi.json")).json()["paths"]) == set()
    assert (await silo.get("/static/page.js")).status_code == 200
    path = settings.state_directory / "ledger.jsonl"
    while True:  # the agent goes on trying; between two attempts nothing changes
        before = path.read_bytes()
        first = await silo.get("/")
        again = await silo.get("/", headers={"If-None-Match": first.headers["etag"]})
        if path.read_bytes() == before:
            break
    assert again.status_code == 304


@pytest.mark.anyio
async def test_the_ledger_is_paged_and_a_damaged_line_cannot_be_overlooked(
    settings: ClientSettings, opened: Opened, until: Until
) -> None:
    path = settings.state_directory / "ledger.jsonl"

    async with opened(settings) as http:

        async def long() -> bool:
            return len(path.read_bytes().splitlines()) > 25

        await until(lambda: joining(http))
        await until(long)
        newest = await page(http)
        assert "Older entries" in newest and "Newer entries" not in newest
        second = await page(http, before=6)
        assert re.findall(r"v1/ledger\?after=(\d+)&amp;limit=1", second) == ["4", "3", "2", "1", "0"]
        assert "Newer entries" in second and "Older entries" not in second and 'data-address="./?before=6"' in second
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*lines[:2], f"{EVIL}\n", *lines[3:]]))
        damaged = await page(http, before=6)
        text = plain(damaged)
        assert "Ledger damaged: The hash chain breaks at line 3" in text and "chain breaks here" in text
        assert "<script>alert" not in damaged and "damaged at line 3" in text


def attempt(number: int, **others: Any) -> Attempt:
    """An accepted update of round `number`, with some fields replaced."""
    tensor = {"name": "w", "dtype": "F32", "shape": [2, 3], "bytes": 24, "sha256": "ab"}
    left = {"bytes": 40, "sha256": "cd", "tensors": (tensor,), "scalars": {"rho": 0.25}}
    came = {"status": 201, "receipt": {"digest": "cd"}}
    place = {"call": "update", "run": "run-1", "round": number}
    return Attempt(number, "2026-01-02T03:04:05+00:00", **(place | left | came | others))


@pytest.mark.parametrize(
    ("others", "agrees", "outcome"),
    [
        ({}, "good", "receipt agrees"),
        ({"receipt": {"digest": "another"}}, "good", "other receipt"),
        ({"receipt": None}, "good", "other receipt"),
        ({"status": 409, "receipt": None}, "good", "refused, 409"),
        ({"status": None, "error": "ReadTimeout"}, "good", "no answer"),
        ({"status": None}, "good", "no answer yet"),
        ({"tensors": ()}, "bad", "receipt agrees"),
    ],
)
def test_an_update_is_held_against_its_declaration_and_its_receipt(
    others: dict[str, Any], agrees: str, outcome: str
) -> None:
    [found] = build_report(Summary(2, 2, None, (), (attempt(1, **others),)), DECLARATION, counts=False).updates
    assert (found.agrees.kind, found.outcome.word) == (agrees, outcome)


def test_the_report_is_newest_first_within_bounds_and_raises_its_alarms() -> None:
    latest = tuple(attempt(number) for number in range(1, 60))
    total = CallTally("update", 59, refused=2, other=1)
    found = build_report(Summary(120, 120, 7, (total,), latest), DECLARATION, counts=True)
    assert [one.round for one in found.updates] == list(range(59, 59 - SHOWN, -1))
    assert len(found.earlier) == EARLIER and found.earlier[0].round == 59 - SHOWN
    assert [one.word for one in found.alarms] == ["Undeclared fields sent", "Ledger damaged"]
    assert [one.word for one in found.verdicts][-1] == "Calls refused" and "sent when it joins" in found.counts
    reading = build_report(Summary(120, 60, None, (), ()), DECLARATION, counts=False)
    assert [one.word for one in reading.verdicts] == ["Nothing sent", "Ledger being checked", "Calls accepted"]


@pytest.mark.parametrize(
    ("phase", "run", "kind", "words"),
    [
        ("training", "run-2", "busy", "Training run-2, round 3 of 9"),
        ("waiting", None, "idle", "Waiting No run is open."),
        ("waiting", "run-2", "idle", "Waiting run-2: 2 of 9 rounds are done."),
        ("finished", "run-2", "good", "Finished run-2 ended after 2 rounds."),
        ("failed", "run-2", "bad", "Failed The aggregator ended run-2 as failed."),
        ("joining", None, "busy", "Joining This client registers with the aggregator."),
    ],
)
def test_the_head_says_in_words_where_the_silo_stands(phase: str, run: str | None, kind: str, words: str) -> None:
    rounds = 9 if run else 0
    status = StatusOut(client="a", phase=phase, run=run, round=3, rounds=rounds, device="cpu", device_reason="as set")
    found = build_overview(status, quality(), Summary(0, 0, None, (), ()), LABELS).verdict
    assert (found.kind, f"{found.word} {found.sentence}") == (kind, words)


def quality(**others: Any) -> QualityOut:
    rounds = tuple(
        RoundQuality(round=number, values={"recall": number / 10, "ndcg": 0.1}, loss=None if number == 0 else 2.0)
        for number in range(3)
    )
    return QualityOut(client="a", run="run-2", best_round=1, rounds=rounds).model_copy(update=others)


def test_the_best_round_is_marked_until_the_test_items_have_been_read() -> None:
    status = StatusOut(client="a", phase="waiting", run="run-2", device="cpu", device_reason="as set")
    nothing = Summary(0, 0, None, (), ())
    facts = {fact.label: (fact.value, fact.note) for fact in build_overview(status, quality(), nothing, LABELS).facts}
    assert facts["Recall@20"] == ("0.1000", "on validation items, round 1")
    tested = quality(test={"recall@20": 0.7, "ndcg@20": 0.6}, test_users=5)
    facts = {fact.label: (fact.value, fact.note) for fact in build_overview(status, tested, nothing, LABELS).facts}
    assert facts["NDCG@20"] == ("0.6000", "on test items, 5 users")
    recall, _, loss = draw_measures(tested, ITEMS)
    assert recall.mark == (1, "best: round 1") and "On test items, read once at the end: 0.7000." in recall.description
    assert loss.rows == [(1, [2.0]), (2, [2.0])]
    assert describe_sizes(QualityOut(client="a"), counts_given=False) == "Figures appear with the first run."
    known = QualityOut(client="a", run="run-1", users=2, items=3, edges=4)
    assert "None of these numbers leaves the silo" in describe_sizes(known, counts_given=False)
    assert describe_sizes(known, counts_given=True).endswith("These numbers are sent when the silo joins.")


def test_a_silo_with_training_pairs_items_shows_no_figures_and_says_why() -> None:
    status = StatusOut(client="a", phase="waiting", run="run-2", device="cpu", device_reason="as set")
    nothing = Summary(0, 0, None, (), ())
    blind = quality(valid_users=0)
    facts = {fact.label: (fact.value, fact.note) for fact in build_overview(status, blind, nothing, LABELS).facts}
    assert facts["NDCG@20"] == (format_number(None), "no validation items")
    assert "no validation items, so no round is judged" in draw_measures(blind, ITEMS)[0].description
    untested = quality(test={"recall@20": 0.0, "ndcg@20": 0.0}, test_users=0)
    facts = {fact.label: (fact.value, fact.note) for fact in build_overview(status, untested, nothing, LABELS).facts}
    assert facts["NDCG@20"] == (format_number(None), "no test items")
    assert quality_warnings(blind) == (UNJUDGED,) and quality_warnings(quality()) == ()


def test_the_page_begins_with_what_the_run_has_brought_or_what_the_silo_forgoes() -> None:
    some = FigureOut(mean=0.3, low=0.2, high=0.4)
    ratio = FigureOut(mean=1.25, low=1.1, high=1.42)
    group = GroupOut(name="all users", users=60, popularity=some, alone=some, federated=some, gain=some, ratio=ratio)
    compared = ComparisonOut(measure="ndcg@20", users=60, few=False, groups=(group,))
    status, nothing = (
        StatusOut(client="a", phase="finished", run="run-2", device="cpu", device_reason=""),
        Summary(0, 0, None, (), ()),
    )
    told = build_overview(status, quality(comparison=compared), nothing, LABELS).worth
    assert told == (
        "Joining: NDCG@20 alone 0.3000 → together 0.3000: × 1.250, 95 % interval [1.100, 1.420], measured after run-2 "
        "on test data of 60 users.",
    )
    assert build_overview(status, quality(), nothing, LABELS).worth == ()
    [forgone] = build_overview(status, quality(), nothing, LABELS, strict=True).worth
    assert "strict boundary" in forgone and "--accept sums" in forgone and "lpsfed worth SHARD" in forgone


def test_shares_after_enough_others_do_not_alarm_and_other_refusals_say_where_to_look() -> None:
    late = CallTally("answers", 12, late=8, bytes_out=5)
    calm = build_report(Summary(24, 24, None, (late,), ()), DECLARATION, counts=False).verdicts[-1]
    assert calm.kind == "good" and "8 shares of a secure sum came after enough others" in calm.sentence
    always = CallTally("answers", 12, late=12, bytes_out=5)  # as an aggregator does that refuses each on purpose
    doubt = build_report(Summary(24, 24, None, (always,), ()), DECLARATION, counts=False).verdicts[-1]
    assert doubt.kind == "warn" and "12 shares" in doubt.sentence and "each of them" in doubt.sentence
    refused = CallTally("answers", 12, refused=1, late=8)
    alarm = build_report(Summary(24, 24, None, (refused,), ()), DECLARATION, counts=False).verdicts[-1]
    assert alarm.kind == "warn" and "refused 1 call" in alarm.sentence and "All calls" in alarm.sentence


def test_limits_of_the_agreed_settings_are_no_warnings() -> None:
    status = StatusOut(
        client="a", phase="waiting", model="run-1.2", device="cpu", device_reason="", warnings=("a limit", "a fault")
    )
    nothing = Summary(0, 0, None, (), ())
    found = build_overview(status, quality(), nothing, LABELS, limits=("a limit",))
    assert (found.limits, found.warnings) == (("a limit",), ("a fault",)) and "warnings below" in found.next_step
    calm = build_overview(status, quality(), nothing, LABELS, limits=("a limit", "a fault"))
    assert calm.warnings == () and calm.next_step.startswith("All is well.")
    broken = build_overview(status, quality(), Summary(2, 2, 1, (), ()), LABELS, limits=status.warnings)
    assert "well" not in broken.next_step and "stop this client" in broken.next_step


def test_a_measure_is_drawn_from_the_first_trained_round_beside_its_start() -> None:
    recall = draw_measures(quality(), ITEMS)[0]
    assert [(line.name, line.points) for line in recall.lines] == [
        ("Recall@20", ((1, 0.1), (2, 0.2))),
        ("start, before training", ((1, 0.0), (2, 0.0))),
    ]
    start = draw_measures(quality(best_round=0), ITEMS)[0]
    assert start.lines[0].points[0] == (0, 0.0) and start.mark == (0, "best: the start, before training")
    assert "no later NDCG@20 is better" in start.description


def test_both_kernels_are_drawn_from_the_lowest_frequency() -> None:
    chart = draw_spectrum(SpectrumOut(run="run-1", round=2, own=(0.4, 0.6), anchor=(0.5, 0.5), rho=0.02))
    assert [(line.name, line.points) for line in chart.lines] == [
        ("This silo", ((1, 0.4), (2, 0.6))),
        ("Anchor", ((1, 0.5), (2, 0.5))),
    ]
    assert "rho = 0.0200 in round 2 of run-1" in chart.description


def test_the_head_of_the_page_tells_of_which_run_the_common_basis_is() -> None:
    basis = BasisOut(run="run-2", items=800, digest="0" * 64, kept_at="2026-01-02T03:04:05+00:00")
    status = StatusOut(
        client="a", phase="summing", run="run-2", rounds=1, device="cpu", device_reason="", sums=(basis,)
    )
    found = build_overview(status, quality(), Summary(0, 0, None, (), ()), LABELS)
    assert found.verdict.word == "Summing statistics"
    facts = {fact.label: (fact.value, fact.note) for fact in found.facts}
    assert facts["Common basis"] == ("of run-2", "800 items of the catalogue, kept 2026-01-02 03:04:05")


def test_what_is_declared_names_the_sums_of_a_basis_run() -> None:
    sums = Declaration(
        strategy="common_basis", tensors=(TensorSpec(name="basis.degrees", dtype="U32", shape=(5,)),), scalars=()
    )
    shown = build_report(
        Summary(0, 0, None, (), ()), DECLARATION.model_copy(update={"sums": {"basis": sums}}), counts=False
    ).declared
    assert [field.name for field in shown.fields] == ["w", "rho", "basis.degrees"]
    assert "In a run of the part basis instead: 1 tensor of 20\xa0B and 0 scalars, and nothing else." in shown.sentence


@pytest.mark.anyio
async def test_a_user_s_history_stands_beside_the_list_and_a_basket_is_answered(completed: Completed) -> None:
    http = completed.http
    of_user, of_nobody = await page(http, user="user-01", k=3), await page(http, user="nobody")
    basket = await page(http, basket="item-02, item-04;item-99,,", k=3)
    unknown = plain(await page(http, basket="item-99"))
    assert (await http.get("/", params={"basket": "x" * 5000})).status_code == 422
    await http.put("/v1/items/item-03", json={"categories": ["shoes"]}, headers=bearer(completed.application_key))
    shoes = await page(http, basket="item-02, item-04", filter="category:shoes")
    none = plain(await page(http, user="user-01", filter="category:boots"))
    unknown_key = plain(await page(http, user="user-01", filter="colour:red"))
    wrong = plain(await page(http, user="user-01", filter="nonsense"))
    listed, history = of_user.split('id="answer"')[1].split('id="history"')
    had, given = (set(re.findall(r"<code>(item-\d\d)</code>", part.split("</table>")[0])) for part in (history, listed))
    assert len(had) == 4 and given and not had & given
    assert "no training items of this user" in plain(of_nobody)
    assert "For a basket of 3 items" in plain(basket) and "1 item of it not in the catalogue" in plain(basket)
    assert basket.count(">similar items</a>") == 3 and 'value="item-02, item-04;item-99,,"' in basket
    assert re.findall(r"<code>(item-\d\d)</code>", shoes.split('id="answer"')[1]) == ["item-03"]
    assert 'value="category:shoes"' in shoes and "Best first" not in none and "No list" not in none
    assert "No list" in wrong and "expected KEY:VALUE" in wrong
    assert "No list" in unknown_key and "known: category" in unknown_key
    # The user has met all that is like what he has: only the basket's list has items with reasons.
    reasons = re.findall(r'<td class="title">([^<]*)</td><td><a href', basket.split('id="answer"')[1])
    counted = {one for row in reasons if row for one in row.split("; ")}
    assert "Because of" in basket and counted and counted <= {"Title of item-02", "Title of item-04"}
    assert "Not personal, but the most popular items: no known item in the basket." in unknown


def trained(number: int, loss: float | None, *, with_margins: bool = False) -> RoundQuality:
    return RoundQuality(round=number, values={}, loss=loss, with_margins=with_margins)


def test_the_end_of_the_warm_up_is_marked_where_the_loss_has_another_term() -> None:
    rounds = (trained(0, None), trained(1, 0.5), trained(2, 0.4), trained(3, 0.9, with_margins=True))
    loss = draw_measures(QualityOut(client="a", rounds=rounds), ITEMS)[-1]
    assert loss.mark == (3.0, "end of the warm-up") and "Before round 3 the warm-up" in loss.description
    for others in (rounds[:3], tuple(trained(number, 0.5, with_margins=True) for number in (1, 2))):
        assert draw_measures(QualityOut(client="a", rounds=others), ITEMS)[-1].mark is None
