"""An invitation registers one key under one name, once, in time; and whoever has none registers nothing."""

from __future__ import annotations

import hashlib
import json
import secrets
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from shared.errors import (
    AuthenticationError,
    ConflictError,
    FederationError,
    NotFoundError,
    ProtocolError,
    SettingsError,
    UnavailableError,
)
from shared.protocol.signing.enrolment import register_key, registered_keys
from shared.protocol.signing.invitation import (
    EnrolmentIn,
    FederationOut,
    Invitation,
    enrolment_digest,
    prove_enrolment,
)
from shared.protocol.signing.keys import PrivateKey, fingerprint, new_key, public_key, raw_hex
from shared.protocol.signing.responses import require_answer
from shared.protocol.signing.silo_registry import INVITED, folder_registry
from simulation.cli.keys import app
from simulation.joining.invite import write_invitations
from tests.support.federation import Federation
from tests.support.given import Federate
from tests.support.small import SMALL, TOKEN, small_aggregator
from tests.support.streams import serve_federation

NOW = datetime.now(UTC)
JSON = {"Content-Type": "application/json"}
AGGREGATOR = raw_hex(new_key().public_key())
FEDERATION = FederationOut(strategy="lpsfed", secure=False, method=SMALL)


def invited(name: str, code: str, aggregator: str = AGGREGATOR) -> Invitation:
    expires = NOW + timedelta(days=1)
    return Invitation(
        name=name, url="http://127.0.0.1:1", code=code, expires=expires, aggregator=aggregator, federation=FEDERATION
    )


def message(name: str, code: str, own: PrivateKey | None = None, aggregator: str = AGGREGATOR) -> EnrolmentIn:
    return prove_enrolment(invited(name, code, aggregator), own or new_key())


def registered(folder: Path) -> dict[str, str]:
    return {name: raw_hex(found) for name, found in registered_keys(folder).items() if found is not None}


def test_a_code_registers_one_key_and_the_same_again_changes_nothing(tmp_path: Path) -> None:
    code, expires = folder_registry(tmp_path).open_invitation("north", 1.0)
    own = message("north", code)
    folder_registry(tmp_path).redeem_invitation(own, NOW, AGGREGATOR)
    folder_registry(tmp_path).redeem_invitation(own, NOW, AGGREGATOR)  # its answer was lost
    assert registered(tmp_path) == {"north": own.key} and list((tmp_path / INVITED).glob("*.json")) == []
    assert timedelta(hours=23) < expires - NOW < timedelta(hours=25)
    with pytest.raises(AuthenticationError):
        folder_registry(tmp_path).redeem_invitation(message("north", code), NOW, AGGREGATOR)  # who has seen the code
    with pytest.raises(ConflictError, match="'north' has one"):
        folder_registry(tmp_path).open_invitation("north", 1.0)


@pytest.mark.parametrize("kind", ["another code", "another name", "nobody invited", "expired", "replaced", "damaged"])
def test_any_other_code_is_refused_in_the_same_words(tmp_path: Path, kind: str) -> None:
    code, expires = folder_registry(tmp_path).open_invitation("north", 1.0)
    name, said, now = "north", code, NOW
    if kind == "another code":
        said = secrets.token_urlsafe(32)
    elif kind == "another name":
        folder_registry(tmp_path).open_invitation("south", 1.0)
        name = "south"
    elif kind == "nobody invited":
        name = "east"
    elif kind == "expired":
        now = expires
    elif kind == "replaced":
        folder_registry(tmp_path).open_invitation("north", 1.0)
    else:
        (tmp_path / INVITED / "north.json").write_text("{")
    with pytest.raises(AuthenticationError, match="expected the code of an open invitation for this name"):
        folder_registry(tmp_path).redeem_invitation(message(name, said), now, AGGREGATOR)
    assert registered(tmp_path) == {}


def test_a_key_that_another_name_has_is_refused_and_the_invitation_stays(tmp_path: Path) -> None:
    own = new_key()
    for name in ("north", "south"):
        code, _ = folder_registry(tmp_path).open_invitation(name, 1.0)
        if name == "north":
            folder_registry(tmp_path).redeem_invitation(message(name, code, own), NOW, AGGREGATOR)
    with pytest.raises(ConflictError, match="'north' has this one"):
        folder_registry(tmp_path).redeem_invitation(message("south", code, own), NOW, AGGREGATOR)
    folder_registry(tmp_path).redeem_invitation(message("south", code), NOW, AGGREGATOR)
    assert {*registered(tmp_path)} == {"north", "south"}


def test_of_many_who_use_a_code_at_once_one_is_registered(tmp_path: Path) -> None:
    code, _ = folder_registry(tmp_path).open_invitation("north", 1.0)
    wanted = [message("north", code) for _ in range(16)]

    def use(one: EnrolmentIn) -> bool:
        try:
            folder_registry(tmp_path).redeem_invitation(one, NOW, AGGREGATOR)
        except FederationError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(use, wanted))
    assert sum(done) == 1 and registered(tmp_path) == {"north": wanted[done.index(True)].key}


def test_no_file_has_the_code_and_no_words_repeat_it(tmp_path: Path) -> None:
    code, _ = folder_registry(tmp_path).open_invitation("north", 1.0)
    assert not any(code.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert code not in repr(invited("north", code)) and code not in message("north", code).model_dump_json()


def test_who_is_removed_does_not_come_back_by_an_invitation_that_was_not_used(tmp_path: Path) -> None:
    """It was registered by hand, or the process was killed between its key and the end of its invitation."""
    code, _ = folder_registry(tmp_path).open_invitation("north", 365.0)
    register_key("north", new_key().public_key(), tmp_path)
    folder_registry(tmp_path).remove_silo("north")
    with pytest.raises(AuthenticationError):
        folder_registry(tmp_path).redeem_invitation(message("north", code), NOW, AGGREGATOR)


def test_an_invitation_is_withdrawn_by_removing_the_silo(tmp_path: Path) -> None:
    code, _ = folder_registry(tmp_path).open_invitation("north", 1.0)
    folder_registry(tmp_path).remove_silo("north")
    with pytest.raises(AuthenticationError):
        folder_registry(tmp_path).redeem_invitation(message("north", code), NOW, AGGREGATOR)
    with pytest.raises(NotFoundError, match="expected a registered name"):
        folder_registry(tmp_path).remove_silo("north")


def test_only_a_silo_is_removed_not_a_file_elsewhere(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    (tmp_path / INVITED).mkdir()
    with pytest.raises(SettingsError, match="expected a client's name"):
        folder_registry(tmp_path).remove_silo("../other")
    assert other.exists()


@pytest.mark.parametrize("wrong", ["../west", "West", "north"])
def test_where_one_cannot_be_invited_nobody_is(tmp_path: Path, wrong: str) -> None:
    register_key("north", new_key().public_key(), tmp_path / "keys")
    with pytest.raises((SettingsError, ConflictError), match=f"'{wrong}'"):
        write_invitations(small_aggregator(tmp_path), ["south", wrong], None, tmp_path)
    assert [*tmp_path.rglob("*.invite"), *tmp_path.rglob("*.json")] == []
    with pytest.raises((SettingsError, ConflictError), match=f"'{wrong}'"):
        folder_registry(tmp_path / "keys").open_invitation(wrong, 1.0)


async def enrol(http: httpx.AsyncClient, asked: EnrolmentIn) -> httpx.Response:
    return await http.post("/v1/enrolments", json=asked.model_dump())


@pytest.mark.anyio
async def test_over_http_the_operator_invites_and_the_invited_enrols(
    federation: Federate, capfd: pytest.CaptureFixture[str]
) -> None:
    async with federation(1) as running, running.stranger() as stranger:
        asked = {"name": "north"}
        assert (await stranger.post("/v1/invitations", json=asked)).status_code == 401
        answer = await running.operator.post("/v1/invitations", json=asked)
        assert answer.status_code == 201 and answer.headers["cache-control"] == "no-store"
        told, own = answer.json(), new_key()
        code, aggregator = told["code"], told["aggregator"]
        assert told["federation"]["strategy"] == running.settings.strategy and told["members"] == []
        refused = await enrol(stranger, message("north", secrets.token_urlsafe(32), own, aggregator))
        assert refused.status_code == 401
        asked_twice = [message("north", code, own, aggregator) for _ in range(2)]
        for one in asked_twice:
            answer = await enrol(stranger, one)
            assert answer.status_code == 201 and answer.json()["strategy"] == running.settings.strategy
            assert answer.json()["method"] == running.settings.method.model_dump(mode="json")
            sha256 = hashlib.sha256(answer.content).digest()
            believed = public_key(bytes.fromhex(aggregator))
            require_answer(201, answer.headers.items(), sha256, enrolment_digest(one), believed)
            other = next(two for two in asked_twice if two is not one)
            with pytest.raises(UnavailableError):
                require_answer(201, answer.headers.items(), sha256, enrolment_digest(other), believed)
        assert registered(running.settings.registry)["north"] == raw_hex(own.public_key())
        late = message("north", code, None, aggregator)
        answer = await enrol(stranger, late)
        assert answer.status_code == 401  # a refusal is signed as well
        sha256 = hashlib.sha256(answer.content).digest()
        require_answer(401, answer.headers.items(), sha256, enrolment_digest(late), believed)
    said = capfd.readouterr()
    assert code not in said.out + said.err


@pytest.mark.anyio
@pytest.mark.parametrize(
    "wrong", [{"more": 1}, {"name": "../north"}, {"name": ""}, {"proof": "xx"}, {"key": "zz"}, {"code": "c" * 43}]
)
async def test_what_is_no_enrolment_is_refused_and_not_repeated(federation: Federate, wrong: dict[str, Any]) -> None:
    async with federation(1) as running, running.stranger() as stranger:
        content = {**message("north", "c" * 43).model_dump(), **wrong}
        answer = await stranger.post("/v1/enrolments", json=content)
        assert answer.status_code == 422 and "c" * 43 not in answer.text and "zz" not in answer.text
        assert (await stranger.post("/v1/enrolments?x=1", json=content)).status_code == 422
        long = json.dumps({**content, "name": "n" * 2000})
        assert (await stranger.post("/v1/enrolments", content=long, headers=JSON)).status_code == 413
        assert sorted(path.name for path in folder_of(running).rglob("*north*")) == []


def folder_of(running: Federation) -> Path:
    return running.settings.state_directory


@pytest.mark.anyio
async def test_the_operator_removes_a_silo_by_the_route_and_nobody_else_does(federation: Federate) -> None:
    async with federation(1) as running, running.stranger() as stranger:
        told = (await running.operator.post("/v1/invitations", json={"name": "north"})).json()
        asked = message("north", told["code"], None, told["aggregator"])
        assert (await stranger.delete("/v1/enrolments/north")).status_code == 401
        assert (await enrol(stranger, asked)).status_code == 201
        assert (await running.operator.delete("/v1/enrolments/north")).json() == {"name": "north"}
        assert "north" not in registered(running.settings.registry)
        assert (await enrol(stranger, asked)).status_code == 401
        assert (await running.operator.delete("/v1/enrolments/north")).status_code == 404
        assert (await running.operator.delete("/v1/enrolments/NORTH")).status_code == 422


def test_the_command_removes_a_silo_in_a_folder_or_at_an_aggregator(tmp_path: Path) -> None:
    token = tmp_path / "operator.token"
    token.write_text(TOKEN)
    with serve_federation(tmp_path / "served") as served:
        keys = served.settings.registry
        register_key("north", new_key().public_key(), keys)
        asked = ["remove", "north", "--operator-token-file", str(token), "--aggregator-url", served.url]
        assert CliRunner().invoke(app, asked, catch_exceptions=False).output == "north: removed\n"
        assert registered(keys) == {}
        again = CliRunner().invoke(app, asked)
        assert "expected a registered name, got 'north'" in str(again.exception)
    for wrong, got in (([], "neither"), (["--keys", str(keys), "--operator-token-file", str(token)], "both")):
        refused = CliRunner().invoke(app, ["remove", "north", *wrong])
        assert f"expected --keys or --operator-token-file, got {got}" in str(refused.exception)


@pytest.mark.anyio
async def test_the_operator_lists_the_silos_page_by_page_and_nobody_else_does(federation: Federate) -> None:
    async with federation(0) as running, running.stranger() as stranger:
        keys = {f"silo-{number}": new_key().public_key() for number in range(5)}
        for name, key in keys.items():
            register_key(name, key, running.settings.registry)
        (running.settings.registry / "silo-9.pub").write_text("no key")
        assert (await running.operator.post("/v1/invitations", json={"name": "invited"})).status_code == 201
        marks: list[dict[str, str | None]] = [
            *({"name": name, "fingerprint": fingerprint(key)} for name, key in keys.items()),
            {"name": "silo-9", "fingerprint": None},
        ]
        assert (await stranger.get("/v1/enrolments")).status_code == 401
        listed = (await running.operator.get("/v1/enrolments")).json()
        assert listed == {"entries": marks, "total": 6}
        for after, count in (("silo-0", 2), ("silo-3", 3), ("silo-9", 1), ("a", 6)):
            page = await running.operator.get(f"/v1/enrolments?after={after}&limit={count}")
            later = [mark for mark in marks if str(mark["name"]) > after][:count]
            assert page.json() == {"entries": later, "total": 6}
        for wrong in ("limit=0", "limit=1001", "after=SILO", "after=", "more=1"):
            assert (await running.operator.get(f"/v1/enrolments?{wrong}")).status_code == 422


def test_the_command_lists_the_silos_of_an_aggregator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.cli.keys.SILOS_OF_PAGE", 2)
    token = tmp_path / "operator.token"
    token.write_text(TOKEN)
    with serve_federation(tmp_path / "served") as served:
        asked = ["list", "--operator-token-file", str(token), "--aggregator-url", served.url]
        assert json.loads(CliRunner().invoke(app, [*asked, "--json"], catch_exceptions=False).stdout) == []
        keys = {f"silo-{number}": new_key().public_key() for number in range(5)}
        for name, key in keys.items():
            register_key(name, key, served.settings.registry)
        listed = json.loads(CliRunner().invoke(app, [*asked, "--json"], catch_exceptions=False).stdout)
        assert listed == [{"name": name, "fingerprint": fingerprint(key)} for name, key in keys.items()]
        assert all(name in CliRunner().invoke(app, asked, catch_exceptions=False).output for name in keys)
    for wrong, got in (([], "neither"), (["--keys", str(tmp_path), "--operator-token-file", str(token)], "both")):
        refused = CliRunner().invoke(app, ["list", *wrong])
        assert f"expected --keys or --operator-token-file, got {got}" in str(refused.exception)


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ([{"entries": [{"name": "b", "fingerprint": None}, {"name": "a", "fingerprint": None}], "total": 2}], "order"),
        ([{"entries": [{"name": "a", "fingerprint": None}], "total": 1}] * 2, "order"),
        ([{"silos": []}], "another answer"),
        ([{"entries": [{"name": name, "fingerprint": None}], "total": 1} for name in "abcde"], "at most 3"),
    ],
)
def test_pages_that_do_not_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[object], words: str
) -> None:
    given = iter(answers)
    monkeypatch.setattr("simulation.cli.keys.MOST_SILOS", 3)
    monkeypatch.setattr("simulation.operating.operator_calls.call_as_operator", lambda *_: next(given))
    (tmp_path / "token").write_text(TOKEN)
    refused = CliRunner().invoke(app, ["list", "--operator-token-file", str(tmp_path / "token")])
    assert isinstance(refused.exception, ProtocolError) and words in str(refused.exception)
