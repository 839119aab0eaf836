"""Kinds of break -> planted in a running federation, its report asked again, and all of it as it was before."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from audit.report import Report
from shared.errors import SettingsError, UnavailableError
from simulation.breaks.federation import Federation
from simulation.breaks.kinds import Break, Errand, known_breaks

KEPT = "break"  # the volume with all states and evidence as they were: while it is there, something is planted
READY_SECONDS = 600.0
PAUSE_SECONDS = 0.5
READY = ("sh", "/opt/code/shared/web/ready.sh", "/tmp/ready")
FOR_PEOPLE = ("--demonstrate", "--brief")  # of the report that `up` ends with


def is_planted(federation: Federation) -> bool:
    return federation.volume(KEPT) in federation.engine.ask("volume", "ls", "--quiet").split()


def plant(federation: Federation, kinds: Sequence[str]) -> None:
    """All of these at once. SettingsError where something is planted already."""
    if is_planted(federation):
        raise SettingsError(f"{federation.project}: expected no break, got one that is planted; --mend takes it away")
    _keep(federation)
    breaks = _breaks(federation, kinds)
    for errand in (one.before for one in breaks if one.before):
        _run(federation, errand)
    changed = _services(breaks)
    if changed:
        with _override(changed) as override:
            federation.bring_up(sorted(changed), override)
    _until_ready(federation)


def probe_again(federation: Federation, kinds: Sequence[str] = ()) -> None:
    """Every probe once more, each in the place of the part as it is now; then what the breaks do to their evidence."""
    federation.errand({"meeting": "/meeting"}, "rm -f /meeting/*")
    federation.bring_up(federation.probes, anew=True)  # an old one is tied to a container that may be gone
    for name in federation.probes:
        code = federation.engine.ask("wait", federation.container(name)).strip()
        if code != "0":
            raise UnavailableError(f"{name}: expected a probe that writes down what it saw, got exit code {code}")
    for errand in (one.after for one in _breaks(federation, kinds) if one.after):
        _run(federation, errand)


def ask_report(federation: Federation) -> Report:
    """The verdict over the evidence that lies there."""
    asked = [word for word in federation.command("report") if word not in FOR_PEOPLE]
    command = (*federation.compose, "run", "--rm", "-T", "--no-deps", "report", "--json", *asked)
    _, said = federation.engine.do(*command, environment=federation.chosen, may_end_with=(0, 1))
    found, _ = json.JSONDecoder().raw_decode(said[said.find("{") :])
    return Report.model_validate(found)


def mend(federation: Federation) -> None:
    """Containers, states and evidence as they were before. SettingsError where nothing is planted."""
    if not is_planted(federation):
        raise SettingsError(f"{federation.project}: expected a planted break, got none")
    federation.engine.do("docker", "stop", *(federation.container(name) for name in federation.writers))
    back = {name: f"/to/{name}" for name in federation.volumes} | {KEPT: "/audit/evidence:ro"}
    script = 'for one in /to/*; do find "$one" -mindepth 1 -delete; cp -a "/audit/evidence/${one##*/}/." "$one/"; done'
    federation.errand(back, script)
    federation.bring_up(federation.parts)
    _until_ready(federation)
    federation.engine.do("docker", "volume", "rm", federation.volume(KEPT))


def match_faults(planted: Break, report: Report) -> Iterator[tuple[str, str | None]]:
    """What the report must say of a break -> the line in which it does; None where it does not."""
    faults = [f"{fault}" for one in report.findings for fault in one.faults]
    for wanted in planted.faults:
        parts = wanted.split(", ")
        yield wanted, next((one for one in faults if all(part in one for part in parts)), None)


def _keep(federation: Federation) -> None:
    """A copy of everything that a break could leave traces in, while nobody writes. The image's folder gives the new
    volume its owner."""
    writers = [federation.container(name) for name in federation.writers]
    federation.engine.do("docker", "pause", *writers)
    try:
        here = {name: f"/from/{name}:ro,nocopy" for name in federation.volumes} | {KEPT: "/audit/evidence"}
        federation.errand(here, "cp -a /from/* /audit/evidence/")
    finally:
        federation.engine.do("docker", "unpause", *writers)


def _run(federation: Federation, errand: Errand) -> None:
    federation.errand(errand.volumes, errand.script, **errand.said)


def _breaks(federation: Federation, kinds: Sequence[str]) -> list[Break]:
    known = known_breaks(federation.silos)
    return [known[kind] for kind in kinds]


def _services(breaks: Sequence[Break]) -> dict[str, Any]:
    """Of several breaks; two that change the same service add up."""
    found: dict[str, Any] = {}
    for one in breaks:
        for name, said in one.services.items():
            found[name] = {**found.get(name, {}), **said}
    return found


@contextmanager
def _override(services: Mapping[str, Any]) -> Iterator[Path]:
    """A file for compose (JSON is YAML too), for as long as it is needed."""
    with tempfile.TemporaryDirectory(prefix="lpsfed-break-") as folder:
        path = Path(folder) / "override.yml"
        path.write_text(json.dumps({"services": services}, indent=1), encoding="utf-8")
        yield path


def _until_ready(federation: Federation) -> None:
    """Every service by its image's own check, which is asked for as long as the service may take."""
    until = time.monotonic() + READY_SECONDS
    for name in federation.writers:
        check = ("exec", federation.container(name), *READY)
        while not _holds(federation, check):
            if time.monotonic() > until:
                raise UnavailableError(f"{name}: expected it to be ready within {READY_SECONDS:g} s, got no word of it")
            time.sleep(PAUSE_SECONDS)


def _holds(federation: Federation, check: Sequence[str]) -> bool:
    try:
        federation.engine.ask(*check)
    except UnavailableError:
        return False
    return True
