"""The client's API over HTTP: it answers whoever asks, echoes nobody's data in errors, and outlives its restarts."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import polars as pl
import pytest
import torch

from client_service.data.interaction_files import change_shard, write_shard
from client_service.evaluation.ranking import measure_validation
from client_service.event_log.shard_update import append_events, erase_users
from client_service.federation.agent import Agent
from client_service.federation.best_model import load_model
from client_service.federation.training_run import TrainingRun
from client_service.model_store import model_files as model_store
from client_service.serving.messages import RecommendationsOut
from client_service.serving.ranking import ListRequest
from client_service.settings import ClientSettings
from client_service.tasks.items import ITEMS
from client_service.tasks.task import RunContext
from client_service.training.spectrum_cache import cached_spectrum
from client_service.training.start_choice import load_choice
from shared import files
from shared.files import save_arrays
from shared.method.declaration import Declaration
from shared.method.parameters import Parameters
from shared.method.tensors import initial_parameters, mlp_specification
from tests.support.given import Opened, Silos, Until
from tests.support.kept import keep_first_model
from tests.support.questions import as_step
from tests.support.telling import all_listed

pytestmark = pytest.mark.anyio
CPU = torch.device("cpu")
OTHER_SIGNS = ("ünïcode ☂", "100%", "%2F", "%2E", "with space", "?k=3#x", "a;b=c")
ODD = (*OTHER_SIGNS, "a/b", "//", "x/recommendations", "/lead", "trail/", ".", "..", "../..")


async def serves(http: httpx.AsyncClient) -> bool:
    return "model" in (await http.get("/v1/status")).json()


def alike_but_for_id(left: httpx.Headers, right: httpx.Headers) -> bool:
    """The framework writes the spaces of JSON as it likes, so that the length may differ too."""
    apart = {"x-request-id", "content-length"}
    return {k: v for k, v in left.items() if k not in apart} == {k: v for k, v in right.items() if k not in apart}


async def test_what_is_no_plain_query_is_checked_by_the_framework(
    settings: ClientSettings, opened: Opened, until: Until
) -> None:
    shard, before = keep_first_model(settings)
    user = shard.user_ids[0]
    async with opened(settings) as http:
        await until(lambda: all_listed(http))
        for query, status in (
            ("k=0", 422),
            ("k=1001", 422),
            ("k=two", 422),
            ("exclude_seen=maybe", 422),
            ("k=07", 200),
        ):
            assert (await http.get(f"/v1/users/{user}/recommendations?{query}")).status_code == status, query
        assert (await http.get(f"/v1/users/{'x' * 513}/recommendations")).status_code == 422
        for query in ("", "?k=1", "?k=3", "?k=1000"):
            answer = (await http.get(f"/v1/users/{user}/recommendations{query}")).json()
            count = int(query[3:] or 20)
            assert same_list(answer, before.for_user(user, ListRequest(count))), query


def problem(answer: httpx.Response, status: int) -> str:
    """The detail of a problem document with this status."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json"), answer.text
    document: dict[str, Any] = answer.json()
    assert document["status"] == status and document["code"] and document["title"]
    return str(document["detail"])


async def test_the_kept_model_answers_after_a_restart_before_any_aggregator_is_there(
    settings: ClientSettings, opened: Opened, until: Until
) -> None:
    shard, before = keep_first_model(settings)
    async with opened(settings) as http:
        await until(lambda: serves(http))
        for user in shard.user_ids:
            answer = (await http.get(f"/v1/users/{user}/recommendations?k=4")).json()
            assert same_list(answer, before.for_user(user, ListRequest(4)))
            assert answer["model"] == "run-1.0" and "fallback" not in answer
        await until(lambda: held_up(http))
        assert (await http.get("/v1/status")).json()["problem"].startswith("the aggregator cannot be reached")
        assert (await http.get("/health/ready")).json() == {"status": "ready", "model": "serving"}


def same_list(answer: dict[str, Any], expected: RecommendationsOut) -> bool:
    """Scores may differ by rounding: lists are computed for many users at a time."""
    known = expected.model_dump(exclude_none=True, mode="json")
    scores = [[item.pop("score") for item in one["items"]] for one in (answer, known)]
    return answer == known and np.allclose(*scores)


async def held_up(http: httpx.AsyncClient) -> bool:
    return "problem" in (await http.get("/v1/status")).json()


@pytest.mark.parametrize("change", ["append", "erase"])
async def test_a_model_of_the_shard_as_it_was_is_not_served_after_a_change(
    settings: ClientSettings, opened: Opened, until: Until, change: str
) -> None:
    """Neither is its spectrum used, nor what was chosen by its validation pairs."""
    old, _ = keep_first_model(settings)
    event = pl.DataFrame({"user": ["user-99"], "item": ["item-00"]})
    _, new = change_shard(
        settings.shard,
        lambda shard: append_events(shard, event, Path()) if change == "append" else erase_users(shard, ["user-01"]),
    )
    models, cutoff = settings.state_directory / "model", settings.method.cutoff
    assert load_model(ITEMS, old, models, CPU) is not None and load_model(ITEMS, new, models, CPU) is None
    assert load_choice(old, cutoff, models) != load_choice(new, cutoff, models)
    assert cached_spectrum(new, cutoff, models).users.shape[0] == len(new.user_ids) != len(old.user_ids)
    async with opened(settings) as http:
        await until(lambda: held_up(http))  # it has gone on to the aggregator
        answer = (await http.get("/v1/users/user-02/recommendations?k=3")).json()
        assert answer["model"] == "refresh.1"


async def test_without_a_model_answers_are_flagged(silo: httpx.AsyncClient) -> None:
    answer = (await silo.get("/v1/users/user-01/recommendations?k=3")).json()
    assert (answer["fallback"], len(answer["items"]), "model" in answer) == ("no model yet", 3, False)
    assert (await silo.get("/health/ready")).json() == {"status": "ready", "model": "none yet"}
    assert (await silo.get("/health/live")).json() == {"status": "live"}
    status = (await silo.get("/v1/status")).json()
    assert {"client", "phase", "device", "device_reason"} <= set(status) and "model" not in status


async def test_a_client_whose_agent_has_ended_is_neither_live_nor_ready(
    settings: ClientSettings, opened: Opened, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container has one health check, and it asks for readiness."""

    async def mistaken(agent: Agent) -> None:
        del agent
        raise ValueError("a mistake of ours")

    monkeypatch.setattr(Agent, "follow", mistaken)
    with suppress(ValueError):  # the lifespan ends as the agent did
        async with opened(settings) as http:

            async def ended() -> bool:
                return (await http.get("/health/live")).status_code == 503

            await until(ended)
            said = [(await http.get(f"/health/{what}")).json()["detail"] for what in ("live", "ready")]
    assert said == ["the agent has failed: see the log, and restart the client"] * 2


def damage(settings: ClientSettings, silos: Silos, kind: str) -> None:
    folder = settings.state_directory / "model"
    [path] = folder.glob("model-*.safetensors")
    content = path.read_bytes()
    if kind == "another shard":
        silos(1, seed=5)  # the same users and items, other interactions
    elif kind == "a damaged head":
        (folder / "model.json").write_text("{")
    elif kind == "other shapes":
        save_arrays(path, {"embedding": np.zeros((2, 2), np.float32)})
    else:
        path.unlink()
        if kind == "a folder":
            path.mkdir()
        elif kind != "gone":
            path.write_bytes(content[:100] if kind == "cut off" else b"")


@pytest.mark.parametrize(
    "kind", ["cut off", "empty", "gone", "other shapes", "a folder", "a damaged head", "another shard"]
)
async def test_a_damaged_model_or_another_shard_s_is_not_served_and_keeps_nobody_from_the_rest(
    settings: ClientSettings, opened: Opened, until: Until, silos: Silos, kind: str
) -> None:
    keep_first_model(settings)
    damage(settings, silos, kind)
    async with opened(settings) as http:
        await until(lambda: held_up(http))  # it has gone on to the aggregator
        answer = (await http.get("/v1/users/user-01/recommendations")).json()
        own = ("refresh.1", None) if kind == "another shard" else (None, "no model yet")
        assert (answer.get("model"), answer.get("fallback")) == own
        assert (await http.get("/health/live")).status_code == 200


def test_a_crash_while_a_model_is_kept_leaves_the_one_before(
    settings: ClientSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, _ = keep_first_model(settings)
    folder = settings.state_directory / "model"
    head, calls, replace = model_store.load_head(folder), [], files.put_in_place
    kept = load_model(ITEMS, shard, folder, CPU)
    assert head is not None and kept is not None

    def once(partial: Path, path: Path) -> None:
        calls.append(path.name)
        if len(calls) == 2:
            raise OSError("the machine stops here")
        replace(partial, path)

    monkeypatch.setattr(files, "put_in_place", once)
    with torch.no_grad(), pytest.raises(OSError, match="stops here"):
        kept.model.encoder.embedding.add_(1.0)
        model_store.save_model(folder, kept.model, head.model_copy(update={"round": 1}))
    assert calls == ["model-run-1.1.safetensors", "model.json"]
    found = load_model(ITEMS, shard, folder, CPU)
    assert found is not None and found.version == "run-1.0"
    rows = np.arange(len(shard.user_ids))
    again = measure_validation(shard, found.ranker.top, rows)
    assert again.values == pytest.approx(head.values)


@pytest.mark.parametrize(("number", "resumed"), [(0, False), (1, True)])
def test_a_run_that_begins_takes_nothing_from_an_earlier_one_of_its_name_and_one_that_goes_on_does(
    settings: ClientSettings, number: int, resumed: bool
) -> None:
    shard, recommender = keep_first_model(settings)
    folder, head = settings.state_directory / "model", model_store.load_head(settings.state_directory / "model")
    kept = load_model(ITEMS, shard, folder, CPU)
    assert head is not None and kept is not None
    with torch.no_grad():
        model = kept.model
        before = model.encoder.embedding.clone()
        model.encoder.embedding.add_(1.0)
    model_store.save_model(folder, model, head)
    part = TrainingRun(RunContext(settings.name, "run-1", 0, settings.method, folder), ITEMS, shard, recommender, CPU)
    received = initial_parameters(mlp_specification(settings.method), 0, exact=False)
    part.begin(Parameters(received), number)
    assert torch.equal(part._training.model.encoder.embedding, before + 1.0 if resumed else before)
    assert [entry.round for entry in part.quality.rounds] == ([0, 1] if resumed else [0])


def odd_shard(folder: Path) -> Path:
    """A shard whose users and items have names that a URL cannot hold as they are."""
    pairs = [(user, item, "train") for row, user in enumerate(ODD) for item in (ODD[row], ODD[row - 1], ODD[row - 2])]
    table = pl.DataFrame(pairs, schema=["user", "item", "split"], orient="row")
    write_shard(folder, "client-1", table, None)
    return folder


async def test_any_id_can_be_asked_for_in_a_path_and_in_a_body(
    settings: ClientSettings, opened: Opened, until: Until, tmp_path: Path
) -> None:
    odd = settings.model_copy(update={"shard": odd_shard(tmp_path / "odd")})
    keep_first_model(odd)
    async with opened(odd) as http:
        await until(lambda: all_listed(http))
        for name in ODD:
            step = as_step(name)
            looked_up = await http.get(f"/v1/users/{step}/recommendations")
            checked = await http.get(f"/v1/users/{step}/recommendations?exclude_seen=true")
            assert looked_up.json() == checked.json() and alike_but_for_id(looked_up.headers, checked.headers)
            answer = looked_up.json()
            assert answer["user"] == name and answer["model"] == "run-1.0"
            posted = (await http.post("/v1/recommendations", json={"users": [name]})).json()
            assert posted["results"] == [answer]
            alike = (await http.get(f"/v1/items/{step}/similar?k=100")).json()
            assert alike["item"] == name and {item["item"] for item in alike["items"]} == set(ODD) - {name}


async def test_a_batch_a_basket_and_the_lists_of_allowed_and_excluded_items(
    settings: ClientSettings, opened: Opened, until: Until
) -> None:
    shard, before = keep_first_model(settings)
    async with opened(settings) as http:
        await until(lambda: serves(http))

        async def asked(**message: Any) -> list[dict[str, Any]]:
            answer = await http.post("/v1/recommendations", json=message)
            assert answer.status_code == 200, answer.text
            results: list[dict[str, Any]] = answer.json()["results"]
            return results

        users = [*shard.user_ids[:3], "nobody"]
        batch = await asked(users=users, k=4)
        assert [one["user"] for one in batch] == users
        assert [one.get("fallback") for one in batch] == [None, None, None, "unknown user"]
        assert same_list(batch[0], before.for_user(users[0], ListRequest(4)))
        [basket] = await asked(basket=["item-00", "mystery"], k=4, exclude=["item-02"])
        assert basket["unknown_items"] == 1 and not {"item-00", "item-02"} & {one["item"] for one in basket["items"]}
        [allowed] = await asked(basket=["item-00"], allow=["item-07", "item-00"])
        assert [one["item"] for one in allowed["items"]] == ["item-07"]
        [whole] = await asked(users=["user-00"], exclude_seen=False, k=1000)
        assert len(whole["items"]) == len(shard.item_ids)


CANARY = "private-canary"
BAD_BODIES = [
    {"users": CANARY},
    {"users": [{CANARY: CANARY}]},
    {"users": [CANARY, 7]},
    {"users": [CANARY], "basket": [CANARY]},
    {"users": [CANARY], "k": CANARY},
    {"users": [CANARY], "k": 0},
    {"users": [CANARY], CANARY: 1},
    {"users": [CANARY] * 1001},
    {"users": [CANARY * 100]},
    {"users": []},
    {"basket": [""]},
    {"exclude": [CANARY]},
    [CANARY],
    CANARY,
]


async def test_a_message_that_does_not_fit_is_told_where_and_why_and_nothing_of_it_comes_back(
    silo: httpx.AsyncClient,
) -> None:
    for body in BAD_BODIES:
        answer = await silo.post("/v1/recommendations", json=body)
        assert "body" in problem(answer, 422) and CANARY not in answer.text, body


async def test_other_bad_questions_get_a_problem_document_without_what_came(silo: httpx.AsyncClient) -> None:
    user = f"/v1/users/{CANARY}/recommendations"
    for status, method, path, content in (
        (422, "GET", f"{user}?k={CANARY}", b""),
        (422, "GET", f"{user}?k=0", b""),
        (422, "GET", f"{user}?k=1001", b""),
        (422, "GET", f"{user}?exclude_seen={CANARY}", b""),
        (422, "GET", f"/v1/users/{'x' * 513}/recommendations", b""),
        (422, "GET", f"/v1/ledger?after={CANARY}", b""),
        (422, "POST", "/v1/recommendations", f'{{"{CANARY}'.encode()),
        (422, "POST", "/v1/recommendations", b'{"users": ["\\ud800"]}'),
        (404, "GET", f"/v1/items/{CANARY}/similar", b""),
        (404, "GET", f"/v1/{CANARY}", b""),
        (404, "GET", "/nothing", b""),
        (405, "PUT", "/v1/recommendations", b""),
        (405, "PATCH", user, b""),
    ):
        answer = await silo.request(method, path, content=content, headers={"Content-Type": "application/json"})
        detail = problem(answer, status)
        assert detail and CANARY not in answer.text, (method, path)
    headers = {"Content-Type": "application/json"}
    long = await silo.post("/v1/recommendations", content=b'{"users": ["' + b"x" * (5 << 20), headers=headers)
    assert problem(long, 413)


async def test_what_may_leave_is_told_as_it_is_declared(silo: httpx.AsyncClient, settings: ClientSettings) -> None:
    told = Declaration.model_validate((await silo.get("/v1/declaration")).json())
    assert told == settings.declaration() and told.scalars == ("margin", "rho")
    assert {spec.name.partition(".")[0] for spec in told.tensors} == {"pooling", "predictive"}


async def test_nobody_on_the_way_may_keep_an_answer_about_people(silo: httpx.AsyncClient) -> None:
    answers = [
        await silo.get(f"/v1/{path}")
        for path in (
            "users/user-01/recommendations",
            "users/user-01/recommendations?k=0",
            "items/item-01/similar",
            "items/mystery/similar",
            "status",
            "quality",
            "spectrum",
            "declaration",
            "ledger",
            "mystery",
        )
    ]
    answers.append(await silo.post("/v1/recommendations", json={"users": ["user-01"]}))
    assert {answer.status_code for answer in answers} == {200, 404, 422}
    assert [answer.headers.get("cache-control") for answer in answers] == ["no-store"] * len(answers)


async def test_metrics_count_calls_by_route_template_and_nothing_of_the_silo(
    settings: ClientSettings, opened: Opened, until: Until
) -> None:
    keep_first_model(settings)
    async with opened(settings) as http:
        await until(lambda: serves(http))
        await http.get("/v1/users/user-01/recommendations")
        await http.get("/v1/items/item-01/similar")
        await http.get("/v1/nothing/user-01")
        text = (await http.get("/metrics")).text
    families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    assert {name.removesuffix("_total").removesuffix("_created") for name in families} == {
        f"lpsfed_client_{name}"
        for name in (
            "disk_free_bytes",
            "held_up",
            "hindered",
            "phase",
            "request_seconds",
            "rounds",
            "seconds_since_round",
            "serving",
            "stream",
            "upload_bytes",
            "uploads_refused",
        )
    }
    labels = re.findall(r"\{([^}]*(?:\{[^}]*\}[^}]*)*)\} ", text)
    named = {name for label in labels for name in re.findall(r'(\w+)="', label)}
    assert named - {"code"} == {"method", "route", "status", "le", "phase"}  # a code: of a call that has failed already
    routes = set(re.findall(r'route="([^"]*)"', text))
    assert "/v1/users/{user}/recommendations" in routes and "(unmatched)" in routes
    assert "user-01" not in text and "item-01" not in text and "nothing" not in text


async def test_a_place_beyond_every_ledger_is_refused(silo: httpx.AsyncClient) -> None:
    """No reader of files can count so far."""
    for after in (1 << 53, 1 << 63, 10**30):
        assert (await silo.get("/v1/ledger", params={"after": after})).status_code == 422
    assert (await silo.get("/v1/ledger", params={"after": (1 << 53) - 1})).json()["entries"] == []


async def test_the_ledger_is_paged_and_says_whether_it_holds(
    silo: httpx.AsyncClient, settings: ClientSettings, until: Until
) -> None:

    async def page(**query: int) -> dict[str, Any]:
        found: dict[str, Any] = (await silo.get("/v1/ledger", params=query)).json()
        return found

    async def six() -> bool:
        return int((await page())["total"]) >= 6

    await until(six)
    second = await page(after=2, limit=3)
    assert [entry["sequence"] for entry in second["entries"]] == [3, 4, 5] and second["verified"] is True
    assert {entry["kind"] for entry in second["entries"]} == {"intent", "outcome"}
    path = settings.state_directory / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], "scribble\n", *lines[2:]]))
    damaged = await page(limit=2)
    assert damaged["verified"] is False and damaged["entries"][1] == {"damaged": "scribble"}


async def test_quality_is_that_of_the_last_run_even_before_the_next(settings: ClientSettings, opened: Opened) -> None:
    keep_first_model(settings)
    async with opened(settings) as http:
        quality = (await http.get("/v1/quality")).json()
        assert (quality["client"], quality["run"], quality["users"], quality["items"]) == ("client-1", "run-1", 16, 12)
        assert [entry["round"] for entry in quality["rounds"]] == [0]
        (settings.state_directory / "model" / "quality.json").write_text("{")
        assert (await http.get("/v1/quality")).json()["run"] is None
