"""Commands of a silo's operator for a running client: refresh, models."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import FederationError, SettingsError
from shared.words import count_noun
from simulation.cli import options
from simulation.progress import step
from simulation.reports.terminal import OUT

if TYPE_CHECKING:
    from lpsfed import Client, ShardRefresh

Settings = Annotated[
    Path | None, typer.Option("--silo", help="The silo's settings, for its address and key (default: ./silo.toml)")
]
Url = Annotated[str | None, typer.Option("--client-url", help="URL of the client (default: by the silo's settings)")]
OperatorKey = Annotated[
    Path | None, typer.Option(help="File with the silo's operator key (default: by the silo's settings)")
]
OWN_SETTINGS = Path("silo.toml")
POLL_SECONDS = 0.2


@contextmanager
def _open_as_operator(
    settings: Path | None, url: str | None, key_file: Path | None, ca: Path | None
) -> Iterator[Client]:
    from simulation.operating.silo_client import open_silo, read_silo_address

    own = settings or (OWN_SETTINGS if OWN_SETTINGS.is_file() else None)
    address = read_silo_address(own, "operator_key_file").change(url, key_file, None)
    if address.key_file is None:
        raise SettingsError(
            "--silo: expected the settings of a silo with an operator key, or --operator-key-file, got neither"
        )
    with open_silo(address.url, address.read_key(), ca, "--operator-key-file") as silo:
        yield silo


def refresh(
    silo: Settings = None,
    operator_key_file: OperatorKey = None,
    client_url: Url = None,
    ca: options.Authority = None,
    wait: Annotated[bool, typer.Option(help="Wait until the refresh has ended")] = True,
    as_json: options.AsJson = False,
) -> None:
    """Merges posted interactions into a client's shard, and computes its model again.

    During a run it waits for the end of the round.
    """
    with _open_as_operator(silo, client_url, operator_key_file, ca) as client:
        standing = client.refresh()
        if wait:
            with step("waiting for the refresh"):
                standing = _wait_for_refresh(client, standing.number)
    if as_json:
        values = {name: value for name, value in asdict(standing).items() if value is not None}
        times = {name: values[name].isoformat() for name in ("asked_at", "ended_at") if name in values}
        options.print_json(values | times)
    else:
        OUT.print(_describe_refresh(standing), soft_wrap=True)
    if standing.problem is not None:
        raise FederationError(f"the shard was not refreshed: {standing.problem}")


def models(
    silo: Settings = None,
    operator_key_file: OperatorKey = None,
    client_url: Url = None,
    serve: Annotated[str | None, typer.Option(help="Version of the model that answers from now on")] = None,
    ca: options.Authority = None,
    as_json: options.AsJson = False,
) -> None:
    """Lists the models that a client keeps, or rolls back to an earlier one.

    The chosen model answers until a run yields one that is better by validation.
    """
    with _open_as_operator(silo, client_url, operator_key_file, ca) as client:
        kept = client.list_models() if serve is None else client.serve_model(serve)
    if as_json:
        return options.print_json({"models": [asdict(one) for one in kept]})
    for one in kept:
        values = ", ".join(f"{name} {value:.4f}" for name, value in one.values.items())
        earlier = "" if one.present_shard else "  (of the shard before a refresh)"
        served = "*" if one.served else " "
        OUT.print(f"{served} {one.version:<16} {values}{earlier}", highlight=False, soft_wrap=True)


def _wait_for_refresh(silo: Client, number: int | None) -> ShardRefresh:
    """Waits until the refresh of this number has ended.

    A client of an earlier version has no number: then until it is idle.
    """
    while True:
        standing = silo.read_refresh()
        if standing.phase == "idle" if number is None else (standing.last_ended or 0) >= number:
            return standing
        time.sleep(POLL_SECONDS)


def _describe_refresh(standing: ShardRefresh) -> str:
    if standing.phase != "idle" or standing.problem is not None:
        return f"refresh: {standing.phase}"
    if not standing.changed:
        return "no new interactions: the shard is unchanged"
    waiting = f"; {count_noun(standing.waiting, 'interaction')} wait for the catalogue" if standing.waiting else ""
    answers = standing.model or "popular items"
    return f"the shard is refreshed in {standing.seconds or 0.0:.1f} s; {answers} answers{waiting}"
