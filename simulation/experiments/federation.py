"""Driver of one run in a running federation, through the public API alone.

The federation is in this process or on loopback.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, TypeAdapter

from client_service.federation.messages import QualityOut, StatusOut
from shared.errors import FederationError, UnavailableError
from shared.method.declaration import TRAINING, Part
from shared.protocol.schemas import RunHistoryOut, RunIn
from shared.sums import list_sums, makes_models, method_of_part
from shared.sums.sum import BASIS

Answer = TypeVar("Answer", bound=BaseModel)
POLL_SECONDS = 0.2
ENDED_WITHOUT_RESULT = ("failed", "cancelled")
AFTERMATH_SECONDS = 1800.0  # for the clients' last evaluation, after the aggregator has ended the run


@dataclass(frozen=True)
class Federation:
    """Connections to the services as their operators: the aggregator, and each client.

    admit: starts the clients that join after a run, and returns the connections to them.
    """

    operator: httpx.AsyncClient
    clients: Mapping[str, httpx.AsyncClient]
    admit: Callable[[], Awaitable[Mapping[str, httpx.AsyncClient]]] | None = None


@dataclass(frozen=True)
class Progress:
    """Progress of each client, for a progress bar."""

    statuses: Mapping[str, StatusOut]
    rounds: int
    seconds: float
    part: Part = "training"


class Outcome(BaseModel):
    """Result of a run: the operator's history and each silo's own figures.

    silo_seconds: of the processor for the silos' own work; None with services, which do not tell it. round_seconds:
    of each round by the clock, without services.
    """

    model_config = ConfigDict(frozen=True)

    history: RunHistoryOut
    qualities: dict[str, QualityOut]
    statuses: dict[str, StatusOut]
    seconds: float
    silo_seconds: float | None = None
    round_seconds: tuple[float, ...] = ()


Observe = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """Ignores progress, for a run without a bar."""
    del progress


async def execute_run(federation: Federation, request: RunIn, observe: Observe, *, resume: bool = False) -> Outcome:
    """Starts a run and waits until every client has evaluated it.

    Runs that sum, where none like that has finished yet, come before it, in the order of the registry. `resume`: follow
    the run that an earlier process has started by the same request, unless it failed or was cancelled. Raises
    FederationError with the reason when the run fails.
    """
    began = time.perf_counter()
    for part in list_sums(request.method):
        if not await _has_sums(federation, _of_part(request, part)):
            await sum_statistics(federation, request, observe, part, resume=resume)
    if request.method.strategy.get("send", True) in (False, "false"):  # each silo has made its model of the sums
        made = (part for part, one in list_sums(request.method).items() if makes_models(one, request.method))
        run = (await _list_sums_like(federation, _of_part(request, next(made, BASIS))))[-1]
    else:
        run = await _start_run(federation, _of_part(request, TRAINING), resume=resume)
    return await _follow_run(federation, run, observe, began)


async def admit_late_clients(federation: Federation, held: Outcome, observe: Observe) -> Outcome:
    """Lets late clients join after a run, and waits for their evaluation."""
    assert federation.admit is not None, "expected a federation with clients that come late"
    began = time.perf_counter()
    newcomers = replace(federation, clients=await federation.admit())
    found = await _follow_run(newcomers, held.history, observe, began)
    return held.model_copy(
        update={
            "qualities": held.qualities | found.qualities,
            "statuses": held.statuses | found.statuses,
            "seconds": held.seconds + found.seconds,
        }
    )


async def _follow_run(federation: Federation, run: RunHistoryOut, observe: Observe, began: float) -> Outcome:
    """Waits until every client has evaluated the run.

    began: start of its work by the performance counter.
    """
    ended: float | None = None
    while True:
        statuses = await _fetch_from_clients(federation, "/v1/status", StatusOut)
        observe(Progress(statuses, run.request.rounds, time.perf_counter() - began))
        qualities = await _fetch_from_clients(federation, "/v1/quality", QualityOut)
        if all(quality.run == run.run and quality.finished for quality in qualities.values()):
            break
        ended = await _watch_aggregator(federation, run.run, statuses, ended)
        await asyncio.sleep(POLL_SECONDS)
    statuses = await _fetch_from_clients(federation, "/v1/status", StatusOut)  # those of before may lack the last round
    history = await _fetch_history(federation, run.run)
    _require_result(history)
    return Outcome(history=history, qualities=qualities, statuses=statuses, seconds=time.perf_counter() - began)


def _of_part(request: RunIn, part: Part) -> RunIn:
    """Derives the request of a run of this part from that of a training run."""
    start = {} if part == TRAINING else {"start": None}
    return request.model_copy(update={"part": part, "method": method_of_part(request.method, part), **start})


async def _has_sums(federation: Federation, request: RunIn) -> bool:
    return bool(await _list_sums_like(federation, request))


async def _list_sums_like(federation: Federation, request: RunIn) -> list[RunHistoryOut]:
    """Lists the finished runs that summed the same as this request, oldest first."""
    answer = await _fetch_answer(federation.operator, "GET", "/v1/runs")
    histories = TypeAdapter(list[RunHistoryOut]).validate_python(answer)
    asked = request.method.basis, request.method.catalogue
    summed = (one for one in histories if one.request.part == request.part and one.phase == "finished")
    return [one for one in summed if (one.request.method.basis, one.request.method.catalogue) == asked]


async def sum_statistics(
    federation: Federation, request: RunIn, observe: Observe, part: Part = BASIS, *, resume: bool = False
) -> RunHistoryOut:
    """Runs a sum before a training run, and waits until every client has stored it."""
    began = time.perf_counter()
    run = await _start_run(federation, _of_part(request, part), resume=resume)
    ended: float | None = None
    while True:
        statuses = await _fetch_from_clients(federation, "/v1/status", StatusOut)
        observe(Progress(statuses, run.request.rounds, time.perf_counter() - began, part))
        if all((status.run, status.phase) == (run.run, "finished") for status in statuses.values()):
            return await _fetch_history(federation, run.run)
        ended = await _watch_aggregator(federation, run.run, statuses, ended)
        await asyncio.sleep(POLL_SECONDS)


async def _start_run(federation: Federation, request: RunIn, *, resume: bool) -> RunHistoryOut:
    if resume and (found := await _find_resumable_run(federation, request)) is not None:
        return found
    answer = await _fetch_answer(federation.operator, "POST", "/v1/runs", request.model_dump_json())
    return RunHistoryOut.model_validate(answer)


async def _find_resumable_run(federation: Federation, request: RunIn) -> RunHistoryOut | None:
    """Finds the newest run by this request that is active or finished.

    Settings that the aggregator decides may differ.
    """
    answer, asked = await _fetch_answer(federation.operator, "GET", "/v1/runs"), _comparable_request(request)
    histories = TypeAdapter(list[RunHistoryOut]).validate_python(answer)
    alike = [
        one for one in histories if one.phase not in ENDED_WITHOUT_RESULT and _comparable_request(one.request) == asked
    ]
    return alike[-1] if alike else None


def _comparable_request(request: RunIn) -> dict[str, object]:
    settled = {"basis", "items", "start", "deadline_seconds", "why"} | (
        {"rounds"} if request.part != TRAINING else set()
    )
    return request.model_dump(mode="json", exclude=settled)


async def _watch_aggregator(
    federation: Federation, run: str, statuses: Mapping[str, StatusOut], ended: float | None
) -> float | None:
    """Returns the time at which the aggregator finished the run, or None.

    Raises FederationError if the run has failed, UnavailableError if the clients do not finish their evaluation
    in time.
    """
    history = await _fetch_history(federation, run)
    problems = sorted({f"{name}: {status.problem}" for name, status in statuses.items() if status.problem})
    _require_result(history, problems)
    if history.phase != "finished":
        return None
    since = time.monotonic() if ended is None else ended
    if time.monotonic() - since > AFTERMATH_SECONDS:
        raise UnavailableError(
            "; ".join([f"expected the clients to finish their evaluation within {AFTERMATH_SECONDS:g} s", *problems])
        )
    return since


def _require_result(history: RunHistoryOut, problems: Sequence[str] = ()) -> None:
    """Raises FederationError for a run that ended without a result."""
    if history.phase in ENDED_WITHOUT_RESULT:
        ended = "was cancelled" if history.phase == "cancelled" else f"failed: {history.reason}"
        raise FederationError("; ".join([f"the run {ended}", *problems]))


async def _fetch_from_clients(federation: Federation, path: str, kind: type[Answer]) -> dict[str, Answer]:
    """Fetches every client's answer to GET `path`, by name."""
    answers = await asyncio.gather(*(_fetch_answer(http, "GET", path) for http in federation.clients.values()))
    return {name: kind.model_validate(answer) for name, answer in zip(federation.clients, answers, strict=True)}


async def _fetch_history(federation: Federation, run: str) -> RunHistoryOut:
    return RunHistoryOut.model_validate(await _fetch_answer(federation.operator, "GET", f"/v1/runs/{run}"))


async def _fetch_answer(http: httpx.AsyncClient, method: str, path: str, body: str | None = None) -> object:
    headers = {} if body is None else {"Content-Type": "application/json"}
    try:
        answer = await http.request(method, path, content=body, headers=headers)
    except httpx.TransportError as error:
        raise UnavailableError(f"{http.base_url}: expected a running service, got {type(error).__name__}") from None
    if not answer.is_success:
        raise FederationError(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
    return answer.json()
