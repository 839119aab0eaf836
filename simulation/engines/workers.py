"""Runs an experiment on workers that host its silos; `rounds` has the loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

from client_service.federation.messages import QualityOut, StatusOut
from client_service.settings import ClientSettings
from shared.errors import SettingsError
from shared.method.declaration import Part
from simulation.engines.host import SiloReply
from simulation.engines.rounds import RunPlan, Workers, execute_runs
from simulation.engines.run_folders import write_changes
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Observe, Outcome, Progress


class HostingWorkers(Workers, Protocol):
    """Workers that host the experiment's silos."""

    def host_silos(self, silos: Iterator[ClientSettings]) -> None:
        """Hosts the silos of these settings, each until the workers end."""


def run_on_workers(experiment: Experiment, observe: Observe, workers: HostingWorkers) -> Outcome:
    """Runs the experiment, or resumes it after its last stored round."""
    require_no_boundary(experiment)
    workers.host_silos(experiment.make_silo_settings(shard) for shard in experiment.shards)
    watch = _RunObserver(experiment, observe)
    plan = RunPlan(experiment.folder, experiment.strategy, experiment.names, experiment.run_request())
    held = execute_runs(plan, workers, watch.note_reply)
    return Outcome(
        history=held.history,
        qualities=watch.qualities,
        statuses=watch.statuses,
        seconds=held.seconds,
        silo_seconds=held.silo_seconds,
        round_seconds=held.round_seconds,
    )


def require_no_boundary(experiment: Experiment) -> None:
    """Raises SettingsError for an experiment that needs the services.

    These have the privacy boundary, and silos that join late.
    """
    if experiment.late:
        raise SettingsError("--scenario late-joiner: expected it with --engine services alone, where silos join")
    for flag, asked in (("--secure", experiment.secure), ("--privacy", bool(experiment.privacy))):
        if asked:
            raise SettingsError(f"{flag}: expected it with --engine services alone, because others have no boundary")


class _RunObserver:
    """Observer that saves the silos' files and reports their progress."""

    def __init__(self, experiment: Experiment, observe: Observe) -> None:
        self._folder, self._observe, self._since = experiment.folder, observe, time.perf_counter()
        self.statuses: dict[str, StatusOut] = {}
        self.qualities: dict[str, QualityOut] = {}

    def note_reply(self, reply: SiloReply, rounds: int, part: Part) -> None:
        report = reply.report
        assert report is not None, "expected a silo of this experiment"
        write_changes(self._folder / reply.client, report.changes)
        self.statuses[reply.client], self.qualities[reply.client] = report.status, report.quality
        self._observe(Progress(self.statuses, rounds, time.perf_counter() - self._since, part))
