"""Nobody on the path joins in a silo's place, reads its code, or tells it of another federation.

Who: whoever is between a silo and the aggregator when it joins by plain http, or by a certificate that is believed.
Before, the code itself was sent, and the answer was believed as it came: an impostor registered his own key by it, and
made an open federation of a secure one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from typer.testing import CliRunner, Result

from aggregator_service.app import create_app
from aggregator_service.settings import AggregatorSettings
from shared.errors import ProtocolError, SettingsError, UnavailableError
from shared.method.settings import BasisSettings
from shared.protocol.signing.enrolment import registered_keys, remove_key
from shared.protocol.signing.invitation import EnrolmentIn, enrolment_digest, prove_enrolment, read_invitation
from shared.protocol.signing.keys import new_key, raw_hex
from shared.protocol.signing.responses import sign_answer
from simulation.cli import app
from simulation.joining.invite import write_invitations
from tests.support.serving import serve
from tests.support.small import SMALL, small_aggregator

Change = Callable[[bytes], bytes]
OWN = new_key()
METHOD = SMALL.model_copy(update={"catalogue": 3, "basis": BasisSettings(kind="exact")})


class ManInTheMiddle:
    """Passes on what is said, and changes it as it likes. seen: every byte that it was given."""

    def __init__(self, aggregator: str) -> None:
        self.aggregator, self.seen = aggregator, b""
        self.ask: Change = bytes
        self.answer: Callable[[bytes, Response], Response] = lambda _, given: given
        self.requests: list[bytes] = []
        self.app = FastAPI()
        self.app.post("/{path:path}")(self.pass_on)

    async def pass_on(self, path: str, request: Request) -> Response:
        body = await request.body()
        self.seen += body + repr(request.headers.items()).encode()
        self.requests.append(body)
        async with httpx.AsyncClient(base_url=self.aggregator, trust_env=False) as http:
            headers = {"Content-Type": "application/json"}
            given = await http.post(f"/{path}", content=self.ask(body), headers=headers)
        self.seen += given.content
        signed = {name: given.headers[name] for name in SIGNED if name in given.headers}
        answer = Response(given.content, given.status_code, signed, given.headers["content-type"])
        return self.answer(body, answer)


SIGNED = ("content-digest", "signature-input", "signature")


@pytest.fixture
def settings(tmp_path: Path) -> AggregatorSettings:
    return small_aggregator(tmp_path / "aggregator", method=METHOD, secure=True)


@pytest.fixture
def middle(settings: AggregatorSettings, tmp_path: Path) -> Iterator[ManInTheMiddle]:
    """A man between the silo `north`, whose invitation leads to him, and the aggregator."""
    with serve(create_app(settings)) as aggregator:
        man = ManInTheMiddle(aggregator)
        with serve(man.app) as url:
            write_invitations(settings, ["north", "south", "west"], url, tmp_path)
            yield man


def join(tmp_path: Path, *flags: object) -> Result:
    data = tmp_path / "sales.csv"
    data.write_text(
        "user,item\n" + "".join(f"u{user},i{(user + item) % 5}\n" for user in range(9) for item in range(3))
    )
    words = ("join", tmp_path / "north.invite", "--data", data, "--folder", tmp_path / "north", "--no-start", *flags)
    return CliRunner().invoke(app, [str(word) for word in words])


def names(settings: AggregatorSettings) -> set[str]:
    return set(registered_keys(settings.registry))


def test_who_passes_everything_on_has_not_seen_the_code(
    middle: ManInTheMiddle, settings: AggregatorSettings, tmp_path: Path
) -> None:
    asked = read_invitation(tmp_path / "north.invite")
    assert join(tmp_path).exit_code == 0
    assert names(settings) == {"north"} and middle.requests
    digest = hashlib.sha256(asked.code.encode()).hexdigest()
    assert asked.code.encode() not in middle.seen and digest.encode() not in middle.seen


def swap_key(body: bytes) -> bytes:
    """His own key, signed by it, beside the silo's proof."""
    said = EnrolmentIn.model_validate_json(body)
    return said.model_copy(update={"key": raw_hex(OWN.public_key())}).model_dump_json().encode()


def sign_anew(body: bytes, tmp_path: Path) -> bytes:
    """All of it made anew for his own key, but for the proof, which he has not the code for."""
    guessed = read_invitation(tmp_path / "north.invite").model_copy(update={"code": "c" * 43})
    return (
        prove_enrolment(guessed, OWN).model_copy(update={"proof": json.loads(body)["proof"]}).model_dump_json().encode()
    )


@pytest.mark.parametrize("how", ["swapped", "signed anew"])
def test_no_key_but_the_silo_s_is_registered_by_its_proof(
    middle: ManInTheMiddle, settings: AggregatorSettings, tmp_path: Path, how: str
) -> None:
    middle.ask = swap_key if how == "swapped" else lambda body: sign_anew(body, tmp_path)
    refused = join(tmp_path)
    assert refused.exit_code == 1 and isinstance(refused.exception, UnavailableError)
    assert "another machine answers in its place" in str(refused.exception)
    assert names(settings) == set() and not (tmp_path / "north" / "silo.toml").exists()
    middle.ask = bytes
    assert join(tmp_path).exit_code == 0 and names(settings) == {"north"}  # the code is not used up


def downgrade(content: bytes) -> bytes:
    assert b'"secure":true' in content
    return content.replace(b'"secure":true', b'"secure":false')


def forge(body: bytes, given: Response) -> Response:
    """Another federation, well signed, by a key of his own."""
    content = downgrade(bytes(given.body))
    asked = enrolment_digest(EnrolmentIn.model_validate_json(body))
    signed = sign_answer(given.status_code, hashlib.sha256(content).digest(), asked, OWN, created=1_800_000_000)
    return Response(content, given.status_code, signed, "application/json")


def change(_: bytes, given: Response) -> Response:
    signed = {name: given.headers[name] for name in SIGNED}
    return Response(downgrade(bytes(given.body)), given.status_code, signed, "application/json")


def strip(_: bytes, given: Response) -> Response:
    return Response(downgrade(bytes(given.body)), given.status_code, {}, "application/json")


def refuse(_: bytes, given: Response) -> Response:
    """A refusal of his own: the silo is not to ask for another invitation because of it."""
    problem = {"title": "no", "status": 401, "code": "authentication", "detail": "ask me for another invitation"}
    del given
    return Response(json.dumps(problem), 401, {}, "application/problem+json")


@pytest.mark.parametrize("how", [forge, change, strip, refuse])
def test_no_answer_but_the_aggregator_s_is_believed(middle: ManInTheMiddle, tmp_path: Path, how: Any) -> None:
    middle.answer = how
    refused = join(tmp_path)
    assert refused.exit_code == 1 and isinstance(refused.exception, UnavailableError)
    assert "another invitation" not in str(refused.exception)
    assert not (tmp_path / "north" / "silo.toml").exists()
    middle.answer = lambda _, given: given
    assert join(tmp_path).exit_code == 0
    assert "secure = true" in (tmp_path / "north" / "silo.toml").read_text()


def test_an_earlier_answer_is_not_believed_and_an_earlier_message_registers_nothing(
    middle: ManInTheMiddle, settings: AggregatorSettings, tmp_path: Path
) -> None:
    first: list[Response] = []

    def repeat(_: bytes, given: Response) -> Response:
        first.append(given)
        return first[0]

    middle.answer = repeat
    assert join(tmp_path).exit_code == 0
    (tmp_path / "north" / "silo.toml").unlink()
    assert isinstance(join(tmp_path).exception, UnavailableError)
    remove_key("north", settings.registry)
    said = {"Content-Type": "application/json"}
    again = httpx.post(f"{middle.aggregator}/v1/enrolments", content=middle.requests[0], headers=said, trust_env=False)
    assert again.status_code == 401 and names(settings) == set()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"secure": False}, "secure: expected False, got True"),
        ({"strategy": "fedavg"}, "strategy: expected 'fedavg', got 'lpsfed'"),
        ({"method": SMALL.model_copy(update={"catalogue": 3})}, "method.basis.kind: expected the default, got 'exact'"),
        ({"method": METHOD.model_copy(update={"server": "adam"})}, "method.server: expected 'adam', got the default"),
    ],
)
def test_a_federation_that_is_not_the_invitation_s_is_refused_by_its_field(
    middle: ManInTheMiddle, tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    assert middle.aggregator
    path = tmp_path / "north.invite"
    asked = read_invitation(path)
    assert asked.federation is not None
    other = asked.federation.model_copy(update=changed)
    path.write_text(asked.model_copy(update={"federation": other}).model_dump_json())
    refused = join(tmp_path)
    assert isinstance(refused.exception, ProtocolError) and words in str(refused.exception)
    assert not (tmp_path / "north" / "silo.toml").exists()


def test_an_invitation_of_an_earlier_version_is_taken_and_one_of_a_later_is_refused(
    middle: ManInTheMiddle, tmp_path: Path
) -> None:
    """The first format does not say what the federation is: the aggregator's signature alone does."""
    path = tmp_path / "north.invite"
    first = {
        name: value for name, value in json.loads(path.read_text()).items() if name not in ("federation", "members")
    }
    path.write_text(json.dumps(first | {"format": "lpsfed-invitation/3"}))
    assert "expected an invitation of `lpsfed invite`, got wrong fields: format; ask" in str(join(tmp_path).exception)
    path.write_text(json.dumps(first | {"format": "lpsfed-invitation/2"}))  # cut down by whoever handed it over
    assert isinstance(join(tmp_path).exception, SettingsError)
    path.write_text(json.dumps(first | {"format": "lpsfed-invitation/1"}))
    middle.answer = change
    assert isinstance(join(tmp_path).exception, UnavailableError)
    middle.answer = lambda _, given: given
    assert join(tmp_path).exit_code == 0
    assert "secure = true" in (tmp_path / "north" / "silo.toml").read_text()


@pytest.mark.parametrize("secure", [False, True])
def test_plain_http_beyond_this_machine_needs_a_word_and_is_never_secure(tmp_path: Path, secure: bool) -> None:
    far, settings = "http://aggregator.example.org", small_aggregator(tmp_path / "aggregator", secure=secure)
    write_invitations(settings, ["north"], far, tmp_path)
    refused = join(tmp_path)
    assert isinstance(refused.exception, SettingsError) and not (tmp_path / "north").exists()
    words = "in a secure federation" if secure else "add --allow-http if the network is trusted"
    assert words in str(refused.exception)
    if secure:
        assert words in str(join(tmp_path, "--allow-http").exception)
    token = tmp_path / "token"
    token.write_text(settings.token())
    invite = ("invite", "west", "--url", far, "--operator-token-file", str(token))
    assert "add --allow-http if the network is trusted" in str(CliRunner().invoke(app, invite).exception)
    own = ("aggregator", "--state-directory", str(tmp_path / "aggregator"), "--invite", "west", "--url", far)
    assert "add --allow-http if the network is trusted" in str(CliRunner().invoke(app, own).exception)
    assert not Path("west.invite").exists()
