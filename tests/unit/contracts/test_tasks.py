"""What every task of the registry must hold: a new one needs a line in SILOS, and no test of its own for this."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from client_service.federation.best_model import load_model
from client_service.federation.messages import RoundCosts
from client_service.federation.run_records import load_quality
from client_service.federation.training_run import TrainingRun
from client_service.http.server import Server
from client_service.model_store.model_files import ModelHead, load_parameters
from client_service.runtime.device import pin_threads
from client_service.runtime.interruption import NEVER
from client_service.settings import ClientSettings
from client_service.tasks import TASKS, task_named
from client_service.tasks.page_texts import Question
from client_service.tasks.task import RunContext, Task
from client_service.training.training_state import RoundContext
from shared.errors import SettingsError
from shared.method.parameters import Parameters
from shared.method.tensors import EXCHANGES
from shared.strategies import build_strategy
from tests.support.given import Silos
from tests.support.nodes import node_silo
from tests.support.small import small_client
from tests.support.visits import session_silo

CPU = torch.device("cpu")
Silo = Callable[[Path, Silos], ClientSettings]
SILOS: dict[str, Silo] = {
    "items": lambda folder, silos: small_client(silos(1)[0], folder),
    "sessions": lambda folder, silos: session_silo(folder),  # noqa: ARG005
    "nodes": lambda folder, silos: node_silo(folder, model="unifilter"),  # noqa: ARG005
}
"""Of each task: settings of a small silo, whose shard lies in a folder."""


@dataclass(frozen=True)
class Given:
    """A task with a silo of it."""

    task: Task[Any, Any]
    settings: ClientSettings
    shard: Any
    context: RunContext

    def begin(self) -> Any:
        return self.task.begin(self.context, self.shard, CPU, NEVER)[0]

    def trained(self, rounds: int = 1) -> Any:
        training = self.begin()
        for number in range(1, rounds + 1):
            training.context = RoundContext(number, 2, 0)
            training.train()
        return training

    def judge(self, training: Any) -> dict[str, float]:
        served = self.task.freeze("run-1.1", training)
        return dict(self.task.judge(self.shard, served, NEVER).values)


@pytest.fixture(params=TASKS)
def given(request: pytest.FixtureRequest, tmp_path: Path, silos: Silos) -> Given:
    pin_threads(1)
    task, settings = task_named(request.param), SILOS[request.param](tmp_path, silos)
    context = RunContext(settings.name, "run-1", 0, settings.method, settings.models_directory)
    return Given(task, settings, task.read(settings), context)


def values(training: Any) -> dict[str, np.ndarray]:
    return {name: value.detach().cpu().numpy().copy() for name, value in training.model.named_parameters()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(value, other[name]) for name, value in one.items())


def test_it_is_registered_under_its_name_with_a_model_and_a_primary_measure(given: Given) -> None:
    task = given.task
    assert TASKS[task.name] is task and task.primary in task.labels
    assert task.name in {one.task for one in EXCHANGES.values()}
    assert all(task.nouns) and given.task.count(given.shard).edges > 0
    with pytest.raises(SettingsError, match="task: expected one of"):
        task_named("no such task")


def test_what_it_shares_is_what_its_model_declares(given: Given) -> None:
    training, method = given.begin(), given.settings.method
    declared = {tensor.name: tensor.shape for tensor in EXCHANGES[method.model].tensors(method)}
    assert {name: value.shape for name, value in training.arrays().items()} == declared
    changed = {name: value + 1.0 for name, value in training.arrays().items()}
    training.load(Parameters(changed))
    assert same(dict(training.arrays()), changed) and same(dict(training.received.arrays), changed)


def test_a_run_begins_and_trains_alike_each_time(given: Given) -> None:
    one, other = given.begin(), given.begin()
    assert same(values(one), values(other))
    one, other = given.trained(), given.trained()
    assert same(values(one), values(other)) and not same(values(one), values(given.begin()))
    assert np.isfinite(one.figures.loss)


def test_a_model_of_another_task_is_refused(given: Given) -> None:
    other = next(name for name, one in EXCHANGES.items() if one.task != given.task.name)
    catalogue = max(given.settings.method.catalogue, 12)
    method = given.settings.method.model_copy(update={"model": other, "catalogue": catalogue})
    context = RunContext(given.settings.name, "run-1", 0, method, given.settings.models_directory)
    with pytest.raises(SettingsError, match=f"model: expected one for task '{given.task.name}'"):
        given.task.begin(context, given.shard, CPU, NEVER)


def test_training_goes_on_from_its_state_to_the_bit(given: Given) -> None:
    whole, again = given.trained(2), given.begin()
    state = given.trained(1).state()
    assert again.fits(state)
    again.restore(state)
    again.context = RoundContext(2, 2, 0)
    again.train()
    assert same(values(whole), values(again))


def test_a_frozen_model_answers_as_it_was(given: Given) -> None:
    training = given.trained()
    frozen = given.task.freeze("run-1.1", training)
    before = given.task.judge(given.shard, frozen, NEVER)
    training.train()
    after = given.task.judge(given.shard, frozen, NEVER)
    assert before.values == after.values and frozen.version == "run-1.1"
    assert before.primary in given.task.labels and set(before.values) == set(given.task.labels)


def test_what_was_trained_is_carried_to_a_model_on_the_same_shard_and_to_no_other_catalogue(given: Given) -> None:
    trained, fresh = given.trained(), given.begin()
    parameters = {name: torch.from_numpy(value) for name, value in values(trained).items()}
    rows = given.task.rows(given.shard)
    untouched = values(fresh)
    assert not fresh.transfer({**parameters, "another": torch.zeros(1)}, rows) and same(values(fresh), untouched)
    assert fresh.transfer(parameters, rows)
    assert given.judge(fresh) == given.judge(trained)


def test_a_run_serves_keeps_and_tests_its_best_model(given: Given) -> None:
    answers = given.task.answer(given.shard)
    strategy = build_strategy("fedavg", given.settings.method)
    run = TrainingRun(given.context, given.task, given.shard, answers, CPU)
    run.begin(Parameters(given.begin().arrays()), 0)
    update, _ = run.fit(strategy, RoundContext(1, 1, 0), Parameters(given.begin().arrays()))
    run.apply(update, RoundCosts(round=1))
    assert answers.served is not None and answers.shown_items > 0 and answers.score_meaning
    run.finish()
    assert set(run.quality.test or {}) == {label.key for label in given.task.labels.values()}
    assert run.quality.finished and load_quality(given.context.folder, given.settings.name).test == run.quality.test
    kept = load_model(given.task, given.shard, given.context.folder, CPU)
    assert kept is not None and kept.version == answers.served.version
    best = next(one for one in run.quality.rounds if one.round == run.quality.best_round)
    assert given.task.judge(given.shard, kept, NEVER).values == best.values


def test_a_model_is_rebuilt_from_its_head_and_parameters(given: Given) -> None:
    answers = given.task.answer(given.shard)
    run = TrainingRun(given.context, given.task, given.shard, answers, CPU)
    run.begin(Parameters(given.begin().arrays()), 0)
    folder = given.context.folder
    head = ModelHead.model_validate_json((folder / "model.json").read_text(encoding="utf-8"))
    rebuilt = given.task.rebuild(head, given.shard, folder, CPU)
    assert load_parameters(folder, head, rebuilt.model)
    assert given.judge(rebuilt) == dict(head.values)


def test_its_answers_open_in_the_client_and_in_a_server(given: Given) -> None:
    opened = given.task.open(given.settings, given.shard)
    assert (opened.feedback is None) is (given.task.events is None)
    server = Server(given.settings)
    server._load_publication()
    assert type(server.answers) is type(opened.answers)
    for answers in (opened.answers, server.answers):
        assert answers.served is None and isinstance(answers, type(given.task.answer(given.shard)))
        trial = given.task.try_out(Question(None, None, 5), answers)
        assert trial.heading is None and trial.items == ()
        answers.close()
    if opened.feedback is not None:
        opened.feedback.close()
        server.log.close()


def test_what_it_has_not_is_refused_by_the_name_of_the_setting(given: Given) -> None:
    """A task leaves out what it has not: nobody writes a refusal."""
    optional = {field.name for field in fields(Task) if field.default is None}
    assert optional == {"relate", "summarise", "refitting", "events", "publish"}
    task, settings, shard, folder = given.task, given.settings, given.shard, given.context.folder
    bare = Task(**{f.name: getattr(task, f.name) for f in fields(Task) if f.name not in optional})
    assert bare.read(settings).digest == shard.digest
    for changes in ({"refresh_seconds": 60.0}, {"refresh_interactions": 5}, {"fit_everything": True}):
        [name] = changes
        with pytest.raises(SettingsError, match=f"^{name}: expected .* with task '{task.name}', which has no "):
            bare.read(settings.model_copy(update=changes))
    for ask in (lambda: bare.include_all_data(shard), lambda: bare.refit(shard, folder, CPU)):
        with pytest.raises(SettingsError, match=f"^fit_everything: expected false with task '{task.name}'"):
            ask()
    assert bare.open(settings, shard).feedback is None
