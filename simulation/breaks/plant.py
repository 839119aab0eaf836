"""Plants faults in a running federation, makes its report, and restores everything."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from audit.report import PrivacyReport
from shared.errors import SettingsError, UnavailableError
from simulation.breaks.federation import ComposeFederation
from simulation.breaks.kinds import Break, VolumeScript, known_breaks

BACKUP_VOLUME = "break"  # the volume with a copy of all states and evidence; while it exists, a break is planted
READY_SECONDS = 600.0
PAUSE_SECONDS = 0.5
READY = ("sh", "/opt/code/shared/web/ready.sh", "/tmp/ready")
DISPLAY_FLAGS = ("--demonstrate", "--brief")  # of the report that `up` ends with


def is_planted(federation: ComposeFederation) -> bool:
    """Tells whether a fault is planted: the volume with the copy of all states exists."""
    return federation.volume_name(BACKUP_VOLUME) in federation.engine.read_output("volume", "ls", "--quiet").split()


def plant_breaks(federation: ComposeFederation, kinds: Sequence[str]) -> None:
    """Plants all these faults at once. Raises SettingsError if one is planted already."""
    if is_planted(federation):
        raise SettingsError(f"{federation.project}: expected no planted fault, got one; --mend removes it")
    _copy_volumes(federation)
    breaks = _chosen_breaks(federation, kinds)
    for errand in (planted.before for planted in breaks if planted.before):
        _run_volume_script(federation, errand)
    changed = _service_changes(breaks)
    if changed:
        with _override_file(changed) as override:
            federation.bring_up(sorted(changed), override)
    _wait_until_ready(federation)


def repeat_probes(federation: ComposeFederation, kinds: Sequence[str] = ()) -> None:
    """Runs every probe again, then the scripts that change the evidence."""
    federation.run_script({"meeting": "/meeting"}, "rm -f /meeting/*")
    federation.bring_up(federation.probes, anew=True)  # an old one is tied to a container that may be gone
    for name in federation.probes:
        code = federation.engine.read_output("wait", federation.container_name(name)).strip()
        if code != "0":
            raise UnavailableError(f"{name}: expected the probe to succeed, got exit code {code}")
    for errand in (planted.after for planted in _chosen_breaks(federation, kinds) if planted.after):
        _run_volume_script(federation, errand)


def make_report(federation: ComposeFederation) -> PrivacyReport:
    """Makes the privacy report from the present evidence."""
    words = [word for word in federation.container_command("report") if word not in DISPLAY_FLAGS]
    command = (*federation.compose, "run", "--rm", "-T", "--no-deps", "report", "--json", *words)
    _, output = federation.engine.run_command(*command, environment=federation.choices, exit_codes=(0, 1))
    if "{" not in output:
        told = output.strip()[-300:] or "nothing"
        raise UnavailableError(f"report: expected JSON, got {told}: are the federation's compose files still there?")
    content, _ = json.JSONDecoder().raw_decode(output[output.find("{") :])
    return PrivacyReport.model_validate(content)


def mend_breaks(federation: ComposeFederation) -> None:
    """Restores containers, states and evidence. Raises SettingsError without planted faults."""
    if not is_planted(federation):
        raise SettingsError(f"{federation.project}: expected a planted fault, got none")
    federation.engine.run_command("docker", "stop", *(federation.container_name(name) for name in federation.writers))
    volumes = {name: f"/to/{name}" for name in federation.volumes} | {BACKUP_VOLUME: "/audit/evidence:ro"}
    script = 'for one in /to/*; do find "$one" -mindepth 1 -delete; cp -a "/audit/evidence/${one##*/}/." "$one/"; done'
    federation.run_script(volumes, script)
    federation.bring_up(federation.parts)
    _wait_until_ready(federation)
    federation.engine.run_command("docker", "volume", "rm", federation.volume_name(BACKUP_VOLUME))


def match_faults(planted: Break, report: PrivacyReport) -> Iterator[tuple[str, str | None]]:
    """Yields each text that the report must have, and the line with it, or None."""
    faults = [f"{fault}" for finding in report.findings for fault in finding.faults]
    for wanted in planted.faults:
        parts = wanted.split(", ")
        yield wanted, next((fault for fault in faults if all(part in fault for part in parts)), None)


def _copy_volumes(federation: ComposeFederation) -> None:
    """Copies the volumes that a fault could change, while their services are paused.

    The image's folder gives the new volume its owner.
    """
    writers = [federation.container_name(name) for name in federation.writers]
    federation.engine.run_command("docker", "pause", *writers)
    try:
        volumes = {name: f"/from/{name}:ro,nocopy" for name in federation.volumes} | {BACKUP_VOLUME: "/audit/evidence"}
        federation.run_script(volumes, "cp -a /from/* /audit/evidence/")
    finally:
        federation.engine.run_command("docker", "unpause", *writers)


def _run_volume_script(federation: ComposeFederation, errand: VolumeScript) -> None:
    federation.run_script(errand.volumes, errand.script, **errand.variables)


def _chosen_breaks(federation: ComposeFederation, kinds: Sequence[str]) -> list[Break]:
    known = known_breaks(federation.silos)
    return [known[kind] for kind in kinds]


def _service_changes(breaks: Sequence[Break]) -> dict[str, Any]:
    """Merges the changes of several faults by service."""
    services: dict[str, Any] = {}
    for planted in breaks:
        for name, changes in planted.services.items():
            services[name] = {**services.get(name, {}), **changes}
    return services


@contextmanager
def _override_file(services: Mapping[str, Any]) -> Iterator[Path]:
    """Writes an override file for Compose (JSON is YAML too), and removes it afterwards."""
    with tempfile.TemporaryDirectory(prefix="lpsfed-break-") as folder:
        path = Path(folder) / "override.yml"
        path.write_text(json.dumps({"services": services}, indent=1), encoding="utf-8")
        yield path


def _wait_until_ready(federation: ComposeFederation) -> None:
    """Waits for every service by its image's health check."""
    until = time.monotonic() + READY_SECONDS
    for name in federation.writers:
        check = ("exec", federation.container_name(name), *READY)
        while not _command_succeeds(federation, check):
            if time.monotonic() > until:
                raise UnavailableError(f"{name}: expected it to be ready within {READY_SECONDS:g} s, got no answer")
            time.sleep(PAUSE_SECONDS)


def _command_succeeds(federation: ComposeFederation, check: Sequence[str]) -> bool:
    try:
        federation.engine.read_output(*check)
    except UnavailableError:
        return False
    return True
