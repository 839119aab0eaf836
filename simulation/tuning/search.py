"""Search of the settings that validation prefers, stored in SQLite and resumable."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import optuna
from optuna.trial import TrialState

from client_service.federation.messages import QualityOut
from client_service.runtime.device import DeviceChoice
from client_service.tasks import task_named
from shared.errors import FederationError, SettingsError
from shared.files import open_replacement
from shared.method.settings import MethodSettings, override_settings
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Federation, execute_run, ignore_progress
from simulation.experiments.in_process import fail_when_stuck, open_federation
from simulation.experiments.tasks import simulated_task
from simulation.tuning.spaces import Space, initial_value

POLL_SECONDS = 0.1

ObserveRound = Callable[[int, float], None]
"""(round, client mean of the primary measure on validation items) -> None; an error that it raises ends the run."""
Curves = dict[str, dict[int, float]]
"""Primary measure on validation items by client and round; round 0 is the start."""


def validate_experiment(experiment: Experiment, observe: ObserveRound) -> float:
    """Runs an experiment in this process; returns the client mean of each client's best round.

    That is what each client would serve. `observe` is called once a round, in order. Raises FederationError when the
    run fails, or a client cannot continue.
    """
    curves = anyio.run(_follow_run, experiment, observe)
    return math.fsum(max(curve.values()) for curve in curves.values()) / len(curves)


async def _follow_run(experiment: Experiment, observe: ObserveRound) -> Curves:
    primary = simulated_task(experiment.task).choose_primary(experiment.shards)
    async with open_federation(experiment) as federation:
        run = asyncio.create_task(execute_run(federation, experiment.run_request(), fail_when_stuck(ignore_progress)))
        try:
            return await _observe_rounds(federation, run, primary, observe)
        finally:
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)


async def _observe_rounds(
    federation: Federation, run: asyncio.Task[object], primary: str, observe: ObserveRound
) -> Curves:
    heard = 0
    while True:
        done, _ = await asyncio.wait({run}, timeout=POLL_SECONDS)
        for finished in done:
            finished.result()
        curves = await _fetch_curves(federation, primary)
        complete = set.intersection(*(set(curve) for curve in curves.values()))
        for number in sorted(complete - set(range(heard + 1))):
            observe(number, math.fsum(curve[number] for curve in curves.values()) / len(curves))
            heard = number
        if done:
            return curves


async def _fetch_curves(federation: Federation, primary: str) -> Curves:
    """Fetches each silo's validation curve from its own API."""
    answers = {name: await http.get("/v1/quality") for name, http in federation.clients.items()}
    qualities = {name: QualityOut.model_validate_json(answer.content) for name, answer in answers.items()}
    return {
        name: {entry.round: entry.values[primary] for entry in quality.rounds} for name, quality in qualities.items()
    }


STUDY = "lpsfed-tune"
DATABASE = "study.db"
RANDOM_TRIALS = 5  # before the sampler has enough to go by, and before anything is pruned


@dataclass(frozen=True)
class Search:
    """Plan of a search: shards, strategy, fixed settings, and cost of a trial.

    The shards have no test pairs. cache: where set, a folder that keeps the shards' spectra from one trial to the next.
    """

    shards: tuple[Path, ...]
    strategy: str
    base: MethodSettings
    space: Space
    rounds: int
    seed: int = 0
    device: DeviceChoice = "auto"
    threads: int = 1
    cache: Path | None = None
    task: str = "items"

    def make_experiment(self, values: dict[str, Any], folder: Path) -> Experiment:
        """Builds one trial; all share the seed, so that only their settings differ."""
        method = override_settings(self.base.model_dump(), values)
        return Experiment(
            shards=self.shards,
            folder=folder,
            method=method,
            strategy=self.strategy,
            rounds=self.rounds,
            seed=self.seed,
            device=self.device,
            threads=self.threads,
            cache=self.cache,
            task=self.task,
        )

    def description(self) -> dict[str, Any]:
        """Describes what two trials must have in common to be compared, in JSON types."""
        space = {name: optuna.distributions.distribution_to_json(values) for name, values in self.space.items()}
        return {
            "strategy": self.strategy,
            "rounds": self.rounds,
            "seed": self.seed,
            "settings": self.base.model_dump(mode="json"),
            "space": space,
            "shards": {path.name: simulated_task(self.task).digest(path) for path in self.shards},
        }


def open_study(plan: Search, folder: Path) -> optuna.Study:
    """Opens the study in `folder`, or creates one.

    Raises SettingsError for the study of another search: its trials could not be compared with new ones.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    # Rounds without a margin say nothing about the settings that only act later.
    warmup = plan.base.warmup(plan.rounds) + 1  # the first round in which a trial may be ended
    pruner = optuna.pruners.MedianPruner(n_startup_trials=RANDOM_TRIALS, n_warmup_steps=warmup)
    study = optuna.create_study(
        study_name=STUDY,
        storage=f"sqlite:///{folder / DATABASE}",
        direction="maximize",
        load_if_exists=True,
        pruner=pruner,
    )
    described = plan.description()
    kept = study.user_attrs.get("task")
    if kept is None:
        study.set_user_attr("task", described)
    elif other := sorted(key for key in described if kept.get(key) != described[key]):
        raise SettingsError(
            f"{folder}: expected the settings of the search in this folder, got another {', '.join(other)}"
        )
    return study


def run_search(plan: Search, study: optuna.Study, trials: int, observe: Callable[[str], None]) -> None:
    """Runs trials until there are `trials` in all.

    The first has the settings as they are. `observe` is called after each trial. A failed trial is stored with its
    reason and counts; one that Ctrl-C ended does not count, and the interrupt is raised again.
    """
    _fail_abandoned_trials(study)
    while (spent := len(spent_trials(study))) < trials:
        if spent == 0 and not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            study.enqueue_trial({name: initial_value(name, plan.strategy, plan.base) for name in plan.space})
        # Seeded anew for each trial: a resumed search tries the same values as an uninterrupted one.
        seed = int(np.random.SeedSequence([plan.seed, spent]).generate_state(1)[0])
        study.sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=seed)
        trial = study.ask(plan.space)
        state = _run_trial(plan, study, trial)
        best = _best_trial(study)
        observe(state if best is None else f"best {best.value:.4f}")


def spent_trials(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    """Lists trials that count: complete, pruned, or failed with a reason.

    An interrupted one has no reason.
    """
    states = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)
    trials = study.get_trials(deepcopy=False, states=states)
    return [trial for trial in trials if trial.state != TrialState.FAIL or "reason" in trial.user_attrs]


def summarise_search(plan: Search, study: optuna.Study) -> dict[str, Any]:
    """Summarises the search so far, in the form of best.json.

    Raises FederationError with the last reason when no trial was completed.
    """
    spent, best = spent_trials(study), _best_trial(study)
    if best is None:
        reasons = [trial.user_attrs["reason"] for trial in spent if "reason" in trial.user_attrs]
        raise FederationError(f"tune: expected a completed trial, got none of {len(spent)}; {''.join(reasons[-1:])}")
    first = spent[0]
    return {
        "strategy": plan.strategy,
        "values": best.params,
        "validation": best.value,
        "measure": task_named(plan.task).labels[simulated_task(plan.task).choose_primary(plan.shards)].title,
        "default": first.value if first.state == TrialState.COMPLETE else None,
        "trials": len(spent),
        "pruned": sum(trial.state == TrialState.PRUNED for trial in spent),
        "failed": sum(trial.state == TrialState.FAIL for trial in spent),
        "epochs": sum(trial.user_attrs.get("epochs", 0) for trial in spent),
        "rounds": plan.rounds,
        "seed": plan.seed,
        "settings": override_settings(plan.base.model_dump(), best.params).model_dump(mode="json"),
    }


def write_best_settings(folder: Path, best: dict[str, Any]) -> Path:
    """Writes best.json atomically."""
    path = folder / "best.json"
    with open_replacement(path) as partial:
        partial.write_text(json.dumps(best, indent=1) + "\n", encoding="utf-8")
    return path


def _best_trial(study: optuna.Study) -> optuna.trial.FrozenTrial | None:
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return max(complete, key=lambda trial: trial.value or 0.0, default=None)


def _fail_abandoned_trials(study: optuna.Study) -> None:
    """Marks trials of ended processes, which still run in the records, as failed."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        study.tell(trial.number, state=TrialState.FAIL)


def _run_trial(plan: Search, study: optuna.Study, trial: optuna.Trial) -> str:
    """Runs one trial and records how it ended."""

    def report_round(number: int, mean: float) -> None:
        trial.report(mean, number)
        trial.set_user_attr("epochs", number * plan.base.local_epochs)
        if number < plan.rounds and trial.should_prune():
            raise optuna.TrialPruned

    try:
        with tempfile.TemporaryDirectory(prefix="lpsfed-trial-") as folder:
            value = validate_experiment(plan.make_experiment(trial.params, Path(folder)), report_round)
    except optuna.TrialPruned:
        study.tell(trial, state=TrialState.PRUNED)
        return "pruned"
    except FederationError as error:
        trial.set_user_attr("reason", str(error))
        study.tell(trial, state=TrialState.FAIL)
        return "failed"
    except BaseException:
        study.tell(trial, state=TrialState.FAIL)
        raise
    study.tell(trial, value)
    return "complete"
