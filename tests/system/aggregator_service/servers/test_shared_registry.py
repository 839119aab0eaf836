"""Front workers without a common folder: silos are invited at one, enrol at another, and call a third."""

from __future__ import annotations

import errno
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from anyio import to_thread
from typer.testing import CliRunner

from aggregator_service.app import create_app
from aggregator_service.rounds import broadcaster
from aggregator_service.storage import registry_rows
from aggregator_service.storage.database import Database
from aggregator_service.storage.engines.postgresql import PostgreSQL, read_url
from aggregator_service.storage.registry_rows import KnownKeys
from aggregator_service.storage.tables import METADATA
from shared.errors import ConflictError
from shared.protocol.signing.enrolment import ensure_key_pair, register_key
from shared.protocol.signing.invitation import EnrolmentIn, FederationOut, Invitation, prove_enrolment, read_invitation
from shared.protocol.signing.keys import PrivateKey, fingerprint, new_key, raw_hex, read_private
from shared.protocol.signing.silo_registry import INVITED, RegistryFolder, folder_registry
from simulation.cli import app
from simulation.joining.invite import write_invitations
from tests.support.aggregator import KEYS, METHOD, FakeClient, Federation
from tests.support.federation import run_app
from tests.support.process import AggregatorProcess
from tests.support.signing import Signing
from tests.support.small import SMALL, small_aggregator
from tests.support.streams import serve_federation

if TYPE_CHECKING:
    from conftest import Place

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("default")]
Open = Callable[..., AbstractAsyncContextManager[Federation]]
REFUSED = "expected the code of an open invitation for this name"
UNKNOWN = "the private key whose public key is registered under this name"


@pytest.fixture
def open_worker(tmp_path: Path, place: Place) -> Open:
    """`async with open_worker("one") as federation`: each with a folder of keys of its own."""
    key = ensure_key_pair("aggregator", tmp_path).private

    @asynccontextmanager
    async def opened(name: str, **others: Any) -> AsyncIterator[Federation]:
        common = {"blobs": str(tmp_path / "bodies"), "signing_key_file": key, "shared": True} | others
        settings = small_aggregator(tmp_path / name, method=METHOD, database=place.url, **common)
        app = create_app(settings, clock=time.time)
        async with run_app(app, "http://aggregator") as http:
            yield Federation(app, http, settings, time.time)

    return opened


async def invite(federation: Federation, name: str = "north", **more: object) -> dict[str, Any]:
    answer = await federation.operate("POST", "/v1/invitations", json={"name": name} | more)
    assert answer.status_code == 201, answer.text
    told: dict[str, Any] = answer.json()
    return told


def message(name: str, told: dict[str, Any], own: PrivateKey | None = None) -> EnrolmentIn:
    expires, federation = (
        datetime.now(UTC) + timedelta(days=1),
        FederationOut(strategy="lpsfed", secure=False, method=SMALL),
    )
    invited = Invitation(
        name=name, url="http://a", code=told["code"], expires=expires, aggregator=told["aggregator"],
        federation=federation,
    )  # fmt: skip
    return prove_enrolment(invited, own or KEYS[name])


async def enrol(federation: Federation, asked: EnrolmentIn) -> httpx.Response:
    return await federation.http.post("/v1/enrolments", json=asked.model_dump())


def stranger(federation: Federation, name: str) -> FakeClient:
    """A client whose key no folder has."""
    return FakeClient(name, federation.http, federation.settings.declaration())


async def test_a_silo_is_invited_at_one_worker_enrols_at_another_and_calls_a_third(open_worker: Open) -> None:
    async with open_worker("one") as one, open_worker("two") as two, open_worker("three") as three:
        told = await invite(one)
        refused = await stranger(three, "north").join()
        assert refused.status_code == 401 and UNKNOWN in refused.text
        assert (await enrol(two, message("north", told))).status_code == 201
        for federation in (three, one, two):
            assert (await stranger(federation, "north").join()).status_code == 200
        removed = await one.operate("DELETE", "/v1/enrolments/north")
        assert removed.status_code == 200 and removed.json() == {"name": "north"}
        for federation in (two, three, one):
            refused = await stranger(federation, "north").get("/v1/runs/current")
            assert refused.status_code == 401 and UNKNOWN in refused.text
            assert (await federation.operate("DELETE", "/v1/enrolments/north")).status_code == 404


async def test_each_worker_lists_the_silos_of_all_and_of_its_own_folder(open_worker: Open) -> None:
    """A file of the folder counts before a row of the same name; a removed key is in no list."""
    async with open_worker("one") as one, open_worker("two") as two:
        for name in ("north", "south", "west"):
            assert (await enrol(two, message(name, await invite(one, name)))).status_code == 201
        assert (await one.operate("DELETE", "/v1/enrolments/south")).status_code == 200
        marks = [{"name": name, "fingerprint": fingerprint(KEYS[name].public_key())} for name in ("north", "west")]
        for federation in (one, two):
            assert (await federation.operate("GET", "/v1/enrolments")).json() == {"entries": marks, "total": 2}
        register_key("a", KEYS["south"].public_key(), two.settings.registry)
        (two.settings.registry / "north.pub").write_text("no key")
        own = [{"name": "a", "fingerprint": fingerprint(KEYS["south"].public_key())}, marks[0] | {"fingerprint": None}]
        listed = [await two.operate("GET", f"/v1/enrolments?limit=1&after={name}") for name in ("0", "a", "north")]
        assert [answer.json() for answer in listed] == [{"entries": [one], "total": 3} for one in (*own, marks[1])]


async def test_of_two_workers_that_redeem_at_once_one_registers(open_worker: Open, place: Place) -> None:
    async with open_worker("one") as one, open_worker("two") as two:
        for number in range(5):
            name = f"silo-{number}"
            told = await invite(one, name)
            calls = [partial(enrol, federation, message(name, told, new_key())) for federation in (one, two) * 3]
            assert await statuses_of(calls) == [201, *[401] * 5]
        assert place.rows("select count(*), count(distinct key) from registered_keys") == [(5, 5)]
        assert place.rows("select name from invitations") == []


async def statuses_of(calls: Sequence[Callable[[], Any]]) -> list[int]:
    """Of calls at once."""
    found: list[int] = []

    async def call(one: Callable[[], Any]) -> None:
        found.append((await one()).status_code)

    async with anyio.create_task_group() as tasks:
        for one in calls:
            tasks.start_soon(call, one)
    return sorted(found)


async def test_what_is_no_open_invitation_is_refused_in_the_same_words(open_worker: Open, place: Place) -> None:
    """Expired, used by another key, removed before its use, replaced; a name or a key that is taken."""
    async with open_worker("one") as one, open_worker("two") as two:
        told = await invite(one)
        place.rows("update invitations set expires = 1")
        late = await enrol(two, message("north", told))
        assert place.rows("select name from invitations") == []  # so it stays expired if the clock is set back
        told = await invite(two)
        assert (await one.operate("DELETE", "/v1/enrolments/north")).status_code == 200
        removed = await enrol(two, message("north", told))
        replaced = await invite(one)
        told = await invite(two)
        earlier = await enrol(one, message("north", replaced))
        assert (await enrol(one, message("north", told))).status_code == 201
        assert (await enrol(two, message("north", told))).status_code == 201  # its answer was lost
        used = await enrol(two, message("north", told, new_key()))
        for answer in (late, removed, earlier, used):
            assert answer.status_code == 401 and REFUSED in answer.text
        taken = await two.operate("POST", "/v1/invitations", json={"name": "north"})
        assert taken.status_code == 409 and "'north' has one" in taken.text
        told = await invite(two, "south")
        same_key = await enrol(one, message("south", told, KEYS["north"]))
        assert same_key.status_code == 409 and "'north' has this one" in same_key.text
        assert (await enrol(two, message("south", told))).status_code == 201


async def test_a_new_key_of_the_same_name_counts_and_the_old_one_no_longer(open_worker: Open) -> None:
    async with open_worker("one") as one, open_worker("two") as two:
        for federation in (one, two):
            earlier = stranger(federation, "north")
            if federation is one:
                assert (await enrol(two, message("north", await invite(one)))).status_code == 201
            assert (await earlier.join()).status_code == 200
        await one.operate("DELETE", "/v1/enrolments/north")
        await enrol(one, message("north", await invite(one), own := new_key()))
        assert (await two.http.get("/v1/runs/current", auth=Signing("north", own))).status_code == 200
        assert (await stranger(two, "north").get("/v1/runs/current")).status_code == 401


async def test_strangers_cost_a_bounded_number_of_looks_and_learn_nothing(
    open_worker: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown name and a wrong key are looked for alike; a known key costs no look."""
    monkeypatch.setattr(registry_rows, "FOLLOW_SECONDS", 3600.0)
    looks, read = list[int](), KnownKeys._read_version

    def look(known: KnownKeys) -> int:
        looks.append(1)
        return read(known)

    monkeypatch.setattr(KnownKeys, "_read_version", look)
    async with open_worker("one") as one:
        await enrol(one, message("north", await invite(one)))
        assert (await stranger(one, "north").join()).status_code == 200
        looks.clear()
        for _ in range(20):
            assert (await stranger(one, "north").get("/v1/runs/current")).status_code == 200
        assert looks == []
        told = set()
        for name in ("north", "nobody"):
            answer = await one.http.get("/v1/runs/current", auth=Signing(name, new_key()))
            told.add((answer.status_code, answer.json()["detail"], len(looks)))
            looks.clear()
        assert len(told) == 1 and told.pop()[::2] == (401, 1)
        began, wrong = time.monotonic(), new_key()
        flood = [
            partial(one.http.get, "/v1/runs/current", auth=Signing(f"nobody-{number}", wrong)) for number in range(300)
        ]
        assert await statuses_of(flood) == [401] * 300
        assert len(looks) <= 2 + (time.monotonic() - began) / registry_rows.LOOK_SECONDS


DYING = """
import os, sys
from aggregator_service import __main__
from aggregator_service.storage import registry_rows
from shared.protocol.signing import silo_registry

owner, name = {owner}, "{name}"
act = getattr(owner, name)

def act_and_die(held, *given):
    if "{name}" == "redeem_invitation" or held.has_key("north"):
        act(held, *given)
        os._exit(9)
    act(held, *given)

setattr(owner, name, act_and_die)
sys.exit(__main__.main())
"""


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("owner", "name", "registered"),
    [
        ("silo_registry.SiloRegistry", "redeem_invitation", 1),  # after the commit, before the answer
        ("registry_rows._OpenRows", "end_invitation", 0),  # before the commit
    ],
)
async def test_a_worker_that_dies_while_a_silo_enrols_uses_nothing_up(
    open_worker: Open, place: Place, tmp_path: Path, owner: str, name: str, registered: int
) -> None:
    settings = {
        "method": METHOD,
        "database": place.url,
        "blobs": str(tmp_path / "bodies"),
        "shared": True,
        "signing_key_file": ensure_key_pair("aggregator", tmp_path).private,
    }
    code = DYING.format(owner=owner, name=name)
    dying = AggregatorProcess(tmp_path / "dying", settings, command=("-c", code), log=tmp_path / "log")
    async with open_worker("one") as one:
        with dying.running():
            asked = message("north", await invite(one))
            with pytest.raises(httpx.TransportError):
                httpx.post(f"{dying.url}/v1/enrolments", json=asked.model_dump(), timeout=60, trust_env=False)
            assert place.rows("select count(*) from registered_keys where key is not null") == [(registered,)]
            assert place.rows("select count(*) from invitations") == [(1 - registered,)]
        assert (await enrol(one, asked)).status_code == 201
        assert (await stranger(one, "north").join()).status_code == 200
        assert place.rows("select count(*) from invitations") == [(0,)]


async def test_a_database_that_is_away_answers_503_and_loses_nothing(open_worker: Open, place: Place) -> None:
    async with open_worker("one") as one:
        await enrol(one, message("north", await invite(one)))
        asked = message("south", await invite(one, "south"))
        place.server.execute(f"alter database {place.name} allow_connections false")
        place.cut_off()
        calls: list[Callable[[], Any]] = [
            partial(enrol, one, asked),
            partial(one.operate, "POST", "/v1/invitations", json={"name": "west"}),
            partial(one.operate, "DELETE", "/v1/enrolments/north"),
            stranger(one, "north").join,
            stranger(one, "nobody").join,
        ]
        for call in calls:
            answer = await call()
            assert answer.status_code == 503 and "expected a database" in answer.json()["detail"], answer.text
        place.server.execute(f"alter database {place.name} allow_connections true")
        with anyio.fail_after(30):
            while (await enrol(one, asked)).status_code != 201:
                await anyio.sleep(0.1)
            while not (await one.http.get("/health/ready")).is_success:
                await anyio.sleep(0.1)
        assert (await stranger(one, "south").join()).status_code == 200
        assert (await stranger(one, "north").join()).status_code == 200
        assert place.rows("select name from registered_keys where key is not null order by name") == [
            ("north",),
            ("south",),
        ]


async def test_keys_and_invitations_of_a_folder_go_on_beside_the_rows(open_worker: Open, tmp_path: Path) -> None:
    """For an operator who comes from one process: keys stay files, an open invitation becomes a row, used once."""
    folder = tmp_path / "keys"
    register_key("north", KEYS["north"].public_key(), folder)
    code, _ = folder_registry(folder).open_invitation("south", 1.0)
    own = raw_hex(read_private(ensure_key_pair("aggregator", tmp_path).private).public_key())
    told = {"code": code, "aggregator": own}
    common = {"keys_directory": folder}
    async with open_worker("one", **common) as one, open_worker("two", **common) as two:
        assert not list((folder / INVITED).glob("*.json"))
        for federation in (one, two):
            assert (await stranger(federation, "north").join()).status_code == 200
        assert (await enrol(two, message("south", told))).status_code == 201
        assert (await enrol(one, message("south", told, new_key()))).status_code == 401
        assert (await stranger(one, "south").join()).status_code == 200
        assert (await one.operate("POST", "/v1/invitations", json={"name": "north"})).status_code == 409
        refused = await enrol(one, message("west", await invite(one, "west"), KEYS["north"]))
        assert refused.status_code == 409 and "'north' has this one" in refused.text
        assert (await two.operate("DELETE", "/v1/enrolments/north")).status_code == 200
        assert not (folder / "north.pub").exists()
        assert (await stranger(one, "north").get("/v1/runs/current")).status_code == 401


async def test_who_starts_an_aggregator_invites_by_rows_and_knows_the_names_of_all(
    open_worker: Open, tmp_path: Path, place: Place
) -> None:
    """The invitation of `lpsfed aggregator --invite` counts at each worker, also where one serves already."""
    key = ensure_key_pair("aggregator", tmp_path).private
    common = {"database": place.url, "blobs": str(tmp_path / "bodies"), "signing_key_file": key, "shared": True}
    settings = small_aggregator(tmp_path / "started", method=METHOD, **common)
    write = partial(write_invitations, settings, url="http://a", folder=tmp_path)
    async with open_worker("one") as one:
        assert (await enrol(one, message("north", await invite(one)))).status_code == 201
        with pytest.raises(ConflictError, match="'north' has one"):
            await to_thread.run_sync(partial(write, ["south", "north"]))
        assert place.rows("select name from invitations") == [] == list(tmp_path.glob("*.invite"))
        (path,) = await to_thread.run_sync(partial(write, ["south"]))
        assert (await enrol(one, prove_enrolment(read_invitation(path), KEYS["south"]))).status_code == 201


@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_one_aggregator_alone_finds_the_invitations_of_its_command(
    tmp_path: Path, place: Place, monkeypatch: pytest.MonkeyPatch, detach: list[str]
) -> None:
    """It keeps the database once it runs: they are rows by then."""
    found: list[list[tuple[Any, ...]]] = []

    def serve(*_: object) -> int:
        found.append(place.rows("select name from invitations"))
        PostgreSQL(read_url(place.url)).close()  # nobody else has it
        return 4711

    monkeypatch.setattr("aggregator_service.__main__.serve", serve)
    monkeypatch.setattr("simulation.joining.background.serve_in_background", serve)
    monkeypatch.setenv("LPSFED_AGGREGATOR_DATABASE", place.url)
    monkeypatch.chdir(tmp_path)
    words = ["aggregator", "--state-directory", "state", "--port", "8999", "--invite", "north", *detach]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (done.output, done.exception)
    assert found == [[("north",)]] and read_invitation(tmp_path / "north.invite").name == "north"


async def test_a_folder_that_nobody_can_write_hinders_no_invitation(open_worker: Open) -> None:
    """As on Kubernetes, where it is a ConfigMap or not there."""
    async with open_worker("one", keys_directory=Path("/proc/none")) as one:
        assert (await enrol(one, message("north", await invite(one)))).status_code == 201
        assert (await stranger(one, "north").join()).status_code == 200
        assert (await one.operate("DELETE", "/v1/enrolments/north")).status_code == 200


async def test_an_invitation_that_stays_in_its_folder_is_not_used(
    open_worker: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could be used again after each start."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    folder = tmp_path / "keys"
    code, _ = folder_registry(folder).open_invitation("north", 1.0)
    (folder / INVITED / "No Name.json").write_text("{}")
    register_key("south", KEYS["south"].public_key(), folder)
    monkeypatch.setattr(RegistryFolder, "end_invitation", refuse)
    monkeypatch.setattr(RegistryFolder, "remove_key", refuse)
    async with open_worker("one", keys_directory=folder) as one:
        told = {"code": code, "aggregator": (await invite(one, "west"))["aggregator"]}
        assert (await enrol(one, message("north", told))).status_code == 401
        assert (await one.operate("POST", "/v1/invitations", json={"name": "north"})).status_code == 503
        refused = await one.operate("DELETE", "/v1/enrolments/south")
        assert refused.status_code == 409 and "remove south.pub" in refused.text
        assert (await stranger(one, "south").join()).status_code == 200
        assert (await enrol(one, message("west", await invite(one, "west")))).status_code == 201


async def test_one_process_on_postgresql_and_workers_know_the_same_silos(open_worker: Open) -> None:
    async with open_worker("one", shared=False) as one:
        assert (await stranger(one, "north").join()).status_code == 401
        await enrol(one, message("north", await invite(one)))
        assert (await stranger(one, "north").join()).status_code == 200
        await enrol(one, message("south", await invite(one, "south")))
        await one.operate("DELETE", "/v1/enrolments/north")
        assert (await stranger(one, "north").join()).status_code == 401
    async with open_worker("two") as two:
        answers = []
        for name in ("south", "north"):  # signed after the first start of workers, which knows no earlier nonces
            auth = Signing(name, KEYS[name], late=-2.0)
            headers = {"Content-Type": "application/json"}
            joining = stranger(two, name).joining()
            answers.append(await two.http.post("/v1/clients", content=joining, headers=headers, auth=auth))
        assert [answer.status_code for answer in answers] == [200, 401]
        assert UNKNOWN in answers[1].text


async def test_a_removed_client_loses_its_held_stream_and_its_kept_connection(
    open_worker: Open, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcaster, "TURN_SECONDS", 0.05)
    key = ensure_key_pair("aggregator", tmp_path).private
    common = {"database": place.url, "shared": True, "blobs": str(tmp_path / "bodies"), "signing_key_file": key}
    async with open_worker("one") as one:
        with serve_federation(tmp_path / "two", method=METHOD, **common) as two:
            await enrol(one, message("north", await invite(one)))
            async with httpx.AsyncClient(base_url=two.url, trust_env=False, timeout=30) as http:
                client = FakeClient("north", http, one.settings.declaration())
                assert (await client.join()).status_code == 200
                async with http.stream("GET", "/v1/runs/current/changes", auth=client.auth) as stream:
                    assert stream.status_code == 200
                    await one.operate("DELETE", "/v1/enrolments/north")
                    with anyio.fail_after(20):
                        async for _ in stream.aiter_raw():  # until the worker ends it
                            pass
                assert (await client.get("/v1/runs/current")).status_code == 401


UNDONE = (
    "alter table updates drop column parts",  # 0012
    "drop table registered_keys, invitations",  # 0011
    "update alembic_version set version_num = '0010'",
)
"""What takes a database from the newest revision back to 0010."""


def test_a_database_of_revision_10_is_taken_along(place: Place, tmp_path: Path) -> None:
    settings = small_aggregator(tmp_path / "one", database=place.url)
    given = settings.state_directory, settings.declaration(), settings.database_url()
    Database(*given).close()
    (newest,) = place.rows("select version_num from alembic_version")
    for undone in UNDONE:
        place.rows(undone)
    place.rows("insert into runs values (1, 'run-1', '{}')")
    with closing(Database(*given)) as made, made.reading() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    with closing(Database(*given, shared=True)) as made:
        KnownKeys(made)
    assert place.rows("select name from runs") == [("run-1",)]
    assert place.rows("select version_num from alembic_version") == [newest]
