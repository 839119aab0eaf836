"""Aggregator as a Flower ServerApp: strategies over the nodes of a SuperLink."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from pydantic import Field

from shared.errors import FederationError, SettingsError, UnavailableError
from shared.message import Message as Settings
from shared.method.settings import PRESET_ROUNDS, Preset, method_settings, validate_settings
from shared.protocol.schemas import RunIn
from shared.strategies import build_strategy
from simulation.engines.host import SiloReply, Verb
from simulation.engines.rounds import EngineResult, RunPlan, execute_runs
from simulation.flower.client_app import KINDS, NAME
from simulation.flower.records import NO_BODY, read_body, read_words, write_records

LOOK_SECONDS = 1.0  # between two looks for nodes


class AppSettings(Settings):
    """Settings of a run in Flower's run config.

    `flwr run . --run-config "rounds=5 strategy='lpsfed'"`.
    """

    strategy: str = "lpsfed"
    preset: Preset = "default"
    set: str = Field("", description="settings of the method, key=value, with a space between two")
    rounds: int = Field(0, ge=0, description="0: the preset's")
    seed: int = Field(0, ge=0)
    clients: int = Field(2, ge=1, description="the run begins when so many nodes are there")
    folder: str = Field("flower-run", description="for the state of the run; the same command goes on from it")
    wait_seconds: float = Field(600.0, gt=0, description="for the nodes to be there")
    reply_seconds: float = Field(3600.0, gt=0, description="for all nodes to answer one step")
    shards: str = Field("", description="of a simulation: a folder of shards, one for each node")
    states: str = Field("", description="of a simulation: for the silos' own files")


def read_app_settings(config: Mapping[str, Any]) -> AppSettings:
    """Reads settings from the run config; raises SettingsError for unknown or wrong ones."""
    return validate_settings(AppSettings, {name.replace("-", "_"): value for name, value in config.items()})


def run_request(settings: AppSettings) -> RunIn:
    """Builds the request that an operator would send to the aggregator service."""
    words = [word.partition("=") for word in settings.set.split()]
    method = method_settings(settings.preset, **{key: value for key, _, value in words})
    strategy = build_strategy(settings.strategy, method)
    rounds = settings.rounds or strategy.enough_rounds or PRESET_ROUNDS[settings.preset]
    if strategy.shares_items(method) and not method.catalogue:
        raise SettingsError("set: expected catalogue=N, the size of the list of items that all silos share, got none")
    asked = {"rounds": rounds, "seed": settings.seed, "clients": settings.clients, "method": method}
    return validate_settings(RunIn, asked)


class GridWorkers:
    """Silos behind a Flower grid; each call is a message to a node."""

    def __init__(self, grid: Grid, strategy: str, nodes: Mapping[str, int], reply_seconds: float) -> None:
        self._grid, self._strategy, self._nodes, self._reply_seconds = grid, strategy, nodes, reply_seconds
        self._terms: dict[str, Any] = {}

    def call(self, verb: Verb, each: Mapping[str, tuple[Any, ...]]) -> Iterator[SiloReply]:
        """Calls all nodes at once.

        Raises FederationError for one that fails, UnavailableError for one that does not answer.
        """
        names = {node: name for name, node in self._nodes.items()}
        messages = [self._message(name, verb, arguments) for name, arguments in each.items()]
        replies = send_to_all(self._grid, messages, names, self._reply_seconds)
        for name, reply in replies.items():
            body = read_body(reply.content)
            yield SiloReply(name, body if verb == "fit" else read_words(reply.content)["applied"])

    def _message(self, name: str, verb: Verb, arguments: tuple[Any, ...]) -> Message:
        words, body = self._encode_call(verb, arguments)
        return Message(write_records(words, body), dst_node_id=self._nodes[name], message_type=KINDS[verb])

    def _encode_call(self, verb: Verb, arguments: tuple[Any, ...]) -> tuple[dict[str, Any], bytes]:
        """Builds the words and body of a message.

        Every message says where the run is, because each may reach another process of the node.
        """
        if verb == "begin":
            terms, body, closed = arguments
            self._terms = {"run": terms.run, "request": terms.request.model_dump(mode="json")}
            return {**self._terms, "strategy": self._strategy, "closed": closed}, body
        last = self._terms["request"]["rounds"]
        number, body = (*arguments, NO_BODY)[:2] if arguments else (last + 1, NO_BODY)
        return {**self._terms, "strategy": self._strategy, "closed": number - 1, "number": number}, body


def send_to_all(
    grid: Grid, messages: Sequence[Message], names: Mapping[int, str], seconds: float
) -> dict[str, Message]:
    """Sends messages and returns every node's reply by name."""
    replies = {}
    for reply in grid.send_and_receive(messages, timeout=seconds):
        name = names[reply.metadata.src_node_id]
        if reply.has_error():
            raise FederationError(f"{name}: {reply.error.reason}")
        replies[name] = reply
    asked = {names[message.metadata.dst_node_id] for message in messages}
    if silent := sorted(asked - replies.keys()):
        raise UnavailableError(f"expected an answer of {silent[0]} within {seconds:g} s, got none")
    return replies


def find_nodes(grid: Grid, count: int, seconds: float) -> dict[str, int]:
    """Finds `count` nodes; returns their numbers by the names of their silos.

    Raises UnavailableError if they do not come in time.
    """
    until = time.monotonic() + seconds
    while len(found := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > until:
            raise UnavailableError(f"expected {count} nodes within {seconds:g} s, got {len(found)}")
        time.sleep(LOOK_SECONDS)
    labels = {node: f"node {node}" for node in found}
    asked = [Message(write_records({}), dst_node_id=node, message_type=NAME) for node in found]
    replies = send_to_all(grid, asked, labels, seconds)
    names = {read_words(reply.content)["name"]: reply.metadata.src_node_id for reply in replies.values()}
    if len(names) < len(found):
        raise FederationError(f"expected {len(found)} silos of different names, got {len(names)}")
    return dict(sorted(names.items())[:count])


def run_on_grid(given: Mapping[str, Any], grid: Grid, context: Context) -> EngineResult:
    """Runs the app's run, or resumes it."""
    settings = read_app_settings({**context.run_config, **given})
    request = run_request(settings)
    nodes = find_nodes(grid, settings.clients, settings.wait_seconds)
    workers = GridWorkers(grid, settings.strategy, nodes, settings.reply_seconds)
    return execute_runs(RunPlan(Path(settings.folder), settings.strategy, tuple(nodes), request), workers)


def make_server_app(given: Mapping[str, Any] | None = None) -> ServerApp:
    """Builds the app.

    given: settings of the run that replace those of Flower's run config.
    """
    app = ServerApp()
    app.main()(partial(_main, dict(given or {})))
    return app


def _main(given: Mapping[str, Any], grid: Grid, context: Context) -> None:
    run_on_grid(given, grid, context)


app = make_server_app()
