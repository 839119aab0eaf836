"""Applications ask for lists of some items, for pages of them, and for what is known of items."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import polars as pl
import pytest

from client_service.compilation.shard import compile_in_memory
from client_service.data.interaction_files import load_shard, write_shard
from client_service.data.interactions import Shard
from client_service.event_log.item_metadata import CATEGORY, ItemMetadata
from client_service.event_log.messages import ItemIn
from client_service.serving.ranking import MOST_VALUES, parse_filters
from client_service.settings import ClientSettings
from shared.errors import ProtocolError
from tests.support.federation import run_client
from tests.support.kept import keep_first_model
from tests.support.questions import as_step, wait_until
from tests.support.telling import all_listed

CANARY = "canary-4711"
EVERYTHING = 12


@pytest.fixture(scope="module")
def shared(shared_settings: Callable[..., ClientSettings]) -> tuple[ClientSettings, Shard]:
    """A silo that has a model, and its shard, for the tests that change nothing."""
    settings = shared_settings()
    return settings, keep_first_model(settings)[0]


@pytest.fixture(scope="module")
def shard(shared: tuple[ClientSettings, Shard]) -> Shard:
    return shared[1]


@pytest.fixture(scope="module")
async def asked(shared: tuple[ClientSettings, Shard]) -> AsyncIterator[httpx.AsyncClient]:
    """The shared silo's service: tests that tell it something ask `own_silo` instead."""
    async with describe_items(shared[0]) as http:
        yield http


@pytest.fixture(scope="module")
async def renamed(shared_settings: Callable[..., ClientSettings]) -> AsyncIterator[httpx.AsyncClient]:
    """The same of another silo, of whose items the tests say something else each."""
    settings = shared_settings()
    keep_first_model(settings)
    async with describe_items(settings) as http:
        yield http


@pytest.fixture
async def own_silo(settings: ClientSettings) -> AsyncIterator[httpx.AsyncClient]:
    """The same of a silo of the test's own."""
    keep_first_model(settings)
    async with describe_items(settings) as http:
        yield http


@asynccontextmanager
async def describe_items(settings: ClientSettings) -> AsyncIterator[httpx.AsyncClient]:
    """Run a service, wait until every known user's list is computed, and say something of four items."""
    async with run_client(settings, settings.state_directory / "keys") as http:
        await wait_until(lambda: all_listed(http))
        for item, facts in FACTS.items():
            assert (await http.put(f"/v1/items/{item}", json=facts)).status_code == 200
        yield http


FACTS: dict[str, dict[str, Any]] = {
    "item-00": {"categories": ["film"], "attributes": {"genre": "Comedy", "year": 1999, "dubbed": True}},
    "item-01": {"categories": ["film", "short"], "attributes": {"genre": "Drama"}},
    "item-07": {"categories": ["book"], "attributes": {"genre": "a|b:c"}},
    "item-08": {"title": "The Second  ÄPFEL", "categories": ["film"], "attributes": {"genre": "Comedy"}},
}


def ids(answer: dict[str, Any]) -> list[str]:
    return [one["item"] for one in answer["items"]]


async def look_up_list(http: httpx.AsyncClient, user: str, query: str) -> list[str]:
    answer = await http.get(f"/v1/users/{user}/recommendations?{query}")
    assert answer.status_code == 200, answer.text
    return ids(answer.json())


@pytest.mark.anyio
async def test_the_status_says_in_which_form_baskets_are_answered_and_why(asked: httpx.AsyncClient) -> None:
    status = (await asked.get("/v1/status")).json()
    assert status["form"] in ("truncated", "dense", "rescored", "exact") and status["form_reason"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["genre:Comedy"], {"item-00", "item-08"}),
        (["genre:Comedy|Drama"], {"item-00", "item-01", "item-08"}),
        (["genre:Comedy|Drama", "category:short"], {"item-01"}),
        (["category:film", "year:1999"], {"item-00"}),
        (["dubbed:true"], {"item-00"}),
        ([r"genre:a\|b\:c"], {"item-07"}),
        (["genre:comedy"], set()),
        (["genre:Comedy", "category:book"], set()),
    ],
)
async def test_filters_leave_the_best_of_the_items_that_they_name(
    asked: httpx.AsyncClient, shard: Shard, filters: list[str], expected: set[str]
) -> None:
    query = httpx.QueryParams({"filter": filters, "k": EVERYTHING, "exclude_seen": "false"})
    for user in (shard.user_ids[0], "nobody"):
        whole = await look_up_list(asked, user, f"k={EVERYTHING}&exclude_seen=false")
        found = await look_up_list(asked, user, str(query))
        assert found == [item for item in whole if item in expected]
    for given in ({"users": [shard.user_ids[0]]}, {"basket": ["item-03"]}):
        body = {**given, "filter": filters, "k": EVERYTHING, "exclude_seen": False}
        (answer,) = (await asked.post("/v1/recommendations", json=body)).json()["results"]
        assert {*ids(answer)} == expected


@pytest.mark.anyio
async def test_a_filter_by_an_unknown_key_is_refused_with_the_known_ones(
    asked: httpx.AsyncClient, shard: Shard
) -> None:
    of_both = {"filter": ["category:film", "gender:Comedy"], "k": 3}
    answers = [
        await asked.get(f"/v1/users/{shard.user_ids[0]}/recommendations?filter=gender:Comedy"),
        await asked.get("/v1/users/nobody/recommendations?filter=category:film&filter=gender:Comedy"),
        await asked.post("/v1/recommendations", json=of_both | {"users": [shard.user_ids[0], "nobody"]}),
        await asked.post("/v1/recommendations", json=of_both | {"basket": ["item-03"]}),
        await asked.post(
            "/v1/recommendations", json=of_both | {"users": ["u"]}, headers={"Accept": "application/x-ndjson"}
        ),
    ]
    for answer in answers:
        assert answer.status_code == 422
        (fault,) = answer.json()["errors"]
        assert (fault["code"], fault["at"]) == ("unknown", "filter")
        assert "likely genre; known: category, dubbed, genre, year" in fault["detail"], fault
        assert fault["detail"] == answer.json()["detail"]


def test_so_many_known_keys_are_told_as_there_is_room_for(tmp_path: Path) -> None:
    keys = [f"a-rather-long-name-{number:04d}" for number in range(500)]
    write_shard(tmp_path, "shop", pl.DataFrame({"user": ["u"], "item": ["a"], "split": ["train"]}), None)
    told = {str(at): ItemIn(attributes=dict.fromkeys(keys[at : at + 100], 1.0)) for at in range(0, 500, 100)}
    facts = ItemMetadata(compile_in_memory(load_shard(tmp_path)), told)
    with pytest.raises(ProtocolError, match=r"known: a-rather-long-name-0000, .* and 4[0-9][0-9] more$") as error:
        facts.mask([("nothing", ("x",))])
    assert len(str(error.value)) < 500
    assert not facts.mask([(keys[-1], ("1",))]).any()


@pytest.mark.anyio
async def test_filters_find_composed_and_decomposed_words_alike(own_silo: httpx.AsyncClient) -> None:
    composed, decomposed = "Café", "Cafe\u0301"
    await own_silo.put("/v1/items/item-02", json={"attributes": {f"{decomposed} kind": decomposed}})
    await own_silo.put("/v1/items/item-04", json={"categories": [composed]})
    for word in (composed, decomposed):
        for text, expected in ((f"{word} kind:{word}", {"item-02"}), (f"category:{word}", {"item-04"})):
            query = httpx.QueryParams({"filter": text, "k": EVERYTHING, "exclude_seen": "false"})
            assert {*await look_up_list(own_silo, "nobody", str(query))} == expected


@pytest.mark.anyio
async def test_a_filter_comes_before_the_length_of_the_list_and_seen_items_stay_out(
    asked: httpx.AsyncClient, shard: Shard
) -> None:
    user = shard.user_ids[0]
    unseen = await look_up_list(asked, user, f"k={EVERYTHING}")
    films = [item for item in unseen if item in ("item-00", "item-01", "item-08")]
    assert (films and unseen[0] not in films) or len(films) < len(unseen)
    assert await look_up_list(asked, user, "k=1&filter=category:film") == films[:1]
    assert await look_up_list(asked, user, "filter=category:film") == films


@pytest.mark.anyio
async def test_excluded_items_of_a_query_are_left_out_and_others_take_their_place(
    asked: httpx.AsyncClient, shard: Shard
) -> None:
    user = shard.user_ids[0]
    whole = await look_up_list(asked, user, f"k={EVERYTHING}")
    found = await look_up_list(asked, user, f"k=2&exclude={whole[0]}&exclude={whole[1]}&exclude=unknown")
    assert found == whole[2:4]


@pytest.mark.anyio
async def test_a_filter_follows_what_is_said_of_items(own_silo: httpx.AsyncClient, shard: Shard) -> None:
    query = f"k={EVERYTHING}&exclude_seen=false&filter=genre:Comedy"
    assert {*await look_up_list(own_silo, "nobody", query)} == {"item-00", "item-08"}
    await own_silo.put("/v1/items/item-00", json={"attributes": {"genre": "Drama"}})
    await own_silo.put("/v1/items/item-02", json={"attributes": {"genre": "Comedy"}})
    await own_silo.delete("/v1/items/item-08")
    assert {*await look_up_list(own_silo, "nobody", query)} == {"item-02"}
    assert shard.item_row("item-02") is not None


@pytest.mark.anyio
@pytest.mark.parametrize("wrong", ["genre", ":x", "genre:", "genre:a||b", "genre:|a", "genre:a|", "genre:a\\", CANARY])
async def test_a_malformed_filter_is_refused_and_not_quoted(asked: httpx.AsyncClient, wrong: str) -> None:
    answers = [
        await asked.get("/v1/users/u/recommendations", params={"filter": wrong}),
        await asked.post("/v1/recommendations", json={"users": ["u"], "filter": [wrong]}),
        await asked.post("/v1/recommendations", json={"basket": ["item-00"], "filter": [wrong]}),
    ]
    for answer in answers:
        assert answer.status_code == 422 and "KEY:VALUE" in answer.json()["detail"], answer.text
        assert CANARY not in answer.text


def test_a_filter_is_parsed_to_a_key_and_its_values() -> None:
    assert parse_filters(["a:b", r"k\:1:x|y\|z|x", "u:http://h|2"]) == (
        ("a", ("b",)),
        ("k:1", ("x", "y|z")),
        ("u", ("http://h", "2")),
    )
    with pytest.raises(ProtocolError, match=f"at most {MOST_VALUES} values"):
        parse_filters(["a:" + "|".join(map(str, range(MOST_VALUES + 1)))])


def test_features_of_the_shard_are_filtered_by_until_something_else_is_said(tmp_path: Path) -> None:
    pairs = pl.DataFrame({"user": ["u"] * 3, "item": ["a", "b", "c"], "split": ["train"] * 3})
    items = pl.DataFrame({"item": ["a", "b", "c"], "colour": ["red", "blue", None], "year": [1999, 2000, 1999]})
    write_shard(tmp_path / "shop", "shop", pairs, items)
    shard = load_shard(tmp_path / "shop")
    plain = ItemMetadata(compile_in_memory(shard), {})
    assert plain.mask([("colour", ("red",))]).tolist() == [True, False, False]
    assert plain.mask([("year", ("1999.0",))]).tolist() == [True, False, True]
    assert not plain.mask([("colour", ("1999",))]).any()
    told = ItemMetadata(
        compile_in_memory(shard),
        {"a": ItemIn(attributes={"colour": "blue"}), "zz": ItemIn(attributes={"colour": "red"})},
    )
    assert told.mask([("colour", ("blue", "red"))]).tolist() == [True, True, False]
    assert not told.mask([("colour", ("red",))]).any()
    assert not told.mask([(CATEGORY, ("film",))]).any()
    found = told.describe("a")
    assert found is not None and found.attributes == {"colour": "blue", "year": 1999.0}


def test_masks_are_kept_for_as_long_as_the_facts_are(settings: ClientSettings) -> None:
    shard = load_shard(settings.shard)
    facts = ItemMetadata(compile_in_memory(shard), {"item-00": ItemIn(categories=("x",))})
    first = facts.mask_value(CATEGORY, "x")
    assert facts.mask_value(CATEGORY, "x") is first and first.tolist() == [True] + [False] * 11
    with pytest.raises(ValueError, match="read-only"):
        first[0] = False
    assert np.array_equal(facts.mask([]), np.ones(12, dtype=bool))


@pytest.mark.anyio
async def test_pages_of_a_list_are_the_list(asked: httpx.AsyncClient, shard: Shard) -> None:
    user = shard.user_ids[0]
    for who in (user, "nobody"):
        whole = await look_up_list(asked, who, f"k={EVERYTHING}")
        pages = [await look_up_list(asked, who, f"k=3&offset={offset}") for offset in range(0, EVERYTHING + 3, 3)]
        assert [item for page in pages for item in page] == whole and pages[-1] == []
    for given in ({"users": [user]}, {"basket": ["item-03", "item-04"]}):
        body = {**given, "exclude_seen": False}
        whole = (await asked.post("/v1/recommendations", json=body)).json()["results"][0]
        page = (await asked.post("/v1/recommendations", json={**body, "k": 2, "offset": 3})).json()["results"][0]
        assert ids(page) == ids(whole)[3:5]


@pytest.mark.anyio
async def test_reasons_are_given_to_whoever_asks_for_them_and_cost_nobody_else(
    own_silo: httpx.AsyncClient, shard: Shard
) -> None:
    user = shard.user_ids[0]
    own = {shard.item_ids[row] for row in shard.train[[0]].indices}
    path = f"/v1/users/{user}/recommendations?k=1&exclude_seen=false"
    plain, told = (
        (await own_silo.get(path)).json()["items"],
        (await own_silo.get(f"{path}&explain=true")).json()["items"],
    )
    assert "because" not in plain[0] and plain[0]["item"] == told[0]["item"]
    assert {one["item"] for one in told[0]["because"]} <= own and told[0]["because"][0]["title"]
    await own_silo.post("/v1/interactions", json={"interactions": [{"event": "e", "user": "new", "item": "item-00"}]})
    new = (await own_silo.get("/v1/users/new/recommendations?k=1&explain=true")).json()["items"]
    assert [one["item"] for one in new[0]["because"]] == ["item-00"]
    body = {"basket": ["item-00"], "k": 1, "explain": True}
    basket = (await own_silo.post("/v1/recommendations", json=body)).json()["results"][0]["items"]
    assert basket == new


@pytest.mark.anyio
async def test_a_page_beyond_the_deepest_list_is_refused_with_the_limit(asked: httpx.AsyncClient) -> None:
    answers = [
        await asked.get("/v1/users/u/recommendations?k=600&offset=401"),
        await asked.post("/v1/recommendations", json={"users": ["u"], "k": 600, "offset": 401}),
        await asked.post("/v1/recommendations", json={"basket": ["item-00"], "k": 600, "offset": 401}),
    ]
    for answer in answers:
        assert answer.status_code == 422 and "expected at most 1000, got 1001" in answer.json()["detail"]
    assert (await asked.get("/v1/users/u/recommendations?k=600&offset=400")).status_code == 200


@pytest.mark.anyio
async def test_items_are_found_by_all_words_of_their_titles_in_any_case(asked: httpx.AsyncClient, shard: Shard) -> None:
    found = (await asked.get("/v1/items", params={"query": "äpfel  second"})).json()
    facts = {"title": "The Second  ÄPFEL", "categories": ["film"], "attributes": {"genre": "Comedy"}}
    rest = {"hidden": False, "in_catalogue": True}
    near = found.pop("near", [])
    assert found == {"total": 1, "items": [{"item": "item-08", **facts, **rest}]}
    assert "item-08" not in [one["item"] for one in near]
    everything = (await asked.get("/v1/items?query=TITLE")).json()
    assert ids(everything) == [item for item in shard.item_ids if item != "item-08"] and everything["total"] == 11
    nothing = (await asked.get("/v1/items?query=title+nothing")).json()
    assert (nothing["total"], nothing["items"]) == (0, [])
    assert (await asked.get("/v1/items?query=qqqqqq")).json() == {"total": 0, "items": []}
    assert (await asked.get("/v1/items?query=t.tle")).json()["total"] == 0  # no pattern


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("title", "query"),
    [
        ("Straße der Sehnsucht", "STRASSE sehnsucht"),
        ("STRASSE DER SEHNSUCHT", "straße"),
        ("GROẞE LIEBE", "große"),
        ("ὈΔΥΣΣΕΎΣ", "ὀδυσσεύς"),
        ("ὀδυσσεύς", "ὈΔΥΣΣΕΎΣ"),
        ("ΟΔΟΣ ΟΝΕΙΡΩΝ", "οδοσ"),
        ("Café Müller", "cafe\u0301 mu\u0308ller"),
        ("Cafe\u0301 Mu\u0308ller", "CAFÉ MÜLLER"),
        ("Ａｋｉｒａ", "akira"),
        ("ﬁnding", "FINDING"),
        ("ΐ", "\u03b9\u0308\u0301"),
        ("한글", "\u1112\u1161\u11ab"),
    ],
)
async def test_items_are_found_however_their_titles_are_written(
    renamed: httpx.AsyncClient, title: str, query: str
) -> None:
    await renamed.put("/v1/items/item-05", json={"title": title})
    assert ids((await renamed.get("/v1/items", params={"query": query})).json()) == ["item-05"]


@pytest.mark.anyio
async def test_a_letter_without_its_accent_is_another(renamed: httpx.AsyncClient) -> None:
    for title in ("Café", "Cafe\u0301"):
        await renamed.put("/v1/items/item-05", json={"title": title})
        assert (await renamed.get("/v1/items?query=cafe")).json()["total"] == 0


@pytest.mark.anyio
async def test_items_that_resemble_a_query_follow_those_that_hold_its_words(renamed: httpx.AsyncClient) -> None:
    for item, title in (("item-05", "The Godfather"), ("item-06", "Godfather II"), ("item-07", "Café Godfathers")):
        await renamed.put(f"/v1/items/{item}", json={"title": title})

    async def search(query: str, k: int = 20, offset: int = 0) -> tuple[int, list[str], list[tuple[str, str]]]:
        answer = await renamed.get("/v1/items", params={"query": query, "k": k, "offset": offset})
        found = answer.json()
        return found["total"], ids(found), [(one["item"], one["found_by"]) for one in found.get("near", [])]

    three = [("item-05", "typing"), ("item-06", "typing"), ("item-07", "typing")]
    assert await search("godfater") == (0, [], three)
    assert await search("cafe") == (0, [], [("item-07", "typing")])
    total, exact, near = await search("godfather ii")
    assert (total, exact, near[0]) == (1, ["item-06"], ("item-05", "typing"))
    assert await search("godfather ii", k=1) == (1, ["item-06"], [])
    assert await search("godfather ii", k=1, offset=1) == (1, [], [("item-05", "typing")])
    await renamed.delete("/v1/items/item-05")
    assert await search("godfater") == (0, [], three[1:])


WRONG: list[tuple[str, dict[str, Any], set[tuple[str, str]]]] = [
    ("/v1/recommendations", {"users": [5]}, {("wrong-type", "body.users.0")}),
    ("/v1/recommendations", {"users": []}, {("out-of-range", "body.users")}),
    ("/v1/recommendations", {"users": "u"}, {("wrong-type", "body.users")}),
    ("/v1/recommendations", {"users": [""], "k": 0}, {("out-of-range", "body.users.0"), ("out-of-range", "body.k")}),
    ("/v1/recommendations", {}, {("wrong-value", "body")}),
    ("/v1/recommendations", {"users": ["u"], "topk": 3}, {("unknown", "body.topk")}),
    ("/v1/recommendations", {"users": ["u"], CANARY: 3}, {("unknown", "body.(another name)")}),
    ("/v1/recommendations", {"users": ["u"], "k": "many"}, {("wrong-type", "body.k")}),
    ("/v1/recommendations", {"users": ["u"], "k": 900, "offset": 200}, {("out-of-range", "offset")}),
    ("/v1/recommendations", {"users": ["u"], "filter": ["genre"]}, {("wrong-form", "filter")}),
    ("/v1/next", {"sessions": [[1]]}, {("wrong-type", "body.sessions.0.0")}),
    ("/v1/interactions", {}, {("missing", "body.interactions")}),
    (
        "/v1/interactions",
        {"interactions": [{"event": 1, "user": "u", "item": "a", "time": "today"}]},
        {("wrong-type", "body.interactions.0.event"), ("wrong-form", "body.interactions.0.time")},
    ),
    (
        "/v1/interactions",
        {"interactions": [{"event": "e", "user": "u"}]},
        {("missing", "body.interactions.0.item")},
    ),
    ("/v1/items/a", {"attributes": {"colour": ["red"]}}, {("wrong-type", "body.attributes.colour")}),
    ("/v1/items/a", {"attributes": {"colour": "x" * 2001}}, {("out-of-range", "body.attributes.colour")}),
    ("/v1/items/a", {"attributes": {CANARY: None}}, {("wrong-type", "body.attributes.(another name)")}),
]


@pytest.mark.anyio
@pytest.mark.parametrize(("path", "body", "faults"), WRONG)
async def test_each_fault_of_a_body_is_told_once_with_its_kind(
    asked: httpx.AsyncClient, path: str, body: dict[str, Any], faults: set[tuple[str, str]]
) -> None:
    answer = await asked.request("PUT" if path.startswith("/v1/items/") else "POST", path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "protocol")
    told = answer.json()["errors"]
    assert {(one["code"], one["at"]) for one in told} == faults and len(told) == len(faults)
    assert CANARY not in answer.text and "Tuple" not in answer.text


@pytest.mark.anyio
async def test_what_is_no_json_and_each_fault_of_a_query_have_kinds_too(asked: httpx.AsyncClient) -> None:
    headers = {"Content-Type": "application/json"}
    broken = await asked.post("/v1/recommendations", content=b'{"users": [', headers=headers)
    assert [(one["code"], one["at"]) for one in broken.json()["errors"]] == [("not-json", "body")]
    query = "k=many&offset=-1&mmr=nan"
    answer = (await asked.get(f"/v1/users/u/recommendations?{query}")).json()
    assert [(one["code"], one["at"]) for one in answer["errors"]] == [
        ("wrong-type", "query.k"),
        ("out-of-range", "query.offset"),
        ("out-of-range", "query.mmr"),
    ]
    assert answer["detail"] == (
        "query.k: expected a whole number, got text of 4 characters; query.offset: expected a number of 0 or more, "
        "got -1; query.mmr: expected a number of at most 1, got text of 3 characters"
    )
    assert broken.json()["detail"] == "body: expected JSON, got text that is none"
    answer = (await asked.get("/v1/users/u/recommendations?limit=3&k=1&k=2&offsett=3")).json()
    assert [(one["code"], one["at"]) for one in answer["errors"]] == [
        ("unknown", "query.limit"),
        ("unknown", "query.offsett"),
        ("repeated", "query.k"),
    ]
    assert "likely offset" in answer["errors"][1]["detail"] and "limit, offsett, k" in answer["detail"]


@pytest.mark.anyio
async def test_many_faults_are_told_by_the_first_ones(asked: httpx.AsyncClient) -> None:
    answer = await asked.post("/v1/recommendations", json={"users": [1] * 500})
    assert answer.status_code == 422 and len(answer.json()["errors"]) == 20


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("accept", "lines"),
    [
        (["application/x-ndjson;q=0.5, application/json"], False),
        (["application/x-ndjson, application/json;q=0.9"], True),
        (["application/x-ndjson;q=0.000, */*"], False),
        (["application/json;q=0, */*;q=0.1"], True),
        (["application/json;q=0.2, application/*;q=0.1"], False),
        (["*/*;q=0.1, application/x-ndjson;q=0.2"], True),
        (["application/json, application/x-ndjson"], True),
        (["application/json;q=0.5", "application/x-ndjson"], True),
        (["text/html"], False),
        (["application/x-ndjson;q=nonsense, application/json;q=0.1"], False),
    ],
)
async def test_an_answer_has_the_form_that_weighs_most(
    asked: httpx.AsyncClient, accept: list[str], lines: bool
) -> None:
    headers = [("Accept", one) for one in accept]
    answer = await asked.post("/v1/recommendations", json={"users": ["u"]}, headers=headers)
    assert answer.headers["content-type"] == ("application/x-ndjson" if lines else "application/json")


@pytest.mark.anyio
async def test_pages_of_the_catalogue_are_the_catalogue_without_hidden_items(
    own_silo: httpx.AsyncClient, shard: Shard
) -> None:
    await own_silo.delete("/v1/items/item-03")
    pages = [(await own_silo.get(f"/v1/items?k=5&offset={offset}")).json() for offset in (0, 5, 10, 15)]
    assert [item for page in pages for item in ids(page)] == [one for one in shard.item_ids if one != "item-03"]
    assert {page["total"] for page in pages} == {11}
    for wrong in ("offset=-1", "k=0", "k=1001", f"query={'x' * 201}", "offset=3000000000"):
        assert (await own_silo.get(f"/v1/items?{wrong}")).status_code == 422, wrong


@pytest.mark.anyio
async def test_an_item_is_told_as_it_was_put(own_silo: httpx.AsyncClient) -> None:
    expected = {**FACTS["item-00"], "attributes": {"genre": "Comedy", "year": 1999.0, "dubbed": True}}
    own = {"item": "item-00", "title": "Title of item-00", "hidden": False, "in_catalogue": True}
    assert (await own_silo.get("/v1/items/item-00")).json() == {**own, **expected}
    await own_silo.put("/v1/items/new%2Fone", json={"title": "New", "hidden": True})
    new = (await own_silo.get("/v1/items/new%2Fone")).json()
    assert (new["item"], new["title"], new["hidden"], new["in_catalogue"]) == ("new/one", "New", True, False)
    unknown = await own_silo.get(f"/v1/items/{CANARY}")
    assert unknown.status_code == 404 and CANARY not in unknown.text


@pytest.mark.anyio
async def test_the_model_is_described(own_silo: httpx.AsyncClient, shard: Shard) -> None:
    await own_silo.delete("/v1/items/item-03")
    await own_silo.delete(f"/v1/users/{shard.user_ids[0]}")
    found = (await own_silo.get("/v1/model")).json()
    assert (found["version"], found["run"], found["round"]) == ("run-1.0", "run-1", 0)
    assert (found["users"], found["items"]) == (len(shard.user_ids) - 1, 11)
    assert datetime.fromisoformat(found["kept_at"]).tzinfo is not None and found["score"]


@pytest.mark.anyio
async def test_without_a_model_the_sizes_are_told(silo: httpx.AsyncClient) -> None:
    found = (await silo.get("/v1/model")).json()
    assert "version" not in found and "kept_at" not in found and found["items"] == EVERYTHING


@pytest.mark.anyio
@pytest.mark.parametrize(
    "name", ["a/b", "a%2Fb", "a?b#c", "/", "a//b", "ends/recommendations", "ä \U0001f600", ".", ".."]
)
async def test_an_id_may_hold_what_a_path_is_made_of(own_silo: httpx.AsyncClient, name: str) -> None:
    path = as_step(name)
    assert (await own_silo.put(f"/v1/items/{path}", json={"title": "Odd"})).status_code == 200
    assert (await own_silo.get(f"/v1/items/{path}")).json()["item"] == name
    assert (await own_silo.delete(f"/v1/items/{path}")).json()["hidden"] is True
    told = {"interactions": [{"event": f"odd-{name}", "user": name, "item": "item-00"}]}
    assert (await own_silo.post("/v1/interactions", json=told)).json()["accepted"] == 1
    known = (await own_silo.get(f"/v1/users/{path}/recommendations?k=3")).json()
    assert known["user"] == name and "fallback" not in known
    assert (await own_silo.delete(f"/v1/users/{path}")).json()["interactions"] == 1
    assert (await own_silo.get(f"/v1/users/{path}/recommendations?k=3")).json()["fallback"] == "unknown user"


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["a/similar", "a/recommendations", "%2F", "a\ud7ff/b"])
async def test_an_id_that_ends_like_a_route_is_read_as_it_is(renamed: httpx.AsyncClient, name: str) -> None:
    path = quote(name, safe="")
    assert (await renamed.put(f"/v1/items/{path}", json={"title": "Odd"})).status_code == 200
    for spelt in (path, path.replace("%2F", "%2f")):
        assert (await renamed.get(f"/v1/items/{spelt}")).json()["item"] == name
    assert (await renamed.get(f"/v1/items/{path}/similar")).json()["item"] == name  # a new one, by its title


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", "/v1/users/user-01/recommendations", 405),
        ("DELETE", "/v1/users/user-01/", 404),
        ("DELETE", "/v1/users/user-01/other", 404),
        ("DELETE", "/v1/users/", 404),
        ("PUT", "/v1/items/item-00/similar", 405),
        ("DELETE", "/v1/items/item-00/similar", 405),
        ("DELETE", "/v1/items/item-00/", 404),
        ("GET", "/v1/items/item-00/", 404),
        ("GET", "/v1/users/user-01/other/recommendations", 404),
        ("GET", "/v1/items/item-00/other/similar", 404),
    ],
)
async def test_a_path_with_more_segments_than_its_route_names_nobody(
    asked: httpx.AsyncClient, method: str, path: str, status: int
) -> None:
    assert (await asked.request(method, path, json={} if method == "PUT" else None)).status_code == status
    assert "fallback" not in (await asked.get("/v1/users/user-01/recommendations?k=3")).json()
    assert (await asked.get("/v1/items/item-00")).json()["hidden"] is False
