"""Calls made from both services' own OpenAPI documents: whoever calls, no mistake of ours, and answers as described."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import requests
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from requests.auth import AuthBase
from requests.structures import CaseInsensitiveDict
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from aggregator_service.app import create_app as create_aggregator
from client_service.app import create_app as create_client
from client_service.settings import ClientSettings
from shared.protocol.request_heads import CONSTANT, WORDS, replace_library_headers
from shared.protocol.schemas import JoinIn
from shared.protocol.signing.enrolment import enrol_client
from shared.protocol.signing.events import CHANGES
from shared.protocol.signing.keys import read_private
from shared.protocol.signing.requests import NONCE_BYTES, RequestTarget, Signatory, sign_request
from shared.protocol.wire import MEDIA_TYPE
from simulation.experiments.experiment import Experiment
from tests.support.questions import LONGEST_SECONDS
from tests.support.visits import session_silo

if TYPE_CHECKING:
    from conftest import Served

schemathesis.serializer.alias(MEDIA_TYPE, "application/octet-stream")
# schemathesis, while it makes wrong calls
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)
Described = Callable[..., Experiment]
FEW, MANY = 3, 60  # calls of one operation by one caller
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
REAL = {  # in a path
    "run": "run-1",
    "number": 1,
    "client": "client-1",
    "user": "user-01",
    "item": "item-01",
    "node": "node-01",
    "receipt": "0" * 32,
    "version": "run-1.1",
}


def callers(always: str, **statuses: set[int]) -> Any:
    """Each caller of a service with what it must be told at least: many calls for `make faults`, few of one caller."""
    cases = [pytest.param(who, found, MANY, marks=pytest.mark.slow) for who, found in statuses.items()]
    return pytest.mark.parametrize(("who", "statuses", "examples"), [(always, statuses[always], FEW), *cases])


class Bearer(AuthBase):
    """A secret, as the operator's calls and the applications' carry it."""

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {self._secret}"
        return request


class Signing(AuthBase):
    """A registered client's signature of whatever is about to leave."""

    def __init__(self, signatory: Signatory) -> None:
        self._signatory = signatory

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        body = request.body or b""
        target = RequestTarget.of(str(request.method), request.path_url.encode("ascii"))
        content = body.encode() if isinstance(body, str) else body
        nonce = secrets.token_hex(NONCE_BYTES)
        signed = sign_request(target, content, self._signatory, created=int(time.time()), nonce=nonce)
        said = dict(replace_library_headers([(name, str(value)) for name, value in request.headers.items()]))
        kept = {name: value for name, value in said.items() if name in WORDS}
        request.headers = CaseInsensitiveDict(CONSTANT | kept | signed)
        return request


@dataclass
class Calls:
    """Those of one caller: the statuses that were answered, and what was wrong with answers."""

    url: str
    auth: AuthBase | None
    examples: int
    statuses: set[int] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    def of(self, app: FastAPI) -> Calls:
        """Call every operation of the app's document, as it says and otherwise."""
        with requests.Session() as session:
            session.trust_env = False
            for result in schemathesis.openapi.from_dict(app.openapi()).get_all_operations():
                if result.ok().path == CHANGES:  # its answer does not end: tests/service/aggregator_service/http
                    continue
                for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                    with suppress(Unsatisfiable):  # nothing is declared of it that a call could say otherwise
                        self._try(result.ok(), mode, session)
        return self

    def _try(self, operation: Any, mode: GenerationMode, session: requests.Session) -> None:
        phases, checks = [Phase.generate], list(HealthCheck)

        @settings(
            max_examples=self.examples, deadline=None, derandomize=True, phases=phases, suppress_health_check=checks
        )
        @given(case=operation.as_strategy(generation_mode=mode), real=st.booleans())
        def call(case: Case, real: bool) -> None:
            if real:
                case.path_parameters |= {name: REAL[name] for name in case.path_parameters}
            if isinstance(case.query.get("wait"), int | float):
                case.query["wait"] = 0  # of a long poll the answer, and not the time, is at stake
            case.headers = {}  # what is generated there is no part of what is described
            answer = case.call(base_url=self.url, session=session, auth=self.auth, timeout=LONGEST_SECONDS)
            self.statuses.add(answer.status_code)
            try:
                case.validate_response(answer, checks=CHECKS)
            except FailureGroup as group:  # not raised: what was answered once need not be answered again
                self.faults += [f"{operation.label}, {answer.status_code}: {fault}" for fault in group.exceptions]

        call()


@pytest.fixture
def aggregator(experiment: Described, served: Served) -> Iterator[tuple[str, FastAPI, dict[str, AuthBase | None]]]:
    """It has one client, whose run is open; its address, itself, and those who call."""
    described = experiment("described")
    app = create_aggregator(
        described.make_aggregator_settings().model_copy(update={"quarantine_refusals": 0})
    )  # it refuses many
    folder = described.folder / "client-1"
    pair = enrol_client("client-1", folder, described.registry)
    signing = Signing(Signatory("client-1", read_private(pair.private)))
    operator = Bearer(described.token)
    with served(app, None, app.state.coordinator.wind_down) as url:
        join = JoinIn(client="client-1", declaration=described.make_aggregator_settings().declaration())
        headers = {"Content-Type": "application/json"}
        done = requests.post(
            f"{url}/v1/clients", data=join.model_dump_json(), headers=headers, auth=signing, timeout=LONGEST_SECONDS
        )
        assert done.status_code == 200, done.text
        request = described.run_request().model_copy(update={"clients": 1})
        run = requests.post(
            f"{url}/v1/runs", data=request.model_dump_json(), headers=headers, auth=operator, timeout=LONGEST_SECONDS
        )
        assert run.status_code == 201, run.text
        yield url, app, {"nobody": None, "client": signing, "operator": operator}


@callers("client", nobody={200, 401}, client={200, 403, 404, 422}, operator={200, 401, 422})
def test_the_aggregator_answers_as_it_says(aggregator: Any, who: str, statuses: set[int], examples: int) -> None:
    url, app, callers = aggregator
    found = Calls(url, callers[who], examples).of(app)
    assert found.faults == []
    assert found.statuses >= statuses


@callers("operator", nobody={200, 401}, application={200, 403, 422}, operator={200, 403, 422})
def test_a_client_answers_as_it_says(
    experiment: Described, served: Served, who: str, statuses: set[int], examples: int
) -> None:
    described = experiment("described")
    settings = described.make_client_settings(described.shards[0], aggregator_url="http://127.0.0.1:9")
    own = {"application": described.application_key, "operator": described.operator_key}
    require_described(settings, served, own.get(who), statuses, examples)


@callers("application", nobody={200, 401}, application={200, 403, 409, 422}, operator={200, 403, 409, 422})
def test_a_client_of_sessions_answers_as_it_says(
    tmp_path: Path, served: Served, who: str, statuses: set[int], examples: int
) -> None:
    own = {name: secrets.token_hex(32) for name in ("application", "operator")}
    settings = session_silo(tmp_path, application_key=own["application"], operator_key=own["operator"])
    require_described(settings, served, own.get(who), statuses, examples)


def require_described(
    settings: ClientSettings, served: Served, key: str | None, statuses: set[int], examples: int
) -> None:
    """A silo's answers to whoever has this key are those of its document, these statuses among them."""
    app = create_client(settings)
    with served(app) as url:
        assert httpx.get(f"{url}/health/ready", trust_env=False).status_code == 200
        found = Calls(url, None if key is None else Bearer(key), examples).of(app)
    assert found.faults == []
    assert found.statuses >= statuses
