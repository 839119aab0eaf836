"""Commands of a silo's own operator for a running client: refresh shard and model, choose among models."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer

from client_service.schemas import ModelsOut, RefreshOut
from shared.errors import FederationError
from shared.web.calling import Calling
from shared.words import count_noun
from simulation.cli import options
from simulation.console import ERR, OUT
from simulation.operator_calls import Operator, call_as_operator, open_operator

Url = Annotated[str, typer.Option("--client-url", help="of the client")]
OperatorKey = Annotated[Path, typer.Option(help="whose content is the silo's operator key")]
LOOK_SECONDS = 0.2


@contextmanager
def _open_silo(url: str, key_file: Path, ca: Path | None) -> Iterator[Operator]:
    with open_operator(url, key_file, Calling(ca), whom="client") as operator:
        yield operator


def refresh(
    operator_key_file: OperatorKey,
    client_url: Url = "http://127.0.0.1:8801",
    ca: options.Authority = None,
    wait: Annotated[bool, typer.Option(help="until it is done")] = True,
    as_json: options.AsJson = False,
) -> None:
    """Let a client's shard absorb what applications have posted, and compute its model anew. During a run it waits for
    the end of the round."""
    with _open_silo(client_url, operator_key_file, ca) as silo:
        standing = RefreshOut.model_validate(call_as_operator(silo, "POST", "/v1/refresh"))
        if wait:
            with ERR.status("waiting for the refresh"):
                standing = _wait_for_refresh(silo)
    if as_json:
        options.print_json(standing.model_dump(mode="json", exclude_none=True))
    else:
        OUT.print(_describe_refresh(standing), highlight=False, soft_wrap=True)
    if standing.problem is not None:
        raise FederationError(f"the shard was not refreshed: {standing.problem}")


def models(
    operator_key_file: OperatorKey,
    client_url: Url = "http://127.0.0.1:8801",
    serve: Annotated[str | None, typer.Option(help="the version that answers from now on")] = None,
    ca: options.Authority = None,
    as_json: options.AsJson = False,
) -> None:
    """List the models that a client keeps, or roll back to an earlier one. It answers until a run has one that
    validation prefers."""
    with _open_silo(client_url, operator_key_file, ca) as silo:
        call = ("GET", "/v1/models") if serve is None else ("POST", f"/v1/models/{quote(serve, safe='')}/serve")
        kept = ModelsOut.model_validate(call_as_operator(silo, *call))
    if as_json:
        return options.print_json(kept.model_dump(mode="json"))
    for one in kept.models:
        values = ", ".join(f"{name} {value:.4f}" for name, value in one.values.items())
        earlier = "" if one.present_shard else "  (of the shard before a refresh)"
        served = "*" if one.served else " "
        OUT.print(f"{served} {one.version:<16} {values}{earlier}", highlight=False, soft_wrap=True)


def _wait_for_refresh(silo: Operator) -> RefreshOut:
    while True:
        standing = RefreshOut.model_validate(call_as_operator(silo, "GET", "/v1/refresh"))
        if standing.phase == "idle":
            return standing
        time.sleep(LOOK_SECONDS)


def _describe_refresh(standing: RefreshOut) -> str:
    if standing.phase != "idle" or standing.problem is not None:
        return f"refresh: {standing.phase}"
    if not standing.changed:
        return "nothing has happened since the shard was written: nothing is changed"
    waiting = f"; {count_noun(standing.waiting, 'interaction')} wait for the catalogue" if standing.waiting else ""
    answers = standing.model or "popular items"
    return f"the shard is refreshed after {standing.seconds or 0.0:.1f} s; {answers} answers{waiting}"
