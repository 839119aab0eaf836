"""HTTP calls of a client to its aggregator.

Nothing else in the client makes a call to the outside.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from client_service.boundary.change_stream import ChangeStream
from client_service.boundary.event_stream import EventStream
from client_service.boundary.gate import Boundary, GateTransport, Traffic
from client_service.boundary.ledger import Ledger
from client_service.boundary.retry_schedule import RetrySchedule, read_retry_after
from shared import errors
from shared.method.declaration import Counts, Declaration, Part
from shared.method.parameters import Parameters
from shared.protocol.lengths import longest_head
from shared.protocol.masked_wire import declare_answer
from shared.protocol.request_heads import USER_AGENT
from shared.protocol.schemas import AnchorOut, JoinIn, JoinOut, ReceiptOut, RunOut
from shared.protocol.secure.messages import ClientMessage
from shared.protocol.signing.events import CHANGES, OFFER
from shared.protocol.signing.keys import PrivateKey, PublicKey
from shared.protocol.wire import MEDIA_TYPE, decode_body, require_content, require_short_head
from shared.timeouts import ATTEMPTS, RETRY_SECONDS, CallLimits
from shared.web.outgoing import describe_call_failure

Model = TypeVar("Model", bound=BaseModel)
NO_QUERY: Mapping[str, str] = {}
OWN_HEADERS = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity"}
CURRENT = "/v1/runs/current"
SHORT_WAIT = 1.0  # seconds of a first poll, before a client waits by its stream: most answers come sooner
RETRYABLE = (httpx.codes.REQUEST_TIMEOUT, httpx.codes.TOO_MANY_REQUESTS)  # refusals of this moment alone
ERROR_OF_CODE: dict[str, type[errors.FederationError]] = {
    kind.code: kind
    for kind in (
        errors.AuthenticationError,
        errors.ClockError,
        errors.ConflictError,
        errors.DigestError,
        errors.ForbiddenError,
        errors.NotFoundError,
        errors.ProtocolError,
        errors.QuarantinedError,
        errors.ReplayError,
        errors.RoundClosedError,
        errors.TooLargeError,
    )
}


class _RetryableError(Exception):
    """Failure of a call that is worth another attempt.

    The connection failed, the aggregator is not ready, or a proxy has sent a request twice and passed on the answer
    to the second. retry_after: seconds that the answer asks to wait.
    """

    def __init__(self, error: errors.FederationError, retry_after: float | None = None) -> None:
        self.error, self.retry_after = error, retry_after


class Aggregator:
    """Client of the aggregator's API.

    Every answer without success becomes an error of `shared.errors`. changes: the stream of the federation's changes;
    where it is held, all waits are made by it.
    """

    def __init__(
        self,
        gate: GateTransport,
        ledger: Ledger,
        limits: CallLimits,
        traffic: Traffic,
        schedule: RetrySchedule,
    ) -> None:
        self._ledger, self._limits = ledger, limits
        self.gate, self.traffic, self.schedule = gate, traffic, schedule
        self._client, self._declaration = gate.boundary.client, gate.boundary.declaration
        self._url = str(gate.boundary.aggregator).rstrip("/")
        self.changes = ChangeStream(self.open_stream, schedule)

    async def join(self, declaration: Declaration, counts: Counts | None) -> JoinOut:
        """Joins the federation with the client's declaration and counts.

        Raises DataError if the aggregator has accepted an update that the ledger does not know.
        """
        message = JoinIn(client=self._client, declaration=declaration, counts=counts)
        joined = _parse(JoinOut, await self._send("POST", "/v1/clients", message))
        require_known_update(self._ledger, joined.nonce)
        return joined

    async def fetch_run(self, after: int | None, wait: float) -> RunOut:
        answer = await self._poll(CURRENT, wait, {} if after is None else {"after": str(after)})
        self.changes.is_offered = answer.headers.get("link") == OFFER["Link"]
        state = _parse(RunOut, answer)
        if state.sequence == after:
            self.schedule.record_answer(CURRENT, news=False)
        return state

    async def open_stream(self, after: int) -> EventStream:
        """Opens the stream of the federation's changes after one that is known.

        It is tried once, since polls can take its place.
        """
        await self.schedule.wait_turn(CHANGES)
        limits = httpx.Timeout(self._limits.timeout, read=None)  # the stream has its own limit
        request = self._build_request("GET", CHANGES, {"after": str(after)}, timeout=limits)
        try:
            answer = await self.gate.open_stream(request)
        except httpx.TransportError as lost:
            raise _unreachable(lost, request) from None
        if isinstance(answer, httpx.Response):
            raise _read_error(answer)
        return answer

    async def fetch_model(self, run: str) -> Parameters:
        return self._parse_parameters("training", await self._call("GET", f"/v1/runs/{run}/model"))

    async def fetch_anchor(self, run: str, number: int) -> AnchorOut:
        """Fetches K^R (Eq. 6) of a round, as the aggregator states it."""
        return _parse(AnchorOut, await self._call("GET", f"/v1/runs/{run}/rounds/{number}/anchor"))

    async def upload(self, run: str, number: int, body: bytes) -> ReceiptOut:
        headers = {"Content-Type": MEDIA_TYPE}
        answer = await self._call("PUT", f"{self._client_path(run, number)}/update", content=body, headers=headers)
        self.schedule.reset_bursts()
        return _parse(ReceiptOut, answer)

    async def fetch_personalised(
        self, run: str, number: int, wait: float, part: Part = "training"
    ) -> Parameters | None:
        """Fetches this client's parameters after a round; None if the wait ends first.

        part: which part of the federation's work the run does.
        """
        answer = await self._wait_for(f"{self._client_path(run, number)}/personalized", wait)
        return None if answer.status_code == httpx.codes.NO_CONTENT else self._parse_parameters(part, answer)

    async def send_message(self, call: str, message: ClientMessage) -> None:
        """Sends a message of a secure round, which the aggregator passes to the other clients."""
        await self._send("PUT", f"{self._client_path(message.run, message.round)}/{call}", message)

    async def exchange_message(
        self, call: str, message: ClientMessage, model: type[Model], wait: float
    ) -> Model | None:
        """Sends a message of a secure round, and waits for the result of its phase.

        None if the wait ends first: `fetch_message` brings it then.
        """
        wait = wait if self.changes.sequence is None else min(wait, SHORT_WAIT)
        path = f"{self._client_path(message.run, message.round)}/{call}"
        answer = await self._send("PUT", path, message, wait)
        return None if answer.status_code == httpx.codes.NO_CONTENT else _parse(model, answer)

    async def fetch_message(self, call: str, model: type[Model], run: str, number: int, wait: float) -> Model | None:
        """Fetches the other clients' messages of a secure round; None if the wait ends first."""
        answer = await self._wait_for(f"{self._client_path(run, number)}/{call}", wait)
        return None if answer.status_code == httpx.codes.NO_CONTENT else _parse(model, answer)

    def _parse_parameters(self, part: Part, answer: httpx.Response) -> Parameters:
        """Decodes parameters of an answer and checks them against the declaration.

        They must be what this client shares, with the scalars that its strategy returns: the aggregator may overwrite
        nothing else in the model.
        """
        expected = declare_answer(self._declaration.of_part(part))
        require_short_head(answer.content, longest_head(expected))
        specification, content = decode_body(answer.content)
        require_content(expected, specification, content)
        return content

    async def _send(self, method: str, path: str, message: BaseModel, wait: float | None = None) -> httpx.Response:
        """Sends a message; wait: seconds for which the aggregator may hold the call."""
        body, headers = message.model_dump_json().encode(), {"Content-Type": "application/json"}
        params = NO_QUERY if wait is None else {"wait": f"{wait:g}"}
        return await self._call(method, path, wait=wait or 0.0, params=params, content=body, headers=headers)

    async def _wait_for(self, path: str, wait: float) -> httpx.Response:
        """Polls shortly, and waits for a change by the stream if nothing is there.

        Whatever the answer waits for is a change with a number of its own; the known one is that before the poll.
        Without a stream the poll is a long one.
        """
        known = self.changes.sequence
        answer = await self._poll(path, wait if known is None else min(wait, SHORT_WAIT))
        if known is not None and answer.status_code == httpx.codes.NO_CONTENT:
            await self.changes.wait_for_change(known, wait - SHORT_WAIT)
        return answer

    async def _poll(self, path: str, wait: float, more: Mapping[str, str] = NO_QUERY) -> httpx.Response:
        """Sends a request that the aggregator may hold until there is news."""
        return await self._call("GET", path, params={"wait": f"{wait:g}", **more}, wait=wait)

    def _client_path(self, run: str, number: int) -> str:
        return f"/v1/runs/{run}/rounds/{number}/clients/{self._client}"

    async def _call(self, method: str, path: str, *, wait: float = 0.0, **what: object) -> httpx.Response:
        """Makes a call in its turn, and repeats it after temporary failures.

        Each repetition has a new signature. None begins more than `RETRY_SECONDS` after the first call: the error is
        raised, and the caller waits.
        """
        await self.schedule.wait_turn(path)
        last = self.schedule.clock() + RETRY_SECONDS
        limits = httpx.Timeout(self._limits.timeout, read=self._limits.timeout + wait)
        for left in reversed(range(ATTEMPTS)):
            try:
                return await self._attempt(method, path, timeout=limits, **what)
            except _RetryableError as failed:
                pause = self.schedule.record_failed_call(failed.retry_after)
                if not left or self.schedule.clock() + pause > last:
                    raise failed.error from None
            await self.schedule.wait_turn(path)
        raise AssertionError("the last attempt ends by returning or raising")

    def _build_request(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] = NO_QUERY,
        *,
        timeout: httpx.Timeout,
        headers: Mapping[str, str] = NO_QUERY,
        content: bytes | None = None,
    ) -> httpx.Request:
        """Builds a request; `httpx.AsyncClient` would join and parse its URL anew, and look for cookies."""
        query = "&".join(f"{name}={value}" for name, value in params.items())
        url = _parse_url(f"{self._url}{path}?{query}" if query else self._url + path)
        extensions = {"timeout": timeout.as_dict()}
        return httpx.Request(method, url, headers={**OWN_HEADERS, **headers}, content=content, extensions=extensions)

    async def _attempt(self, method: str, path: str, **what: object) -> httpx.Response:
        request = self._build_request(method, path, **what)  # type: ignore[arg-type]
        try:
            answer = await self.gate.handle_async_request(request)
        except httpx.TransportError as lost:
            raise _RetryableError(_unreachable(lost, request)) from None
        except errors.UnavailableError as stranger:  # an answer that is not the aggregator's own
            raise _RetryableError(stranger) from None
        error = None if answer.is_success else _read_error(answer)
        if isinstance(error, errors.ReplayError | errors.UnavailableError):
            raise _RetryableError(error, read_retry_after(answer))
        self.schedule.record_answer(path, news=answer.is_success and answer.status_code != httpx.codes.NO_CONTENT)
        if error is not None:
            raise error
        return answer


@asynccontextmanager
async def connect(
    boundary: Boundary,
    ledger: Ledger,
    key: PrivateKey,
    *,
    limits: CallLimits,
    inner: httpx.AsyncBaseTransport,
    trusted_key: Callable[[str], PublicKey] | None = None,
    schedule: RetrySchedule | None = None,
) -> AsyncIterator[Aggregator]:
    """Opens the gate, the only way out of a client.

    It follows no redirect, keeps no cookie and ignores proxies of the environment. trusted_key: returns the key that an
    answer must be signed with, for the key that it names; None: any answer is trusted. schedule: by default the one of
    the limits.
    """
    transport = GateTransport(inner, boundary, ledger, key, call_seconds=limits.call, trusted_key=trusted_key)
    async with transport:
        found = Aggregator(transport, ledger, limits, transport.traffic, schedule or RetrySchedule(limits.poll))
        try:
            yield found
        finally:
            await found.changes.close()


def require_known_update(ledger: Ledger, nonce: str | None) -> None:
    """Checks that the ledger has the last update that the aggregator accepted.

    An entry that states that the update was given up counts too. Raises DataError otherwise. A state directory that
    was restored from an older copy agrees with itself: only the aggregator can tell that it is old.
    """
    if nonce is not None and not ledger.knows_nonce(nonce):
        raise errors.DataError(
            f"the ledger: expected the entry {nonce} of the last update that the aggregator accepted, got none: the"
            " state directory is an older copy; put back the newest, or give the entry up (lpsfed ledger adopt)"
        )


@lru_cache(maxsize=64)  # a client asks the same again and again
def _parse_url(url: str) -> httpx.URL:
    return httpx.URL(url)


def _unreachable(lost: httpx.TransportError, request: httpx.Request) -> errors.UnavailableError:
    lost.request = request  # the words depend on whether it went by TLS
    return errors.UnavailableError(f"the aggregator cannot be reached: {describe_call_failure(lost)}")


def _parse(model: type[Model], answer: httpx.Response) -> Model:
    try:
        return model.model_validate_json(answer.content)
    except ValidationError:
        raise errors.ProtocolError(f"expected {model.__name__} from the aggregator, got another message") from None


def _read_error(answer: httpx.Response) -> errors.FederationError:
    """Returns the error that a problem document names by its code."""
    try:
        problem = answer.json()
        code, detail = str(problem["code"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        code, detail = "", f"status {answer.status_code} without a problem document"
    if answer.status_code >= 500 or answer.status_code in RETRYABLE:
        return errors.UnavailableError(f"the aggregator answered: {detail}")
    return ERROR_OF_CODE.get(code, errors.ProtocolError)(f"the aggregator answered: {detail}")
