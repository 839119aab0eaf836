"""Silo as a Flower ClientApp.

Each message may reach another process: all state of a silo is in its own folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_service.runtime.device import pin_threads
from client_service.settings import ClientSettings, client_settings
from shared.errors import PrivacyError, SettingsError
from shared.protocol.schemas import RunIn
from simulation.engines.silo import FittedUpdate, RunTerms, SiloRun
from simulation.experiments.experiment import Experiment
from simulation.flower.records import NO_BODY, read_body, read_words, write_records
from simulation.partitioning.sources import find_shards

KINDS = {"begin": "query.begin", "fit": "train.fit", "apply": "evaluate.apply", "finish": "evaluate.finish"}
"""The type of the message by which the server asks for a verb of `SiloRun`."""
NAME = "query.name"
SENT = "sent"  # of the record that Flower keeps beside this node between a round's two messages


def make_client_app(given: Mapping[str, Any] | None = None) -> ClientApp:
    """Builds the app.

    given: settings of the run that replace those of Flower's run config.
    """
    app, config = ClientApp(), dict(given or {})
    app.query("name")(partial(_tell_name, config))
    app.query("begin")(partial(_answer, config, _begin))
    app.train("fit")(partial(_answer, config, _fit))
    app.evaluate("apply")(partial(_answer, config, _apply))
    app.evaluate("finish")(partial(_answer, config, _finish))
    return app


Act = Callable[[SiloRun, dict[str, Any], bytes, RecordDict], tuple[dict[str, Any], bytes]]
"""Function of silo, words, body and the node's state, which returns the words and the body of the reply."""


def _answer(config: Mapping[str, Any], act: Act, message: Message, context: Context) -> Message:
    words, body = read_words(message.content), read_body(message.content)
    settings = find_settings(context, config, words)
    if settings.strategy != words["strategy"]:
        raise PrivacyError(f"expected a run with {settings.strategy!r}, as this silo has it, got {words['strategy']!r}")
    pin_threads(settings.threads)
    silo = SiloRun(settings)
    terms = RunTerms(words["run"], RunIn.model_validate(words["request"]))
    applied = silo.begin(terms, body if act is _begin else NO_BODY, words["closed"])
    said, given = act(silo, words, body, context.state)
    return Message(write_records({"applied": applied, **said}, given), reply_to=message)


def _begin(silo: SiloRun, words: dict[str, Any], body: bytes, state: RecordDict) -> tuple[dict[str, Any], bytes]:
    del silo, words, body, state  # every message begins so
    return {}, NO_BODY


def _fit(silo: SiloRun, words: dict[str, Any], body: bytes, state: RecordDict) -> tuple[dict[str, Any], bytes]:
    del body
    update = silo.fit(words["number"])
    state[SENT] = write_records(silo.save_fitted(words["number"]).model_dump()).config_records["words"]
    return {}, update


def _apply(silo: SiloRun, words: dict[str, Any], body: bytes, state: RecordDict) -> tuple[dict[str, Any], bytes]:
    sent = FittedUpdate.model_validate(read_words(RecordDict({"words": state.config_records[SENT]})))
    silo.resume_fitted(sent)
    return {"applied": silo.apply(words["number"], body)}, NO_BODY


def _finish(silo: SiloRun, words: dict[str, Any], body: bytes, state: RecordDict) -> tuple[dict[str, Any], bytes]:
    del words, body, state
    silo.finish()
    return {}, NO_BODY


def _tell_name(config: Mapping[str, Any], message: Message, context: Context) -> Message:
    return Message(write_records({"name": silo_name_of_node(context, config)}), reply_to=message)


def silo_name_of_node(context: Context, config: Mapping[str, Any]) -> str:
    """Returns the silo's name: of its settings file, or in a simulation of its shard."""
    if "settings" in context.node_config:
        return client_settings(Path(str(context.node_config["settings"]))).name
    return _shard_of_node(context, config)[1].name


def find_settings(context: Context, config: Mapping[str, Any], words: Mapping[str, Any]) -> ClientSettings:
    """Reads the settings of the silo's own file, or of a simulated silo.

    `--node-config settings=...` names the file, which no message changes. Raises SettingsError if both are missing.
    """
    if "settings" in context.node_config:
        return client_settings(Path(str(context.node_config["settings"])))
    (shards, own), request = _shard_of_node(context, config), RunIn.model_validate(words["request"])
    states = Path(str(_setting(context, config, "states")))
    experiment = Experiment(shards, states, request.method, words["strategy"], rounds=request.rounds)
    return experiment.make_silo_settings(own)


def _shard_of_node(context: Context, config: Mapping[str, Any]) -> tuple[tuple[Path, ...], Path]:
    """Returns the shards of a folder, and that of a simulated node by its number."""
    number = context.node_config.get("partition-id")
    found = find_shards(Path(str(_setting(context, config, "shards"))))
    if number is None or found is None:
        raise SettingsError("expected --node-config settings=FILE, or in a simulation a folder of shards, got neither")
    return found.paths, found.paths[int(number)]


def _setting(context: Context, config: Mapping[str, Any], name: str) -> Any:
    return config.get(name, context.run_config.get(name, ""))


app = make_client_app()
