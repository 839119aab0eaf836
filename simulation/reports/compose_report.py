"""Report of the value of joining in docker-compose.yml.

`python -m simulation.reports.compose_report ask CLIENT URL FOLDER` in the place of each silo, then `... show FOLDER
EVIDENCE...`.

No figure leaves a silo by the services. Here one person owns all silos, and each silo's figures are asked of it, past
the boundary, for this demonstration alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
from pydantic import ValidationError
from rich.text import Text

from audit.evidence.evidence import PartEvidence, gather_evidence
from client_service.federation.messages import QualityOut
from client_service.joining_value.messages import GroupOut
from shared.errors import DataError, FederationError, UnavailableError
from shared.method.declaration import TRAINING
from shared.protocol.schemas import RunHistoryOut
from shared.timeouts import TIMEOUT_SECONDS
from simulation.reports.averages import user_mean
from simulation.reports.joining_value import ALONE, COMMON, STRICT, RunResult, ServingOption, federated_option
from simulation.reports.tables import joining_value_table, sent_value_lines
from simulation.reports.terminal import OUT

PATIENCE_SECONDS = 1800.0  # for a silo's last evaluation, after the aggregator has ended the run
POLL_SECONDS = 1.0
Qualities = Mapping[str, QualityOut]


def ask_silo(client: str, url: str, folder: Path) -> None:
    """Saves a silo's figures once it has evaluated its last run.

    Raises UnavailableError if it does not in time.
    """
    until = time.monotonic() + PATIENCE_SECONDS
    while not (quality := _fetch_quality(url)).finished:
        if time.monotonic() > until:
            raise UnavailableError(f"{client}: expected the figures of {quality.run}, it has not evaluated it yet")
        time.sleep(POLL_SECONDS)
    (folder / f"{client}.json").write_text(quality.model_dump_json(), encoding="utf-8")


def _fetch_quality(url: str) -> QualityOut:
    answer = httpx.get(f"{url}/v1/quality", timeout=TIMEOUT_SECONDS, trust_env=False)
    return QualityOut.model_validate_json(answer.raise_for_status().content)


def read_qualities(folder: Path) -> Qualities:
    """Reads the saved figures by client.

    Raises DataError without any, or for another file.
    """
    try:
        found = {path.stem: QualityOut.model_validate_json(path.read_bytes()) for path in sorted(folder.glob("*.json"))}
    except ValidationError:
        raise DataError(f"{folder}: expected the figures of the silos, got another file") from None
    if not found:
        raise DataError(f"{folder}: expected the figures of the silos, got none")
    return found


def compare_options(qualities: Qualities, parts: Sequence[PartEvidence]) -> list[ServingOption]:
    """Compares popularity, each silo alone, and the latest federated runs.

    These are the latest run without and the latest with a common basis, if all silos have evaluated one.
    """
    compared = [quality.comparison.groups[:1] for quality in qualities.values() if quality.comparison is not None]
    ways = _local_options([group for groups in compared for group in groups])
    histories = [run for part in parts for run in part.runs if run.phase == "finished"]
    for name, with_basis in ((STRICT, False), (COMMON, True)):
        training = [run for run in histories if _is_training(run, with_basis=with_basis)]
        for run in reversed(training):
            if results := _results(qualities, run.run):
                ways.append(_federated_option(name, results, run, histories, parts))
                break
    return ways


def _is_training(run: RunHistoryOut, *, with_basis: bool) -> bool:
    return run.request.part == TRAINING and (run.request.method.basis.kind != "off") == with_basis


def _local_options(everybody: Sequence[GroupOut]) -> list[ServingOption]:
    """Returns popularity and the silos alone, by the comparisons' groups of all users."""
    users = [group.users for group in everybody]
    means = {
        "popularity": [{"ndcg@20": group.popularity.mean} for group in everybody],
        ALONE: [{"ndcg@20": group.alone.mean} for group in everybody],
    }
    return [
        ServingOption(name=name, figures=user_mean(["ndcg@20"], figures, users), crossed="nothing", bytes=0)
        for name, figures in means.items()
    ]


def _results(qualities: Qualities, run: str) -> list[RunResult]:
    """Returns each silo's result of a run; none where one of them lacks it."""
    known: list[RunResult] = []
    for quality in qualities.values():
        known += [*quality.earlier, quality]
    found = [result for result in known if result.run == run]
    return found if len(found) == len(qualities) else []


def _federated_option(
    name: str,
    results: Sequence[RunResult],
    run: RunHistoryOut,
    histories: Sequence[RunHistoryOut],
    parts: Sequence[PartEvidence],
) -> ServingOption:
    clients = {part.name: part for part in parts if part.role == "client"}
    declaration = next(part.declaration for part in clients.values() if part.declaration is not None)
    newest = {one.request.part: one.run for one in histories if one.request.part != TRAINING}
    before = [] if name == STRICT else list(newest.values())
    ledgers = {client: part.entries for client, part in clients.items()}
    return federated_option(name, results, (*before, run.run), ledgers, declaration)


def print_joining_value(folder: Path, evidence: Sequence[Path]) -> None:
    """Prints the figures of all silos' users, and the values sent for them."""
    ways = compare_options(read_qualities(folder), gather_evidence(evidence))
    OUT.print(Text("\n3. What joining is worth", "bold"))
    OUT.print("No figure leaves a silo by the services: for this demonstration alone each silo was asked for its own.")
    OUT.print(joining_value_table(ways))
    for line in sent_value_lines(ways):
        OUT.print(line, markup=False)


def main(arguments: Sequence[str]) -> int:
    try:
        match arguments:
            case ["ask", client, url, folder]:
                ask_silo(client, url, Path(folder))
            case ["show", folder, *evidence]:
                print_joining_value(Path(folder), [Path(path) for path in evidence])
            case _:
                raise DataError("expected ask CLIENT URL FOLDER, or show FOLDER EVIDENCE..., got something else")
    except (FederationError, httpx.HTTPError) as error:
        sys.stderr.write(f"worth: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
